"""Sets of batch numbers, kept as the ranges that they are: batches that are left out tend to be neighbours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zephon_core.batching.options import LARGEST
from zephon_core.errors import SpecError, StateError

__all__ = ["BatchRanges"]

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BatchRanges:
    """Batch numbers from 0 on.

    firsts, ends: int64 [ranges], ascending; range k holds firsts[k] .. ends[k] - 1, and no two ranges touch.
    """

    firsts: Int64
    ends: Int64

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BatchRanges):
            return NotImplemented
        return np.array_equal(self.firsts, other.firsts) and np.array_equal(self.ends, other.ends)

    def __hash__(self) -> int:
        return hash((self.firsts.tobytes(), self.ends.tobytes()))

    def __len__(self) -> int:
        """How many batches there are."""
        return int((self.ends - self.firsts).sum())

    def __contains__(self, batch: int) -> bool:
        return bool(self.holds(np.array([batch]))[0])

    def holds(self, batches: Int64) -> npt.NDArray[np.bool_]:
        """Say of each of some numbers whether it is in the set: bool [n]."""
        places = np.searchsorted(self.firsts, batches, side="right")
        found: npt.NDArray[np.bool_] = batches < np.concatenate([[-1], self.ends])[places]
        return found

    @property
    def end(self) -> int:
        """One more than the last batch; 0 where there is none."""
        return int(self.ends[-1]) if len(self.ends) else 0

    @classmethod
    def of(cls, batch_ids: Iterable[int] | BatchRanges) -> BatchRanges:
        """Make a set of batch numbers in any order; a range costs nothing. Raises SpecError for what is no whole number >= 0."""
        if isinstance(batch_ids, BatchRanges):
            return batch_ids
        if isinstance(batch_ids, range) and batch_ids.step == 1 and batch_ids.start >= 0:
            pair = [batch_ids.start] if batch_ids else [], [batch_ids.stop] if batch_ids else []
            return cls(np.array(pair[0], np.int64), np.array(pair[1], np.int64))
        if not isinstance(batch_ids, Iterable) or isinstance(batch_ids, str | bytes):
            raise SpecError("batch_ids", f"are {batch_ids!r}", wanted="several whole numbers, such as range(40, 48)")
        if isinstance(batch_ids, np.ndarray) and batch_ids.ndim != 1:
            raise SpecError("batch_ids", f"are {list(batch_ids.shape)}", wanted="one row of whole numbers")
        listed = batch_ids if isinstance(batch_ids, np.ndarray) else np.array([*batch_ids, None], dtype=object)[:-1]
        if listed.dtype == object:
            for batch in listed:
                if isinstance(batch, bool) or not isinstance(batch, int | np.integer) or not 0 <= batch < LARGEST:
                    raise SpecError("batch_ids", f"hold {batch!r}", wanted="whole numbers from 0 on")
        elif len(listed) and (listed.dtype.kind not in "iu" or not 0 <= int(listed.min()) <= int(listed.max()) < LARGEST):
            found = listed.dtype if listed.dtype.kind not in "iu" else f"{listed.min()} to {listed.max()}"
            raise SpecError("batch_ids", f"hold {found}", wanted="whole numbers from 0 on")
        return cls._joined(numbers := np.unique(listed.astype(np.int64)), numbers + 1)

    @classmethod
    def _joined(cls, firsts: Int64, ends: Int64) -> BatchRanges:
        """Join ranges that touch or overlap; `firsts` ascend."""
        if not len(firsts):
            return cls(firsts, ends)
        reach = np.maximum.accumulate(ends)
        begins = np.concatenate([[True], firsts[1:] > reach[:-1]])
        return cls(firsts[begins], reach[np.concatenate([begins[1:], [True]])])

    def union(self, other: BatchRanges) -> BatchRanges:
        """Return the batches of both."""
        firsts = np.concatenate([self.firsts, other.firsts])
        order = np.argsort(firsts, kind="stable")
        return self._joined(firsts[order], np.concatenate([self.ends, other.ends])[order])

    def whole_steps(self, world_size: int) -> BatchRanges:
        """Return the steps all of whose batches are in the set, `world_size` batches to a step."""
        firsts, ends = -(-self.firsts // world_size), self.ends // world_size
        return BatchRanges(firsts[firsts < ends], ends[firsts < ends])

    def below(self, number: int) -> int:
        """How many numbers of the set are below `number`."""
        return int((np.minimum(self.ends, number) - np.minimum(self.firsts, number)).sum())

    def outside(self, places: Int64) -> Int64:
        """Return the numbers that have so many numbers outside of the set before them, and are outside themselves: int64 [n]."""
        held = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.ends - self.firsts)])
        numbers: Int64 = places + held[np.searchsorted(self.firsts - held[:-1], places, side="right")]
        return numbers

    def to_json(self) -> list[list[int]]:
        """Write the ranges as pairs of first number and count."""
        return [[first, end - first] for first, end in zip(self.firsts.tolist(), self.ends.tolist(), strict=True)]

    @classmethod
    def of_json(cls, value: object, name: str, end: int) -> BatchRanges:
        """Read what `to_json` wrote; raises StateError unless the ranges ascend, don't touch and end at `end` or before."""
        if not isinstance(value, list | tuple):
            raise StateError(name, f"is a {type(value).__name__}", wanted="a list of pairs, first batch and how many")
        last = -1
        for k, pair in enumerate(value):
            whole = isinstance(pair, list | tuple) and len(pair) == 2 and all(type(number) is int for number in pair)
            if not whole or pair[0] <= last or pair[1] < 1 or pair[0] + pair[1] > end:
                wanted = f"first batch and how many, after batch {last} and within {end}"
                raise StateError(f"{name}[{k}]", f"is {pair!r}", wanted=wanted)
            last = pair[0] + pair[1]
        pairs = np.array(value, np.int64).reshape(-1, 2)
        return cls(pairs[:, 0].copy(), pairs.sum(axis=1))
