"""The head of .npy files, and files of that format that grow by appending."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["HEADER_BYTES", "NpyWriter", "npy_header"]

HEADER_BYTES = 128


def npy_header(dtype: np.dtype[Any], *shape: int) -> bytes:
    """Return what stands before the values of an array of this shape: HEADER_BYTES of them, format 1.0."""
    header = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, description)
    return header.getvalue()


class NpyWriter:
    """An .npy file of one dimension, or of rows of `columns`, that grows by appending; unreadable until it is closed."""

    def __init__(self, path: Path, dtype: Any, columns: int | None = None) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        self._columns = columns
        self._file = path.open("wb", buffering=1 << 20)
        self._file.write(bytes(HEADER_BYTES))
        self.rows = 0

    def append(self, values: npt.NDArray[Any]) -> None:
        """Append rows, cast to the file's type."""
        self._file.write(np.ascontiguousarray(values, self.dtype).data)
        self.rows += len(values)

    def close(self) -> None:
        """Write the header, now that the number of rows is known."""
        columns = () if self._columns is None else (self._columns,)
        self._file.seek(0)
        self._file.write(npy_header(self.dtype, self.rows, *columns))
        self._file.close()
