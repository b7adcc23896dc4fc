"""Long rows of a plain JSONL file: where they lie, and where the long texts in them do, so that none has to be read whole.

The survey finds them while it reads the file anyway. Of a row of `LONG_ROW_BYTES` or more it notes the place of every string of
`LONG_STRING_BYTES` or more; with those left out, a row is small enough to be parsed, which tells the names that lead to them.

A text is cut into cells of about `CELL_BYTES` as it is written, escapes and all, at characters (`character_boundary`), and the
row's bytes are shared out among the cells as evenly as whole numbers allow. Whoever counts the tokens that start in the cell that
a byte belongs to, over the number of bytes that belong to it, has a value that adds up, over all bytes of the row, to its tokens.
"""

from __future__ import annotations

import base64
import secrets
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zephon_core.ratios.datasets.json_lines import payload_or_problem
from zephon_core.ratios.datasets.json_strings import LOOK_AHEAD_BYTES, LOOK_BEHIND_BYTES, character_boundary, decoded, long_strings
from zephon_core.readers.jsonl import DEFAULT_MAX_ROW_BYTES
from zephon_core.readers.rows import RowProblem, too_long

__all__ = ["LongRow", "LongRowFinder", "LongRows", "abridged", "window"]

LONG_ROW_BYTES = 16 << 10
LONG_STRING_BYTES = 8 << 10
CELL_BYTES = 1 << 10
_CONTEXT_BYTES = 1 << 10
_NO_PATH = -1

Read = Callable[[int, int], bytes]
"""Reads bytes of a file: start, count."""


class LongString(NamedTuple):
    """A long string of a row: where its content begins and ends in the row, how many characters it has, and what leads to it.

    path: names, one a level; None where it is in a list, or where a later value of the same name takes its place.
    """

    begin: int
    end: int
    characters: int
    path: tuple[str, ...] | None


@dataclass(frozen=True)
class LongRow:
    """A row that is not read whole. start: in its file; length: with its line end; strings: none where it is too long to parse."""

    start: int
    length: int
    strings: tuple[LongString, ...] = ()

    def text(self, path: tuple[str, ...]) -> LongString | None:
        """Return the long string that a path leads to, if there is one; a row that is nothing but a string is the text itself."""
        return next((string for string in self.strings if string.path is not None and string.path in (path, ())), None)


