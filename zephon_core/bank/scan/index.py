"""index.json of a bank: {SHA-1 in hex: row}, in row order, for readers that want a dictionary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.bank.scan.arrays import Bytes
from zephon_core.bank.scan.files import read_npy
from zephon_core.compiled import compiled

__all__ = ["write_index_file"]

_TEXTS_AT_ONCE = 4 << 20
_CHUNK = 1 << 18
_ENTRY_BYTES = 66
"""Quotes, 40 digits, colon, blank, at most 20 digits, comma, blank."""


def write_index_file(directory: Path, path: Path) -> None:
    """Write the index of the scan in `directory`, some million rows at a time: each time is a pass over digests.npy."""
    rows = np.load(directory / "rows.npy", mmap_mode="r")
    total, width = len(rows), rows.dtype
    del rows
    out = np.empty(_CHUNK * _ENTRY_BYTES, np.uint8)
    with path.open("wb") as file:
        file.write(b"{")
        for first in range(0, total, _TEXTS_AT_ONCE):
            digests = _digests_of_rows(directory, first, min(_TEXTS_AT_ONCE, total - first), total, width)
            for start in range(0, len(digests), _CHUNK):
                some = digests[start : start + _CHUNK]
                size = _format(some, first + start, out)
                last = first + start + len(some) == total
                file.write(out[: size - 2 if last else size].data)
        file.write(b"}")


def _digests_of_rows(directory: Path, first: int, count: int, total: int, width: Any) -> Bytes:
    """Return the digests of rows first to first + count, in row order: uint8 [count, 20]."""
    found = np.empty((count, 20), np.uint8)
    for rows, digests in _chunks(directory, total, width):
        if count == total:
            found[rows] = digests
            continue
        inside = (rows >= first) & (rows < first + count)
        found[rows[inside] - first] = digests[inside]
    return found


def _chunks(directory: Path, total: int, width: Any) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    for start in range(0, total, _CHUNK):
        count = min(_CHUNK, total - start)
        rows = read_npy(directory / "rows.npy", start, count, width).astype(np.int64)
        yield rows, read_npy(directory / "digests.npy", start, count, np.uint8, 20)


@compiled
def _format(digests: Bytes, first_row: int, out: Bytes) -> int:
    """Write `"<40 hex digits>": <row>, ` for each digest; return the bytes written."""
    at = 0
    for i in range(len(digests)):
        out[at] = 0x22
        for k in range(20):
            high = digests[i, k] >> 4
            low = digests[i, k] & 15
            out[at + 1 + 2 * k] = high + (0x30 if high < 10 else 0x57)
            out[at + 2 + 2 * k] = low + (0x30 if low < 10 else 0x57)
        out[at + 41] = 0x22
        out[at + 42] = 0x3A
        out[at + 43] = 0x20
        at += 44
        row = first_row + i
        digits = 1
        while row >= 10**digits:
            digits += 1
        for k in range(digits):
            out[at + digits - 1 - k] = 0x30 + row % 10
            row //= 10
        out[at + digits] = 0x2C
        out[at + digits + 1] = 0x20
        at += digits + 2
    return at
