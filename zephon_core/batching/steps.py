"""From lengths to planned batches, each step a function from fingerprints to an artifact.

    identify → lengths → plan → report

Once the inputs are identified every fingerprint is known, before any work is done. A step whose artifact is in the store
returns it; the others make it, one process at a time. Both the command line and the Prefect tasks call these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from zephon_core.atomic import write_bytes
from zephon_core.batching.lengths import LengthTable
from zephon_core.batching.measure import LENGTHS_NAME, MEASURE_VERSION, copy_table, measure_texts, table_sha256
from zephon_core.batching.plan import PLAN_VERSION, GlobalBatchPlan
from zephon_core.batching.publish import check_output, publish_plan
from zephon_core.batching.report import REPORT_NAME, REPORT_VERSION, render_report
from zephon_core.batching.specs import BatchesRun, BatchesSpec
from zephon_core.fingerprint import fingerprint
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.readers.sources import Source, resolve_sources
from zephon_core.store import ArtifactStore, Built, Recipe, build_in_order, clear_partial
from zephon_core.tokenizers import identify_tokenizer, load_identified

__all__ = [
    "BatchesIdentity",
    "BatchesRecipes",
    "BatchesResult",
    "batches_recipes",
    "identify",
    "lengths",
    "plan",
    "plan_batches",
    "publish",
    "report",
    "result_of",
]


class BatchesIdentity(BaseModel):
    """What lengths are made from, by content: a table's file, or texts and a tokenizer."""

    model_config = ConfigDict(frozen=True)

    table_sha256: str = ""
    sources: tuple[Source, ...] = ()
    tokenizer_sha256: str = ""


@dataclass(frozen=True)
class BatchesRecipes:
    """The artifacts of a plan, known by name before they are made."""

    lengths: Recipe
    plan: Recipe
    report: Recipe