class LongRowFinder:
    """Finds the long rows of a file that is fed to it from its beginning, piece by piece."""

    def __init__(self, max_row_bytes: int = DEFAULT_MAX_ROW_BYTES) -> None:
        self._max_bytes = max_row_bytes + 2
        self._max_row_bytes = max_row_bytes
        self._rows: list[LongRow] = []
        self._line_start = 0
        self._held: list[bytes] = []
        self._held_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the file."""
        begin = 0
        if self._held_bytes:
            begin = chunk.find(b"\n") + 1
            if not begin:
                self._hold(chunk)
                return
            self._hold(chunk[:begin])
            self._end_line()
        while begin < len(chunk):
            short = chunk.rfind(b"\n", begin, begin + LONG_ROW_BYTES) + 1
            if short:  # so no line before it is long
                self._line_start += short - begin
                begin = short
                continue
            end = chunk.find(b"\n", begin + LONG_ROW_BYTES) + 1
            if not end:
                break
            self._hold(chunk[begin:end])
            self._end_line()
            begin = end
        self._hold(chunk[begin:])

    def _hold(self, piece: bytes) -> None:
        self._held_bytes += len(piece)
        if self._held_bytes > self._max_bytes:
            self._held.clear()
        else:
            self._held.append(piece)

    def _end_line(self) -> None:
        if self._held_bytes > self._max_bytes:
            self._rows.append(LongRow(self._line_start, self._held_bytes))
        elif self._held_bytes > LONG_ROW_BYTES:
            strings = _strings_of(b"".join(self._held), self._line_start == 0, self._max_row_bytes)
            if strings:
                self._rows.append(LongRow(self._line_start, self._held_bytes, strings))
        self._line_start += self._held_bytes
        self._held_bytes = 0
        self._held.clear()

    def finish(self) -> dict[str, Any]:
        """End the file, and return what a `LongRows` is made of, as JSON values; nothing where no row is long."""
        self._end_line()
        if not self._rows:
            return {}
        paths: dict[tuple[str, ...] | None, int] = {None: _NO_PATH}
        strings = [string for row in self._rows for string in row.strings]
        for string in strings:
            paths.setdefault(string.path, len(paths) - 1)
        columns = {
            "start": np.diff([row.start for row in self._rows], prepend=0),
            "length": [row.length for row in self._rows],
            "strings": [len(row.strings) for row in self._rows],
            "begin": [string.begin for string in strings],
            "bytes": [string.end - string.begin for string in strings],
            "characters": [string.characters for string in strings],
            "path": [paths[string.path] for string in strings],
        }
        return {"paths": [path for path in paths if path is not None], **{name: _packed(each) for name, each in columns.items()}}


def _strings_of(line: bytes, first: bool, max_row_bytes: int) -> tuple[LongString, ...]:
    """Return the long strings of a row; none where the row is bad, which reading it tells in full."""
    strings = long_strings(line, LONG_STRING_BYTES)
    if not strings:
        return ()
    mark = secrets.token_hex(8)
    marks = {f"{mark} {number}": number for number in range(len(strings))}
    row = payload_or_problem(_marked(line, strings, marks), first, max_row_bytes)
    paths = None if isinstance(row, RowProblem) else _paths(row, marks)
    return () if paths is None else tuple(LongString(*string, paths.get(number)) for number, string in enumerate(strings))


def _marked(line: bytes, strings: Sequence[tuple[int, int, int]], marks: Iterable[str]) -> bytes:
    """Put marks in the place of strings."""
    pieces = []
    done = 0
    for (begin, end, _), mark in zip(strings, marks, strict=True):
        pieces += [line[done:begin], mark.encode()]
        done = end
    return b"".join([*pieces, line[done:]])


def _paths(row: Any, marks: Mapping[str, int]) -> dict[int, tuple[str, ...]] | None:
    """Return what leads to the texts that are marks; None where one is a name."""
    found = {}
    waiting: list[tuple[tuple[str, ...], Any]] = [((), row)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, str) and value in marks:
            found[marks[value]] = path
        elif isinstance(value, dict):
            if not marks.keys().isdisjoint(value):
                return None
            waiting += [((*path, name), item) for name, item in value.items() if isinstance(item, str | dict)]
    return found


def _packed(numbers: Any) -> str:
    return base64.b85encode(zlib.compress(np.asarray(numbers, "<i8").tobytes())).decode()


def _unpacked(packed: str) -> NDArray[np.int64]:
    return np.frombuffer(zlib.decompress(base64.b85decode(packed)), "<i8").astype(np.int64)


class LongRows:
    """The long rows of one file, found by any byte of theirs."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        columns = {name: _unpacked(each) for name, each in record.items() if name != "paths"}
        self._paths = [tuple(path) for path in record.get("paths", ())]
        self._columns = columns
        none = np.zeros(0, np.int64)
        self._starts = np.cumsum(columns.get("start", none))
        self._first = np.concatenate([[0], np.cumsum(columns.get("strings", none))])

    def at(self, offset: int) -> LongRow | None:
        """Return the long row that holds a byte of the file, None if there is none."""
        row = int(np.searchsorted(self._starts, offset, "right")) - 1
        if row < 0 or offset >= self._starts[row] + self._columns["length"][row]:
            return None
        return LongRow(
            int(self._starts[row]),
            int(self._columns["length"][row]),
            tuple(self._string(i) for i in range(int(self._first[row]), int(self._first[row + 1]))),
        )

    def _string(self, number: int) -> LongString:
        begin, count, characters, path = (int(self._columns[name][number]) for name in ("begin", "bytes", "characters", "path"))
        return LongString(begin, begin + count, characters, None if path == _NO_PATH else self._paths[path])


def window(row: LongRow, text: LongString, offset: int, read: Read) -> tuple[str, int, int, int]:
    """Return the cell of a text that byte `offset` of its row belongs to.

    Returns text around it, where in this text the cell begins and ends, and how many bytes of the row belong to the cell.
    """
    size = text.end - text.begin
    cells = -(-size // CELL_BYTES)
    cell = offset * cells // row.length
    shared = -(-(cell + 1) * row.length // cells) + (-cell * row.length // cells)
    begin, end = cell * size // cells, (cell + 1) * size // cells
    first = max(0, begin - _CONTEXT_BYTES - LOOK_BEHIND_BYTES)
    last = min(size, end + _CONTEXT_BYTES + LOOK_AHEAD_BYTES)
    content = read(row.start + text.begin + first, last - first)
    left = character_boundary(content, LOOK_BEHIND_BYTES) if first else 0
    right = character_boundary(content, len(content) - LOOK_AHEAD_BYTES) if last < size else len(content)
    inner, outer = (character_boundary(content, at - first) for at in (begin, end))
    before, inside, after = (decoded(content[a:b]) for a, b in ((left, inner), (inner, outer), (outer, right)))
    return before + inside + after, len(before), len(before) + len(inside), shared


def abridged(row: LongRow, read: Read, *, filled: bool, max_row_bytes: int) -> Any:
    """Read a row but for its long strings, which become empty, and return it, or what is wrong with it.

    filled: those that names lead to become others of as many characters.
    """
    if not row.strings:
        return too_long(row.length, max_row_bytes)
    begins = [0, *(string.end for string in row.strings)]
    ends = [*(string.begin for string in row.strings), row.length]
    line = b"".join(read(row.start + begin, end - begin) for begin, end in zip(begins, ends, strict=True))
    payload = payload_or_problem(line, row.start == 0, max_row_bytes)
    for string in row.strings if filled else ():
        if string.path is not None:
            payload = _filled(payload, string.path, "x" * string.characters)
    return payload


def _filled(payload: Any, path: tuple[str, ...], text: str) -> Any:
    if not path:
        return text
    payload[path[0]] = _filled(payload[path[0]], path[1:], text)
    return payload
