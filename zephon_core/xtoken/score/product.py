"""What scoring makes of its blocks: one logprob a token, and a receipt of how near they are to plain float32's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.blocks import (
    BlockRunner,
    Here,
    RowFile,
    RowLayout,
    TokenRows,
    Workers,
    machine_has_gpu,
    probe_rows,
    workers_that_fit,
)
from zephon_core.errors import SourceChangedError
from zephon_core.models import EncoderOptions, WorkerPool, model_content_sha256, read_model_folder
from zephon_core.models.cost import reference_bytes
from zephon_core.xtoken.score.plan import worker_bytes
from zephon_core.xtoken.score.spec import ScoreRun, ScoreSpec
from zephon_core.xtoken.score.unit import ProbeJob, ScoreTask, open_here

__all__ = ["LOGPROBS_NAME", "ScoreProduct"]

LOGPROBS_NAME = "logprobs.f32.npy"
PROBE_ROWS = 16
PROBE_TOKENS = 4096


class ScoreProduct:
    """The logprobs of a teacher on many sequences. model_sha256: the content that the work is named after."""

    verb = "score"
    file_name = LOGPROBS_NAME

    def __init__(
        self, tokens: TokenRows, spec: ScoreSpec, run: ScoreRun, model_sha256: str, hash_file: Callable[[Path], str]
    ) -> None:
        self._tokens = tokens
        self._spec = spec
        self._run = run
        self._model_sha256 = model_sha256
        self._hash_file = hash_file

    def open_runner(self, most_workers: int) -> AbstractContextManager[BlockRunner]:
        """See `Product.open_runner`."""
        return _open_runner(self._tokens.directory, self._spec, self._run, most_workers)

    def layout(self, settled: dict[str, Any]) -> RowLayout:
        """See `Product.layout`."""
        return RowLayout.ragged(self._tokens.lengths, np.dtype(np.float32))

    def check_inputs(self) -> None:
        """See `Product.check_inputs`."""
        if model_content_sha256(self._spec.model, hash_file=self._hash_file) != self._model_sha256:
            raise SourceChangedError(self._spec.model.path)

    def receipt(self, file: RowFile, runner: BlockRunner, poison: npt.NDArray[np.integer]) -> dict[str, Any]:
        """See `Product.receipt`: a probe of sequences scored anew, by the same weights in plain float32 and alone."""
        rows = probe_rows(self._tokens.lengths, poison, most_rows=PROBE_ROWS, most_tokens=PROBE_TOKENS)
        if not len(rows):
            return {"probe": {"rows": 0, "tokens": 0}}
        stored = np.concatenate([file.read(row[None])[0] for row in rows])
        return {
            "probe": {"rows": len(rows), "tokens": len(stored)},
            "alone": _deviation(stored, runner.ask(ProbeJob(rows))),
            "float32": self._against_float32(stored, rows, runner),
        }

    def _against_float32(
        self, stored: npt.NDArray[np.floating], rows: npt.NDArray[np.int64], runner: BlockRunner
    ) -> dict[str, Any]:
        folder = read_model_folder(self._spec.model.path)
        if not reference_bytes(folder):
            return {"skipped": f"the model in float32 takes {4 * folder.parameter_count / 1e9:.0f} GB"}
        return _deviation(stored, runner.ask(ProbeJob(rows, reference=True)))


@contextmanager
def _open_runner(tokens: Path, spec: ScoreSpec, run: ScoreRun, most_workers: int) -> Iterator[BlockRunner]:
    """Load the model where it will run: into worker processes on a CPU, into this process on a GPU."""
    device = run.device if run.device != "auto" else "cuda" if machine_has_gpu() else "cpu"
    task = ScoreTask(tokens, spec, EncoderOptions(device=device, gpu_memory_gb=run.gpu_memory_gb))
    if device != "cpu":
        with open_here(task) as handle:
            yield Here(handle, device, queued=False)
        return
    count = min(run.workers or workers_that_fit(run.worker_count, worker_bytes(spec)), most_workers)
    task = replace(task, options=replace(task.options, copies=count))
    with WorkerPool(count, "zephon_core.xtoken.score.unit:open_unit_scorer", task) as pool:
        yield Workers(pool)


def _deviation(first: npt.NDArray[np.floating], second: npt.NDArray[np.floating]) -> dict[str, float]:
    """Compare logprobs: `largest_deviation` and `mean_deviation`, absolute, in nats."""
    deviation = np.abs(first.astype(np.float64) - second)
    deviation = deviation[np.isfinite(deviation)]
    if not len(deviation):
        return {"largest_deviation": 0.0, "mean_deviation": 0.0}
    return {"largest_deviation": float(f"{deviation.max():.3g}"), "mean_deviation": float(f"{deviation.mean():.3g}")}
