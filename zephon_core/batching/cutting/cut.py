"""The greedy cut: contiguous batches, each as long as its budget allows.

A batch takes the next example of the order if it still fits, else it ends. That is one pass over the lengths, compiled; what
is beyond a budget is never computed, so that no sum can wrap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_core.batching.cutting.loops import sum_items
from zephon_core.batching.lengths import LengthTable
from zephon_core.batching.options import LARGEST, OPTIONS_WANTED, TokenBatchOptions, refuse_other_type
from zephon_core.compiled import compiled
from zephon_core.errors import SpecError

__all__ = [
    "CutBatches",
    "cut_batches",
    "cut_packed",
    "cut_padded",
    "cut_padded_widely",
    "cut_sorted",
    "cut_stretch",
    "grown",
    "lengths_of",
    "look_up",
    "measure_batches",
]

_BATCHES_AT_ONCE = 1 << 16
_EXAMPLES_AT_ONCE = 1 << 18
_SPARE = 1.01
_SMALL_BUDGET = 1 << 31

Int64 = npt.NDArray[np.int64]


class CutBatches(NamedTuple):
    """Consecutive batches of a stretch of an order; int64 [batches] each.

    ends: position in the stretch after the batch's last example. real_tokens: sum of its lengths. longest: its longest length.
    """

    ends: Int64
    real_tokens: Int64
    longest: Int64


def cut_batches(lengths: LengthTable | npt.ArrayLike, order: npt.NDArray[Any] | None, options: TokenBatchOptions) -> Int64:
    """Cut a whole order into batches.

    order: the examples in their order, any integers [n]; None: as they are in the table.
    Returns int64 [batches + 1] offsets: batch b holds order[offsets[b] : offsets[b + 1]].
    Raises LengthError for a length that can't be batched, SpecError for an order of other examples.
    """
    refuse_other_type("options", options, TokenBatchOptions, OPTIONS_WANTED)
    table = LengthTable.of(lengths)
    table.check(options)
    if order is not None:
        order = _checked_order(order, table.count)
    count = table.count if order is None else len(order)
    position, at_once, found = 0, count if order is None else _EXAMPLES_AT_ONCE, 1
    ends = np.zeros(1, np.int64)
    while position < count:
        stop = min(count, position + at_once)
        stretch = table.values[position:stop] if order is None else lengths_of(table.values, order[position:stop])
        if order is not None:
            table.check_still(stretch, order[position:stop], options)
        if len(ends) < found + _BATCHES_AT_ONCE:
            # As many as there will be if the others are like those so far: memory that is written to once, and never copied.
            like_these = math.ceil(found * count / position * _SPARE) if position else 0
            ends = grown(ends[:found], max(like_these, found) + _BATCHES_AT_ONCE)
        new = ends[found : found + _BATCHES_AT_ONCE]
        cut = _kernel(options)(stretch, options.maximum_tokens, _limit(options), stop == count, new)
        if not cut:  # a batch longer than the stretch
            at_once *= 2
            continue
        new[:cut] += position
        found += cut
        position = int(new[cut - 1])
    ends.resize(found, refcheck=False)
    return ends


def grown(items: npt.NDArray[Any], room: int, dtype: npt.DTypeLike = np.int64) -> npt.NDArray[Any]:
    """Return an array with the items, [n] or [k, n], and room for more, of which memory is taken up as it's written to."""
    larger = np.empty((*items.shape[:-1], room), dtype)
    larger[..., : items.shape[-1]] = items
    return larger


def cut_stretch(lengths: npt.NDArray[Any], options: TokenBatchOptions, *, closed: bool) -> CutBatches:
    """Cut the beginning of an order into batches.

    lengths: int32 or int64 [n], those of the order's next n examples, checked before. closed: nothing follows them, so what is
    left at their end is a batch as well; otherwise the last batch returned is the last one that a further example ended.
    """
    ends = np.empty(len(lengths), np.int64)
    found = _kernel(options)(lengths, options.maximum_tokens, _limit(options), closed, ends)
    ends = ends[:found].copy()
    tokens, longest = np.empty(found, np.int64), np.empty(found, np.int64)
    measure_batches(lengths, ends, tokens, longest)
    return CutBatches(ends, tokens, longest)


