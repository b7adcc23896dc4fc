"""Build a bank from start to finish in this process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zephon_core.bank import steps
from zephon_core.bank.manifest import empty_fields, read_manifest
from zephon_core.bank.publish import check_output
from zephon_core.bank.specs import BankSpec, RunOptions
from zephon_core.models.encoder import check_device
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.runners import TaskRunner
from zephon_core.store import ArtifactStore

__all__ = ["BankResult", "build_bank", "check_run", "current_result", "plan_bank"]


@dataclass(frozen=True)
class BankResult:
    """What a build made: where the bank is, what it holds, which steps were there already and how long the others took.

    empty_fields: the field paths at which no row of any source holds a text.
    """

    bank: str
    fingerprint: str
    text_count: int
    encoded_rows: int
    complete: bool
    cached: dict[str, bool]
    seconds: dict[str, float]
    empty_fields: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return the result as one JSON object."""
        return dict(vars(self))


def build_bank(
    spec: BankSpec,
    run: RunOptions | None = None,
    *,
    store: ArtifactStore | None = None,
    progress: Progress = NULL_PROGRESS,
) -> BankResult:
    """Scan, tokenize, encode and assemble a bank; steps whose artifacts are in the store are not done again.

    Interrupted anywhere, the same call goes on where it was. Raises the errors of the steps (see `zephon_core.bank.steps`).
    """
    run = run or RunOptions()
    store = store or ArtifactStore(run.store)
    seconds: dict[str, float] = {}
    cached: dict[str, bool] = {}
    clock = time.monotonic()

    def lap(name: str) -> None:
        nonlocal clock
        now = time.monotonic()
        seconds[name] = round(now - clock, 3)
        clock = now

    check_run(run)
    identity = steps.identify(spec, store=store, progress=progress)
    lap("identify")
    if identity.is_current:
        return current_result(spec, seconds)
    scanned = steps.scan(spec, identity, run, store=store, progress=progress, force=run.refresh)
    cached["scan"] = scanned.cached
    lap("scan")
    cached["tokenize"] = steps.tokenize(spec, identity, run, store=store, progress=progress, force=run.refresh).cached
    lap("tokenize")
    if run.refresh:
        steps.restart_encode(spec, identity, run, store=store, progress=progress)
    encoded = steps.encode(spec, identity, run, store=store, progress=progress, force=run.refresh)
    cached["encode"] = encoded.built is not None and encoded.built.cached
    lap("encode")
    built = steps.assemble(spec, identity, run, store=store, progress=progress, force=run.refresh)
    cached["manifest"] = built is not None and built.cached
    lap("manifest")
    output = Path(run.output).expanduser().absolute() if run.output else None
    folder = str(output) if output and output.exists() else built.ref.url if built else ""
    return BankResult(
        bank=folder,
        fingerprint=steps.bank_recipes(spec, identity).bank.fingerprint,
        text_count=encoded.outcome.text_count,
        encoded_rows=encoded.outcome.encoded_rows,
        complete=built is not None,
        cached=cached,
        seconds=seconds,
        empty_fields=empty_fields(store.record(scanned.ref).statistics),
    )


def check_run(run: RunOptions) -> None:
    """Raise SpecError for options that would fail after hours of work: an output that can't be, a GPU that isn't there."""
    if run.output:
        check_output(run.output)
    if run.task_runner in (TaskRunner.THREAD, TaskRunner.PROCESS):
        check_device(run.device)


def current_result(spec: BankSpec, seconds: dict[str, float]) -> BankResult:
    """Return the result of a build for which there was nothing to do: the base holds all sources."""
    manifest = read_manifest(Path(spec.base))
    return BankResult(
        bank=str(Path(spec.base).expanduser().absolute()),
        fingerprint=manifest["fingerprints"]["bank"],
        text_count=manifest["text_count"],
        encoded_rows=manifest["encoded_rows"],
        complete=manifest["complete"],
        cached=dict.fromkeys(("scan", "tokenize", "encode", "manifest"), True),
        seconds=seconds,
        empty_fields=empty_fields(manifest["statistics"]["scan"]),
    )


def plan_bank(
    spec: BankSpec,
    run: RunOptions | None = None,
    *,
    store: ArtifactStore | None = None,
    progress: Progress = NULL_PROGRESS,
) -> dict[str, Any]:
    """Scan and tokenize (both are kept for the build) and predict the encode, without loading a model.

    Returns what `EncodePlan.to_json` does. Raises the errors of the steps.
    """
    import numpy as np

    from zephon_core.bank.encode.plan import predict_encode
    from zephon_core.bank.encode.run import make_plan

    run = run or RunOptions()
    store = store or ArtifactStore(run.store)
    identity = steps.identify(spec, store=store, progress=progress)
    steps.scan(spec, identity, run, store=store, progress=progress)
    steps.tokenize(spec, identity, run, store=store, progress=progress)
    recipes = steps.bank_recipes(spec, identity)
    tokens = store.find("tokens", (recipes.added or recipes).tokens.fingerprint)
    lengths = np.load(tokens.path / "lengths.npy", mmap_mode="r") if tokens else np.zeros(0, np.int32)
    return predict_encode(lengths, make_plan(lengths, spec.encode), spec.encode).to_json()
