"""One file of rows that are written in any order by any number of processes: a standard .npy file.

The rows of a matrix are equally wide; those of a ragged file are of any width, and lie end to end. Rows are written with pwrite,
not through a mapping: a full disk is then an error that can be reported, and not a bus error.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import xxhash

from zephon_core.atomic import atomic_file
from zephon_core.errors import ArtifactError, CorruptArtifactError
from zephon_core.npy import npy_header

__all__ = ["RowFile", "RowLayout", "block_checksum", "row_checksums"]

_CHUNK_BYTES = 8 << 20

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RowLayout:
    """Where each row of a file lies.

    offsets: int64 [rows + 1], the first element of each row and the end; None for a matrix. width: elements of each row of a
    matrix, 0 where they differ.
    """

    row_count: int
    width: int
    dtype: np.dtype[np.floating]
    offsets: npt.NDArray[np.int64] | None = None

    @classmethod
    def matrix(cls, row_count: int, width: int, dtype: np.dtype[np.floating]) -> RowLayout:
        """Rows of `width` elements each: the array is [row_count, width]."""
        return cls(row_count, width, dtype)

    @classmethod
    def ragged(cls, lengths: npt.NDArray[np.integer], dtype: np.dtype[np.floating]) -> RowLayout:
        """Rows of `lengths` elements, integers [rows], end to end: the array is [sum of lengths]."""
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        return cls(len(lengths), 0, dtype, offsets)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return (self.row_count, self.width) if self.offsets is None else (int(self.offsets[-1]),)

    @property
    def file_bytes(self) -> int:
        """The size of the file."""
        return len(self.header()) + self.elements_before(self.row_count) * self.dtype.itemsize

    def elements_before(self, row: int) -> int:
        """Return how many elements lie before a row."""
        return row * self.width if self.offsets is None else int(self.offsets[row])

    def header(self) -> bytes:
        """Return the first bytes of the file."""
        return npy_header(self.dtype, *self.shape)


class RowFile:
    """A .npy file of rows, open for writing them at their places.

    An existing file of the right shape is kept as it is, and one of another is refused with CorruptArtifactError; an absent
    one is made, as large as it will be but without taking space yet. Raises ArtifactError if the disk can't hold it.
    """

    def __init__(self, path: Path, layout: RowLayout) -> None:
        self.path = path
        self.layout = layout
        self._header = layout.header()
        self._total = layout.file_bytes
        with self._space_errors():
            self._make_if_absent()
        self._handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._check()
        except BaseException:
            os.close(self._handle)
            raise

    def __enter__(self) -> RowFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """The type of the elements."""
        return self.layout.dtype

    @property
    def file_bytes(self) -> int:
        """The size of the file."""
        return self._total

    def write(self, rows: Rows, stored: npt.NDArray[np.floating]) -> None:
        """Put equally wide rows, [rows, width], at their places; not yet on the device."""
        content = _bytes_of(stored)
        step = stored.shape[1] * stored.itemsize
        with self._space_errors():
            for first, end in _neighbours(rows):
                piece = content[first * step : end * step]
                place = self._place(int(rows[first]))
                while piece:
                    written = os.pwrite(self._handle, piece, place)
                    piece, place = piece[written:], place + written

    def sync(self) -> None:
        """Flush what was written to the device."""
        with self._space_errors():
            os.fsync(self._handle)

    def read(self, rows: Rows) -> npt.NDArray[np.floating]:
        """Return equally wide rows as they are in the file, [rows, width]."""
        width = self.layout.width
        if len(rows) and self.layout.offsets is not None:
            width = self.layout.elements_before(int(rows[0]) + 1) - self.layout.elements_before(int(rows[0]))
        stored = np.empty((len(rows), width), self.dtype)
        content, step = _bytes_of(stored), width * self.dtype.itemsize
        for first, end in _neighbours(rows):
            piece = os.pread(self._handle, (end - first) * step, self._place(int(rows[first])))
            content[first * step : first * step + len(piece)] = piece
        return stored

    def checksums(self, wanted: npt.NDArray[np.bool_]) -> Iterator[tuple[Rows, npt.NDArray[np.uint64]]]:
        """Yield the wanted rows, bool [rows], in order, with their checksums; the file is read once, some megabytes at a time."""
        ends = [0]
        while ends[-1] < self.layout.row_count:
            ends.append(self._chunk_end(ends[-1]))
        for first, end in pairwise(ends):
            rows = np.arange(first, end)[wanted[first:end]]
            if not len(rows):
                continue
            start = self._place(first)
            content = memoryview(os.pread(self._handle, self._place(end) - start, start))
            bounds = ((self._place(row) - start, self._place(row + 1) - start) for row in rows.tolist())
            digests = (xxhash.xxh3_64_intdigest(content[a:b], row) for row, (a, b) in zip(rows.tolist(), bounds, strict=True))
            yield rows, np.fromiter(digests, np.uint64, len(rows))

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def _place(self, row: int) -> int:
        return len(self._header) + self.layout.elements_before(row) * self.dtype.itemsize

    def _chunk_end(self, first: int) -> int:
        """Return the end of a chunk that begins at a row: at least one row."""
        elements = _CHUNK_BYTES // self.dtype.itemsize
        if self.layout.offsets is None:
            return min(self.layout.row_count, first + max(1, elements // max(1, self.layout.width)))
        end = int(np.searchsorted(self.layout.offsets, self.layout.offsets[first] + elements, side="right")) - 1
        return min(self.layout.row_count, max(first + 1, end))

    def _make_if_absent(self) -> None:
        """Make the file in one step: whoever else opens it, or finds it after a kill, sees all of it or none."""
        if self.path.exists():
            return
        free = shutil.disk_usage(self.path.parent).free
        if free < self._total:
            raise ArtifactError(
                str(self.path.parent),
                f"has {free / 1e9:.1f} GB free",
                wanted=f"{self._total / 1e9:.1f} GB for {self.path.name}",
                remedy="Free space, or move the store to a larger disk.",
            )
        with atomic_file(self.path, keep=True) as file:
            file.write(self._header)
            file.truncate(self._total)

    def _check(self) -> None:
        status = os.fstat(self._handle)
        if status.st_size != self._total or os.pread(self._handle, len(self._header), 0) != self._header:
            raise CorruptArtifactError(
                str(self.path),
                f"has {status.st_size:,} bytes and is no array {list(self.layout.shape)} of {self.dtype}",
                remedy="Delete it to begin anew.",
            )

    @contextmanager
    def _space_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ArtifactError(
                str(self.path), "can't grow: the disk is full", remedy="Free space and run it again: finished blocks are kept."
            ) from error


def block_checksum(rows: Rows, stored: npt.NDArray[np.floating]) -> int:
    """Return the checksum of a block's rows: the sum, modulo 2^64, of the XXH3 of each row's bytes, seeded with its number.

    A sum can be checked in any order, so a whole file is verified in one pass from its first byte to its last.
    """
    return sum(map(int, row_checksums(rows, stored))) & 0xFFFF_FFFF_FFFF_FFFF


def row_checksums(rows: Rows, stored: npt.NDArray[np.floating]) -> npt.NDArray[np.uint64]:
    """Return the seeded XXH3 of the bytes of equally wide rows, uint64 [rows]."""
    content = _bytes_of(stored)
    step = len(content) // max(1, len(rows))
    digests = (xxhash.xxh3_64_intdigest(content[place * step : (place + 1) * step], row) for place, row in enumerate(rows.tolist()))
    return np.fromiter(digests, np.uint64, len(rows))


def _bytes_of(stored: npt.NDArray[np.floating]) -> memoryview:
    return memoryview(np.ascontiguousarray(stored).reshape(-1).view(np.uint8).data)


def _neighbours(rows: Rows) -> Iterator[tuple[int, int]]:
    """Yield (first, end) for each run of rows whose numbers follow one another."""
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    yield from zip([0, *cuts.tolist()], [*cuts.tolist(), len(rows)], strict=True)
