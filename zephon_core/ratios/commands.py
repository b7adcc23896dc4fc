"""`zephon-flows ratios …`: tokens a byte of each data set, the mixtures and the files that follow from them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zephon_core.console import (
    FOUND_WANTING,
    Flag,
    JsonOption,
    StoreOption,
    VerboseOption,
    choose_progress,
    command_errors,
    emit,
    plain,
    validated,
    with_parameters,
)
from zephon_core.errors import SpecError
from zephon_core.progress import format_amount

if TYPE_CHECKING:
    from zephon_core.ratios.documents import RatioDocument
    from zephon_core.ratios.drift import Drift
    from zephon_core.ratios.run import RatioResult
    from zephon_core.ratios.specs import RatioRun, RatioSpec

__all__ = ["app"]

app = typer.Typer(name="ratios", help="Token ratios: tokens a byte of each data set, with an interval.", no_args_is_help=True)

_FLAGS = (
    Flag("--dataset", "spec.datasets", list[str], "A folder, glob or URL; repeat it. The same name again adds to it.", "NAME=URL"),
    Flag("--tokenizer", "spec.tokenizer", str, "The training's tokenizer.", "DIR|FILE"),
    Flag("--kind", "spec.kind", str, "text or chat. [default: text]"),
    Flag("--field", "spec.field", str, "Dotted path of the text or messages. [default: found by a vote]"),
    Flag("--special-tokens", "spec.special_tokens", str, "bos_eos, bos, eos, none, tokenizer_default. [default: bos_eos]"),
    Flag("--max-length", "spec.max_length", int, "The training's limit of a row in tokens."),
    Flag("--long-rows", "spec.long_rows", str, "truncate or split. [default: truncate]"),
    Flag("--missing-field", "spec.missing_field", str, "error or empty. [default: error]"),
    Flag("--chat-template", "spec.chat_template", str, "A Jinja template. [default: the tokenizer's]", "FILE"),
    Flag("--chat-delivery", "spec.chat_delivery", str, "template or zephon. [default: template]"),
    Flag("--loss-tokens", "spec.loss_tokens", bool, "Count the assistant's tokens, too. [default: yes]", off="--no-loss-tokens"),
    Flag("--format", "spec.format", str, "Of the files, whatever their names say."),
    Flag("--measure", "spec.measure", str, "Counts a row in place of the tokenizer.", "package.module:function"),
    Flag(
        "--op", "spec.pre_tokenize_ops", list[str], "Done to rows before they are tokenized; repeat it.", "package.module:function"
    ),
    Flag("--pin", "spec.pins", list[str], "A known ratio, not measured; repeat it.", "NAME=0.25"),
    Flag("--ratio", "spec.ratio_for_all", float, "One ratio for all; nothing is measured."),
    Flag("--target-rel-error", "spec.target_rel_error", float, "Wanted half-width of the interval. [default: 0.01]"),
    Flag("--confidence", "spec.confidence", float, "Of the interval. [default: 0.95]"),
    Flag("--byte-budget", "spec.byte_budget", int, "Read no more bytes of a data set."),
    Flag("--exact-below-bytes", "spec.exact_below_bytes", int, "Count data sets whole that are no larger. [default: 1048576]"),
    Flag("--samples", "spec.calibration_samples", int, "Draws a data set. [default: 2048]"),
    Flag("--seed", "spec.seed", int, "Of the draws. [default: 0]"),
    Flag("--share", "spec.shares", list[str], "A wanted share of the tokens, in any unit; one for each data set.", "NAME=0.6"),
    Flag("--budget-tokens", "spec.budget_tokens", float, "Tokens the training will see, to say how often data repeats."),
    Flag("--name", "spec.name", str, "What people call this mixture."),
    Flag("--workers", "run.workers", int, "Processes that read and count. [default: one a core]"),
    Flag("--publish", "run.publish", str, "A folder for the one ratio map that every rank reads.", "URL"),
    Flag("--negative-ttl-s", "run.negative_ttl_s", float, "How long a failure isn't tried again. [default: 120]"),
    Flag("--refresh", "run.refresh", bool, "Measure even what is known, and compare.", off="--no-refresh"),
    Flag("--store", "run.store", str, "Where measurements are kept. [default: $ZEPHON_STORE or the user cache]", "DIR"),
)
_OUTPUT = Flag("--output", "run.output", str, "Write ratios.json, report.html and the exports here.", "DIR")


@app.command()
@with_parameters((*_FLAGS, _OUTPUT))
def prime(*, values: dict[str, Any], as_json: JsonOption = False, verbose: VerboseOption = False) -> None:
    """Get the ratio of every data set: what is known is read, what is pinned is taken, the rest is measured."""
    result = _prime(values, as_json=as_json, verbose=verbose)
    emit(result.to_json(), as_json=as_json, render=lambda: _show_ratios(result.to_json(), result.output))


@app.command()
@with_parameters(_FLAGS)
def count(*, values: dict[str, Any], as_json: JsonOption = False, verbose: VerboseOption = False) -> None:
    """Count every token of every data set, and hold what is known of them against it."""
    spec, run = _parameters(values)
    from zephon_core.ratios.audit import count_mixture

    result = count_mixture(spec, run, progress=choose_progress(as_json=as_json, verbose=verbose))
    emit(result, as_json=as_json, render=lambda: _show_ratios(result, ""))


@app.command()
@with_parameters((*_FLAGS, _OUTPUT))
def mixture(*, values: dict[str, Any], as_json: JsonOption = False, verbose: VerboseOption = False) -> None:
    """Token shares wanted (--share) → how often to draw from each data set, and how far off it may come out."""
    _need_shares(values)
    result = _prime(values, as_json=as_json, verbose=verbose)
    emit(result.to_json(), as_json=as_json, render=lambda: _show_mixture(result))


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

    if to not in list(ExportFormat):
        raise SpecError("--to", f"is {to!r}", wanted=" or ".join(ExportFormat))
    spec, _ = _parameters(values)
    result = _prime(values, as_json=as_json, verbose=verbose)
    text = export_text(ExportFormat(to), result.priming.ratios, result.mixture, spec.dataset_urls)
    if output is not None:
        output.write_text(text, encoding="utf-8")
    shown = {"to": to, "file": str(output) if output else "", "content": text}
    emit(shown, as_json=as_json, render=lambda: typer.echo(str(output) if output else text, nl=output is not None))


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
            emit(plain, as_json=as_json, render=lambda: _show_json(plain))
        else:
            listed = {"documents": [_summary(document) for document in documents]}
            emit(listed, as_json=as_json, render=lambda: _show_documents(documents))


@app.command()
def drift(
    ratios: Annotated[Path, typer.Option("--ratios", metavar="FILE", help="What `ratios prime --json` wrote, or its ratios.json.")],
    log: Annotated[
        Path | None,
        typer.Option("--log", metavar="FILE", help="JSONL of the training: dataset, delivered_tokens, scheduled_bytes a line."),
    ] = None,
    delivered: Annotated[
        list[str] | None, typer.Option("--delivered", metavar="NAME=TOKENS", help="Tokens that came of a data set; repeat it.")
    ] = None,
    scheduled: Annotated[
        list[str] | None, typer.Option("--scheduled", metavar="NAME=BYTES", help="Raw bytes that they came of; repeat it.")
    ] = None,
    tolerance: Annotated[float, typer.Option(help="What may pass beyond the interval, as a share of the ratio.")] = 0.01,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Compare what the training delivers with the ratios. Exit code 3 where a data set has left its interval."""
    with command_errors(verbose=verbose):
        from zephon_core.ratios.audit import check_drifts, read_deliveries, read_ratios

        found = check_drifts(read_ratios(ratios), read_deliveries(log, delivered or [], scheduled or []), tolerance=tolerance)
        result = {"ok": not any(each.alarm for each in found), "drifts": [each.to_json() for each in found]}
        emit(result, as_json=as_json, render=lambda: _show_drifts(found))
        if not result["ok"]:
            raise typer.Exit(FOUND_WANTING)


