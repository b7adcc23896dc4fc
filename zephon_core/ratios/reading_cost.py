"""What reading units costs: known beforehand, so that a budget of bytes is never exceeded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_core.ratios.datasets.formats import WHOLE_BYTES
from zephon_core.ratios.datasets.parquet_footer import tail_bytes

if TYPE_CHECKING:
    from zephon_core.ratios.datasets import Dataset, Shard

__all__ = ["ROW_READ_BYTES", "ReadingCost"]

ROW_READ_BYTES = 4 << 10
"""What a draw reads of an addressable unit: a row, or a window of a long one."""
_LANCE_OPENING_BYTES = 80 << 10
_NO_LIMIT = 1 << 62

Bool = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]


class _Opening(NamedTuple):
    """What is read of a file beside its units. most: what is read of it in all, with all its units; all at once, if no more."""

    bytes: int
    most: int


class ReadingCost:
    """Bytes that draws from a data set read, off the disk or wire.

    A unit is read whole, and once, unless rows of it can be read alone; opening its file costs as well, once for all its units.
    No byte of a file is read twice.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._units = dataset.units
        units = self._units
        of_units = np.bincount(units.shard, weights=units.stored_bytes, minlength=len(dataset.shards)).astype(np.int64)
        opening = [_opening(shard, content) for shard, content in zip(dataset.shards, of_units.tolist(), strict=True)]
        self._opening_bytes = np.array([cost.bytes for cost in opening], np.int64)
        self._most_bytes = np.array([cost.most for cost in opening], np.int64)
        self._is_whole = self._opening_bytes >= self._most_bytes
        self._unit_bytes = units.stored_bytes + dataset.beside_bytes()[units.shard]

    def of_units(self, units: Int64, seen: Bool) -> int:
        """Return what it costs to read units whole, if those `seen`, bool [units], and their files are kept."""
        units = units[~seen[units]]
        opened = np.zeros(len(self._opening_bytes), np.bool_)
        opened[self._units.shard[seen]] = True
        files, of_file = np.unique(self._units.shard[units], return_inverse=True)
        content = np.bincount(of_file, weights=self._unit_bytes[units], minlength=len(files)).astype(np.int64)
        opening = np.where(opened[files], 0, self._opening_bytes[files])
        content[self._is_whole[files]] = 0
        return int(np.minimum(content + opening, self._most_bytes[files]).sum())

    def of_all(self) -> int:
        """Return what it costs to read everything, and nothing of it twice."""
        return self.of_rest(np.zeros(len(self._units), np.bool_))

    def of_rest(self, seen: Bool) -> int:
        """Return what it costs to read everything, if units `seen`, bool [units], and their files are kept."""
        return self.of_units(np.arange(len(self._units)), seen & ~self._units.addressable)

    def fitting(self, budget: int) -> float:
        """Return how likely two draws in proportion to size are to fit in a budget, at least."""
        units = self._units
        # The units of a file that is read in one go count as one.
        unlike = np.where(self._is_whole[units.shard], -1 - units.shard, np.arange(len(units)))
        _, first, of_unit = np.unique(unlike, return_index=True, return_inverse=True)
        sizes = np.bincount(of_unit, weights=units.size, minlength=len(first))
        addressable, shard = units.addressable[first], units.shard[first]
        whole = np.minimum(self._unit_bytes[first] + self._opening_bytes[shard], self._most_bytes[shard])
        costs = np.where(addressable, ROW_READ_BYTES, whole)
        if 2 * int(costs.max(initial=0)) <= budget:
            return 1.0
        order = np.argsort(costs, kind="stable")
        chance = sizes[order] / sizes.sum()
        mass = np.append(0.0, np.cumsum(chance))
        partners = mass[np.searchsorted(costs[order], budget - costs[order], side="right")]
        # What is drawn twice is read once.
        once = ~addressable[order] & (costs[order] <= budget) & (2 * costs[order] > budget)
        again = np.where(once, chance, 0.0)
        return min(1.0, float(chance @ (partners + again)))


def _opening(shard: Shard, units_bytes: int) -> _Opening:
    """units_bytes: stored bytes of the shard's units."""
    stored = shard.stored_bytes
    match shard.format:
        case "parquet" | "arrow" if stored <= WHOLE_BYTES:
            return _Opening(stored, stored)
        case "parquet":
            return _Opening(tail_bytes(stored), stored)
        case "arrow":  # the schema, dictionaries, and the footer
            return _Opening(max(0, stored - units_bytes), stored)
        case "lance":  # its library reads as it thinks best
            return _Opening(min(_LANCE_OPENING_BYTES, stored), _NO_LIMIT)
    return _Opening(0, stored)
