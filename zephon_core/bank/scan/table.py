"""Which digests are new: a hash table that keeps its digests nearly sorted.

A digest's home is its leading 32 bits (less those that all digests share) scaled to the table's capacity, so slots are in the order
of digests but for collisions, which linear probing resolves within a few slots. Hence growing a table, and reading it in sorted
order, are sequential passes; and merging sorted runs needs nothing but inserting them.

A slot is three int64: the digest's bytes 0 to 7 and 8 to 15, big-endian, then bytes 16 to 19 above the digest's number plus one.
Zero in that lower half means empty.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from zephon_core.bank.scan.arrays import Bytes, Ints
from zephon_core.bank.scan.simd import big_endian_at, prefetch_row
from zephon_core.compiled import compiled

__all__ = ["DigestTable"]

SLOT_BYTES = 24
_SPARE_SLOTS = 4096
_FIRST_SLOTS = 1 << 16
_LARGEST_SLOTS = 1 << 31
_LOAD = 0.75
_AHEAD = 12
_LOWEST = np.int64(-(2**63))


class DigestTable:
    """A set of digests, each with the number it was given when it was first met.

    It begins small and grows up to `memory_bytes`, what is there while it grows included. `insert` takes as many as fit; then
    `sorted_chunks` and `clear`.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._all_sizes = _growth(min(max(memory_bytes // SLOT_BYTES - _SPARE_SLOTS, 1 << 10), _LARGEST_SLOTS))
        self._bits = 32
        self.clear()

    @classmethod
    def for_sorted(cls, digests: int, shared_bits: int) -> DigestTable:
        """Make a table for so many digests that come in order, and have their `shared_bits` leading bits in common.

        It has its full size from the start: in a smaller one, the first of a sorted sequence would all crowd into one end.
        """
        table = cls(0)
        table._all_sizes = [int(digests / _LOAD) + (1 << 10)]
        table._bits = 32 - shared_bits
        table.clear()
        return table

    def clear(self) -> None:
        """Forget all digests, and begin small again."""
        self._slots = np.empty((0, 3), np.int64)
        self._sizes = list(self._all_sizes)
        self._slots, self._capacity = _new_slots(self._sizes.pop(0))
        self.count = 0

    def insert(self, digests: Bytes, begin: int, new: Ints) -> tuple[int, int]:
        """Add digests[begin:] in order, until the table is full.

        digests: [n, 20]. new: [n], receives the indices of the digests not met before, which get the numbers count, count + 1, …
        in that order. Returns (index of the first digest not looked at, how many were new).
        """
        found = 0
        while True:
            limit = int(self._capacity * _LOAD)
            at, added = _insert(self._slots, self._capacity, self._bits, digests, begin, self.count, limit, new[found:])
            self.count += added
            found += added
            if at == len(digests) or not self._sizes:
                return at, found
            begin = at
            self._grow()

    def _grow(self) -> None:
        old, old_capacity = self._slots, self._capacity
        for size in list(self._sizes):
            self._sizes.remove(size)
            self._slots, self._capacity = _new_slots(size)
            if _reinsert(old, self._slots, self._capacity, self._bits):
                return
        self._slots, self._capacity = old, old_capacity

    def sorted_chunks(self, chunk: int = 1 << 16) -> Any:
        """Yield (digests uint8 [m, 20], numbers int64 [m]) in ascending order of digests, m <= chunk."""
        _sort(self._slots)
        slot = 0
        while slot < len(self._slots):
            digests = np.empty((chunk, 20), np.uint8)
            numbers = np.empty(chunk, np.int64)
            slot, count = _collect(self._slots, slot, digests, numbers)
            if count:
                yield digests[:count], numbers[:count]


def _growth(largest: int) -> list[int]:
    """Capacities from small to `largest` such that each fits beside the one before within `largest` slots altogether."""
    sizes = [max(1 << 10, largest * 4 // 5)]
    while sizes[-1] > 4 * _FIRST_SLOTS:
        sizes.append(sizes[-1] // 4)
    return sizes[::-1]


def _new_slots(capacity: int) -> tuple[Ints, int]:
    return np.zeros((capacity + _SPARE_SLOTS, 3), np.int64), capacity


@compiled
def _home(first: int, capacity: int, bits: int) -> int:
    return (first >> 32 & (1 << bits) - 1) * capacity >> bits


@compiled
def _insert(
    slots: Ints,
    capacity: int,
    bits: int,
    digests: Bytes,
    begin: int,
    number: int,
    limit: int,
    new: Ints,
) -> tuple[int, int]:
    flat = digests.reshape(digests.size)
    added = 0
    end = len(digests)
    for i in range(begin, end):
        if i + _AHEAD < end:
            prefetch_row(slots, _home(big_endian_at(flat, 20 * (i + _AHEAD)), capacity, bits))
        first = big_endian_at(flat, 20 * i)
        second = big_endian_at(flat, 20 * i + 8)
        third = big_endian_at(flat, 20 * i + 12) << 32
        slot = _home(first, capacity, bits)
        while True:
            tail = slots[slot, 2]
            if tail & 0xFFFFFFFF == 0:
                if number + added == limit:
                    return i, added
                slots[slot, 0] = first
                slots[slot, 1] = second
                slots[slot, 2] = third | (number + added + 1)
                new[added] = i
                added += 1
                break
            if slots[slot, 0] == first and slots[slot, 1] == second and (tail ^ third) >> 32 == 0:
                break
            slot += 1
            if slot == len(slots):
                return i, added
    return end, added


@compiled
def _reinsert(old: Ints, slots: Ints, capacity: int, bits: int) -> bool:
    for i in range(len(old)):
        if old[i, 2] & 0xFFFFFFFF == 0:
            continue
        slot = _home(old[i, 0], capacity, bits)
        while slots[slot, 2] & 0xFFFFFFFF != 0:
            slot += 1
            if slot == len(slots):
                return False
        slots[slot, 0] = old[i, 0]
        slots[slot, 1] = old[i, 1]
        slots[slot, 2] = old[i, 2]
    return True


@compiled
def _less(a0: Any, a1: Any, a2: Any, b0: Any, b1: Any, b2: Any) -> Any:
    """Compare two digests as bytes: the words are unsigned, hence the flipped signs."""
    if a0 != b0:
        return a0 ^ _LOWEST < b0 ^ _LOWEST
    if a1 != b1:
        return a1 ^ _LOWEST < b1 ^ _LOWEST
    return a2 ^ _LOWEST < b2 ^ _LOWEST


@compiled
def _sort(slots: Ints) -> None:
    """Sort by insertion; a digest moves only within its run of full slots, which is short."""
    for i in range(1, len(slots)):
        a0, a1, a2 = slots[i, 0], slots[i, 1], slots[i, 2]
        if a2 & 0xFFFFFFFF == 0:
            continue
        at = i
        while at > 0:
            b0, b1, b2 = slots[at - 1, 0], slots[at - 1, 1], slots[at - 1, 2]
            if b2 & 0xFFFFFFFF == 0 or not _less(a0, a1, a2, b0, b1, b2):
                break
            slots[at, 0] = b0
            slots[at, 1] = b1
            slots[at, 2] = b2
            at -= 1
        slots[at, 0] = a0
        slots[at, 1] = a1
        slots[at, 2] = a2


@compiled
def _collect(slots: Ints, slot: int, digests: Bytes, numbers: Ints) -> tuple[int, int]:
    count = 0
    while slot < len(slots) and count < len(digests):
        tail = slots[slot, 2]
        if tail & 0xFFFFFFFF != 0:
            first = slots[slot, 0]
            second = slots[slot, 1]
            for k in range(8):
                digests[count, k] = first >> (56 - 8 * k) & 0xFF
                digests[count, 8 + k] = second >> (56 - 8 * k) & 0xFF
            for k in range(4):
                digests[count, 16 + k] = tail >> (56 - 8 * k) & 0xFF
            numbers[count] = (tail & 0xFFFFFFFF) - 1
            count += 1
        slot += 1
    return slot, count
