"""Token-budget arithmetic: which rows share a forward pass, as a pure function of their lengths.

A block is a run of rows that are next to each other in the order of their lengths, the longest first, so that memory trouble
shows in the first minute. A plan is three flat arrays; a hundred million rows take some hundred megabytes and a few seconds.
Nothing here depends on where a run stopped, on workers or on devices: the same lengths and bounds always give the same blocks.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zephon_core.errors import SpecError

__all__ = [
    "PLAN_VERSION",
    "BlockPlan",
    "block_capacity",
    "exact_blocks",
    "longest_first",
    "packed_blocks",
    "padded_blocks",
    "runs_within",
]

PLAN_VERSION = 1
_COUNTING_ROWS = 1 << 22

Lengths = npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class BlockPlan:
    """Rows put together into blocks.

    order: uint32 (uint64 from 2**32 rows on) [rows], the rows in the order in which they are encoded.
    starts: int64 [blocks + 1]; block b holds the rows order[starts[b] : starts[b + 1]].
    lengths: int32 [blocks], the tokens of each block's longest row, which is its first.
    """

    order: npt.NDArray[np.unsignedinteger]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def row_count(self) -> int:
        """How many rows the plan covers."""
        return len(self.order)

    @property
    def row_counts(self) -> npt.NDArray[np.int64]:
        """Rows of each block: int64 [blocks]."""
        return np.diff(self.starts)

    @property
    def padded_tokens(self) -> npt.NDArray[np.int64]:
        """Rows times longest row of each block, int64 [blocks]: its tokens, where all its rows are equally long."""
        return self.row_counts * self.lengths

    def rows(self, block: int) -> npt.NDArray[np.int64]:
        """Return the rows of one block, int64."""
        return self.order[self.starts[block] : self.starts[block + 1]].astype(np.int64)

    def block_tokens(self, lengths: Lengths) -> npt.NDArray[np.int64]:
        """Count each block's tokens without padding, int64 [blocks]; `lengths` are those that the plan was made from."""
        if not len(self):
            return np.zeros(0, np.int64)
        ordered = np.concatenate(
            [lengths[self.order[first : first + _COUNTING_ROWS]] for first in range(0, self.row_count, _COUNTING_ROWS)]
        )
        return np.add.reduceat(ordered, self.starts[:-1], dtype=np.int64)

    def blocks_between(self, start: int, end: int) -> range:
        """Return the blocks that hold any of the rows order[start:end]."""
        if start >= end:
            return range(0)
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        last = int(np.searchsorted(self.starts, end, side="left"))
        return range(first, min(last, len(self)))

    def blocks_of_rows(self, rows_below: int) -> npt.NDArray[np.int64]:
        """Return the blocks, ascending, that hold a row whose number is below `rows_below`: int64."""
        if not len(self):
            return np.zeros(0, np.int64)
        return np.flatnonzero(np.logical_or.reduceat(self.order < rows_below, self.starts[:-1]))

    def digest(self) -> str:
        """Return the SHA-256 (64 hex digits) of the plan: equal digests, equal blocks."""
        state = hashlib.sha256(f"block plan {PLAN_VERSION}: {self.row_count} rows, {len(self)} blocks\n".encode())
        for array, kind in ((self.order, "<u8"), (self.starts, "<i8"), (self.lengths, "<i4")):
            for first in range(0, len(array), _COUNTING_ROWS):
                state.update(array[first : first + _COUNTING_ROWS].astype(kind).data)
        return state.hexdigest()


