"""Which batches share a step: neighbours in cost, so that no rank waits for another; those of the last step are dealt anew.

The batches of each bucketed window are shuffled first. Then a window of batches is sorted by cost and dealt in that order,
`world_size` batches to a step, which makes the sum over the steps of the costliest batch as small as it gets with these batches.
Its steps are shuffled, and the ranks within each.
The last step gets what doesn't fill one, and the batch that ended with the examples; `even_parts` makes these equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.batching.cutting.buckets import BatchStream
from zephon_core.batching.cutting.loops import copy_items
from zephon_core.batching.cutting.sorting import shuffle, sort_pairs
from zephon_core.batching.options import LARGEST, TokenBatchOptions
from zephon_core.compiled import compiled

__all__ = ["deal_batches", "even_parts"]

_COPIED_AT_ONCE = 16

Int64 = npt.NDArray[np.int64]


def deal_batches(
    order: npt.NDArray[Any],
    stream: BatchStream,
    options: TokenBatchOptions,
    *,
    world_size: int,
    window_steps: int,
    state: npt.NDArray[np.uint64] | None,
    buckets: Int64 | None = None,
) -> BatchStream:
    """Put a stream's batches into the order of (step, rank).

    order: uint32 or int64 [n], the examples of the stream's batches one after another; rearranged in place.
    window_steps: the batches of so many steps are dealt together, and of up to twice as many at the end; 1: a step holds
    consecutive batches of the stream.
    state: of the generator that shuffles steps and ranks; None: both stay in the stream's order, as far as dealing leaves it.
    buckets: int64 [m + 1], ascending from 0 to the number of batches; those between two are shuffled before anything is dealt,
    where there is a state, except for the very last one, which may be small. None: none are.
    At the end are the 1 to `world_size` batches of the last step: the stream's last ones; or, if these hold fewer examples than
    there are ranks, those of the last window that hold the most.
    """
    slots, count = stream.token_slots(options), len(stream.real_tokens)
    if not count:
        return stream
    seeded = state is not None
    state = np.zeros(1, np.uint64) if state is None else state
    turns, windows = np.arange(count), _windows(count, window_steps * world_size)
    buckets = windows if buckets is None else buckets
    if seeded and buckets is not windows:
        _shuffle_each(turns, buckets, state)
    whole, begin = (count - 1) // world_size * world_size, int(windows[-2])
    last = turns[begin:]
    sizes = stream.offsets[last + 1] - stream.offsets[last]
    if sizes[whole - begin :].sum() < world_size:
        fewest_first = np.argsort(sizes, kind="stable")
        turns[begin:] = last[np.concatenate([np.sort(fewest_first[: whole - begin]), fewest_first[whole - begin :]])]
    _deal(turns, slots, world_size, np.minimum(windows, whole), state, seeded)
    dealt = BatchStream(np.zeros_like(stream.offsets), stream.real_tokens[turns], stream.longest[turns])
    _rearrange(order, stream.offsets, turns, windows, buckets, dealt.offsets)
    return dealt


def _windows(count: int, window: int) -> Int64:
    """Return where windows of `window` batches, the last one longer, begin, and the end: int64 [windows + 1]."""
    return np.append(np.arange(max(1, count // window), dtype=np.int64) * window, count)


def even_parts(lengths: npt.NDArray[Any], options: TokenBatchOptions, parts: int) -> tuple[Int64, Int64]:
    """Deal the examples of at most `parts` batches to `parts` batches that cost as nearly the same as it goes.

    lengths: int32 or int64 [n], the examples' lengths, one batch after another.
    Returns the examples in their new order, int64 [n], and int64 [parts + 1] offsets. Only if n < parts are any empty: the last.

    Packed: the longest example first, each to the part with the fewest tokens (Graham's LPT rule, 1969). Padded, or where that
    rule meets a limit: the contiguous cut with the smallest maximum; for examples sorted by length no other way is cheaper.
    """
    budget, limit = options.maximum_tokens, options.maximum_examples or LARGEST
    lengths = lengths.astype(np.int64)
    order, padded = np.argsort(-lengths, kind="stable"), options.layout == "padded"
    owners = np.empty(len(lengths), np.int64)
    if padded or not _least_loaded(lengths[order], parts, budget, limit, owners):
        order, ends = order if padded else np.arange(len(lengths)), np.empty(parts, np.int64)
        _smallest_maximum(lengths[order], padded, parts, budget, limit, ends)
        owners = np.searchsorted(ends, np.arange(len(lengths)), side="right")
    owner_of = np.empty_like(owners)
    owner_of[order] = owners
    sizes = np.bincount(owner_of, minlength=parts)
    return np.argsort(owner_of, kind="stable"), np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


@compiled
def _deal(turns: Any, slots: Any, world_size: int, windows: Any, state: Any, seeded: bool) -> None:
    """Rearrange `turns`, the numbers of the batches, window by window; what is beyond the last window stays."""
    room = np.diff(windows).max()
    keys, spare_keys, spare = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    for number in range(len(windows) - 1):
        ids = turns[windows[number] : windows[number + 1]]
        count = len(ids)
        if count == 0:
            break
        if seeded:
            shuffle(ids, 0, count, state)
        highest, lowest = np.int64(0), np.int64(LARGEST)
        for k in range(count):
            highest, lowest = max(highest, slots[ids[k]]), min(lowest, slots[ids[k]])
        for k in range(count):
            keys[k] = highest - slots[ids[k]]
        if sort_pairs(keys, ids, spare_keys, spare, count, highest - lowest, False):
            ids[:] = spare[:count]
        steps = count // world_size
        order = np.arange(steps)
        if seeded:
            shuffle(order, 0, steps, state)
        else:
            firsts = np.empty(steps, np.int64)
            for step in range(steps):
                group = ids[step * world_size : (step + 1) * world_size]
                group.sort()
                firsts[step] = group[0]
            order = np.argsort(firsts)
        spare[:count] = ids
        for place in range(steps):
            at = place * world_size
            ids[at : at + world_size] = spare[order[place] * world_size : (order[place] + 1) * world_size]
            if seeded:
                shuffle(ids, at, at + world_size, state)


@compiled
def _shuffle_each(turns: Any, buckets: Any, state: Any) -> None:
    """Shuffle the batches of each bucket; the very last one stays."""
    for number in range(len(buckets) - 1):
        end = buckets[number + 1]
        shuffle(turns, buckets[number], end - (end == len(turns)), state)


@compiled
def _rearrange(order: Any, offsets: Any, turns: Any, windows: Any, buckets: Any, dealt: Any) -> None:
    """Put the batches' examples into the order of `turns`, and write their new offsets.

    Batches leave their place within buckets first and then within windows, so those of a window come from the buckets that it
    touches: what these hold is copied before it is written over, and let go of once no later window touches them.
    """
    kept, base, top, written, first_bucket, end_bucket = np.empty(0, order.dtype), 0, 0, 0, 0, 0
    for number in range(len(windows) - 1):
        first, end = windows[number], windows[number + 1]
        while buckets[first_bucket + 1] <= first:
            first_bucket += 1
        while buckets[end_bucket] < end:
            end_bucket += 1
        low, high = offsets[buckets[first_bucket]], min(offsets[buckets[end_bucket]] + _COPIED_AT_ONCE, len(order))
        if high - base + _COPIED_AT_ONCE > len(kept):
            room = 2 * (high - low + _COPIED_AT_ONCE)
            larger = kept if room <= len(kept) else np.empty(2 * room, order.dtype)
            copy_items(kept, low - base, larger, 0, top - low)
            kept, base = larger, low
        copy_items(order, top, kept, top - base, high - top)
        top = high
        for place in range(first, end):
            start, size = offsets[turns[place]] - base, offsets[turns[place] + 1] - offsets[turns[place]]
            rounded = (size + _COPIED_AT_ONCE - 1) // _COPIED_AT_ONCE * _COPIED_AT_ONCE
            if written + rounded <= top:  # a batch has few examples: whole vectors, the next batch overwrites what is too much
                copy_items(kept, start, order, written, rounded)
            else:
                copy_items(kept, start, order, written, size)
            written += size
            dealt[place + 1] = written


@compiled
def _least_loaded(lengths: Any, parts: int, budget: int, limit: int, owners: Any) -> bool:
    """Give each example to the part with the fewest tokens; False where that part is full. A binary heap of (tokens, part)."""
    loads, sizes, heap, open_parts = np.zeros(parts, np.int64), np.zeros(parts, np.int64), np.arange(parts), parts
    for k in range(len(lengths)):
        if open_parts == 0:
            return False
        part = heap[0]
        if lengths[k] > budget - loads[part]:
            return False
        owners[k] = part
        loads[part] += lengths[k]
        sizes[part] += 1
        if sizes[part] == limit:
            open_parts -= 1
            heap[0] = heap[open_parts]
        at = 0
        while True:
            child = 2 * at + 1
            if child >= open_parts:
                break
            if child + 1 < open_parts and _before(heap[child + 1], heap[child], loads):
                child += 1
            if not _before(heap[child], heap[at], loads):
                break
            heap[at], heap[child] = heap[child], heap[at]
            at = child
    return True


@compiled
def _before(part: int, other: int, loads: Any) -> bool:
    return bool(loads[part] < loads[other] or (loads[part] == loads[other] and part < other))


@compiled
def _smallest_maximum(lengths: Any, padded: bool, parts: int, budget: int, limit: int, ends: Any) -> None:
    """Write the ends of `parts` contiguous batches whose costliest is as cheap as can be; none is empty if that can be avoided."""
    low, high = np.int64(0), np.int64(budget)
    while high - low > 1:
        middle = low + (high - low) // 2
        if _parts_within(lengths, padded, parts, middle, limit, ends) >= 0:
            high = middle
        else:
            low = middle
    used = _parts_within(lengths, padded, parts, high, limit, ends)
    while used < min(parts, len(lengths)):
        split, start, best = 0, 0, np.int64(-1)
        for part in range(used):
            size = ends[part] - start
            if size > 1 and size > best:
                split, best = part, size
            start = ends[part]
        first = ends[split - 1] if split else 0
        for part in range(used, split, -1):
            ends[part] = ends[part - 1]
        ends[split] = first + (best + 1) // 2
        used += 1
    for part in range(used, parts):
        ends[part] = len(lengths)


@compiled
def _parts_within(lengths: Any, padded: bool, parts: int, bound: Any, limit: int, ends: Any) -> int:
    """Cut greedily with `bound` for a budget; return how many parts that takes, or -1 if more than `parts` or none holds one."""
    used, size, tokens, longest = 0, np.int64(0), np.int64(0), np.int64(0)
    for k in range(len(lengths)):
        if lengths[k] > bound:
            return -1
        top = max(longest, lengths[k])
        fits = size + 1 <= bound // top if padded else lengths[k] <= bound - tokens
        if not fits or size == limit:
            if used == parts - 1:
                return -1
            ends[used] = k
            used += 1
            size, tokens, top = np.int64(0), np.int64(0), lengths[k]
        size, tokens, longest = size + 1, tokens + lengths[k], top
    ends[used] = len(lengths)
    return used + 1