@dataclass(frozen=True)
class BatchesResult:
    """What planning has come to.

    plan: the folder that holds the plan, where it was published or else in the store. statistics: the plan's own, plain values.
    cached, seconds: by step.
    """

    plan: str
    fingerprint: str
    statistics: Mapping[str, Any]
    cached: dict[str, bool] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values."""
        return {**vars(self), "statistics": dict(self.statistics)}


def identify(spec: BatchesSpec, *, store: ArtifactStore, progress: Progress = NULL_PROGRESS) -> BatchesIdentity:
    """Hash the content of the table, or of texts and tokenizer; files that are known and unchanged are not read again.

    Raises InputError, TokenizerError, or CorruptArtifactError for a bank whose lengths are not as its manifest says.
    """
    if spec.lengths.table:
        return BatchesIdentity(table_sha256=table_sha256(spec.lengths.table, store.memo))
    sources = resolve_sources(spec.lengths.texts, memo=store.memo, progress=progress)
    return BatchesIdentity(sources=sources, tokenizer_sha256=identify_tokenizer(spec.lengths.tokenizer, store))


def batches_recipes(spec: BatchesSpec, identity: BatchesIdentity) -> BatchesRecipes:
    """Work out every fingerprint; pure and instant."""
    wanted = spec.lengths
    counted: dict[str, Any] = {"extra_tokens": wanted.extra_tokens, "cut_at_tokens": wanted.cut_at_tokens}
    if identity.table_sha256:
        inputs = {"table": identity.table_sha256}
        contents: list[dict[str, str]] = []
    else:
        counted["field"] = wanted.field
        contents = [{"sha256": s.sha256, "format": s.format, "compression": s.compression} for s in identity.sources]
        inputs = {f"source {number}": source.sha256 for number, source in enumerate(identity.sources)}
        inputs["tokenizer"] = identity.tokenizer_sha256
    lengths_print = fingerprint("lengths", MEASURE_VERSION, inputs=inputs, sources=contents, spec=counted)
    lengths_recipe = Recipe("lengths", lengths_print, inputs, counted)
    plan_spec = spec.plan.model_dump(mode="json")
    plan_recipe = Recipe.made_of("batch_plan", PLAN_VERSION, {"lengths": lengths_print}, plan_spec)
    report_recipe = Recipe.made_of("batch_report", REPORT_VERSION, {"batch_plan": plan_recipe.fingerprint}, {"name": spec.name})
    return BatchesRecipes(lengths_recipe, plan_recipe, report_recipe)


def lengths(
    spec: BatchesSpec,
    identity: BatchesIdentity,
    *,
    store: ArtifactStore,
    progress: Progress = NULL_PROGRESS,
    force: bool = False,
) -> Built:
    """Write the length table. Raises InputError, LengthError, BadRowError, SourceChangedError."""

    def produce(directory: Path) -> dict[str, Any]:
        if identity.table_sha256:
            return copy_table(spec.lengths, identity.table_sha256, directory, memo=store.memo, progress=progress)
        tokenizer = load_identified(spec.lengths.tokenizer, identity.tokenizer_sha256, store=store)
        return measure_texts(spec.lengths, identity.sources, tokenizer, directory, memo=store.memo, progress=progress)

    return store.build(batches_recipes(spec, identity).lengths, produce, force=force, progress=progress)


def plan(
    spec: BatchesSpec,
    identity: BatchesIdentity,
    *,
    store: ArtifactStore,
    progress: Progress = NULL_PROGRESS,
    force: bool = False,
) -> Built:
    """Cut the epoch into batches for all ranks. Raises LengthError for an example that no batch can hold."""
    recipes = batches_recipes(spec, identity)
    table = LengthTable.of(store.needed(recipes.lengths).path / LENGTHS_NAME)

    def produce(directory: Path) -> dict[str, Any]:
        clear_partial(directory)
        with progress.phase("plan", total=table.count, unit="examples") as phase:
            planned = build_plan(spec, table)
            planned.save(directory)
            phase.advance(table.count)
        return planned.statistics.to_json()

    return store.build(recipes.plan, produce, force=force, progress=progress)


def build_plan(spec: BatchesSpec, table: LengthTable) -> GlobalBatchPlan:
    """Make the plan that a spec means of a length table."""
    wanted = spec.plan
    return GlobalBatchPlan.build(
        table,
        wanted.options(),
        world_size=wanted.world_size,
        seed=wanted.seed,
        epoch=wanted.epoch,
        bucket_width=wanted.bucket_width,
        window_steps=wanted.window_steps,
    )


def report(
    spec: BatchesSpec,
    identity: BatchesIdentity,
    *,
    store: ArtifactStore,
    progress: Progress = NULL_PROGRESS,
    force: bool = False,
) -> Built:
    """Draw the page on a plan: waste, imbalance, batches of each rank, sizes of batches."""
    recipes = batches_recipes(spec, identity)
    planned = store.needed(recipes.plan)
    measured = store.needed(recipes.lengths)

    def produce(directory: Path) -> dict[str, Any]:
        opened = GlobalBatchPlan.open(planned.path)
        table = LengthTable.of(measured.path / LENGTHS_NAME)
        page = render_report(spec, opened, table, fingerprint=planned.fingerprint)
        write_bytes(directory / REPORT_NAME, page.encode())
        return {}

    return store.build(recipes.report, produce, force=force, progress=progress)


def publish(spec: BatchesSpec, identity: BatchesIdentity, run: BatchesRun, *, store: ArtifactStore) -> str:
    """Make `run.output` this plan and its report; return the folder. Raises SpecError for a folder of something else."""
    recipes = batches_recipes(spec, identity)
    planned, page = store.needed(recipes.plan), store.needed(recipes.report)
    return str(publish_plan(store, spec.name, planned, page, Path(run.output)))


def plan_batches(spec: BatchesSpec, run: BatchesRun = BatchesRun(), *, progress: Progress = NULL_PROGRESS) -> BatchesResult:  # noqa: B008
    """Do all steps, those that are done already from the store, and publish the plan to `run.output` if that is set."""
    if run.output:
        check_output(run.output)
    store = ArtifactStore(run.store)
    identity = identify(spec, store=store, progress=progress)
    options: dict[str, Any] = {"store": store, "progress": progress, "force": run.refresh}
    todo: dict[str, Callable[..., Built]] = {"lengths": lengths, "plan": plan, "report": report}
    cached, seconds = build_in_order({name: partial(step, spec, identity, **options) for name, step in todo.items()})
    folder = publish(spec, identity, run, store=store) if run.output else ""
    return result_of(spec, identity, store=store, folder=folder, cached=cached, seconds=seconds)


def result_of(
    spec: BatchesSpec,
    identity: BatchesIdentity,
    *,
    store: ArtifactStore,
    folder: str,
    cached: dict[str, bool],
    seconds: dict[str, float],
) -> BatchesResult:
    """Put the result of a run together. folder: where the plan was published, "" if it lies in the store alone."""
    planned = store.needed(batches_recipes(spec, identity).plan)
    return BatchesResult(folder or planned.url, planned.fingerprint, store.record(planned).statistics, cached, seconds)
