"""A stable sort by small keys and a seeded shuffle, for compiled loops.

Both are their own so that the same seed gives the same plan on every machine and with every release of numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from zephon_core.compiled import compiled

__all__ = ["generator_state", "shuffle", "sort_pairs"]

_DIGIT_BITS = 11
_WIDEST_DIGIT = 15


def generator_state(key: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the state of a generator for `shuffle`, uint64 [1], from a key of 64 bits."""
    return np.array([key], np.uint64)


@compiled
def shuffle(items: Any, first: int, end: int, state: Any) -> None:
    """Shuffle items[first:end] in place (Fisher & Yates), by SplitMix64 (Steele, Lea & Flood, 2014) from and to `state`."""
    for k in range(end - first - 1, 0, -1):
        state[0] += np.uint64(0x9E3779B97F4A7C15)
        mixed = state[0]
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        other = first + np.int64(mixed % np.uint64(k + 1))
        items[first + k], items[other] = items[other], items[first + k]


@compiled
def sort_pairs(keys: Any, items: Any, spare_keys: Any, spare_items: Any, count: int, largest: Any, downwards: bool) -> bool:
    """Sort the first `count` pairs by their keys, 0 .. largest, equal ones in their order (radix sort, lowest digit first).

    downwards: the very reverse, equal ones from the last to the first. count: within what the items' type can number.
    Returns whether the sorted pairs are in the spare arrays; the other two hold nothing of use then.
    """
    bits = 1
    while largest >> bits:
        bits += 1
    widest = _DIGIT_BITS
    while widest < _WIDEST_DIGIT and 1 << widest < count:  # as many counters as pairs still pay
        widest += 1
    passes = (bits + widest - 1) // widest
    digit_bits = (bits + passes - 1) // passes
    mask = np.uint64((1 << digit_bits) - 1)
    ends = np.empty(1 << digit_bits, items.dtype)
    for step in range(passes):
        shift, last = np.uint64(step * digit_bits), step == passes - 1
        digits = (np.int64(largest) >> (step * digit_bits)) + 1 if last else np.int64(1) << digit_bits
        ends[:digits] = 0
        for k in range(count):
            ends[(np.uint64(keys[k]) >> shift) & mask] += 1
        total = ends[0]
        ends[0] = 0
        for digit in range(1, digits):
            ends[digit], total = total, total + ends[digit]
        for k in range(count):
            at = (np.uint64(keys[k]) >> shift) & mask
            to = np.uint64(ends[at])
            ends[at] += 1
            if last and downwards:
                to = np.uint64(count - 1) - to
            spare_keys[to] = keys[k]
            spare_items[to] = items[k]
        keys, spare_keys = spare_keys, keys
        items, spare_items = spare_items, items
    return passes % 2 == 1
