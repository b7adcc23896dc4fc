"""`zephon-flows batches …`: cut an epoch into token-budget batches for all ranks, and look at what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zephon_core.console import (
    Flag,
    JsonOption,
    VerboseOption,
    choose_progress,
    command_errors,
    emit,
    spec_and_run,
    with_parameters,
)

if TYPE_CHECKING:
    from zephon_core.batching.specs import BatchesRun, BatchesSpec
    from zephon_core.batching.steps import BatchesResult

__all__ = ["app"]

app = typer.Typer(
    name="batches", help="Token-budget batches: an epoch cut into batches of an exact cost, for all ranks.", no_args_is_help=True
)

_FLAGS = (
    Flag("--lengths", "spec.lengths.table", str, "Token lengths, a whole number an example.", "FILE.npy|BANK"),
    Flag("--texts", "spec.lengths.texts", list[str], "In place of lengths: rows to tokenize; repeat it.", "URL"),
    Flag("--field", "spec.lengths.field", str, "Dotted path of the text in such a row. [default: text]"),
    Flag("--tokenizer", "spec.lengths.tokenizer", str, "The training's tokenizer, for texts.", "DIR|FILE"),
    Flag("--extra-tokens", "spec.lengths.extra_tokens", int, "What the training adds to each example. [default: 0]"),
    Flag("--cut-at-tokens", "spec.lengths.cut_at_tokens", int, "The training keeps no more of an example. [default: all]"),
    Flag("--maximum-tokens", "spec.plan.maximum_tokens", int, "Token slots of a batch at most."),
    Flag("--layout", "spec.plan.layout", str, "packed or padded. [default: packed]"),
    Flag("--maximum-examples", "spec.plan.maximum_examples", int, "Examples of a batch at most. [default: no limit]"),
    Flag("--world", "spec.plan.world_size", int, "Data ranks. [default: 1]"),
    Flag("--seed", "spec.plan.seed", int, "Of the epoch's order. [default: 0]"),
    Flag("--epoch", "spec.plan.epoch", int, "The first one is 0. [default: 0]"),
    Flag("--bucket-width", "spec.plan.bucket_width", int, "Steps whose examples are sorted by length. [default: 0, none]"),
    Flag("--window-steps", "spec.plan.window_steps", int, "Steps whose batches are dealt by cost. [default: 64]"),
    Flag("--name", "spec.name", str, "What people call this plan. [default: batches]"),
    Flag("--output", "run.output", str, "Where plan and report are published. [default: nowhere, they lie in the store]", "DIR"),
    Flag("--refresh", "run.refresh", bool, "Plan even what is planned, and compare.", off="--no-refresh"),
    Flag("--store", "run.store", str, "Where work is kept. [default: $ZEPHON_STORE or the user cache]", "DIR"),
)


@app.command()
@with_parameters(_FLAGS)
def plan(*, values: dict[str, Any], as_json: JsonOption = False, verbose: VerboseOption = False) -> None:
    """Plan an epoch: every rank gets the same number of batches, each step's of nearly equal cost."""
    spec, run = _parameters(values)
    from zephon_core.batching.steps import plan_batches

    result = plan_batches(spec, run, progress=choose_progress(as_json=as_json, verbose=verbose))
    emit(result.to_json(), as_json=as_json, render=lambda: _show_result(result))


@app.command()
def stats(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A plan's folder, published or in the store.")],
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Say what a plan's batches are like: waste, imbalance, batches of each rank, their sizes, how well shuffled."""
    with command_errors(verbose=verbose):
        from zephon_core.batching.plan import GlobalBatchPlan

        found = GlobalBatchPlan.open(folder).statistics.to_json()
        emit(found, as_json=as_json, render=lambda: _show_statistics(found))


def _parameters(values: dict[str, Any]) -> tuple[BatchesSpec, BatchesRun]:
    """Check the configuration once and whole."""
    from zephon_core.batching.specs import BatchesRun, BatchesSpec

    return spec_and_run(values, BatchesSpec, BatchesRun, flags=_FLAGS, sections=("lengths", "plan"))


def _show_result(result: BatchesResult) -> None:
    from zephon_core.batching.report import REPORT_NAME

    _show_statistics(result.statistics)
    typer.echo(f"fingerprint  {result.fingerprint[:16]}")
    typer.echo(f"plan         {result.plan}")
    if (Path(result.plan) / REPORT_NAME).exists():
        typer.echo(f"report       {result.plan}/{REPORT_NAME}")


def _show_statistics(statistics: Mapping[str, Any]) -> None:
    from zephon_core.batching.report import describe

    for name, words in describe(statistics).items():
        typer.echo(f"{name:<13}{words}")
