"""What runs the blocks of an encode: worker processes of one thread each, or the model in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from zephon_core.bank.encode.plan import worker_bytes
from zephon_core.bank.encode.unit import (
    BlockJob,
    BlockResult,
    EncoderFacts,
    EncodeTask,
    ProbeJob,
    UnitEncoder,
    open_encoder,
    run_probe,
)
from zephon_core.bank.specs import EncodeSpec, Grouping, RunOptions
from zephon_core.budget import BlockPlan, exact_blocks, packed_blocks, padded_blocks, runs_within
from zephon_core.errors import SpecError
from zephon_core.models import EncoderOptions, WorkerPool
from zephon_core.models.plugins import is_plugin

__all__ = ["EncodeRunner", "Unit", "choose_device", "make_plan", "open_runner", "plan_units", "unit_jobs", "wanted_blocks"]

MOST_PADDING = 1 / 8
UNIT_TOKENS = 2048
_QUEUED_TOKENS = 1 << 16  # handed to a GPU at once, so that it never waits for this process

Unit = range


class EncodeRunner(Protocol):
    """Encodes units; `facts` says with what."""

    facts: EncoderFacts
    devices: list[str]

    def run(self, units: Iterable[Sequence[BlockJob]]) -> Iterator[tuple[int, list[BlockResult]]]:
        """Yield (worker, results) for each unit as they are done, in any order."""

    def probe(self, job: ProbeJob) -> npt.NDArray[np.float32]:
        """Encode rows for comparison; return float32 [rows, hidden_size], not cast to the stored type."""


def make_plan(lengths: npt.NDArray[np.int32], spec: EncodeSpec) -> BlockPlan:
    """Return the blocks of an encode, a pure function of the texts' lengths and the spec."""
    bounds = {"max_batch": spec.max_batch, "token_budget": spec.token_budget}
    if spec.grouping is Grouping.PACKED:
        return packed_blocks(lengths, **bounds)
    if spec.grouping is Grouping.PADDED:
        return padded_blocks(lengths, **bounds, max_waste=MOST_PADDING)
    return exact_blocks(lengths, **bounds)


def plan_units(block_tokens: npt.NDArray[np.int64]) -> list[Unit]:
    """Cut the blocks into units, runs of neighbours of up to `UNIT_TOKENS` tokens that a model may run in one pass."""
    return list(runs_within(block_tokens, UNIT_TOKENS))


def wanted_blocks(plan: BlockPlan, units: Sequence[Unit], run: RunOptions) -> npt.NDArray[np.bool_]:
    """Tell which blocks `run` asks for, bool [blocks]: whole blocks, in the same composition whatever is asked for.

    Raises SpecError for a row range outside of the plan.
    """
    wanted = np.ones(len(plan), np.bool_)
    if run.limit_texts:
        kept = np.zeros(len(plan), np.bool_)
        kept[plan.blocks_of_rows(run.limit_texts)] = True
        wanted &= kept
    if run.rows:
        start, end = map(int, run.rows.split(":"))
        if not start < end <= plan.row_count:
            raise SpecError("rows", f"is {run.rows}", wanted=f"START:END with START < END <= {plan.row_count}")
        between = plan.blocks_between(start, end)
        wanted[: between.start] = False
        wanted[between.stop :] = False
    if run.part is not None:
        part_of_unit = np.arange(len(units)) % run.parts
        wanted &= np.repeat(part_of_unit, [len(unit) for unit in units]) == run.part
    return wanted


def unit_jobs(
    plan: BlockPlan, units: Sequence[Unit], wanted: npt.NDArray[np.bool_], facts: EncoderFacts
) -> Iterator[list[BlockJob]]:
    """Yield the jobs of each unit that has a wanted block.

    Blocks that share a forward pass always share it with the same others, wanted or not, so that what a block comes out as
    doesn't depend on what else is missing. Where none do, each wanted block is a unit: a kill costs no more than the one in hand.
    """
    for unit in units:
        flags = wanted[unit.start : unit.stop]
        if facts.ragged and flags.any():
            yield [BlockJob(block, plan.rows(block), bool(flag)) for block, flag in zip(unit, flags, strict=True)]
        elif not facts.ragged:
            yield from ([BlockJob(block, plan.rows(block))] for block, flag in zip(unit, flags, strict=True) if flag)


