"""What the token store's statistics say about its texts: how long they are, and how many have the same ids as another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["RepeatCounter", "length_statistics"]

_BLOCK_TEXTS = 1 << 20


class RepeatCounter:
    """Counts texts whose ids equal another text's: long texts with the same beginning, or texts that a tokenizer can't tell apart.

    Keeps a 64-bit digest a text (Python's keyed hash of bytes, SipHash): among 100 million different texts, the odds
    that two of them are taken for equal are about 1 in 4,000.
    """

    def __init__(self, text_count: int) -> None:
        self._digests = np.empty(text_count, dtype=np.int64)
        self._filled = 0

    @staticmethod
    def digests(ids: npt.NDArray[Any], lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Digest the ids of each text: int64 [texts], comparable within this process only."""
        content = ids.tobytes()
        ends = np.cumsum(lengths, dtype=np.int64) * ids.itemsize
        starts = (ends - lengths.astype(np.int64) * ids.itemsize).tolist()
        each = map(hash, map(content.__getitem__, map(slice, starts, ends.tolist())))
        return np.fromiter(each, dtype=np.int64, count=len(lengths))

    def add(self, digests: npt.NDArray[np.int64]) -> None:
        """Add the digests of some texts."""
        self._digests[self._filled : self._filled + len(digests)] = digests
        self._filled += len(digests)

    def add_recorded(self, ids: npt.NDArray[Any], lengths: npt.NDArray[np.int32]) -> None:
        """Add texts from the ids of an earlier run, block by block."""
        start = 0
        for first in range(0, len(lengths), _BLOCK_TEXTS):
            block = np.asarray(lengths[first : first + _BLOCK_TEXTS])
            end = start + int(block.sum(dtype=np.int64))
            self.add(self.digests(ids[start:end], block))
            start = end

    def count(self) -> dict[str, int]:
        """Count texts that have the ids of another one, and their groups. Ends the counting: the digests are sorted in place."""
        digests = self._digests[: self._filled]
        digests.sort()
        as_before = digests[1:] == digests[:-1]
        repeats = int(np.count_nonzero(as_before))
        groups = repeats - int(np.count_nonzero(as_before[1:] & as_before[:-1]))
        return {"texts": repeats + groups, "groups": groups}


def length_statistics(lengths_file: Path) -> dict[str, Any]:
    """Mean, longest and histogram of the lengths in lengths.npy, read block by block.

    The histogram's bins begin at 1, 2, 3, 4, 6, 8, 12, 16, ... tokens (`first`), and hold so many texts each (`texts`).
    """
    lengths = np.load(lengths_file, mmap_mode="r")
    longest = max((int(block.max()) for block in _blocks(lengths)), default=0)
    first = [1, *(edge for power in range(1, longest.bit_length()) for edge in (1 << power, 3 << (power - 1)) if edge <= longest)]
    counts = np.zeros(len(first), dtype=np.int64)
    for block in _blocks(lengths):
        counts += np.bincount(np.searchsorted(first, block, side="right") - 1, minlength=len(first))
    total = sum(int(block.sum(dtype=np.int64)) for block in _blocks(lengths))
    return {
        "mean_length": total / len(lengths) if len(lengths) else 0.0,
        "longest": longest,
        "length_histogram": {"first": first, "texts": counts.tolist()},
    }


def _blocks(lengths: npt.NDArray[np.int32]) -> Iterator[npt.NDArray[np.int32]]:
    return (lengths[start : start + _BLOCK_TEXTS] for start in range(0, len(lengths), _BLOCK_TEXTS))
