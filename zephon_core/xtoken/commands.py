"""`zephon-flows xtoken …`: look at a pair of tokenizers, score with a teacher, attach advantages, and look at what came of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zephon_core.console import (
    FOUND_WANTING,
    Flag,
    JsonOption,
    VerboseOption,
    choose_progress,
    emit,
    plain,
    spec_and_run,
    validated,
    with_parameters,
)
from zephon_core.errors import SpecError

if TYPE_CHECKING:
    from zephon_core.xtoken.sequence_steps import SequencesResult
    from zephon_core.xtoken.specs import PairSpec
    from zephon_core.xtoken.steps import ChunkAdvantagesResult

__all__ = ["app"]

app = typer.Typer(
    name="xtoken",
    help="Cross-tokenizer chunks: what a teacher with another vocabulary thinks of what the student said.",
    no_args_is_help=True,
)

_PAIR = (
    Flag("--student", "spec.student", str, "The student's tokenizer.", "DIR|FILE"),
    Flag("--teacher", "spec.teacher", str, "The teacher's tokenizer.", "DIR|FILE"),
    Flag("--student-template", "spec.student_template", str, "Chat template, for messages. [default: the tokenizer's]", "FILE"),
    Flag("--teacher-template", "spec.teacher_template", str, "Chat template, for messages. [default: the tokenizer's]", "FILE"),
)
_MODEL = (
    Flag("--model", "spec.score.model.path", str, "The teacher, which scores.", "DIR"),
    Flag("--dtype", "spec.score.model.dtype", str, "float32, bfloat16 or float16. [default: float32]"),
    Flag("--quantization", "spec.score.model.quantization", str, "none, 4bit or 8bit. [default: none]"),
    Flag("--max-batch", "spec.score.max_batch", int, "Most sequences in a block. [default: 128]"),
    Flag("--token-budget", "spec.score.token_budget", int, "Most tokens in a block. [default: 8192]"),
)
_RUN = (
    Flag("--output", "run.output", str, "Where it is published. [default: nowhere, it lies in the store]", "DIR"),
    Flag("--workers", "run.workers", int, "Processes that score, on a CPU. [default: one a core]"),
    Flag("--device", "run.device", str, "auto, cpu, cuda or cuda:N. [default: auto]"),
    Flag("--gpu-memory-gb", "run.gpu_memory_gb", float, "Never use more of a GPU's memory. [default: no limit]"),
    Flag("--refresh", "run.refresh", bool, "Make even what is there, and compare. [default: no]", off="--no-refresh"),
    Flag("--store", "run.store", str, "Where work is kept. [default: $ZEPHON_STORE or the user cache]", "DIR"),
)
_ATTACH = (
    Flag("--datums", "spec.datums", list[str], "Parquet file, glob or URL of datums; repeat it.", "URL"),
    *_PAIR,
    Flag("--teacher-logprobs", "spec.teacher_logprobs", str, "Parquet of the teacher's logprobs, a row a datum.", "URL"),
    *_MODEL,
    Flag("--clip", "spec.clip", float, "Bound the advantage of a token to ±this. [default: no bound]"),
    Flag("--center", "spec.center", bool, "Subtract the mean of the chunks' totals. [default: no]", off="--no-center"),
    Flag("--name", "spec.name", str, "What people call these advantages. [default: advantages]"),
    *_RUN,
)
_SCORE = (
    Flag("--sequences", "spec.sequences", list[str], "Parquet file, glob or URL of token ids; repeat it.", "URL"),
    *_MODEL,
    Flag("--name", "spec.name", str, "What people call these logprobs. [default: logprobs]"),
    *_RUN,
)

_HtmlOption = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the page on it there.")]


@app.command()
@with_parameters(_PAIR)
def check(
    *,
    values: dict[str, Any],
    texts: Annotated[
        list[str] | None,
        typer.Option("--texts", metavar="URL", help="Texts or messages: JSONL, Parquet, Arrow, or .txt; repeat it."),
    ] = None,
    html: _HtmlOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Look at a pair of tokenizers before a GPU is rented. Exit code 3 where something is in the way."""
    pair = _pair(values)
    _check_page(html)
    if not texts:
        raise SpecError("--texts", "is missing", wanted="a file of texts or messages, such as the student will say")
    from zephon_core.tokenizers import load_tokenizer
    from zephon_core.xtoken.alignment import read_samples
    from zephon_core.xtoken.checking import check_pair, render_check, show_check
    from zephon_core.xtoken.files import late_template

    progress = choose_progress(as_json=as_json, verbose=verbose)
    report = check_pair(
        load_tokenizer(pair.student),
        load_tokenizer(pair.teacher),
        student_template=late_template(pair.student, pair.student_template, "student_template"),
        teacher_template=late_template(pair.teacher, pair.teacher_template, "teacher_template"),
        samples=read_samples(*texts, progress=progress),
        progress=progress,
    )
    if html is not None:
        _write_page(html, render_check(report))
    emit(report.to_json(), as_json=as_json, render=lambda: show_check(report))
    if not report.ok:
        raise typer.Exit(FOUND_WANTING)


