"""The steps of token-budget batches as Prefect tasks."""

from __future__ import annotations

from contextlib import AbstractContextManager

from prefect import task

from tasks.caching import RETRIES, UNCACHED, refreshing
from tasks.reporting import RunProgress, run_progress
from zephon_core.batching import steps
from zephon_core.batching.specs import BatchesRun, BatchesSpec
from zephon_core.batching.steps import BatchesIdentity
from zephon_core.progress import LoggingProgress
from zephon_core.store import ArtifactRef, ArtifactStore

__all__ = ["draw_report", "identify_lengths", "measure_lengths", "plan_epoch", "publish_batches"]


def _progress(spec: BatchesSpec, step: str) -> AbstractContextManager[RunProgress | LoggingProgress]:
    return run_progress(f"batches {spec.name}", step)


@task(task_run_name="identify-{spec.name}", **RETRIES, **UNCACHED)
def identify_lengths(spec: BatchesSpec, run: BatchesRun) -> BatchesIdentity:
    """Hash the content of the length table, or of texts and tokenizer; what is known from an earlier run isn't read again."""
    with _progress(spec, "identify") as progress:
        return steps.identify(spec, store=ArtifactStore(run.store), progress=progress)


@task(task_run_name="lengths-{spec.name}", **RETRIES)
def measure_lengths(spec: BatchesSpec, identity: BatchesIdentity, run: BatchesRun) -> ArtifactRef:
    """Write the length of every example."""
    with _progress(spec, "lengths") as progress:
        return steps.lengths(spec, identity, store=ArtifactStore(run.store), progress=progress, force=refreshing()).ref


@task(task_run_name="plan-{spec.name}", **RETRIES)
def plan_epoch(spec: BatchesSpec, identity: BatchesIdentity, run: BatchesRun) -> ArtifactRef:
    """Cut the epoch into batches for all ranks."""
    with _progress(spec, "plan") as progress:
        return steps.plan(spec, identity, store=ArtifactStore(run.store), progress=progress, force=refreshing()).ref


@task(task_run_name="report-{spec.name}", **RETRIES)
def draw_report(spec: BatchesSpec, identity: BatchesIdentity, run: BatchesRun) -> ArtifactRef:
    """Draw the page on the plan."""
    with _progress(spec, "report") as progress:
        return steps.report(spec, identity, store=ArtifactStore(run.store), progress=progress, force=refreshing()).ref


@task(task_run_name="publish-{spec.name}", **RETRIES, **UNCACHED)
def publish_batches(spec: BatchesSpec, identity: BatchesIdentity, run: BatchesRun) -> str:
    """Make `run.output` this plan; returns the folder. Never cached: a finished artifact says nothing of a folder elsewhere."""
    with _progress(spec, "publish"):
        return steps.publish(spec, identity, run, store=ArtifactStore(run.store))