def block_capacity(length: int, *, max_batch: int, token_budget: int) -> int:
    """Rows of `length` tokens that fit into one block: at least one, also where a single row is over the budget."""
    return max(1, min(max_batch, token_budget // length))


def longest_first(lengths: Lengths) -> npt.NDArray[np.unsignedinteger]:
    """Return the rows, the longest first and equally long ones in their own order: uint32 (or uint64) [rows]."""
    longest = int(lengths.max(initial=0))
    key = (longest - lengths).astype(np.uint16 if longest < 1 << 16 else np.uint32)  # sixteen bits sort in linear time
    return np.argsort(key, kind="stable").astype(np.uint32 if len(lengths) < 1 << 32 else np.uint64)


def exact_blocks(lengths: Lengths, *, max_batch: int, token_budget: int) -> BlockPlan:
    """Blocks of rows of exactly equal length, each of up to `block_capacity` rows.

    lengths: integers [rows], all positive. Raises SpecError for lengths or bounds below 1.
    """
    distinct, counts = _length_runs(lengths, max_batch, token_budget)
    capacities = np.maximum(1, np.minimum(max_batch, token_budget // np.maximum(distinct, 1)))
    blocks = -(-counts // capacities)
    within = np.arange(int(blocks.sum())) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    starts = np.repeat(np.cumsum(counts) - counts, blocks) + within * np.repeat(capacities, blocks)
    return _plan(lengths, starts, np.repeat(distinct, blocks))


def packed_blocks(lengths: Lengths, *, max_batch: int, token_budget: int) -> BlockPlan:
    """Blocks of neighbouring lengths, as many rows as `max_batch` and `token_budget` tokens in all allow.

    lengths: integers [rows], all positive. Raises SpecError for lengths or bounds below 1.
    """
    distinct, counts = _length_runs(lengths, max_batch, token_budget)
    starts: list[npt.NDArray[np.int64]] = []
    position = room_rows = room_tokens = 0
    for length, count in zip(distinct.tolist(), counts.tolist(), strict=True):
        taken = min(count, room_rows, room_tokens // length)
        room_rows, room_tokens = room_rows - taken, room_tokens - taken * length
        if taken < count:
            capacity = block_capacity(length, max_batch=max_batch, token_budget=token_budget)
            opened = np.arange(position + taken, position + count, capacity)
            starts.append(opened)
            last = position + count - int(opened[-1])
            room_rows, room_tokens = max_batch - last, max(0, token_budget - last * length)
        position += count
    return _plan(lengths, _joined(starts), None)


def padded_blocks(lengths: Lengths, *, max_batch: int, token_budget: int, max_waste: float) -> BlockPlan:
    """Blocks of neighbouring lengths to be padded to their longest, with a bound on the padding.

    A block takes `block_capacity` rows of its longest row's length, but none that would be padded by more than the share
    `max_waste` (0 to 1) of that length. lengths: integers [rows], all positive. Raises SpecError for values out of bounds.
    """
    if not 0 <= max_waste < 1:
        raise SpecError("max_waste", f"is {max_waste}", wanted="a share from 0 up to, but not including, 1")
    distinct, counts = _length_runs(lengths, max_batch, token_budget)
    starts: list[npt.NDArray[np.int64]] = []
    position = room_rows = shortest = 0
    for length, count in zip(distinct.tolist(), counts.tolist(), strict=True):
        taken = min(count, room_rows) if length >= shortest else 0
        room_rows -= taken
        if taken < count:
            capacity = block_capacity(length, max_batch=max_batch, token_budget=token_budget)
            opened = np.arange(position + taken, position + count, capacity)
            starts.append(opened)
            room_rows = capacity - (position + count - int(opened[-1]))
            shortest = math.ceil(length * (1 - max_waste))
        position += count
    return _plan(lengths, _joined(starts), None)


def runs_within(sizes: npt.NDArray[np.int64], bound: int) -> Iterator[range]:
    """Cut a sequence into runs whose sizes add up to at most `bound`; an item over the bound is a run of its own."""
    totals = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    first = 0
    while first < len(sizes):
        end = int(np.searchsorted(totals, totals[first] + bound, side="right")) - 1
        end = max(end, first + 1)
        yield range(first, end)
        first = end


def _length_runs(lengths: Lengths, max_batch: int, token_budget: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the distinct lengths, descending, and how many rows have each."""
    for name, value in (("max_batch", max_batch), ("token_budget", token_budget)):
        if value < 1:
            raise SpecError(name, f"is {value}", wanted="at least 1")
    if not len(lengths):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    if int(lengths.min()) < 1:
        row = int(np.argmin(lengths))
        raise SpecError(f"row {row}", f"has {int(lengths[row])} tokens", wanted="at least 1")
    counts = np.zeros(int(lengths.max()) + 1, np.int64)
    for first in range(0, len(lengths), _COUNTING_ROWS):
        counts += np.bincount(lengths[first : first + _COUNTING_ROWS], minlength=len(counts))
    distinct = np.flatnonzero(counts)[::-1]
    return distinct, counts[distinct]


def _joined(starts: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return np.concatenate(starts) if starts else np.zeros(0, np.int64)


def _plan(lengths: Lengths, starts: npt.NDArray[np.int64], longest: npt.NDArray[np.int64] | None) -> BlockPlan:
    order = longest_first(lengths)
    if longest is None:
        longest = lengths[order[starts]].astype(np.int64)
    bounds = np.concatenate([starts, np.full(1, len(lengths))]).astype(np.int64)
    return BlockPlan(order=order, starts=bounds, lengths=longest.astype(np.int32))
