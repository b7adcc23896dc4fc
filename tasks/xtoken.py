"""The steps of chunk advantages as Prefect tasks."""

from __future__ import annotations

from contextlib import AbstractContextManager

from prefect import task

from tasks.caching import RETRIES, UNCACHED, refreshing
from tasks.reporting import RunProgress, run_progress
from zephon_core.progress import LoggingProgress
from zephon_core.store import ArtifactRef, ArtifactStore
from zephon_core.xtoken import steps
from zephon_core.xtoken.specs import ChunkAdvantagesRun, ChunkAdvantagesSpec
from zephon_core.xtoken.steps import ChunkAdvantagesIdentity

__all__ = ["align_datums", "attach_advantages", "draw_report", "identify_inputs", "publish_advantages", "score_teacher"]


def _progress(spec: ChunkAdvantagesSpec, step: str) -> AbstractContextManager[RunProgress | LoggingProgress]:
    return run_progress(f"advantages {spec.name}", step)


@task(task_run_name="identify-{spec.name}", **RETRIES, **UNCACHED)
def identify_inputs(spec: ChunkAdvantagesSpec, run: ChunkAdvantagesRun) -> ChunkAdvantagesIdentity:
    """Hash the content of datums, tokenizers, templates, logprobs and model; what is known from an earlier run isn't read again."""
    with _progress(spec, "identify") as progress:
        return steps.identify(spec, store=ArtifactStore(run.store), progress=progress)


@task(task_run_name="align-{spec.name}", **RETRIES)
def align_datums(spec: ChunkAdvantagesSpec, identity: ChunkAdvantagesIdentity, run: ChunkAdvantagesRun) -> ArtifactRef:
    """Plan each datum's chunks, and write what the teacher reads."""
    with _progress(spec, "align") as progress:
        return steps.align(spec, identity, store=ArtifactStore(run.store), progress=progress, force=refreshing()).ref


@task(task_run_name="score-{spec.name}", **RETRIES)
def score_teacher(spec: ChunkAdvantagesSpec, identity: ChunkAdvantagesIdentity, run: ChunkAdvantagesRun) -> ArtifactRef:
    """Score what the teacher reads, block by block; what an interrupted run has scored is kept."""
    with _progress(spec, "score") as progress:
        return steps.score(spec, identity, run, store=ArtifactStore(run.store), progress=progress, force=refreshing()).ref


@task(task_run_name="attach-{spec.name}", **RETRIES)
def attach_advantages(spec: ChunkAdvantagesSpec, identity: ChunkAdvantagesIdentity, run: ChunkAdvantagesRun) -> ArtifactRef:
    """Write the datums with their advantages, and those that had to be dropped."""
    with _progress(spec, "attach") as progress:
        return steps.attach(spec, identity, store=ArtifactStore(run.store), progress=progress, force=refreshing()).ref


@task(task_run_name="report-{spec.name}", **RETRIES)
def draw_report(spec: ChunkAdvantagesSpec, identity: ChunkAdvantagesIdentity, run: ChunkAdvantagesRun) -> ArtifactRef:
    """Draw the page on the advantages."""
    with _progress(spec, "report") as progress:
        return steps.report(spec, identity, store=ArtifactStore(run.store), progress=progress, force=refreshing()).ref


@task(task_run_name="publish-{spec.name}", **RETRIES, **UNCACHED)
def publish_advantages(spec: ChunkAdvantagesSpec, identity: ChunkAdvantagesIdentity, run: ChunkAdvantagesRun) -> str:
    """Make `run.output` these advantages; returns the folder. Never cached: an artifact says nothing of a folder elsewhere."""
    with _progress(spec, "publish"):
        return steps.publish(spec, identity, run, store=ArtifactStore(run.store))