def lengths_of(values: npt.NDArray[Any], examples: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return `values[examples]`: integers of any type [n], each in range, which isn't checked."""
    out = np.empty(len(examples), values.dtype)
    look_up(values, examples, out)
    return out


@compiled
def look_up(values: Any, examples: Any, out: Any) -> None:
    """Write `values[examples]` to `out`, of the values' type: vectors at a time, as no index is signed."""
    for k in range(np.uint64(len(examples))):
        out[k] = values[np.uint64(examples[k])]


def _checked_order(order: npt.ArrayLike, count: int) -> npt.NDArray[Any]:
    """Return an order as an array; raises SpecError for anything but numbers of examples, as lookups don't check them."""
    try:
        examples = np.asarray(order)
    except (ValueError, TypeError, OverflowError) as error:
        raise SpecError("order", f"is no row of numbers ({error})", wanted="one row of whole numbers") from error
    if examples.ndim != 1 or (len(examples) and examples.dtype.kind not in "iu"):
        raise SpecError("order", f"is {examples.dtype} {list(examples.shape)}", wanted="one row of whole numbers")
    if len(examples) and not 0 <= int(examples.min()) <= int(examples.max()) < count:
        found = f"names examples {examples.min()} to {examples.max()}"
        raise SpecError("order", found, wanted=f"0 to {count - 1}, as the lengths have")
    return examples if len(examples) else np.zeros(0, np.int64)


def _limit(options: TokenBatchOptions) -> int:
    return LARGEST if options.maximum_examples is None else options.maximum_examples


def _kernel(options: TokenBatchOptions) -> Callable[..., int]:
    if options.layout == "packed":
        return cut_packed
    return cut_padded if options.maximum_tokens < _SMALL_BUDGET else cut_padded_widely


@compiled
def cut_packed(lengths: Any, budget: int, limit: int, closed: bool, ends: Any) -> int:
    """Write the ends of batches until `ends` or the lengths run out; return how many."""
    found, start, count = 0, 0, len(lengths)
    while start < count and found < len(ends):
        stop = start + min(limit, count - start)
        left, k = np.int64(budget), start
        while k < stop:
            length = np.int64(lengths[k])
            if length > left:
                break
            left -= length
            k += 1
        if k == start or (k == count and not closed):  # the first is of a length that nobody checked
            break
        ends[found] = k
        found += 1
        start = k
    return found


@compiled
def cut_padded(lengths: Any, budget: int, limit: int, closed: bool, ends: Any) -> int:
    """`cut_packed` for padded batches, budgets below 2**31: examples times longest stays below 2**62 where it is too much."""
    found, count, start, longest = 0, len(lengths), np.int64(0), np.int64(0)
    for k in range(count):
        length = np.int64(lengths[k])
        longest = max(longest, length)
        if longest * (k + 1 - start) > budget or k - start >= limit:
            ends[found] = k
            found += 1
            if found == len(ends):
                return found
            start, longest = np.int64(k), length
    if closed and count:
        ends[found] = count
        found += 1
    return found


@compiled
def cut_padded_widely(lengths: Any, budget: int, limit: int, closed: bool, ends: Any) -> int:
    """`cut_padded` for any budget: by division, as a product could pass 2**63 - 1."""
    found, count, start, longest = 0, len(lengths), np.int64(0), np.int64(0)
    for k in range(count):
        length = np.int64(lengths[k])
        longest = max(longest, length)
        if longest > budget // (k + 1 - start) or k - start >= limit:
            ends[found] = k
            found += 1
            if found == len(ends):
                return found
            start, longest = np.int64(k), length
    if closed and count:
        ends[found] = count
        found += 1
    return found


@compiled
def measure_batches(lengths: Any, ends: Any, tokens: Any, longest: Any) -> None:
    """Write the sum and the longest of the lengths of each batch that ends at `ends`."""
    start = 0
    for batch in range(len(ends)):
        total, top = np.int64(0), np.int64(0)
        for k in range(start, ends[batch]):
            length = np.int64(lengths[k])
            total += length
            top = max(top, length)
        tokens[batch], longest[batch] = total, top
        start = ends[batch]


@compiled
def cut_sorted(
    lengths: Any, budget: int, limit: int, padded: bool, downwards: bool, closed: bool, ends: Any, tokens: Any, longest: Any
) -> int:
    """Cut lengths that rise, or fall where `downwards`, and measure the batches as well; return how many they are.

    lengths: none beyond the budget. closed: as for `cut_stretch`. ends, tokens, longest: int64, room for a batch an example.
    Padded batches cost a step each instead of one an example: falling, the first length tells how many fit; rising, never more
    fit than into the batch before.
    """
    found, start, count, most = 0, 0, len(lengths), len(lengths)
    while start < count:
        room = min(limit, count - start)
        if not padded:
            size, left = 0, np.int64(budget)
            while size < room and lengths[start + size] <= left:
                left -= lengths[start + size]
                size += 1
        else:
            size = min(room, int(budget // lengths[start]))
            if not downwards:
                size = min(size, most)
                if not found:  # from above, by halves
                    low = 1
                    while low < size:
                        middle = (low + size + 1) // 2
                        if lengths[start + middle - 1] <= budget // middle:
                            low = middle
                        else:
                            size = middle - 1
                while lengths[start + size - 1] > budget // size:
                    size -= 1
                most = size
        end = start + size
        if end == count and not closed:
            break
        ends[found], tokens[found] = end, sum_items(lengths, start, end)
        longest[found] = lengths[start if downwards else end - 1]
        found += 1
        start = end
    return found
