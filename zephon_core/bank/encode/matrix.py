"""The feature matrix on disk: a standard .npy file whose rows are written in any order by any number of processes.

Rows are written with pwrite, not through a mapping: a full disk is then an error that can be reported, and not a bus error.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import xxhash

from zephon_core.atomic import fsync_directory
from zephon_core.errors import ArtifactError, CorruptArtifactError

__all__ = ["FeatureMatrix", "block_checksum", "matrix_bytes", "row_checksums"]

_SPARE_BYTES = 64 << 20
_CHUNK_BYTES = 8 << 20


def block_checksum(rows: npt.NDArray[np.int64], stored: npt.NDArray[np.floating]) -> int:
    """Return the checksum of a block's rows: the sum, modulo 2^64, of the XXH3 of each row's bytes, seeded with its number.

    A sum can be checked in any order, so a whole matrix is verified in one pass from its first byte to its last.
    """
    return sum(map(int, row_checksums(rows, stored))) & 0xFFFF_FFFF_FFFF_FFFF


def row_checksums(rows: npt.NDArray[np.int64], stored: npt.NDArray[np.floating]) -> npt.NDArray[np.uint64]:
    """Return the seeded XXH3 of each row's bytes, uint64 [rows]."""
    content = _bytes_of(stored)
    step = len(content) // max(1, len(rows))
    digests = (xxhash.xxh3_64_intdigest(content[place * step : (place + 1) * step], row) for place, row in enumerate(rows.tolist()))
    return np.fromiter(digests, np.uint64, len(rows))


def matrix_bytes(row_count: int, width: int, dtype: np.dtype[np.floating]) -> int:
    """Return the size of the matrix's file."""
    return len(_npy_header(row_count, width, dtype)) + row_count * width * dtype.itemsize


class FeatureMatrix:
    """A matrix [row_count, width] in a .npy file, open for writing rows at their places.

    An existing file of the right shape is kept as it is, and one of another is refused with CorruptArtifactError; an absent
    one is made, as large as it will be but without taking space yet. Raises ArtifactError if the disk can't hold it.
    """

    def __init__(self, path: Path, row_count: int, width: int, dtype: np.dtype[np.floating]) -> None:
        self.path = path
        self.shape = (row_count, width)
        self.dtype = dtype
        self._header = _npy_header(row_count, width, dtype)
        self._row_bytes = width * dtype.itemsize
        self._total = len(self._header) + row_count * self._row_bytes
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with self._space_errors():
                self._prepare()
        except BaseException:
            os.close(self._handle)
            raise

    def __enter__(self) -> FeatureMatrix:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def write(self, rows: npt.NDArray[np.int64], stored: npt.NDArray[np.floating]) -> None:
        """Put rows at their places; not yet on the device."""
        content = _bytes_of(stored)
        with self._space_errors():
            for first, end in _neighbours(rows):
                piece = content[first * self._row_bytes : end * self._row_bytes]
                place = len(self._header) + int(rows[first]) * self._row_bytes
                while piece:
                    written = os.pwrite(self._handle, piece, place)
                    piece, place = piece[written:], place + written

    def sync(self) -> None:
        """Flush what was written to the device."""
        with self._space_errors():
            os.fsync(self._handle)

    def read(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.floating]:
        """Return rows as they are in the file, [rows, width]."""
        stored = np.empty((len(rows), self.shape[1]), self.dtype)
        content = _bytes_of(stored)
        for first, end in _neighbours(rows):
            place = len(self._header) + int(rows[first]) * self._row_bytes
            piece = os.pread(self._handle, (end - first) * self._row_bytes, place)
            content[first * self._row_bytes : first * self._row_bytes + len(piece)] = piece
        return stored

    def chunks(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.floating]]]:
        """Yield all rows in order, a few megabytes at a time, with their numbers."""
        step = max(1, _CHUNK_BYTES // self._row_bytes)
        for first in range(0, self.shape[0], step):
            rows = np.arange(first, min(first + step, self.shape[0]))
            yield rows, self.read(rows)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def _prepare(self) -> None:
        status = os.fstat(self._handle)
        if status.st_size == 0:
            free = shutil.disk_usage(self.path.parent).free
            if free < self._total:
                raise ArtifactError(
                    str(self.path.parent),
                    f"has {free / 1e9:.1f} GB free",
                    wanted=f"{self._total / 1e9:.1f} GB for the features",
                    remedy="Free space, or move the store to a larger disk.",
                )
            os.pwrite(self._handle, self._header, 0)
            os.ftruncate(self._handle, self._total)
            os.fsync(self._handle)
            fsync_directory(self.path.parent)
        elif status.st_size != self._total or os.pread(self._handle, len(self._header), 0) != self._header:
            raise CorruptArtifactError(
                str(self.path),
                f"has {status.st_size:,} bytes and is no matrix {list(self.shape)} of {self.dtype}",
                remedy="Delete it to encode anew.",
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


def _bytes_of(stored: npt.NDArray[np.floating]) -> memoryview:
    return memoryview(np.ascontiguousarray(stored).data).cast("B")


def _npy_header(row_count: int, width: int, dtype: np.dtype[np.floating]) -> bytes:
    buffer = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (row_count, width)}
    np.lib.format.write_array_header_1_0(buffer, description)
    return buffer.getvalue()


def _neighbours(rows: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield (first, end) for each run of rows whose numbers follow one another."""
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    yield from zip([0, *cuts.tolist()], [*cuts.tolist(), len(rows)], strict=True)
