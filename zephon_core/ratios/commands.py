"""`zephon-flows ratios …`: tokens a byte of each data set, the mixtures and the files that follow from them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zephon_core.atomic import write_bytes
from zephon_core.console import (
    FAILED,
    FOUND_WANTING,
    Flag,
    JsonOption,
    StoreOption,
    VerboseOption,
    choose_progress,
    command_errors,
    emit,
    plain,
    spec_and_run,
    with_parameters,
)
from zephon_core.errors import InputError, SpecError
from zephon_core.ratios.tables import show_counts, show_documents, show_drifts, show_json, show_mixture, show_primed, summary

if TYPE_CHECKING:
    from zephon_core.ratios.run import RatioResult
    from zephon_core.ratios.specs import RatioRun, RatioSpec

__all__ = ["app"]

app = typer.Typer(name="ratios", help="Token ratios: tokens a byte of each data set, with an interval.", no_args_is_help=True)

_DATA, _COUNTED, _CHAT, _HOW_SURELY = "Data", "What is counted", "Chat rows", "How surely"
_MIXTURE, _RUN = "Mixture", "How it runs"
_FLAGS = (
    Flag(
        "--dataset",
        "spec.datasets",
        list[str],
        "Folder, glob or URL; repeat it. The same name again adds.",
        "NAME=URL",
        panel=_DATA,
    ),
    Flag("--format", "spec.format", str, "Of the files, whatever their names say.", "NAME", panel=_DATA),
    Flag("--name", "spec.name", str, "What people call this mixture.", "NAME", panel=_DATA),
    Flag("--tokenizer", "spec.tokenizer", str, "The training's tokenizer.", "PATH", panel=_COUNTED),
    Flag("--kind", "spec.kind", str, "text or chat. [default: text]", "KIND", panel=_COUNTED),
    Flag("--field", "spec.field", str, "Dotted path of the text or messages. [default: found by a vote]", "PATH", panel=_COUNTED),
    Flag(
        "--special-tokens",
        "spec.special_tokens",
        str,
        "bos_eos, bos, eos, none, tokenizer_default; so many are counted, whatever the tokenizer has. [default: bos_eos]",
        "MODE",
        panel=_COUNTED,
    ),
    Flag("--max-length", "spec.max_length", str, "The training's limit of a row in tokens.", "N", panel=_COUNTED),
    Flag("--long-rows", "spec.long_rows", str, "truncate or split. [default: truncate]", "MODE", panel=_COUNTED),
    Flag("--missing-field", "spec.missing_field", str, "error or empty. [default: error]", "MODE", panel=_COUNTED),
    Flag("--chat-template", "spec.chat_template", str, "A Jinja template. [default: the tokenizer's]", "FILE", panel=_CHAT),
    Flag("--chat-delivery", "spec.chat_delivery", str, "template or zephon. [default: template]", "MODE", panel=_CHAT),
    Flag(
        "--loss-tokens", "spec.loss_tokens", bool, "Count the assistant's, too. [default: yes]", off="--no-loss-tokens", panel=_CHAT
    ),
    Flag(
        "--op",
        "spec.pre_tokenize_ops",
        list[str],
        "package.module:function, done to rows before; repeat it.",
        "NAME",
        panel=_COUNTED,
    ),
    Flag("--measure", "spec.measure", str, "package.module:function, in place of a tokenizer.", "NAME", panel=_COUNTED),
    Flag("--pin", "spec.pins", list[str], "A known ratio, not measured; repeat it.", "NAME=0.25", panel=_HOW_SURELY),
    Flag("--ratio", "spec.ratio_for_all", float, "One ratio for all; nothing is measured.", "RATIO", panel=_HOW_SURELY),
    Flag("--target-rel-error", "spec.target_rel_error", float, "Wanted half-width. [default: 0.01]", "SHARE", panel=_HOW_SURELY),
    Flag("--confidence", "spec.confidence", float, "Of the interval. [default: 0.95]", "SHARE", panel=_HOW_SURELY),
    Flag("--byte-budget", "spec.byte_budget", str, "Read no more of a data set.", "BYTES", panel=_HOW_SURELY),
    Flag(
        "--exact-below-bytes",
        "spec.exact_below_bytes",
        str,
        "Count smaller ones whole. [default: 1048576]",
        "BYTES",
        panel=_HOW_SURELY,
    ),
    Flag("--samples", "spec.calibration_samples", str, "Draws a data set. [default: 2048]", "N", panel=_HOW_SURELY),
    Flag("--seed", "spec.seed", int, "Of the draws. [default: 0]", "N", panel=_HOW_SURELY),
    Flag("--share", "spec.shares", list[str], "Wanted share of the tokens, in any unit, of each.", "NAME=0.6", panel=_MIXTURE),
    Flag("--budget-tokens", "spec.budget_tokens", float, "Tokens the training will see.", "TOKENS", panel=_MIXTURE),
    Flag("--sample-bytes", "spec.sample_bytes", list[str], "Bytes a row, of what can't say it.", "NAME=2000", panel=_MIXTURE),
    Flag("--workers", "run.workers", int, "Processes that read and count. [default: one a core]", "N", panel=_RUN),
    Flag("--publish", "run.publish", str, "Folder for the one ratio map of all ranks.", "URL", panel=_RUN),
    Flag(
        "--negative-ttl-s",
        "run.negative_ttl_s",
        float,
        "Failures aren't tried again so long. [default: 120]",
        "SECONDS",
        panel=_RUN,
    ),
    Flag("--refresh", "run.refresh", bool, "Measure even what is known, and compare.", off="--no-refresh", panel=_RUN),
    Flag("--store", "run.store", str, "Of measurements. [default: $ZEPHON_STORE or the user cache]", "DIR", panel=_RUN),
)
_OUTPUT = Flag("--output", "run.output", str, "For ratios.json, report.html and the exports.", "DIR", panel=_RUN)


@app.command()
@with_parameters((*_FLAGS, _OUTPUT))
def prime(
    *,
    values: dict[str, Any],
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 3 where a ratio is a guess.", rich_help_panel=_RUN)] = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Get the ratio of every data set: what is known is read, what is pinned is taken, the rest is measured."""
    result = _prime(values, as_json=as_json, verbose=verbose)
    emit(result.to_json(), as_json=as_json, render=lambda: show_primed(result))
    _end(result, strict=strict)


