"""Take texts that had appeared before out of the files of a scan that spilled."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.bank.scan.arrays import Bytes, Ints
from zephon_core.bank.scan.distinct import Dropped
from zephon_core.bank.scan.files import read_npy
from zephon_core.compiled import compiled
from zephon_core.npy import NpyWriter

__all__ = ["drop_texts"]

_CHUNK_TEXTS = 1 << 16
_CHUNK_BYTES = 8 << 20


def drop_texts(directory: Path, scratch: Path, candidates: int, dropped: Dropped) -> tuple[Ints, Ints]:
    """Rewrite texts.jsonl, text_offsets.npy and kinds.npy of `directory` without the dropped candidates.

    Returns the kind and the length in bytes (unescaped) of each dropped text, int64.
    """
    names = ("texts.jsonl", "text_offsets.npy", "kinds.npy")
    old_texts, old_offsets, old_kinds = (scratch / name for name in names)
    for name in names:
        (directory / name).replace(scratch / name)
    written = 0
    gone_kinds, gone_lengths = [], []
    with (
        old_texts.open("rb") as source,
        (directory / "texts.jsonl").open("wb") as target,
        closing(NpyWriter(directory / "text_offsets.npy", np.uint64)) as new_offsets,
        closing(NpyWriter(directory / "kinds.npy", np.uint8)) as new_kinds,
    ):
        new_offsets.append(np.zeros(1, np.uint64))
        for start in range(0, candidates, _CHUNK_TEXTS):
            count = min(_CHUNK_TEXTS, candidates - start)
            offsets = read_npy(old_offsets, start, count + 1, np.uint64).astype(np.int64)
            kinds = read_npy(old_kinds, start, count, np.uint8)
            kept = dropped.kept(start, start + count)
            lengths = np.zeros(count, np.int64)
            for begin, end in _portions(offsets):
                size = int(offsets[end] - offsets[begin])
                data = np.empty(size, np.uint8)
                source.readinto(data.data)
                left = _compact(data, offsets[begin : end + 1], kept[begin:end], lengths[begin:end])
                target.write(data[:left].data)
            line_ends = np.cumsum(np.diff(offsets)[kept]) + written
            written = int(line_ends[-1]) if len(line_ends) else written
            new_offsets.append(line_ends)
            new_kinds.append(kinds[kept])
            gone_kinds.append(kinds[~kept].astype(np.int64))
            gone_lengths.append(lengths[~kept])
    return np.concatenate(gone_kinds), np.concatenate(gone_lengths)


def _portions(offsets: Ints) -> list[tuple[int, int]]:
    """Cut lines into stretches of at most about _CHUNK_BYTES."""
    portions = []
    begin = 0
    while begin < len(offsets) - 1:
        end = int(np.searchsorted(offsets, offsets[begin] + _CHUNK_BYTES, "right")) - 1
        end = min(max(end, begin + 1), len(offsets) - 1)
        portions.append((begin, end))
        begin = end
    return portions


@compiled
def _compact(data: Bytes, offsets: Ints, kept: npt.NDArray[Any], lengths: Ints) -> int:
    """Close the gaps of lines that aren't kept, noting how long their texts were; return the bytes left."""
    at = 0
    first = offsets[0]
    for k in range(len(kept)):
        begin = offsets[k] - first
        end = offsets[k + 1] - first
        if kept[k]:
            if at != begin:
                for i in range(begin, end):
                    data[at + i - begin] = data[i]
            at += end - begin
            continue
        length = 0
        i = begin + 1
        while i < end - 2:
            # Escapes are \\u00XX or a backslash and one byte.
            i += 1 if data[i] != 0x5C else 6 if data[i + 1] == 0x75 else 2
            length += 1
        lengths[k] = length
    return at
