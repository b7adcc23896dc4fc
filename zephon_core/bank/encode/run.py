"""Where a bank's encoder runs: in worker processes of one thread each, or in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zephon_core.bank.encode.plan import worker_bytes
from zephon_core.bank.encode.unit import EncodeTask, open_here
from zephon_core.bank.specs import EncodeSpec, Grouping, RunOptions
from zephon_core.blocks import BlockRunner, Here, Share, Workers, machine_has_gpu, workers_that_fit
from zephon_core.budget import BlockPlan, exact_blocks, packed_blocks, padded_blocks
from zephon_core.models import EncoderOptions, WorkerPool
from zephon_core.models.plugins import is_plugin

__all__ = ["choose_device", "make_plan", "open_runner", "share_of"]

MOST_PADDING = 1 / 8


def make_plan(lengths: npt.NDArray[np.int32], spec: EncodeSpec) -> BlockPlan:
    """Return the blocks of an encode, a pure function of the texts' lengths and the spec."""
    bounds = {"max_batch": spec.max_batch, "token_budget": spec.token_budget}
    if spec.grouping is Grouping.PACKED:
        return packed_blocks(lengths, **bounds)
    if spec.grouping is Grouping.PADDED:
        return padded_blocks(lengths, **bounds, max_waste=MOST_PADDING)
    return exact_blocks(lengths, **bounds)


def share_of(run: RunOptions) -> Share:
    """Return what of a bank a run encodes."""
    return Share(limit_rows=run.limit_texts, rows=run.rows, parts=run.parts, part=run.part)


def choose_device(run: RunOptions, spec: EncodeSpec) -> str:
    """Return cpu, cuda or cuda:N; auto is the first GPU if there is one, but a plugin and OpenVINO choose for themselves."""
    if run.device != "auto":
        return run.device
    if is_plugin(spec.model.path) or spec.model.engine.value == "openvino":
        return "cpu"
    return "cuda" if machine_has_gpu() else "cpu"


@contextmanager
def open_runner(tokens: Path, spec: EncodeSpec, run: RunOptions, *, most_workers: int) -> Iterator[BlockRunner]:
    """Load the model where it will run: into worker processes on a CPU, into this process on a GPU.

    A plugin is loaded into this process, unless `run.workers` asks for several. Raises ModelError, SpecError, WorkerError.
    """
    device = choose_device(run, spec)
    task = EncodeTask(tokens, spec, EncoderOptions(spec.pooling.value, device, run.gpu_memory_gb))
    plugin = is_plugin(spec.model.path)
    if device != "cpu" or (plugin and run.workers < 2):
        with open_here(task) as handle:
            yield Here(handle, device, queued=device != "cpu")
        return
    count = max(1, min(_worker_count(spec, run), most_workers))
    task = replace(task, options=replace(task.options, copies=count))
    with WorkerPool(count, "zephon_core.bank.encode.unit:open_unit_encoder", task) as pool:
        yield Workers(pool)


def _worker_count(spec: EncodeSpec, run: RunOptions) -> int:
    """Return how many workers to start: as asked for, else one a core as far as memory allows."""
    if run.workers or is_plugin(spec.model.path):
        return run.worker_count
    return workers_that_fit(run.worker_count, worker_bytes(spec))