@app.command()
@with_parameters(_FLAGS)
def count(*, values: dict[str, Any], as_json: JsonOption = False, verbose: VerboseOption = False) -> None:
    """Count every token of every data set, and hold what is known of them against it.

    Exit code 3 where something of one couldn't be counted, 1 where nothing could.
    """
    spec, run = _parameters(values)
    from zephon_core.ratios.audit import count_mixture

    with _plain_warnings():
        result = count_mixture(spec, run, progress=choose_progress(as_json=as_json, verbose=verbose))
    emit(result, as_json=as_json, render=lambda: show_counts(result))
    counted = result["ratios"].values()
    if any(ratio["tokens_per_byte"] is None for ratio in counted):
        raise typer.Exit(FAILED)
    if any(ratio["design"] != "exact" for ratio in counted):
        raise typer.Exit(FOUND_WANTING)


@app.command()
@with_parameters((*_FLAGS, _OUTPUT))
def mixture(*, values: dict[str, Any], as_json: JsonOption = False, verbose: VerboseOption = False) -> None:
    """Token shares wanted (--share) → how often to draw from each data set, and how far off it may come out."""
    _need_shares(values)
    result = _prime(values, as_json=as_json, verbose=verbose)
    emit(result.to_json(), as_json=as_json, render=lambda: show_mixture(result))
    _end(result)


