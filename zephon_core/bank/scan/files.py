"""The files that a scan writes, a block at a time and without mapping them: mapped pages would count as resident memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.bank.scan.arrays import Bytes, Ints
from zephon_core.bank.scan.parse import ParsedBlock
from zephon_core.bank.scan.simd import byte_at, copy_64, string_mask, trailing_zeros
from zephon_core.compiled import compiled
from zephon_core.npy import HEADER_BYTES, NpyWriter

__all__ = ["TextWriter", "read_npy"]

_WRITE_BYTES = 4 << 20
_MARGIN = 80
"""Quotes and line end of a text, and how far past its end a copy may reach."""


def read_npy(path: Path, start: int, count: int, dtype: Any, columns: int = 1) -> npt.NDArray[Any]:
    """Read `count` rows from row `start` on of an .npy file that NpyWriter wrote: one dimension, or [count, columns]."""
    width = np.dtype(dtype).itemsize * columns
    values = np.fromfile(path, dtype, count * columns, offset=HEADER_BYTES + start * width)
    return values if columns == 1 else values.reshape(-1, columns)


class TextWriter:
    """texts.jsonl with its line offsets and kinds, one line a text, escaped as `json.dumps(text, ensure_ascii=False)` does."""

    def __init__(self, directory: Path, kinds: Bytes) -> None:
        self._kinds_of_fields = kinds
        self._file = (directory / "texts.jsonl").open("wb")
        self._kinds = NpyWriter(directory / "kinds.npy", np.uint8)
        self._offsets = NpyWriter(directory / "text_offsets.npy", np.uint64)
        self._offsets.append(np.zeros(1, np.uint64))
        self._bytes = 0
        self._out = np.empty(_WRITE_BYTES, np.uint8)

    def write(self, block: ParsedBlock, chosen: Ints) -> None:
        """Append the texts of a block whose indices are `chosen`."""
        ends = np.empty(len(chosen), np.int64)
        begin = 0
        while begin < len(chosen):
            done = _write_lines(block.data, block.starts, block.lengths, chosen, begin, self._out, ends)
            if done == begin:
                first = chosen[begin]
                size = _escaped_bytes(block.data, int(block.starts[first]), int(block.lengths[first]))
                self._out = np.empty(size + _MARGIN, np.uint8)
                continue
            written = int(ends[done - 1])
            self._file.write(self._out[:written].data)
            self._offsets.append(ends[begin:done] + self._bytes)
            self._bytes += written
            begin = done
            if len(self._out) > _WRITE_BYTES:
                self._out = np.empty(_WRITE_BYTES, np.uint8)
        self._kinds.append(self._kinds_of_fields[block.fields[chosen]])

    def close(self) -> None:
        """Finish all three files."""
        self._file.close()
        self._kinds.close()
        self._offsets.close()


@compiled
def _escaped_bytes(data: Bytes, start: int, length: int) -> int:
    size = length
    for i in range(start, start + length):
        byte = byte_at(data, i)
        if byte == 0x22 or byte == 0x5C or byte == 0x0A or byte == 0x0D or byte == 0x09 or byte == 0x08 or byte == 0x0C:
            size += 1
        elif byte < 0x20:
            size += 5
    return size


@compiled
def _hex_character(value: int) -> int:
    return value + 0x30 if value < 10 else value + 0x57


@compiled
def _write_escape(out: Bytes, at: int, byte: int) -> int:
    out[at] = 0x5C
    short = 0
    if byte == 0x22 or byte == 0x5C:
        short = byte
    elif byte == 0x0A:
        short = 0x6E
    elif byte == 0x0D:
        short = 0x72
    elif byte == 0x09:
        short = 0x74
    elif byte == 0x08:
        short = 0x62
    elif byte == 0x0C:
        short = 0x66
    if short:
        out[at + 1] = short
        return at + 2
    out[at + 1] = 0x75
    out[at + 2] = 0x30
    out[at + 3] = 0x30
    out[at + 4] = _hex_character(byte >> 4)
    out[at + 5] = _hex_character(byte & 15)
    return at + 6


@compiled
def _write_lines(
    data: Bytes,
    starts: Ints,
    lengths: Ints,
    chosen: Ints,
    begin: int,
    out: Bytes,
    ends: Ints,
) -> int:
    """Write the chosen texts from number `begin` on to out[0:], until it might overflow; note where each line ends.

    Returns the number of the first text that is not written.
    """
    at = 0
    for k in range(begin, len(chosen)):
        i = starts[chosen[k]]
        end = i + lengths[chosen[k]]
        # Escaping makes at most 6 bytes (\\u0000) of one; what is exact costs a pass over the text.
        if at + 6 * (end - i) + _MARGIN > len(out) and (at > 0 or _escaped_bytes(data, i, end - i) + _MARGIN > len(out)):
            return k
        out[at] = 0x22
        at += 1
        while i < end:
            copy_64(out, at, data, i)
            run = min(trailing_zeros(string_mask(data, i)), end - i)
            i += run
            at += run
            if run < 64 and i < end:
                at = _write_escape(out, at, byte_at(data, i))
                i += 1
        out[at] = 0x22
        out[at + 1] = 0x0A
        at += 2
        ends[k] = at
    return len(chosen)
