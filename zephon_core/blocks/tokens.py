"""The token ids of many rows: a folder of three arrays, mapped.

token_ids.npy       unsigned integers [tokens], the rows end to end
token_offsets.npy   uint64 [rows + 1]: row i is token_ids[offsets[i] : offsets[i + 1]]
lengths.npy         int32 [rows]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.npy import NpyWriter

__all__ = ["TOKEN_FILES", "TokenRows", "TokenRowsWriter", "probe_rows"]

TOKEN_FILES = ("token_ids.npy", "token_offsets.npy", "lengths.npy")


class TokenRows:
    """Token ids of rows, mapped from `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ids = np.load(directory / TOKEN_FILES[0], mmap_mode="r")
        self.offsets = np.load(directory / TOKEN_FILES[1], mmap_mode="r")
        self.lengths = np.load(directory / TOKEN_FILES[2], mmap_mode="r")

    def __len__(self) -> int:
        return len(self.lengths)

    def gather(self, rows: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
        """Return the first `length` ids of each row, int64 [rows, length]."""
        places = self.offsets[rows].astype(np.int64)[:, None] + np.arange(length)
        ids: npt.NDArray[np.int64] = self.ids[places].astype(np.int64)
        return ids


class TokenRowsWriter:
    """Writes such a folder as rows come, with ids of four bytes; it can be read once it is closed."""

    def __init__(self, directory: Path) -> None:
        ids, offsets, lengths = (directory / name for name in TOKEN_FILES)
        self._ids = NpyWriter(ids, np.uint32)
        self._offsets = NpyWriter(offsets, np.uint64)
        self._lengths = NpyWriter(lengths, np.int32)
        self._offsets.append(np.zeros(1, np.uint64))

    @property
    def rows(self) -> int:
        """How many rows are written."""
        return self._lengths.rows

    @property
    def tokens(self) -> int:
        """How many ids are written."""
        return self._ids.rows

    def append(self, ids: npt.NDArray[np.integer[Any]], lengths: npt.NDArray[np.integer[Any]]) -> None:
        """Append rows: their ids end to end, and how many each has."""
        self._offsets.append(self.tokens + np.cumsum(lengths, dtype=np.int64))
        self._ids.append(ids)
        self._lengths.append(lengths)

    def close(self) -> None:
        """Make the files whole."""
        for file in (self._ids, self._offsets, self._lengths):
            file.close()


def probe_rows(
    lengths: npt.NDArray[np.integer], left_out: npt.NDArray[np.integer], *, most_rows: int, most_tokens: int
) -> npt.NDArray[np.int64]:
    """Choose rows to look at more closely, evenly over the order of their lengths: int64, the shortest first.

    At most `most_rows` of them, with about `most_tokens` tokens, but one at least. left_out: rows not to choose.
    """
    rows = np.setdiff1d(np.arange(len(lengths)), left_out)
    if not len(rows):
        return rows
    order = rows[np.argsort(lengths[rows], kind="stable")]
    count = min(most_rows, len(order), max(1, int(most_tokens / float(lengths[rows].mean()))))
    return order[np.linspace(0, len(order) - 1, count).round().astype(np.int64)]
