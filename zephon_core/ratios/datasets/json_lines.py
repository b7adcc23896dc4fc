"""The lines of a JSONL unit, and parsing one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from zephon_core.ratios.datasets.model import BLANK_ROW, TextColumn, payloads_or_problems
from zephon_core.readers.jsonl import DEFAULT_MAX_ROW_BYTES
from zephon_core.readers.rows import MAX_DEPTH, RowProblem, is_blank, parse_line, too_long

__all__ = ["LineRows", "line_bounds", "parse_line_of_file", "parse_quickly", "payload_or_problem"]

_CHUNK_BYTES = 4 << 20
_BOM = b"\xef\xbb\xbf"


class LineRows:
    """The lines of a unit; parsed one by one, as they are asked for."""

    def __init__(self, buffer: bytes | bytearray, *, at_start: bool, max_row_bytes: int = DEFAULT_MAX_ROW_BYTES) -> None:
        self._view = memoryview(buffer)
        self._at_start = at_start
        self._max_row_bytes = max_row_bytes
        self._bounds = line_bounds(buffer)
        self.row_bytes: NDArray[np.int64] = np.diff(self._bounds)

    def payload(self, row: int) -> Any:
        """Parse one line; BLANK_ROW for an empty one. Raises RowProblem."""
        begin, end = int(self._bounds[row]), int(self._bounds[row + 1])
        return parse_line_of_file(bytes(self._view[begin:end]), self._at_start and begin == 0, self._max_row_bytes)

    def payloads(self, rows: Sequence[int]) -> list[Any]:
        """Parse many lines, a RowProblem in the place of each bad one."""
        return payloads_or_problems(self, rows)

    def texts(self, path: tuple[str, ...]) -> TextColumn | None:
        """Return None: texts have no lengths before they are parsed."""
        return None


def line_bounds(buffer: bytes | bytearray) -> NDArray[np.int64]:
    """Return where lines begin, and the end: int64 [lines + 1]. A last line without its end is one."""
    numbers = np.frombuffer(buffer, np.uint8)
    pieces = [
        np.flatnonzero(numbers[begin : begin + _CHUNK_BYTES] == 0x0A) + (begin + 1) for begin in range(0, len(buffer), _CHUNK_BYTES)
    ]
    ends = np.concatenate(pieces).astype(np.int64) if pieces else np.zeros(0, np.int64)
    tail = [len(buffer)] if len(buffer) and (not len(ends) or ends[-1] != len(buffer)) else []
    return np.concatenate([np.zeros(1, np.int64), ends, np.array(tail, np.int64)])


def payload_or_problem(line: bytes, first: bool, max_row_bytes: int) -> Any:
    """Parse a line as `parse_line_of_file` does, and return what is wrong with it instead of raising it."""
    try:
        return parse_line_of_file(line, first, max_row_bytes)
    except RowProblem as problem:
        return problem


def parse_line_of_file(line: bytes, first: bool, max_row_bytes: int) -> Any:
    """Parse a line with its end; BLANK_ROW for an empty one. first: whether the file begins with it. Raises RowProblem."""
    if first:
        line = line.removeprefix(_BOM)
    if len(line) > max_row_bytes + 2:
        raise too_long(len(line), max_row_bytes)
    if is_blank(line):
        return BLANK_ROW
    return parse_quickly(line.removesuffix(b"\n").removesuffix(b"\r"))


def parse_quickly(line: bytes) -> Any:
    """Parse a line as `parse_line` does, which is asked wherever the quick parser refuses it.

    The two differ in one point: an integer beyond 64 bits becomes a float here. Raises RowProblem.
    """
    if line.count(b"[") + line.count(b"{") <= MAX_DEPTH:
        try:
            return orjson.loads(line)
        except orjson.JSONDecodeError:
            pass
    return parse_line(line)