@app.command()
@with_parameters(_FLAGS)
def export(
    *,
    values: dict[str, Any],
    to: Annotated[str, typer.Option("--to", help="zephon, streaming, energon, megatron, huggingface, json or yaml.")] = "json",
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help=plain("[default: standard output]"))] = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Write ratios, and the mixture if shares are given, in the words of a loader."""
    from zephon_core.ratios.exports import ExportFormat
    from zephon_core.ratios.exports import export as export_text
    from zephon_core.ratios.run import unfit_formats

    if to not in list(ExportFormat):
        raise SpecError("--to", f"is {to!r}", wanted=" or ".join(ExportFormat))
    spec, _ = _parameters(values)
    result = _prime(values, as_json=as_json, verbose=verbose)
    if result.refused and to not in (ExportFormat.ZEPHON, ExportFormat.JSON, ExportFormat.YAML):
        raise InputError("mixture", f"can't be worked out: {result.refused}")
    text = export_text(ExportFormat(to), result.priming.ratios, result.mixture, spec.dataset_urls)
    for note in unfit_formats(ExportFormat(to), result.datasets):
        _warn(note)
    if output is not None:
        write_bytes(output, text.encode())
    shown = {"to": to, "file": str(output) if output else "", "content": text}
    emit(shown, as_json=as_json, render=lambda: typer.echo(str(output) if output else text, nl=output is not None))
    _end(result)


@app.command()
def show(
    key: Annotated[
        str, typer.Argument(metavar="[KEY]", help=plain("A document's key or its beginning. [default: list them]"))
    ] = "",
    store: StoreOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """List the ratios that are known, or show all that is known of one."""
    with command_errors(verbose=verbose):
        from zephon_core.ratios.documents import RatioDocuments
        from zephon_core.store import ArtifactStore

        documents = [document for document in RatioDocuments(ArtifactStore(store or "")).all() if document.key.startswith(key)]
        if key and len(documents) != 1:
            raise SpecError(key, f"is the beginning of {len(documents)} keys", wanted="one", remedy="`ratios show` lists them.")
        if key:
            plain = documents[0].to_json()
            emit(plain, as_json=as_json, render=lambda: show_json(plain))
        else:
            listed = {"documents": [summary(document) for document in documents]}
            emit(listed, as_json=as_json, render=lambda: show_documents(documents))


@app.command()
def drift(
    ratios: Annotated[Path, typer.Option("--ratios", metavar="FILE", help="What `ratios prime --json` wrote, or its ratios.json.")],
    log: Annotated[
        Path | None,
        typer.Option("--log", metavar="FILE", help="JSONL of the training: dataset, delivered_tokens, scheduled_bytes a line."),
    ] = None,
    delivered: Annotated[
        list[str] | None,
        typer.Option("--delivered", metavar="NAME=TOKENS", help="Tokens that came of a data set in all; one for each."),
    ] = None,
    scheduled: Annotated[
        list[str] | None,
        typer.Option("--scheduled", metavar="NAME=BYTES", help="Raw bytes that they came of in all; one for each."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(metavar="SHARE", help="What may pass beyond the interval, as a share of the ratio; from 0 up.")
    ] = 0.01,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Compare what the training delivers with the ratios. Exit code 3 where a data set has left its interval."""
    with command_errors(verbose=verbose):
        from zephon_core.ratios.audit import check_drifts, read_deliveries, read_ratios

        found = check_drifts(read_ratios(ratios), read_deliveries(log, delivered or [], scheduled or []), tolerance=tolerance)
        result = {"ok": not any(each.alarm for each in found), "drifts": [each.to_json() for each in found]}
        emit(result, as_json=as_json, render=lambda: show_drifts(found))
        if not result["ok"]:
            raise typer.Exit(FOUND_WANTING)


def _parameters(values: dict[str, Any]) -> tuple[RatioSpec, RatioRun]:
    """Check the configuration once and whole."""
    from zephon_core.ratios.specs import RatioRun, RatioSpec

    return spec_and_run(values, RatioSpec, RatioRun, flags=(*_FLAGS, _OUTPUT))


def _need_shares(values: dict[str, Any]) -> None:
    if not (isinstance(spec := values.get("spec", {}), dict) and spec.get("shares")):
        raise SpecError("--share", "is missing", wanted="a share of the tokens for each data set")


def _prime(values: dict[str, Any], *, as_json: bool, verbose: bool) -> RatioResult:
    spec, run = _parameters(values)
    from zephon_core.ratios.run import prime_mixture

    with _plain_warnings():
        return prime_mixture(spec, run, progress=choose_progress(as_json=as_json, verbose=verbose))


def _end(result: RatioResult, *, strict: bool = False) -> None:
    """Leave with the exit code that a result stands for, once it is shown."""
    if result.refused:
        typer.secho(f"error: no mixture can be worked out: {result.refused}", fg=typer.colors.RED, err=True)
        raise typer.Exit(FAILED)
    if strict and any(ratio.source == "fallback" for ratio in result.priming.ratios.values()):
        raise typer.Exit(FOUND_WANTING)


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show warnings on standard error as they are worded, without the line of code that gave them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for of_developers in (ResourceWarning, DeprecationWarning, PendingDeprecationWarning, ImportWarning):
            warnings.simplefilter("ignore", of_developers)
        try:
            yield
        finally:
            for warning in caught:
                _warn(str(warning.message))


def _warn(message: str) -> None:
    typer.secho(f"warning: {message}", fg=typer.colors.YELLOW, err=True)
