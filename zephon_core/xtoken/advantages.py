"""Advantages from chunks: what the teacher thinks of what the student said, in the student's tokens.

A chunk's gap is the teacher's sum of log-probabilities less the student's. Each of its student tokens gets gap / student tokens,
so that the chunk moves the student by its gap, however long it is and however wordy the teacher's tokenizer.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, computed_field

from zephon_core.errors import SpecError
from zephon_core.xtoken.datums import DatumColumns, TrainDatum, ragged_floats, shown_name, with_advantages
from zephon_core.xtoken.plans import ChunkPlan, PlanColumns

__all__ = [
    "DROP_REASONS",
    "AttachedColumns",
    "Attaching",
    "ChunkAdvantageStats",
    "Drop",
    "Weighed",
    "attach_chunk_advantages",
    "attach_columns",
    "drop_words",
]

ENOUGH_COVERAGE = 0.95
_DOUBTFUL_SHARE, _FEW = 0.5, 2
"""Where more of the datums are dropped for the same reason, and more than these, it is no fault of single ones."""

MOST_LOGGED_DROPS = 20

_log = logging.getLogger(__name__)


class ChunkAdvantageStats(BaseModel):
    """What came of attaching. Everything but the drops counts datums that were attached: nothing is learnt from the others."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    datums: int = Field(ge=0, description="Datums with advantages.")
    mismatch_drops: int = Field(ge=0, description="Datums whose plan or teacher row didn't fit them.")
    empty_coverage_drops: int = Field(ge=0, description="Datums of which no chunk covers a loss token.")
    chunks: int = Field(ge=0)
    scored_loss_tokens: int = Field(ge=0, description="Loss tokens in a chunk.")
    unscored_loss_tokens: int = Field(ge=0, description="Loss tokens in none; their advantage is 0.0.")
    clipped_chunks: int = Field(ge=0, description="Chunks whose value a token was out of bounds.")
    chunk_reverse_kl: float | None = Field(description="Mean of student less teacher a scored token, before clip and centring.")
    advantage_mean: float | None = Field(description="Mean advantage of the scored tokens, as trained.")
    advantage_std: float | None = Field(description="Population standard deviation of the same.")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def coverage_rate(self) -> float:
        """Share of the loss tokens that a chunk covers; 0.0 without any."""
        total = self.scored_loss_tokens + self.unscored_loss_tokens
        return self.scored_loss_tokens / total if total else 0.0


class Drop(IntEnum):
    """Why a datum was dropped."""

    NONE = 0
    ROW_LENGTH = 1
    OTHER_DATUM = 2
    PAST_THE_END = 3
    ON_CONTEXT = 4
    EMPTY_COVERAGE = 5
    NO_LOGPROB = 6


DROP_REASONS = {
    Drop.ROW_LENGTH: "the teacher's row is as long as another sequence, not as the one that its plan was made for",
    Drop.OTHER_DATUM: "its plan is that of another datum",
    Drop.PAST_THE_END: "its plan has a chunk past its end",
    Drop.ON_CONTEXT: "its plan has a chunk on a context position, where logprobs are padding",
    Drop.EMPTY_COVERAGE: "no chunk covers any of its loss tokens",
    Drop.NO_LOGPROB: "a chunk needs a logprob that is missing, NaN, infinite or too large to count with",
}


def drop_words(drop: Drop, found: int, wanted: int) -> str:
    """Say why a datum was dropped. found, wanted: how many logprobs the teacher's row has, and how many tokens its plan's."""
    if drop is Drop.ROW_LENGTH:
        return f"the teacher's row has {found:,} logprobs, expected {wanted:,}, one a token"
    return DROP_REASONS[drop]


