"""From an order to a stream of batches: contiguous ones, or ones of neighbouring lengths.

With buckets, the order is taken a window at a time; a window's examples are sorted by length, cut, and the batches shuffled. What
a window can't close goes into the next. Windows are sorted up and down by turns, so that it is the longest examples that wait once,
then the shortest, and none for long.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_core.batching.cut import cut_packed, cut_padded, cut_padded_widely, cut_stretch, lengths_of, measure_batches
from zephon_core.batching.lengths import LengthTable
from zephon_core.batching.options import LARGEST, TokenBatchOptions
from zephon_core.batching.sorting import shuffle, sort_pairs
from zephon_core.compiled import compiled
from zephon_core.errors import StateError

__all__ = ["BatchStream", "form_batches"]

_EXAMPLES_AT_ONCE = 1 << 20
_GATHERED_AT_ONCE = 512
_WIDEST = 1 << 62

Int64 = npt.NDArray[np.int64]


class BatchStream(NamedTuple):
    """Consecutive batches over an array of examples.

    offsets: int64 [batches + 1]. real_tokens, longest: int64 [batches], the sum and the largest of each batch's lengths.
    """

    offsets: Int64
    real_tokens: Int64
    longest: Int64

    def token_slots(self, options: TokenBatchOptions) -> Int64:
        """Return what each batch costs: int64 [batches]."""
        return self.real_tokens if options.layout == "packed" else np.diff(self.offsets) * self.longest


def form_batches(
    order: npt.NDArray[Any],
    table: LengthTable,
    options: TokenBatchOptions,
    *,
    window_batches: int,
    state: npt.NDArray[np.uint64] | None,
) -> BatchStream:
    """Cut an order into batches; with buckets, rearrange it as well.

    order: uint32 or int64 [n], distinct examples of the table, whose lengths have been checked; it is written to where
    window_batches > 0, and holds each batch's examples one after another then.
    window_batches: examples that would fill so many batches are sorted by length together; 0: none, the order stays.
    state: of the generator that shuffles a window's batches; None: they stay as they are sorted.
    """
    if not window_batches:
        return _contiguous(order, table, options)
    budget = options.maximum_tokens
    limit = options.maximum_examples or LARGEST
    tokens, examples = min(window_batches * budget, _WIDEST), min(window_batches * limit, _WIDEST)
    seeded = state is not None
    state = np.zeros(1, np.uint64) if state is None else state
    padded = options.layout == "padded"
    formed = BatchStream(*_form(order, table.values, budget, limit, padded, tokens, examples, table.longest, state, seeded))
    if not len(formed.offsets):
        raise StateError("lengths", "were written to while they were in use", remedy="Make the table anew, and plan again.")
    return formed


def _contiguous(order: npt.NDArray[Any], table: LengthTable, options: TokenBatchOptions) -> BatchStream:
    offsets, tokens, longest = [np.zeros(1, np.int64)], [], []
    position, at_once = 0, _EXAMPLES_AT_ONCE
    while position < len(order):
        stop = min(len(order), position + at_once)
        lengths = lengths_of(table.values, order[position:stop])
        table.check_still(lengths, order[position:stop], options)
        found = cut_stretch(lengths, options, closed=stop == len(order))
        if not len(found.ends):  # a batch longer than the stretch
            at_once *= 2
            continue
        offsets.append(found.ends + position)
        tokens.append(found.real_tokens)
        longest.append(found.longest)
        position = int(offsets[-1][-1])
    none = [np.zeros(0, np.int64)]
    return BatchStream(np.concatenate(offsets), np.concatenate(tokens or none), np.concatenate(longest or none))


@compiled
def _form(
    order: Any,
    values: Any,
    budget: int,
    limit: int,
    padded: bool,
    window_tokens: int,
    window_examples: int,
    largest: int,
    state: Any,
    seeded: bool,
) -> Any:
    """Return offsets, real tokens and longest lengths of the batches that `order` holds afterwards.

    All are empty where a length is below one or above `largest`, which the lengths were checked for.
    """
    offsets, tokens, longest = np.zeros(1024, np.int64), np.empty(1024, np.int64), np.empty(1024, np.int64)
    examples, spare = np.empty(1024, order.dtype), np.empty(1024, order.dtype)
    lengths, spare_lengths = np.empty(1024, values.dtype), np.empty(1024, values.dtype)
    batches, read, written, held, least, downwards = 0, 0, 0, 0, 0, True
    while read < len(order) or held:
        while True:
            taken, enough = _gather(order[read:], values, examples, lengths, held, least, window_tokens, window_examples, largest)
            if taken < 0:
                return offsets[:0].copy(), tokens[:0].copy(), longest[:0].copy()
            read, held = read + taken, held + taken
            if enough:
                break
            examples, lengths = _grown(examples, 2 * held), _grown(lengths, 2 * held)
            spare, spare_lengths = np.empty(2 * held, order.dtype), np.empty(2 * held, values.dtype)
        if sort_pairs(lengths, examples, spare_lengths, spare, held, largest):
            lengths, spare_lengths, examples, spare = spare_lengths, lengths, spare, examples
        if downwards:
            _reverse(lengths, held)
            _reverse(examples, held)
        ends = np.empty(held, np.int64)
        found = _cut(lengths[:held], budget, limit, padded, read == len(order), ends)
        if not found:  # one batch, which more examples may still fit into
            least = 2 * held
            continue
        least, downwards = 0, not downwards
        if batches + found >= len(offsets):
            size = 2 * (batches + found)
            offsets, tokens, longest = _grown(offsets, size), _grown(tokens, size), _grown(longest, size)
        sums, tops, turns = np.empty(found, np.int64), np.empty(found, np.int64), np.arange(found)
        measure_batches(lengths, ends[:found], sums, tops)
        if seeded:
            shuffle(turns, 0, found - (read == len(order)), state)  # the last batch of all, which may be small, stays the last
        for turn in turns:
            start, end = ends[turn - 1] if turn else 0, ends[turn]
            _copy(examples, start, end, order, written)
            written += end - start
            tokens[batches], longest[batches] = sums[turn], tops[turn]
            batches += 1
            offsets[batches] = written
        left = ends[found - 1]
        _copy(examples, left, held, examples, 0)
        _copy(lengths, left, held, lengths, 0)
        held -= left
    return offsets[: batches + 1].copy(), tokens[:batches].copy(), longest[:batches].copy()


@compiled
def _gather(
    order: Any,
    values: Any,
    examples: Any,
    lengths: Any,
    held: int,
    least: int,
    window_tokens: int,
    window_examples: int,
    largest: int,
) -> tuple[int, bool]:
    """Add examples of the order to the `held` ones until they are a window, and at least `least`.

    Returns how many were added, and False where there was no room for more; -1 for a length that isn't from 1 to `largest`.
    """
    tokens = np.int64(0)
    for k in range(held):
        tokens += min(np.int64(lengths[k]), window_tokens - tokens)
    taken = 0
    while taken < len(order):
        at = held + taken
        size = min(_GATHERED_AT_ONCE, len(order) - taken, len(examples) - at)
        found = lengths_of(values, order[taken : taken + size])  # in vectors, into memory that can't be that of `values`
        for k in range(size):
            if not 1 <= found[k] <= largest:
                return -1, False
            examples[at + k], lengths[at + k] = order[taken + k], found[k]
        for k in range(at, at + size):
            if k >= least and (tokens >= window_tokens or k >= window_examples):
                return k - held, True
            tokens += min(np.int64(lengths[k]), window_tokens - tokens)
        taken += size
        if taken < len(order) and held + taken == len(examples):
            return taken, False
    return len(order), True


@compiled
def _copy(source: Any, start: int, end: int, target: Any, at: int) -> None:
    for k in range(end - start):
        target[at + k] = source[start + k]


@compiled
def _cut(lengths: Any, budget: int, limit: int, padded: bool, closed: bool, ends: Any) -> int:
    if not padded:
        return cut_packed(lengths, budget, limit, closed, ends)
    if budget < 1 << 31:
        return cut_padded(lengths, budget, limit, closed, ends)
    return cut_padded_widely(lengths, budget, limit, closed, ends)


@compiled
def _grown(array: Any, size: int) -> Any:
    larger = np.empty(size, array.dtype)
    larger[: len(array)] = array
    return larger


@compiled
def _reverse(array: Any, count: int) -> None:
    for k in range(count // 2):
        array[k], array[count - 1 - k] = array[count - 1 - k], array[k]
