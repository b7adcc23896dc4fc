"""From an order to a stream of batches: contiguous ones, or ones of neighbouring lengths.

With buckets, the order is taken a window at a time; a window's examples are sorted by length and cut. What a window can't close
goes into the next. Windows are sorted up and down by turns, so that it is the longest examples that wait once, then the shortest,
and none for long.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_core.batching.cutting.cut import cut_sorted, cut_stretch, grown
from zephon_core.batching.cutting.loops import copy_items, sum_items
from zephon_core.batching.cutting.sorting import sort_pairs
from zephon_core.batching.options import LARGEST, TokenBatchOptions
from zephon_core.compiled import compiled

__all__ = ["BatchStream", "form_batches"]

_SUMMED_AT_ONCE = 256
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
    order: npt.NDArray[Any], stretches: Iterable[npt.NDArray[Any]], options: TokenBatchOptions, *, longest: int, window_batches: int
) -> tuple[BatchStream, Int64]:
    """Cut an order into batches; with buckets, rearrange it as well.

    order: uint32 or int64 [n], the examples; it is written to where window_batches > 0, and holds each batch's examples one after
    another then. stretches: the lengths of one stretch of the order after the other, of one type, each from 1 to `longest` and
    within the budget; of the order nothing is looked at before its lengths have come.
    window_batches: examples that would fill so many batches are sorted by length together; 0: none, the order stays.
    Returns the batches and at which of them each window begins, int64 [windows + 1]; without buckets all are one window.
    """
    former = _WindowFormer(options, longest, window_batches) if window_batches else None
    figures, windows = np.empty((3, 0), np.int64), [0]
    batches, begin, held, tried = 0, 0, 0, 0
    buffer: npt.NDArray[Any] = np.empty(0, np.int32)  # its first `held` are the lengths from `begin` on
    for stretch in stretches:
        if held + len(stretch) > len(buffer):
            buffer = grown(buffer[:held], min(len(order), 2 * held + len(stretch) + len(stretch) // 4), stretch.dtype)
        buffer[held : held + len(stretch)] = stretch
        held += len(stretch)
        closed = begin + held == len(order)
        if held < 2 * tried and not closed:  # so that none is looked at more than twice, however long a window or a batch
            continue
        lengths = buffer[:held]
        if former is None:
            ends, tokens, tops = cut_stretch(lengths, options, closed=closed)
        else:
            ends, tokens, tops, firsts = former.form(order[begin : begin + held], lengths, closed=closed)
            windows += (firsts + batches).tolist()
        after = batches + len(ends)
        if after >= figures.shape[1]:
            expected = after * len(order) // (begin + held)
            figures = grown(figures[:, : batches + 1], max(after, expected + expected // 16) + 1)
        figures[0, batches + 1 : after + 1] = ends + begin
        figures[1, batches:after], figures[2, batches:after] = tokens, tops
        used = int(ends[-1]) if len(ends) else 0
        buffer[: held - used] = buffer[used:held]
        batches, begin, held, tried = after, begin + used, held - used, held - used
    figures = figures if batches else np.zeros((3, 1), np.int64)
    figures[0, 0] = 0
    stream = BatchStream(figures[0, : batches + 1], figures[1, :batches], figures[2, :batches])
    return stream, np.array(windows if former else [0, batches], np.int64)


class _WindowFormer:
    """Sorts and cuts one window after the other, as far as the examples go; the rest is looked at again with more."""

    def __init__(self, options: TokenBatchOptions, longest: int, window_batches: int) -> None:
        budget, limit = options.maximum_tokens, options.maximum_examples or LARGEST
        self._limits = (budget, limit, options.layout == "padded", longest)
        self._window = (min(window_batches * budget, _WIDEST), min(window_batches * limit, _WIDEST))
        self._open: tuple[int, int, int, bool] = (0, 0, 0, True)
        self._found = np.empty((4, 0), np.int64)  # what is only worked in is kept, since new memory costs its first touch
        self._spare: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None = None

    def form(self, order: npt.NDArray[Any], lengths: npt.NDArray[Any], *, closed: bool) -> tuple[Int64, Int64, Int64, Int64]:
        """Rearrange examples and their lengths, all from the first that is in no batch yet.

        Returns ends, real tokens and longest lengths of the batches of whole windows, and where windows end in them; valid until
        the next call.
        """
        if self._found.shape[1] < len(lengths):
            self._found = np.empty((4, len(lengths) + len(lengths) // 4), np.int64)
        spare = self._spare or (np.empty(0, order.dtype), np.empty(0, lengths.dtype))
        given = self._limits, self._window, self._open
        batches, windows, self._open, self._spare = _form(order, lengths, closed, *given, *self._found, *spare)
        ends, tokens, tops, firsts = self._found
        return ends[:batches], tokens[:batches], tops[:batches], firsts[:windows]


@compiled
def _form(
    order: Any,
    lengths: Any,
    closed: bool,
    limits: Any,
    window: Any,
    opened: Any,
    ends: Any,
    sums: Any,
    tops: Any,
    firsts: Any,
    spare: Any,
    spare_lengths: Any,
) -> Any:
    """Write ends, real tokens and longest lengths of the batches of whole windows, and where windows end in them.

    opened: how many examples of the last window are counted, their tokens, how many it needs at least, and whether it is to be
    sorted downwards. The examples of an open window stay as they are. ends, sums, tops, firsts: room for a batch an example.
    Returns how many batches and windows there are, what is open, and the spare arrays, which may have grown.
    """
    (budget, limit, padded, largest), (window_tokens, window_examples) = limits, window
    held, tokens, least, downwards = opened
    windows, batches, begin = 0, 0, 0
    while begin < len(order):
        held, tokens, full = _filled(lengths[begin:], held, tokens, least, window_tokens, window_examples, largest)
        if not full and not closed:
            break
        if held > len(spare):
            spare, spare_lengths = np.empty(held + held // 4, order.dtype), np.empty(held + held // 4, lengths.dtype)
        here, its_lengths = order[begin : begin + held], lengths[begin : begin + held]
        if sort_pairs(its_lengths, here, spare_lengths, spare, held, largest, downwards):
            copy_items(spare, 0, here, 0, held)
            copy_items(spare_lengths, 0, its_lengths, 0, held)
        last = closed and begin + held == len(order)
        its_ends = ends[batches:]
        found = cut_sorted(its_lengths, budget, limit, padded, downwards, last, its_ends, sums[batches:], tops[batches:])
        if not found:  # one batch, which more examples may still fit into
            least = 2 * held
            continue
        left = held - its_ends[found - 1]
        its_ends[:found] += begin
        begin += held - left
        batches += found
        firsts[windows] = batches
        windows += 1
        held, tokens, least, downwards = 0, np.int64(0), 0, not downwards
    return batches, windows, (held, tokens, least, downwards), (spare, spare_lengths)


@compiled
def _filled(
    lengths: Any, held: int, tokens: int, least: int, window_tokens: int, window_examples: int, largest: int
) -> tuple[int, int, bool]:
    """Count examples into a window that holds `held`, until it has its tokens or examples, and at least `least`.

    Returns how many it holds and their tokens, at most window_tokens, and whether that was enough before the examples ended.
    """
    at_once = _SUMMED_AT_ONCE if largest < 1 << 53 else 1
    while held < len(lengths):
        if held >= least and (tokens >= window_tokens or held >= window_examples):
            return held, tokens, True
        size = min(at_once, len(lengths) - held, max(window_examples, least) - held)
        added = sum_items(lengths, held, held + size)
        if added >= window_tokens - tokens and size > 1:  # it ends within
            at_once = 1
            continue
        tokens += min(added, window_tokens - tokens)
        held += size
    return held, tokens, False