@dataclass(frozen=True)
class AttachedColumns:
    """advantages: float64, one a token of all datums, 0.0 throughout for dropped ones. drops: uint8 [datums], see `Drop`.

    chunk_values: float64 [chunks], what each student token of a chunk got; 0.0 for chunks of dropped datums.
    """

    advantages: npt.NDArray[np.float64]
    drops: npt.NDArray[np.uint8]
    chunk_values: npt.NDArray[np.float64]
    stats: ChunkAdvantageStats

    @property
    def kept(self) -> npt.NDArray[np.bool_]:
        """Whether each datum got advantages: bool [datums]."""
        kept: npt.NDArray[np.bool_] = self.drops == Drop.NONE
        return kept


def attach_chunk_advantages(
    datums: Sequence[TrainDatum],
    plans: Sequence[ChunkPlan],
    teacher_logprobs: Sequence[Sequence[float | None] | npt.NDArray[np.floating[Any]]],
    *,
    clip: float | None = None,
    center: bool = False,
) -> tuple[list[TrainDatum], ChunkAdvantageStats]:
    """Return the datums with advantages, in order, without those that had to be dropped; and what came of it.

    teacher_logprobs: for each datum a row as long as its plan's `teacher_token_count`: natural-log probabilities of the teacher's
    tokens given those before; None where there is none, as at position 0.
    clip: bounds the value a token to ±clip. center: subtracts the mean of the chunks' totals, after clipping, from each total, so
    that long chunks keep their sign; tokens outside of chunks stay at exactly 0.0.
    A datum whose row or plan doesn't fit, or that has no scored token, is dropped, logged and counted.
    Raises SpecError (a ValueError) unless there is one plan and one row a datum, and for a clip that is no positive number.
    """
    for name, rows in (("plans", plans), ("teacher_logprobs", teacher_logprobs)):
        if len(rows) != len(datums):
            raise SpecError(name, f"are {len(rows):,} for {len(datums):,} datums", wanted="one a datum, in their order")
    columns, planned = DatumColumns.of(datums, with_tokens=False), PlanColumns.of(plans, with_exact=False)
    row_offsets, rows_flat = ragged_floats(teacher_logprobs)
    attached = attach_columns(columns, planned, row_offsets, rows_flat, clip=clip, center=center)
    kept = np.flatnonzero(attached.kept)
    begins = planned.ranges[planned.offsets[kept], 0]
    lists = _lists(attached.advantages, columns.offsets[kept], columns.offsets[kept + 1], begins)
    return [with_advantages(datums[datum], row) for datum, row in zip(kept.tolist(), lists, strict=True)], attached.stats


def _lists(
    values: npt.NDArray[np.float64], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], begins: npt.NDArray[np.int64]
) -> Iterator[list[float]]:
    """Yield stretches of a flat column as lists. begins: how many zeros each starts with, a prompt's: one object serves for all."""
    for start, end, begin in zip(starts.tolist(), ends.tolist(), begins.tolist(), strict=True):
        row = [0.0] * begin
        row += values[start + begin : end].tolist()
        yield row


def attach_columns(
    datums: DatumColumns,
    plans: PlanColumns,
    row_offsets: npt.NDArray[np.int64],
    rows: npt.NDArray[np.float64],
    *,
    clip: float | None = None,
    center: bool = False,
) -> AttachedColumns:
    """Do what `attach_chunk_advantages` does, on columns. row_offsets, rows: the teacher's rows laid out flat, NaN for None."""
    attaching = Attaching(clip=clip, center=center)
    weighed = attaching.weigh(datums, plans, row_offsets, rows)
    attaching.tally(datums, plans, weighed)
    advantages, values = attaching.give(datums, plans, weighed)
    return AttachedColumns(advantages, weighed.drops, values, attaching.stats())


@dataclass(frozen=True)
class Weighed:
    """drops: uint8 [datums], see `Drop`. gaps: float64 [chunks], of no meaning for dropped datums.

    row_lengths: int64 [datums], of the teacher's logprobs.
    """

    drops: npt.NDArray[np.uint8]
    gaps: npt.NDArray[np.float64]
    row_lengths: npt.NDArray[np.int64]


