"""What reading units costs: known beforehand, so that a budget of bytes is never exceeded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_core.ratios.datasets.parquet_footer import WHOLE_BYTES, tail_bytes

if TYPE_CHECKING:
    from zephon_core.ratios.datasets import Dataset, Shard

__all__ = ["ROW_READ_BYTES", "ReadingCost"]

ROW_READ_BYTES = 4 << 10
"""What a draw reads of an addressable unit: a row, or a window of a long one."""
_PAGE_PLACES_BYTES = 16 << 10
_OTHER_OPENING_BYTES = 80 << 10
_NO_LIMIT = 1 << 62

Bool = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]


class _Opening(NamedTuple):
    """What is read of a file beside its units. most: what is read of it in all, with all its units."""

    bytes: int
    most: int


class ReadingCost:
    """Bytes that draws from a data set read, off the disk or wire.

    A unit is read whole, and once, unless rows of it can be read alone; opening its file costs as well, once for all its units.
    No byte of a Parquet file is read twice.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._units = dataset.units
        opening = [_opening(shard) for shard in dataset.shards]
        self._file_bytes = np.array([cost.bytes for cost in opening], np.int64)
        self._most_bytes = np.array([cost.most for cost in opening], np.int64)

    def of_draws(self, drawn: Int64, seen: Bool) -> int:
        """Return what draws read that fall on units `drawn`, if those `seen`, bool [units], and their files are kept."""
        addressable = self._units.addressable
        rows = int(np.count_nonzero(addressable[drawn]))
        return rows * ROW_READ_BYTES + self._of_units(np.unique(drawn[~addressable[drawn] & ~seen[drawn]]), seen)

    def fitting(self, budget: int) -> float:
        """Return how likely two draws in proportion to size are to fit in a budget, at least."""
        units = self._units
        whole = np.minimum(units.stored_bytes + self._file_bytes[units.shard], self._most_bytes[units.shard])
        costs = np.where(units.addressable, ROW_READ_BYTES, whole)
        if 2 * int(costs.max(initial=0)) <= budget:
            return 1.0
        order = np.argsort(costs, kind="stable")
        chance = units.size[order] / units.size.sum()
        mass = np.append(0.0, np.cumsum(chance))
        partners = mass[np.searchsorted(costs[order], budget - costs[order], side="right")]
        # A unit that is drawn twice is read once.
        once = ~units.addressable[order] & (costs[order] <= budget) & (2 * costs[order] > budget)
        again = np.where(once, chance, 0.0)
        return min(1.0, float(chance @ (partners + again)))

    def of_rest(self, seen: Bool) -> int:
        """Return what it costs to read everything, if units `seen`, bool [units], and their files are kept."""
        return self._of_units(np.flatnonzero(self._units.addressable | ~seen), seen & ~self._units.addressable)

    def _of_units(self, units: Int64, seen: Bool) -> int:
        """Return what it costs to read units that aren't among those seen."""
        before = np.flatnonzero(seen)
        return self._of_files(np.concatenate([before, units])) - self._of_files(before)

    def _of_files(self, units: Int64) -> int:
        """Return what it costs to read units, and nothing before them."""
        numbers, of_file = np.unique(self._units.shard[units], return_inverse=True)
        content = np.bincount(of_file, weights=self._units.stored_bytes[units], minlength=len(numbers)).astype(np.int64)
        return int(np.minimum(content + self._file_bytes[numbers], self._most_bytes[numbers]).sum())


def _opening(shard: Shard) -> _Opening:
    if shard.format == "jsonl":
        return _Opening(0, _NO_LIMIT)
    if shard.format != "parquet":
        return _Opening(min(_OTHER_OPENING_BYTES, shard.stored_bytes), _NO_LIMIT)
    if shard.stored_bytes <= WHOLE_BYTES:
        return _Opening(shard.stored_bytes, shard.stored_bytes)
    return _Opening(tail_bytes(shard.stored_bytes) + _PAGE_PLACES_BYTES, shard.stored_bytes)
