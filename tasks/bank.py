"""The steps of a feature bank as Prefect tasks."""

from __future__ import annotations

from contextlib import AbstractContextManager

from prefect import task

from tasks.caching import RETRIES, UNCACHED, refreshing
from tasks.reporting import RunProgress, run_progress
from zephon_core.bank import steps
from zephon_core.bank.specs import BankSpec, RunOptions
from zephon_core.bank.steps import BankIdentity
from zephon_core.progress import LoggingProgress
from zephon_core.store import ArtifactRef, ArtifactStore

__all__ = ["encode_texts", "identify_inputs", "publish_bank", "scan_texts", "tokenize_texts", "write_manifest"]


def _progress(spec: BankSpec, step: str) -> AbstractContextManager[RunProgress | LoggingProgress]:
    return run_progress(f"bank {spec.name}", step)


@task(task_run_name="identify-{spec.name}", **RETRIES, **UNCACHED)
def identify_inputs(spec: BankSpec, run: RunOptions) -> BankIdentity:
    """Hash the content of sources, tokenizer and model; what is known from an earlier run isn't read again."""
    with _progress(spec, "identify") as progress:
        return steps.identify(spec, store=ArtifactStore(run.store), progress=progress)


@task(task_run_name="scan-{spec.name}", **RETRIES)
def scan_texts(spec: BankSpec, identity: BankIdentity, run: RunOptions) -> ArtifactRef:
    """Collect the distinct texts of the sources."""
    with _progress(spec, "scan") as progress:
        store = ArtifactStore(run.store)
        return steps.scan(spec, identity, run, store=store, progress=progress, force=refreshing()).ref


@task(task_run_name="tokenize-{spec.name}", **RETRIES)
def tokenize_texts(spec: BankSpec, identity: BankIdentity, run: RunOptions) -> ArtifactRef:
    """Turn the distinct texts into token ids."""
    with _progress(spec, "tokenize") as progress:
        store = ArtifactStore(run.store)
        return steps.tokenize(spec, identity, run, store=store, progress=progress, force=refreshing()).ref


@task(task_run_name="encode-{spec.name}-{part}", **RETRIES)
def encode_texts(spec: BankSpec, identity: BankIdentity, run: RunOptions, part: str = "all") -> ArtifactRef | None:
    """Encode what `run` asks for; returns None while rows are missing after that.

    part: what people call this share of the work ("all", "part-3-of-8"); `run` says which one it is.
    """
    with _progress(spec, "encode" if part == "all" else f"encode-{part}") as progress:
        store = ArtifactStore(run.store)
        built = steps.encode(spec, identity, run, store=store, progress=progress, force=refreshing()).built
        return built.ref if built else None


@task(task_run_name="manifest-{spec.name}", **RETRIES)
def write_manifest(spec: BankSpec, identity: BankIdentity, run: RunOptions) -> ArtifactRef | None:
    """Put the finished bank together in the store; returns None for a bank that lacks rows."""
    with _progress(spec, "manifest") as progress:
        store = ArtifactStore(run.store)
        unpublished = run.model_copy(update={"output": ""})
        built = steps.assemble(spec, identity, unpublished, store=store, progress=progress, force=refreshing())
        return built.ref if built else None


@task(task_run_name="publish-{spec.name}", **RETRIES, **UNCACHED)
def publish_bank(spec: BankSpec, identity: BankIdentity, run: RunOptions) -> str:
    """Make `run.output` this bank; returns the folder. Never cached: a finished artifact says nothing of a folder elsewhere."""
    with _progress(spec, "publish") as progress:
        steps.assemble(spec, identity, run, store=ArtifactStore(run.store), progress=progress)
    return run.output