def _parameters(values: dict[str, Any]) -> tuple[RatioSpec, RatioRun]:
    """Check the configuration once and whole."""
    from zephon_core.ratios.specs import RatioRun, RatioSpec

    if unknown := sorted(set(values) - {"spec", "run"}):
        raise SpecError("configuration", f"has {', '.join(unknown)}", wanted="only spec and run")
    flags = (*_FLAGS, _OUTPUT)
    return (
        validated(RatioSpec.model_validate, values.get("spec", {}), where="configuration", prefix="spec", flags=flags),
        validated(RatioRun.model_validate, values.get("run", {}), where="configuration", prefix="run", flags=flags),
    )


def _need_shares(values: dict[str, Any]) -> None:
    if not (isinstance(spec := values.get("spec", {}), dict) and spec.get("shares")):
        raise SpecError("--share", "is missing", wanted="a share of the tokens for each data set")


def _prime(values: dict[str, Any], *, as_json: bool, verbose: bool) -> RatioResult:
    spec, run = _parameters(values)
    from zephon_core.ratios.run import prime_mixture

    with _plain_warnings():
        return prime_mixture(spec, run, progress=choose_progress(as_json=as_json, verbose=verbose))


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show warnings on standard error as they are worded, without the line of code that gave them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            for warning in caught:
                typer.secho(f"warning: {warning.message}", fg=typer.colors.YELLOW, err=True)