class Attaching:
    """Attaches advantages to datums that come in parts, to the bit as if they all came at once.

    Twice over all parts, in order: first each is weighed and tallied, then each (weighed anew, unless that was kept) is given its
    advantages. Centring needs the mean of all chunks' totals before the first datum is given anything.
    drops_in: where the drops are listed; then only the first are logged one by one, the rest as a number.
    Raises SpecError for a clip that is no positive number.
    """

    def __init__(self, *, clip: float | None = None, center: bool = False, drops_in: str = "") -> None:
        if clip is not None and not (math.isfinite(clip) and clip > 0):
            raise SpecError("clip", f"is {clip}", wanted="a positive number, or None for no bound")
        self._clip = math.inf if clip is None else float(clip)
        self._center = center
        self._drops: Counter[int] = Counter()
        self._drops_in = drops_in
        self._logged = 0
        self._row_tokens = np.zeros(2, dtype=np.int64)
        self._silent = 0
        self._counts = np.zeros(4, dtype=np.int64)
        self._sums = np.zeros(2)
        self._squares = np.zeros(1)

    def weigh(
        self, datums: DatumColumns, plans: PlanColumns, row_offsets: npt.NDArray[np.int64], rows: npt.NDArray[np.float64]
    ) -> Weighed:
        """Compare both sides of each chunk, and find the datums to be dropped. Takes what `attach_columns` does."""
        from zephon_core.xtoken.kernels import chunk_gaps

        if len(plans) != len(datums) or len(row_offsets) - 1 != len(datums):
            found = f"are {len(plans):,} and {len(row_offsets) - 1:,} for {len(datums):,} datums"
            raise SpecError("plans and teacher rows", found, wanted="one a datum")
        drops = _misfits(datums, plans, row_offsets)
        gaps = np.empty(len(plans.ranges))
        chunk_gaps(plans.offsets, plans.ranges, datums.offsets, datums.loss, datums.logprobs, row_offsets, rows, drops, gaps)
        return Weighed(drops, gaps, np.diff(row_offsets))

    def tally(self, datums: DatumColumns, plans: PlanColumns, weighed: Weighed) -> None:
        """Count a part in, and log its drops."""
        from zephon_core.xtoken.kernels import tally

        self._log_drops(datums, plans, weighed)
        wrong = weighed.drops == Drop.ROW_LENGTH
        self._row_tokens += weighed.row_lengths[wrong].sum(), plans.teacher_token_count[wrong].sum()
        for row in np.flatnonzero(weighed.drops == Drop.EMPTY_COVERAGE).tolist():
            self._silent += not datums.loss[datums.offsets[row] : datums.offsets[row + 1]].any()
        self._drops.update(weighed.drops.tolist())
        tally(
            *(plans.offsets, plans.ranges, datums.offsets, datums.loss, weighed.drops, weighed.gaps),
            clip=self._clip,
            counts=self._counts,
            sums=self._sums,
        )

    def give(
        self, datums: DatumColumns, plans: PlanColumns, weighed: Weighed
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return a part's `advantages` and `chunk_values`, see `AttachedColumns`, once all parts are tallied."""
        from zephon_core.xtoken.kernels import give

        values, advantages = np.zeros(len(plans.ranges)), np.zeros(len(datums.loss))
        give(
            *(plans.offsets, plans.ranges, datums.offsets, weighed.drops, weighed.gaps),
            clip=self._clip,
            center=self._center,
            mean_total=self._mean_total,
            mean=self._mean,
            values=values,
            out=advantages,
            squares=self._squares,
        )
        return advantages, values

    def stats(self) -> ChunkAdvantageStats:
        """Say what came of it, once all parts are given theirs. Warns where chunks cover less than they should."""
        chunks, clipped, scored, losses = self._counts.tolist()
        kept, empty = self._drops[Drop.NONE], self._drops[Drop.EMPTY_COVERAGE]
        dropped = self._drops.total() - kept
        if dropped > self._logged:
            _log.warning("dropped: %d more, %d in all, which %s lists", dropped - self._logged, dropped, self._drops_in)
        stats = ChunkAdvantageStats(
            datums=kept,
            mismatch_drops=self._drops.total() - kept - empty,
            empty_coverage_drops=empty,
            chunks=chunks,
            scored_loss_tokens=scored,
            unscored_loss_tokens=losses - scored,
            clipped_chunks=clipped,
            chunk_reverse_kl=-float(self._sums[1]) / scored if scored else None,
            advantage_mean=self._mean if scored else None,
            advantage_std=math.sqrt(float(self._squares[0]) / scored) if scored else None,
        )
        if self.doubt:
            _log.warning("%s", self.doubt)
        if stats.datums and stats.coverage_rate < ENOUGH_COVERAGE:
            _log.warning(
                "chunks cover %.1f %% of the loss tokens (%d of %d), expected at least 95 %%: look at the pair with xtoken check",
                stats.coverage_rate * 100,
                stats.scored_loss_tokens,
                stats.scored_loss_tokens + stats.unscored_loss_tokens,
            )
        return stats

    @property
    def doubt(self) -> str:
        """Say what is probably wrong with all that was given, where datums are dropped as a rule; "" where they aren't."""
        total, wrong = self._drops.total(), self._drops[Drop.ROW_LENGTH]
        if wrong > max(_FEW, _DOUBTFUL_SHARE * total):
            found, wanted = self._row_tokens.tolist()
            rows = f"{wrong:,} of {total:,} rows of the teacher's logprobs are as long as another sequence than it reads here"
            probably = "they are probably of another tokenizer or chat template than the teacher's"
            return f"{rows} ({found:,} logprobs for {wanted:,} tokens): {probably}"
        empty, spoken = self._drops[Drop.EMPTY_COVERAGE] - self._silent, total - self._silent
        if empty > max(_FEW, _DOUBTFUL_SHARE * spoken):
            what = f"no chunk covers any loss token of {empty:,} of {spoken:,} datums"
            probably = "one of the tokenizers is probably another than the one that gave the tokens"
            return f"{what}, so hardly anything is spelled alike on both sides: {probably}"
        return ""

    def _log_drops(self, datums: DatumColumns, plans: PlanColumns, weighed: Weighed) -> None:
        most = MOST_LOGGED_DROPS - self._logged if self._drops_in else len(datums)
        for row in np.flatnonzero(weighed.drops)[:most].tolist():
            drop, name = Drop(int(weighed.drops[row])), shown_name(datums.trial_name[row])
            reason = drop_words(drop, int(weighed.row_lengths[row]), int(plans.teacher_token_count[row]))
            _log.warning("dropped: trial %s, fragment %d: %s", name, datums.fragment_index[row], reason)
            self._logged += 1

    @property
    def _mean_total(self) -> float:
        chunks = int(self._counts[0])
        return float(self._sums[0]) / chunks if self._center and chunks else 0.0

    @property
    def _mean(self) -> float:
        chunks, _, scored, _ = self._counts.tolist()
        return (float(self._sums[0]) - self._mean_total * chunks) / scored if scored else 0.0


def _misfits(datums: DatumColumns, plans: PlanColumns, row_offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Find the datums of which a look at the lengths and names tells that they will be dropped: uint8 [datums], see `Drop`."""
    names = np.fromiter(map(str.__eq__, datums.trial_name, plans.trial_name), dtype=np.bool_, count=len(datums))
    drops = np.zeros(len(datums), dtype=np.uint8)
    drops[np.diff(plans.offsets) == 0] = Drop.EMPTY_COVERAGE
    drops[~names | (datums.fragment_index != plans.fragment_index)] = Drop.OTHER_DATUM
    drops[np.diff(row_offsets) != plans.teacher_token_count] = Drop.ROW_LENGTH
    return drops
