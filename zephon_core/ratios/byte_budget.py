"""A budget of bytes: how many draws it has room for, and what is left of it.

What a draw reads of units that are read whole is known before (`reading_cost`); what a row takes that is read alone shows only
when some were read. So draws are made in rounds, each of as many as are all but sure to fit; what they leave is there for the next.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from zephon_core.ratios.estimate import PER_STRATUM, draw_positions, generator
from zephon_core.ratios.reading_cost import ROW_READ_BYTES, ReadingCost

if TYPE_CHECKING:
    from zephon_core.ratios.datasets import Dataset
    from zephon_core.ratios.sampling import Sampler

__all__ = ["ByteBudget"]

_MADE_UP_ROUNDS = 48
# What is read of a row of a local file is hardly ever more, and of a remote one seldom.
_LONG_ROW_READ_BYTES = 36 << 10
# Before it is known what a row takes, a few are taken to cost as much as long ones, and more of them up to its square as much.
_FIRST_ROWS = 8
_STANDARD_ERRORS = 3
# These formats read all of a unit at once, and the same whoever reads it first: what was read tells what is left.
_READ_AT_ONCE = frozenset(("jsonl", "parquet", "arrow"))

Bool = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]


class ByteBudget:
    """What a sampler may read of a data set."""

    def __init__(self, dataset: Dataset, sampler: Sampler, limit: int, seed: int) -> None:
        self._sampler = sampler
        self._limit = limit
        self._identity = (seed, "costs", dataset.fingerprint)
        self._units = dataset.units
        self._axis = int(dataset.units.size.sum())
        self._cost = ReadingCost(dataset)
        self._charged = 0
        self._settles = _READ_AT_ONCE.issuperset(shard.format for shard in dataset.shards)
        self.fitting = self._cost.fitting(limit)
        """How likely two draws are to fit, at least: those that do are the cheaper ones."""

    def room_for(self, number: int, wanted: int) -> int:
        """Return how many draws, at most those wanted, are all but sure to fit in what is left, however they fall; 0 if two aren't.

        number: of the round. Costs are those of some rounds made up, of which all must fit. To draw again what doesn't fit would
        favour what is cheap or read already: with a budget for all but one of a few files, no draw would fall on just that one.
        """
        fitting, over = 0, wanted // PER_STRATUM + 1
        tried = over - 1
        while over - fitting > 1:
            if self._dearest(number, tried * PER_STRATUM) <= self._left:
                fitting = tried
            else:
                over = tried
            tried = (fitting + over) // 2
        return fitting * PER_STRATUM

    def _dearest(self, number: int, draws: int) -> int:
        rng, kept = generator(*self._identity, number, draws), self._sampler.kept
        rounds = (self._sampler.units_at(draw_positions(self._axis, draws, rng)) for _ in range(_MADE_UP_ROUNDS))
        return max(self._cost_of(drawn, kept) for drawn in rounds)

    def takes(self, drawn: Int64) -> bool:
        """Charge draws on these units, unless they read more than is left."""
        cost = self._cost_of(drawn, self._sampler.kept)
        if cost > self._left:
            return False
        self._charged += cost
        return True

    def covers_rest(self) -> bool:
        """Say whether everything that isn't kept can be read as well."""
        seen, rows = self._sampler.kept, self._sampler.rows_read.bytes
        return self._cost.of_rest(seen) <= self._left or self._cost.of_all() + rows <= self._limit

    @property
    def _left(self) -> int:
        return self._limit - (self._sampler.bytes_read if self._settles else self._charged)

    def _cost_of(self, drawn: Int64, kept: Bool) -> int:
        alone = self._units.addressable[drawn]
        return self._of_rows(drawn[alone]) + self._cost.of_units(np.unique(drawn[~alone]), kept)

    def _of_rows(self, units: Int64) -> int:
        """Return what is read of rows that are in these units: at most, if none were read yet, else with some margin.

        The largest variance of numbers from 0 to `most` of a known mean is (most - mean) mean (Bhatia and Davis 2000).
        """
        count, known = len(units), self._sampler.rows_read
        if not count:
            return 0
        if not known.rows:
            if count <= PER_STRATUM:
                return count * ROW_READ_BYTES  # which are tried in any case
            largest = int(np.minimum(self._units.size[units], _LONG_ROW_READ_BYTES).sum())
            return math.ceil(largest * min(_FIRST_ROWS, max(1.0, count / _FIRST_ROWS)) ** 2)
        mean = known.bytes / known.rows
        most = max(_LONG_ROW_READ_BYTES, 4 * mean)
        spread = math.sqrt((most - mean) * mean) * math.sqrt(count * (1 + count / known.rows))
        largest = int(np.minimum(self._units.size[units], int(most)).sum())
        return min(largest, math.ceil(count * mean + _STANDARD_ERRORS * spread))