def choose_device(run: RunOptions, spec: EncodeSpec) -> str:
    """Return cpu, cuda or cuda:N; auto is the first GPU if there is one, but a plugin and OpenVINO choose for themselves."""
    if run.device != "auto":
        return run.device
    if is_plugin(spec.model.path) or spec.model.engine.value == "openvino" or not Path("/proc/driver/nvidia").exists():
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def open_runner(tokens: Path, spec: EncodeSpec, run: RunOptions, *, most_workers: int) -> Iterator[EncodeRunner]:
    """Load the model where it will run: into worker processes on a CPU, into this process on a GPU.

    A plugin is loaded into this process, unless `run.workers` asks for several. Raises ModelError, SpecError, WorkerError.
    """
    device = choose_device(run, spec)
    task = EncodeTask(tokens, spec, EncoderOptions(spec.pooling.value, device, run.gpu_memory_gb))
    plugin = is_plugin(spec.model.path)
    if device != "cpu" or (plugin and run.workers < 2):
        with open_encoder(task) as encoder:
            yield _Here(task, encoder)
        return
    count = max(1, min(_worker_count(spec, run), most_workers))
    task = replace(task, options=replace(task.options, copies=count))
    with WorkerPool(count, "zephon_core.bank.encode.unit:open_unit_encoder", task) as pool:
        yield _Workers(pool)


class _Here:
    def __init__(self, task: EncodeTask, encoder: UnitEncoder) -> None:
        self._task = task
        self._encoder = encoder
        self._on_gpu = task.options.device != "cpu"
        self.facts = encoder.facts
        self.devices = [_gpu_name(task.options.device) if self._on_gpu else "cpu"]

    def run(self, units: Iterable[Sequence[BlockJob]]) -> Iterator[tuple[int, list[BlockResult]]]:
        for jobs in _joined(units) if self._on_gpu and not self.facts.ragged else units:
            yield 0, self._encoder(jobs)

    def probe(self, job: ProbeJob) -> npt.NDArray[np.float32]:
        return run_probe(self._task, self._encoder, job)


class _Workers:
    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self.facts: EncoderFacts = [facts for _, facts in pool.run([None] * len(pool))].pop()
        self.devices = ["cpu"] * len(pool)

    def run(self, units: Iterable[Sequence[BlockJob]]) -> Iterator[tuple[int, list[BlockResult]]]:
        return self._pool.run(units)

    def probe(self, job: ProbeJob) -> npt.NDArray[np.float32]:
        ((_, features),) = self._pool.run([job])
        vectors: npt.NDArray[np.float32] = features
        return vectors


def _joined(units: Iterable[Sequence[BlockJob]]) -> Iterator[list[BlockJob]]:
    """Join units whose blocks run one by one anyway."""
    waiting: list[BlockJob] = []
    rows = 0
    for jobs in units:
        waiting += jobs
        rows += sum(len(job.rows) for job in jobs)
        if rows * 8 >= _QUEUED_TOKENS:
            yield waiting
            waiting, rows = [], 0
    if waiting:
        yield waiting


def _worker_count(spec: EncodeSpec, run: RunOptions) -> int:
    """Return how many workers to start: as asked for, else one a core as far as memory allows."""
    if run.workers or is_plugin(spec.model.path):
        return run.worker_count
    each = worker_bytes(spec)
    available = _available_bytes()
    return min(run.worker_count, max(1, int(available * 0.8 / each))) if available else run.worker_count


def _available_bytes() -> int:
    """Return what the machine's memory has left, 0 if that isn't known."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 0)


def _gpu_name(device: str) -> str:
    import torch

    return f"{device} {torch.cuda.get_device_name(device)}"