@app.command()
@with_parameters(_ATTACH)
def attach(*, values: dict[str, Any], as_json: JsonOption = False, verbose: VerboseOption = False) -> None:
    """Give datums their advantages, or finish an interrupted run: align → score → attach → report.

    Exit code 3 where not one datum got any.
    """
    from zephon_core.xtoken.specs import ChunkAdvantagesRun, ChunkAdvantagesSpec

    spec, run = spec_and_run(values, ChunkAdvantagesSpec, ChunkAdvantagesRun, flags=_ATTACH)
    from zephon_core.xtoken.steps import build_chunk_advantages

    result = build_chunk_advantages(spec, run, progress=choose_progress(as_json=as_json, verbose=verbose))
    emit(result.to_json(), as_json=as_json, render=lambda: _show_attached(result))
    if not result.stats["datums"]:
        raise typer.Exit(FOUND_WANTING)


@app.command()
@with_parameters(_SCORE)
def score(*, values: dict[str, Any], as_json: JsonOption = False, verbose: VerboseOption = False) -> None:
    """Score sequences of token ids with a teacher, or finish an interrupted run; `attach` takes what comes out."""
    from zephon_core.xtoken.specs import ChunkAdvantagesRun, ScoreSequencesSpec

    spec, run = spec_and_run(values, ScoreSequencesSpec, ChunkAdvantagesRun, flags=_SCORE, sections=("score",))
    from zephon_core.xtoken.sequence_steps import score_sequence_files

    result = score_sequence_files(spec, run, progress=choose_progress(as_json=as_json, verbose=verbose))
    emit(result.to_json(), as_json=as_json, render=lambda: _show_scored(result))


@app.command()
@with_parameters(_ATTACH)
def show(
    *,
    values: dict[str, Any],
    text: Annotated[list[str] | None, typer.Option("--text", help="In place of datums: a text; repeat it.")] = None,
    texts: Annotated[
        str, typer.Option("--texts", metavar="URL", help="In place of datums: texts or messages, as `check` takes them.")
    ] = "",
    row: Annotated[
        list[int] | None, typer.Option("--row", min=0, help=plain("Which one, from 0; repeat it. [default: the first three]"))
    ] = None,
    html: Annotated[Path, typer.Option("--html", metavar="FILE", help="Where the picture goes.")] = Path("chunks.html"),
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Draw chunks: datums in the colours of the advantages that they got, or a text in both tokenizations."""
    _check_page(html)
    from zephon_core.xtoken.look import draw_attached, draw_samples

    if text or texts:
        page, titles = draw_samples(_pair(values), text or [], texts, row or [])
    else:
        from zephon_core.store import ArtifactStore
        from zephon_core.xtoken.specs import ChunkAdvantagesRun, ChunkAdvantagesSpec

        spec, run = spec_and_run(values, ChunkAdvantagesSpec, ChunkAdvantagesRun, flags=_ATTACH)
        progress = choose_progress(as_json=as_json, verbose=verbose)
        page, titles = draw_attached(spec, row or [], store=ArtifactStore(run.store), progress=progress)
    _write_page(html, page)
    emit({"html": str(html), "drawn": titles}, as_json=as_json, render=lambda: typer.echo(f"drawn        {html}"))


def _pair(values: Mapping[str, Any]) -> PairSpec:
    """Take what says which pair it is out of a configuration, which may be that of a whole run."""
    from zephon_core.xtoken.specs import PairSpec

    spec = values.get("spec") or {}
    if not isinstance(spec, Mapping):
        raise SpecError("configuration", f"has {spec!r} as its spec", wanted="a mapping")
    named = {name: spec[name] for name in PairSpec.model_fields if name in spec}
    return validated(PairSpec.model_validate, named, where="configuration", prefix="spec", flags=_PAIR)


def _check_page(path: Path | None) -> None:
    """Raise SpecError for a page that couldn't be written once the work is done."""
    if path is None:
        return
    if path.is_dir():
        raise SpecError(str(path), "is a folder", wanted="a file, for --html")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        found = "can't be written: " + ("permission is denied there" if folder.is_dir() else f"{folder} is a file, not a folder")
        raise SpecError(str(path), found, wanted="a file in a folder that can be written to, for --html")


def _write_page(path: Path, page: str) -> None:
    from zephon_core.atomic import write_bytes

    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, page.encode())


def _show_attached(result: ChunkAdvantagesResult) -> None:
    from zephon_core.xtoken.pictures import REPORT_NAME, describe

    for name, words in describe(result.stats).items():
        typer.echo(f"{name:<13}{words}")
    if result.drops:
        typer.echo(f"{'dropped':<13}{', '.join(f'{count:,} {reason}' for reason, count in result.drops.items())}")
    if result.doubt:
        typer.echo(f"{'doubt':<13}{result.doubt}")
    _show_steps(result.cached, result.seconds)
    typer.echo(f"fingerprint  {result.fingerprint[:16]}")
    typer.echo(f"output       {result.output}")
    if (Path(result.output) / REPORT_NAME).exists():
        typer.echo(f"report       {result.output}/{REPORT_NAME}")


def _show_scored(result: SequencesResult) -> None:
    typer.echo(f"sequences    {result.sequences:,} of {result.tokens:,} tokens, by {result.forward}")
    if result.poison:
        typer.echo(
            f"poison       {', '.join(f'{count:,} {reason}' for reason, count in result.poison.items())}: their logprobs are null"
        )
    _show_steps(result.cached, result.seconds)
    typer.echo(f"fingerprint  {result.fingerprint[:16]}")
    typer.echo(f"output       {result.output}")


def _show_steps(cached: Mapping[str, bool], seconds: Mapping[str, float]) -> None:
    words = [f"{name} cached" if cached[name] else f"{name} {took:.1f} s" for name, took in seconds.items()]
    typer.echo(f"steps        {', '.join(words)}")
