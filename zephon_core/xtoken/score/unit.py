"""Score blocks of sequences: the part that runs beside the model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.blocks import BlockJob, BlockResult, Facts, Finished, Handle, TokenRows, flaws_of, in_halves
from zephon_core.errors import ModelError
from zephon_core.models import EncoderOptions
from zephon_core.models.causal import CausalScorer, load_reference_scorer, load_scorer
from zephon_core.models.encoder import import_torch
from zephon_core.xtoken.score.spec import ScoreSpec

__all__ = ["ProbeJob", "ScoreTask", "finish_scores", "open_here", "open_unit_scorer"]


@dataclass(frozen=True)
class ProbeJob:
    """Sequences to score for comparison, one by one; int64 rows. reference: in plain float32."""

    rows: npt.NDArray[np.int64]
    reference: bool = False


@dataclass(frozen=True)
class ScoreTask:
    """What a worker needs to score blocks. tokens: the folder of their ids."""

    tokens: Path
    spec: ScoreSpec
    options: EncoderOptions


def finish_scores(scores: npt.NDArray[np.float32]) -> Finished:
    """Look for logprobs that are none, in float32 [sequences, length], of whose first column nothing is said."""
    flaws = flaws_of(scores[:, 1:])
    stored = scores.copy()
    stored[flaws > 0] = np.nan
    largest = np.abs(scores[:, 1:]).max(1, initial=0)
    return Finished(stored=stored, flaws=flaws, largest=float(largest[flaws == 0].max(initial=0)))


class UnitScorer:
    """Turns the blocks of one unit into results."""

    def __init__(self, tokens: TokenRows, scorer: CausalScorer, path: str) -> None:
        self._tokens = tokens
        self._scorer = scorer
        self._path = path

    @property
    def facts(self) -> Facts:
        """What the scorer is."""
        return Facts({"forward": self._scorer.name})

    def __call__(self, jobs: Sequence[BlockJob]) -> list[BlockResult]:
        """Score blocks. Raises ModelError if a single sequence doesn't fit into memory, or for ids that the model doesn't know."""
        results = []
        for job in jobs:
            started = time.perf_counter()
            scores, halvings = in_halves(job.rows, self._one_pass, self._too_long)
            took_us = int((time.perf_counter() - started) * 1e6)
            results.append(BlockResult(job.block, finish_scores(scores), took_us, halvings))
        return results

    def probe(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Score sequences one by one; return float32, end to end."""
        return np.concatenate([in_halves(row[None], self._one_pass, self._too_long)[0][0] for row in rows])

    def _one_pass(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        return self._scorer.score(self._tokens.gather(rows, int(self._tokens.lengths[rows[0]])))

    def _too_long(self, row: int) -> ModelError:
        return ModelError(
            self._path,
            f"runs out of memory on a single sequence of {int(self._tokens.lengths[row]):,} tokens (row {row})",
            remedy="Shorten it, quantise the model, or use a device with more memory.",
        )


@contextmanager
def open_unit_scorer(task: ScoreTask) -> Iterator[Handle]:
    """Load a task's model into a worker process. Yields what `open_here` does."""
    import_torch().set_num_threads(1)
    with open_here(task) as handle:
        yield handle


@contextmanager
def open_here(task: ScoreTask) -> Iterator[Handle]:
    """Load a task's model into this process.

    Yields a function from the blocks of a unit to their results, from a probe to its scores, from None to what the model is.
    """
    tokens = TokenRows(task.tokens)
    scorer = load_scorer(task.spec.model, task.options)
    try:
        unit_scorer = UnitScorer(tokens, scorer, task.spec.model.path)

        def handle(request: Any) -> Any:
            if request is None:
                return unit_scorer.facts
            if isinstance(request, ProbeJob):
                return _run_probe(task, unit_scorer, request)
            return unit_scorer(request)

        yield handle
    finally:
        scorer.close()


def _run_probe(task: ScoreTask, scorer: UnitScorer, probe: ProbeJob) -> npt.NDArray[np.float32]:
    if not probe.reference:
        return scorer.probe(probe.rows)
    reference = load_reference_scorer(task.spec.model, task.options)
    try:
        return UnitScorer(TokenRows(task.tokens), reference, task.spec.model.path).probe(probe.rows)
    finally:
        reference.close()