def _summary(document: RatioDocument) -> dict[str, Any]:
    from zephon_core.ratios.prime import ratio_json

    name = next(iter(document.ratios))
    return {"name": name, **ratio_json(document.ratio, document.key), "created": document.created}


def _table(*headings: str, numbers: tuple[str, ...] = ()) -> Any:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left", no_wrap=heading not in ("", "remark"))
    return table


def _print(renderable: Any) -> None:
    from rich.console import Console

    Console(highlight=False).print(renderable)


def _precision(ratio: dict[str, Any]) -> str:
    if not ratio["interval"]:
        return ""
    low, high = ratio["interval"]
    return "exact" if low == high else f"±{(high - low) / 2 / ratio['tokens_per_byte']:.2%}"


def _show_ratios(result: dict[str, Any], output: str) -> None:
    table = _table("data set", "tokens/byte", "", "source", "draws", "read", "remark", numbers=("tokens/byte", "", "draws", "read"))
    for name, ratio in result["ratios"].items():
        remark = ratio.get("reason") or ratio.get("design") or ""
        read = format_amount(ratio["bytes_read"], "B") if ratio["bytes_read"] else ""
        figures = (f"{ratio['tokens_per_byte']:.6f}", _precision(ratio), ratio["source"], f"{ratio['draws']:,}", read, remark)
        table.add_row(name, *figures)
    _print(table)
    typer.echo(f"{result['seconds']:.1f} s")
    if output:
        typer.echo(f"report    {output}/report.html")


def _show_mixture(result: RatioResult) -> None:
    found = result.mixture
    if found is None:
        return
    headings = ("data set", "share", "delivered", "probability", "tokens/row", "epochs", "doubt")
    table = _table(*headings, numbers=headings[1:])
    for name, weight in found.datasets.items():
        low, high = weight.share_interval
        epochs = "" if weight.epochs is None else f"{weight.epochs:,.2f}"
        figures = (f"{weight.probability:.6f}", f"{weight.tokens_per_sample:,.1f}", epochs, f"{weight.blame:.0%}")
        table.add_row(name, f"{weight.share:.2%}", f"{low:.2%} to {high:.2%}", *figures)
    _print(table)
    if found.budget_tokens:
        for name, weight in found.datasets.items():
            if weight.epochs is not None and weight.epochs > 1:
                budget = format_amount(found.budget_tokens, "tokens")
                typer.echo(f"this mixture passes {name} {weight.epochs:,.1f} times in {budget}")
    if found.calibrate_next:
        typer.echo(f"a better ratio of {found.calibrate_next}, where most of the doubt comes from, would tighten it most")


def _show_documents(documents: list[RatioDocument]) -> None:
    table = _table("data set", "tokens/byte", "", "source", "made", "key", numbers=("tokens/byte", ""))
    for document in documents:
        plain = _summary(document)
        figures = (f"{plain['tokens_per_byte']:.6f}", _precision(plain), plain["source"])
        table.add_row(plain["name"], *figures, document.created[:16].replace("T", " "), document.key[:16])
    _print(table)


def _show_json(value: object) -> None:
    import json

    from rich.console import Console

    Console().print_json(json.dumps(value, ensure_ascii=False))


def _show_drifts(drifts: list[Drift]) -> None:
    table = _table("data set", "promised", "delivered", "of its share", "", numbers=("promised", "delivered", "of its share"))
    for each in drifts:
        promised = f"{each.promised[0]:.5f} to {each.promised[1]:.5f}"
        table.add_row(each.dataset, promised, f"{each.observed:.5f}", f"{each.share_factor:.1%}", "ALARM" if each.alarm else "")
    _print(table)
