"""The token ids of many rows: a folder of three arrays, mapped.

token_ids.npy       unsigned integers [tokens], the rows end to end
token_offsets.npy   uint64 [rows + 1]: row i is token_ids[offsets[i] : offsets[i + 1]]
lengths.npy         int32 [rows]
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["TOKEN_FILES", "TokenRows", "probe_rows"]

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
