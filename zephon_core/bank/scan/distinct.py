"""The first appearance of every digest, in memory that doesn't grow with their number.

Digests go into a table until it is full; then it becomes a run on disk, sorted, and an empty table takes over: a new generation,
which takes digests for new that an earlier one has met. Each digest taken for new is a candidate, numbered in order of appearance.
In the end the runs are merged, one range of digests after another, and of equal digests the first candidate stays.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zephon_core.bank.scan.arrays import Bytes, Ints
from zephon_core.bank.scan.files import read_npy
from zephon_core.bank.scan.table import DigestTable
from zephon_core.errors import InputError
from zephon_core.npy import NpyWriter

__all__ = ["Distinct", "Dropped"]

_Chunks = Iterator[tuple[Bytes, Ints]]

_CHUNK = 1 << 16
_MERGE_BYTES_EACH = 40
"""Memory a digest takes while runs are merged: its slot, at the table's load, and its candidate's number."""


class Dropped:
    """Candidates that turned out to have appeared before: a bit each, and how many there are before each word of bits."""

    def __init__(self, candidates: int) -> None:
        self._bits = np.zeros(candidates // 64 + 1, np.uint64)
        self._before = np.zeros(0, np.int64)
        self.count = 0

    def add(self, candidates: Ints) -> None:
        """Drop candidates, each at most once."""
        np.bitwise_or.at(self._bits, candidates >> 6, np.uint64(1) << (candidates & 63).astype(np.uint64))
        self.count += len(candidates)

    def rows(self, candidates: Ints) -> Ints:
        """Return the rows of candidates that stay: how many that stay come before each. All must have been dropped by now."""
        if not self.count:
            return candidates
        if not len(self._before):
            self._before = np.cumsum(np.bitwise_count(self._bits), dtype=np.int64) - np.bitwise_count(self._bits)
        word = candidates >> 6
        lower = (np.uint64(1) << (candidates & 63).astype(np.uint64)) - np.uint64(1)
        rows: Ints = candidates - self._before[word] - np.bitwise_count(self._bits[word] & lower)
        return rows

    def kept(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Tell for candidates start to stop whether they stay; start is a multiple of 64."""
        bits = self._bits[start // 64 : -(-stop // 64)].view(np.uint8)
        return ~np.unpackbits(bits, count=stop - start, bitorder="little").astype(np.bool_)


@dataclass(frozen=True)
class _Run:
    digests: Path
    numbers: Path
    first_candidate: int
    count: int


class Distinct:
    """Collects digests and writes `digests.npy` (sorted) and `rows.npy` (the row of each)."""

    def __init__(self, directory: Path, scratch: Path, memory_bytes: int) -> None:
        self._directory = directory
        self._scratch = scratch
        self._memory_bytes = memory_bytes
        self._table = DigestTable(memory_bytes)
        self._first_candidate = 0
        self._runs: list[_Run] = []

    @property
    def candidates(self) -> int:
        """How many digests were taken for new."""
        return self._first_candidate + self._table.count

    @property
    def spilled_runs(self) -> int:
        """How often the table was full."""
        return len(self._runs)

    def admit(self, digests: Bytes) -> Ints:
        """Return the indices of the digests that become candidates, ascending. digests: uint8 [n, 20]."""
        new = np.empty(len(digests), np.int64)
        at = found = 0
        while at < len(digests):
            at, added = self._table.insert(digests, at, new[found:])
            found += added
            if at < len(digests):
                self._spill()
        return new[:found]

    def finish(self) -> Dropped:
        """Write the result; return which candidates have no row."""
        dropped = Dropped(self.candidates)
        if self._runs:
            self._spill()
            chunks = self._merged(dropped)
        else:
            chunks = self._table.sorted_chunks()
        width = np.uint32 if self.candidates <= 0xFFFFFFFF else np.uint64
        with (
            closing(NpyWriter(self._directory / "digests.npy", np.uint8, 20)) as digests,
            closing(NpyWriter(self._scratch / "candidates.npy", width)) as candidates,
        ):
            for some_digests, some_candidates in chunks:
                digests.append(some_digests)
                candidates.append(some_candidates)
        if dropped.count:
            self._write_rows(candidates, dropped)
        else:
            candidates.path.replace(self._directory / "rows.npy")
        return dropped

    def _write_rows(self, candidates: NpyWriter, dropped: Dropped) -> None:
        width = np.uint32 if candidates.rows <= 0xFFFFFFFF else np.uint64
        with closing(NpyWriter(self._directory / "rows.npy", width)) as rows:
            for start in range(0, candidates.rows, _CHUNK):
                some = read_npy(candidates.path, start, min(_CHUNK, candidates.rows - start), candidates.dtype)
                rows.append(dropped.rows(some.astype(np.int64)))

    def _spill(self) -> None:
        number = len(self._runs)
        run = _Run(
            self._scratch / f"run-{number}.digests",
            self._scratch / f"run-{number}.numbers",
            self._first_candidate,
            self._table.count,
        )
        with run.digests.open("wb", buffering=1 << 20) as digests, run.numbers.open("wb", buffering=1 << 20) as numbers:
            for some_digests, some_numbers in self._table.sorted_chunks():
                digests.write(some_digests.data)
                numbers.write(some_numbers.astype(np.uint32).data)
        self._runs.append(run)
        self._first_candidate += run.count
        self._table.clear()

    def _merged(self, dropped: Dropped) -> _Chunks:
        """Yield the distinct digests of all runs in order, each with its first candidate, and drop the others."""
        total = sum(run.count for run in self._runs)
        range_bits = (-(-total // max(_CHUNK, self._memory_bytes // _MERGE_BYTES_EACH)) - 1).bit_length()
        bounds = [_bounds(run, range_bits) for run in self._runs]
        for part in range(1 << range_bits):
            size = sum(bound[part + 1] - bound[part] for bound in bounds)
            table = DigestTable.for_sorted(size, range_bits)
            first_candidates = np.empty(size, np.int64)
            # Generations come in order, so that the first of equal digests is the earliest.
            for run, bound in zip(self._runs, bounds, strict=True):
                for start in range(bound[part], bound[part + 1], _CHUNK):
                    count = min(_CHUNK, bound[part + 1] - start)
                    digests = np.fromfile(run.digests, np.uint8, 20 * count, offset=20 * start).reshape(-1, 20)
                    numbers = np.fromfile(run.numbers, np.uint32, count, offset=4 * start)
                    candidates = numbers.astype(np.int64) + run.first_candidate
                    new = np.empty(count, np.int64)
                    before = table.count
                    at, added = table.insert(digests, 0, new)
                    if at < count:
                        raise InputError(
                            "texts", "have SHA-1 digests that crowd into one place", remedy="Look for texts made to collide."
                        )
                    first_candidates[before : before + added] = candidates[new[:added]]
                    dropped.add(np.delete(candidates, new[:added]))
            for some_digests, numbers in table.sorted_chunks():
                yield some_digests, first_candidates[numbers]


def _bounds(run: _Run, range_bits: int) -> list[int]:
    """Return where the digests of each value of the leading `range_bits` begin in a run, and its end."""
    with run.digests.open("rb") as file:

        def leading_bits(place: int) -> int:
            return int.from_bytes(os.pread(file.fileno(), 4, 20 * place), "big") >> (32 - range_bits)

        inner = [bisect_left(range(run.count), part, key=leading_bits) for part in range(1, 1 << range_bits)]
    return [0, *inner, run.count]
