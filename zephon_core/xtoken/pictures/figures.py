"""What the report of attached advantages draws, gathered part by part in bounded memory."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_core.xtoken.advantages import Attaching, Drop
from zephon_core.xtoken.alignment import TeacherSide
from zephon_core.xtoken.datums import DatumColumns
from zephon_core.xtoken.pictures.view import ViewedDatum, view_datums
from zephon_core.xtoken.plans import PlanColumns

__all__ = ["LONGEST_LISTED", "SHRINK_TOKENS", "AdvantageFigures", "Bin", "Spread", "length_histogram"]

LONGEST_LISTED = 64
"""Chunk lengths that are told apart; the last place of a histogram holds that and everything longer."""
COVERAGE_STEPS = 20

SHRINK_TOKENS = 16
"""Tokens without anything wrong that everyone is given in a ranking by rate, so that datums of two tokens don't head it."""

_MOST_PICTURED_TOKENS = 1 << 16


def length_histogram(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Count lengths from 1 to LONGEST_LISTED and more: int64 [LONGEST_LISTED]."""
    return np.bincount(np.minimum(lengths, LONGEST_LISTED) - 1, minlength=LONGEST_LISTED)


class Bin(NamedTuple):
    """One column of a histogram: values from low on and below high, or without bound where that is infinite."""

    low: float
    high: float
    tokens: int


class Spread:
    """A histogram of values whose range isn't known before: bins of equal width around 0.0, which grow by doubling.

    What is counted depends on neither the order nor the parts that the values come in.
    """

    _HALF = 1024

    def __init__(self) -> None:
        self._width = 2.0**-20
        self._counts = np.zeros(2 * self._HALF, dtype=np.int64)

    def add(self, values: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]) -> None:
        """Count each value so many times. Values are finite."""
        if not len(values):
            return
        largest = float(np.abs(values).max())
        while largest >= self._HALF * self._width:
            pairs = self._counts.reshape(-1, 2).sum(axis=1)
            self._counts[:] = 0
            self._counts[self._HALF // 2 : self._HALF // 2 + self._HALF] = pairs
            self._width *= 2
        places = np.floor(values / self._width).astype(np.int64) + self._HALF
        np.add.at(self._counts, places, counts)

    @property
    def total(self) -> int:
        """How many values were counted."""
        return int(self._counts.sum())

    def bins(self, most: int = 48) -> list[Bin]:
        """Return at most so many columns: the middle 99 of 100 values in bins of equal width, and what lies beyond at both ends."""
        if not self.total:
            return []
        shares = np.cumsum(self._counts) / self.total
        first, last = int(np.searchsorted(shares, 0.005, side="right")), int(np.searchsorted(shares, 0.995))
        step = 1
        while last // step - first // step + 1 > most - 2:
            step *= 2
        first, last = first // step * step, (last // step + 1) * step
        counts = self._counts[first:last].reshape(-1, step).sum(axis=1)
        edges = (np.arange(first, last + 1, step) - self._HALF) * self._width
        middle = [Bin(*each) for each in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True)]
        below, above = int(self._counts[:first].sum()), int(self._counts[last:].sum())
        ends = [Bin(-np.inf, middle[0].low, below)], [Bin(middle[-1].high, np.inf, above)]
        return [*(ends[0] if below else []), *middle, *(ends[1] if above else [])]


class AdvantageFigures:
    """Figures of datums that come in parts, and those to look at: with the largest gap a token, and with the lowest coverage.

    student_lengths, teacher_lengths: chunks by length, see `length_histogram`. one_to_one, inexact: chunks. coverage: datums by
    coverage in steps of a twentieth, the last those that are covered whole. pictured: how many datums are kept of each kind.
    """

    def __init__(self, *, pictured: int = 3) -> None:
        self.advantages = Spread()
        self.student_lengths = np.zeros(LONGEST_LISTED, dtype=np.int64)
        self.teacher_lengths = np.zeros(LONGEST_LISTED, dtype=np.int64)
        self.one_to_one = 0
        self.inexact = 0
        self.coverage = np.zeros(COVERAGE_STEPS + 1, dtype=np.int64)
        self._pictured = pictured
        self._seen = 0
        self._gaps: list[tuple[float, int, ViewedDatum]] = []
        self._uncovered: list[tuple[float, int, ViewedDatum]] = []

    def add(
        self,
        datums: DatumColumns,
        plans: PlanColumns,
        teacher: TeacherSide,
        row_offsets: npt.NDArray[np.int64],
        teacher_logprobs: npt.NDArray[np.float64],
        advantages: npt.NDArray[np.float64],
        drops: npt.NDArray[np.uint8],
    ) -> None:
        """Count a part in: what `attach_columns` took, and what it gave. Parts come in order."""
        kept = drops == Drop.NONE
        of = np.repeat(np.arange(len(datums)), np.diff(plans.offsets))
        used = kept[of]
        of, ranges = of[used], plans.ranges[used]
        lengths, teacher_lengths = ranges[:, 1] - ranges[:, 0], ranges[:, 3] - ranges[:, 2]
        self.advantages.add(advantages[datums.offsets[of] + ranges[:, 0]], lengths)
        self.student_lengths += length_histogram(lengths)
        self.teacher_lengths += length_histogram(teacher_lengths)
        self.one_to_one += int(np.count_nonzero((lengths == 1) & (teacher_lengths == 1)))
        self.inexact += int(np.count_nonzero(~plans.exact[used]))

        scored = np.bincount(of, weights=lengths, minlength=len(datums)).astype(np.int64)
        losses = np.diff(np.append(0, np.cumsum(datums.loss, dtype=np.int64))[datums.offsets])
        shares = scored[kept] * COVERAGE_STEPS // np.maximum(losses[kept], 1)
        self.coverage += np.bincount(shares, minlength=COVERAGE_STEPS + 1)

        gaps = Attaching().weigh(datums, plans, row_offsets, teacher_logprobs).gaps[used]
        totals = np.bincount(of, weights=gaps, minlength=len(datums))
        given = datums, plans, teacher, row_offsets, teacher_logprobs, advantages
        self._keep(self._gaps, np.where(kept, np.abs(totals) / (scored + SHRINK_TOKENS), 0.0), *given)
        self._keep(self._uncovered, np.where(kept, (losses - scored) / (losses + SHRINK_TOKENS), 0.0), *given)
        self._seen += len(datums)

    def _keep(
        self,
        best: list[tuple[float, int, ViewedDatum]],
        ranks: npt.NDArray[np.float64],
        datums: DatumColumns,
        plans: PlanColumns,
        teacher: TeacherSide,
        row_offsets: npt.NDArray[np.int64],
        teacher_logprobs: npt.NDArray[np.float64],
        advantages: npt.NDArray[np.float64],
    ) -> None:
        """Keep the datums of the highest ranks, of equal ones the first."""
        short = np.diff(datums.offsets) + np.diff(teacher.offsets) <= _MOST_PICTURED_TOKENS
        ranks = np.where(short, ranks, 0.0)
        for row in np.argsort(-ranks, kind="stable")[: self._pictured].tolist():
            rank = float(ranks[row]), -(self._seen + row)
            if rank[0] <= 0.0 or (len(best) == self._pictured and rank < best[0][:2]):
                break
            (datum,) = view_datums(
                *(datums, plans, teacher, [row]),
                advantages=advantages,
                row_offsets=row_offsets,
                teacher_logprobs=teacher_logprobs,
            )
            (heapq.heappushpop if len(best) == self._pictured else heapq.heappush)(best, (*rank, datum))

    def pictured(self) -> tuple[list[ViewedDatum], list[ViewedDatum]]:
        """Return the datums with the largest gap a token, and, without those, the ones with the lowest coverage."""
        gaps = sorted(self._gaps, reverse=True)
        known = {row for _, row, _ in gaps}
        uncovered = [each for each in sorted(self._uncovered, reverse=True) if each[1] not in known]
        return [datum for _, _, datum in gaps], [datum for _, _, datum in uncovered]
