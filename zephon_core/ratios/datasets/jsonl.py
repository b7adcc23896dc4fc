"""JSONL shards, plain and compressed.

A plain file is cut at line ends into ranges of about RANGE_BYTES, each a unit in which the row at any byte can be read alone.
A compressed file is one unit: nothing in it can be reached but from its beginning. Rows are lines; empty ones count, since the
training's loader is charged with their bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from zephon_core.errors import InputError
from zephon_core.ratios.datasets.files import OpenFile, Tally, cut_short
from zephon_core.ratios.datasets.formats import Part, ShardPlace, Survey, open_file
from zephon_core.ratios.datasets.json_lines import LineRows, payload_or_problem
from zephon_core.ratios.datasets.long_rows import LongRowFinder, LongRows, abridged, window
from zephon_core.ratios.datasets.model import LocatedRow, LocatedWindow
from zephon_core.readers.jsonl import DEFAULT_MAX_ROW_BYTES
from zephon_core.readers.rows import too_long
from zephon_core.readers.streams import ByteStream, decompressed

__all__ = ["RANGE_BYTES", "JsonlReader", "open_shard", "probe"]

RANGE_BYTES = 32 << 20
WINDOW_BYTES = 4 << 10
_CHUNK_BYTES = 4 << 20
_READAHEAD_BYTES = 8 << 20


def probe(place: ShardPlace, tally: Tally) -> Survey:
    """Find the ranges of a plain file, or the decompressed size of a compressed one.

    A local plain file is read once, for its lines, its ranges, its long rows and its SHA-256 together; of a remote one only the
    places where it is cut are: its number of lines stays unknown, and a long row of it is read whole where a byte of it is drawn,
    since what a stretch of it belongs to shows only from its beginning. A compressed file is decompressed wherever it lies.
    """
    file = open_file(place, tally, readahead_bytes=_READAHEAD_BYTES)
    try:
        if place.compression != "none":
            return _survey_compressed(place, file)
        if not place.files[0].is_local:
            return _survey_remote(file)
        return _survey_local(file)
    finally:
        file.close()


def _survey_compressed(place: ShardPlace, file: OpenFile) -> Survey:
    raw_bytes = rows = 0
    last = b"\n"
    for chunk in _decompressed_chunks(place, file):
        raw_bytes += len(chunk)
        rows += chunk.count(b"\n")
        last = chunk[-1:]
    rows += last != b"\n"
    parts = (Part(0, raw_bytes, file.size_bytes, rows, False),) if rows else ()
    return Survey(rows, raw_bytes, parts)


def _decompressed_chunks(place: ShardPlace, file: OpenFile) -> Iterator[bytes]:
    stream = decompressed(place.url, place.compression, file)  # type: ignore[arg-type]
    buffer = bytearray(_CHUNK_BYTES)
    while count := stream.readinto(memoryview(buffer)):
        yield bytes(memoryview(buffer)[:count])


def _survey_local(file: OpenFile) -> Survey:
    digest = hashlib.sha256()
    finder = LongRowFinder()
    ends: list[int] = []  # of finished ranges
    lines: list[int] = []  # in each of them
    counted = offset = 0
    last = b"\n"
    while chunk := file.range(offset, _CHUNK_BYTES):
        digest.update(chunk)
        finder.feed(chunk)
        begin = 0
        while (cut := _next_cut(chunk, offset, begin, ends)) >= 0:
            lines.append(counted + chunk.count(b"\n", begin, cut))
            ends.append(offset + cut)
            counted, begin = 0, cut
        counted += chunk.count(b"\n", begin)
        offset += len(chunk)
        last = chunk[-1:]
    file.check()
    counted += last != b"\n"
    if counted:
        ends.append(offset)
        lines.append(counted)
    starts = [0, *ends[:-1]]
    parts = tuple(Part(start, end - start, end - start, rows, True) for start, end, rows in zip(starts, ends, lines, strict=False))
    long_rows = finder.finish()
    return Survey(sum(lines), offset, parts, digest.hexdigest(), {"long_rows": long_rows} if long_rows else {})


def _next_cut(chunk: bytes, offset: int, begin: int, ends: list[int]) -> int:
    """Find the end of the first line in a chunk that reaches RANGE_BYTES from the last cut; -1 if there is none."""
    wanted = (ends[-1] if ends else 0) + RANGE_BYTES - 1 - offset
    if wanted >= len(chunk):
        return -1
    return chunk.find(b"\n", max(begin, wanted)) + 1 or -1


def _survey_remote(file: OpenFile) -> Survey:
    parts = []
    start = 0
    while start < file.size_bytes:
        end = _line_end(file, min(start + RANGE_BYTES, file.size_bytes) - 1, file.size_bytes)
        parts.append(Part(start, end - start, end - start, -1, True))
        start = end
    return Survey(-1 if parts else 0, file.size_bytes, tuple(parts))


def _line_end(file: OpenFile, offset: int, stop: int) -> int:
    """Return where the line that holds byte `offset` ends, behind its line end; `stop` if no line ends before."""
    step = WINDOW_BYTES
    while offset < stop:
        chunk = file.range(offset, min(step, stop - offset))
        found = chunk.find(b"\n")
        if found >= 0:
            return offset + found + 1
        offset += len(chunk)
        step = min(2 * step, _CHUNK_BYTES)
    return stop


def open_shard(place: ShardPlace, paths: Sequence[str] | None, tally: Tally) -> JsonlReader:
    """Open a JSONL shard; every field of a row is decoded, whatever the paths."""
    return JsonlReader(place, tally)


class JsonlReader:
    """Reads ranges of a JSONL file, or single rows of a plain one."""

    def __init__(self, place: ShardPlace, tally: Tally, *, max_row_bytes: int = DEFAULT_MAX_ROW_BYTES) -> None:
        self._place = place
        self._tally = tally
        self._max_row_bytes = max_row_bytes
        self._file = OpenFile(place.files[0], tally)
        self._long_rows = LongRows(place.where.get("long_rows", {}))

    def read(self, part: int, start: int, size: int, rows: int = -1) -> LineRows:
        """Read the lines of a unit."""
        if self._place.compression == "none":
            buffer: bytes | bytearray = self._file.range(start, size)
            count = len(buffer)
        else:
            with open_file(self._place, self._tally, readahead_bytes=_READAHEAD_BYTES) as file:
                # One byte more than there should be, so that what comes after the end shows.
                buffer = bytearray(size + 1)
                count = _fill(decompressed(self._place.url, self._place.compression, file), buffer)  # type: ignore[arg-type]
                file.check()
                buffer.pop()
        if count != size:
            raise cut_short(self._place.url, start + count)
        self._file.check()
        return LineRows(buffer, at_start=start == 0, max_row_bytes=self._max_row_bytes)

    def read_at(self, start: int, size: int, offset: int) -> LocatedRow:
        """Read WINDOW_BYTES around a byte, and more on either side until the row is whole.

        The line end belongs to the row before it. Of a row that is longer than rows may be only the extent is found out.
        """
        if not 0 <= offset < size:
            raise InputError(self._place.url, f"has no byte {offset:,} in the unit at {start:,}", wanted=f"less than {size:,}")
        row = self._long_rows.at(start + offset)
        if row is not None and not row.strings:
            return LocatedRow(row.start - start, row.length, too_long(row.length, self._max_row_bytes))
        window_start = max(0, offset - WINDOW_BYTES // 2)
        window = self._file.range(start + window_start, min(WINDOW_BYTES, size - window_start))
        before, after = _Side(), _Side()
        inside = offset - window_start
        row_start = window.rfind(b"\n", 0, inside) + 1
        if row_start == 0 and window_start > 0:
            before = self._grow_back(start, window_start)
        row_end = window.find(b"\n", inside) + 1
        if row_end == 0:
            row_end = len(window)
            after = self._grow_forward(start, window_start + len(window), size)
        length = before.length + row_end - row_start + after.length
        row_begins = window_start + row_start - before.length
        payload: Any
        if before.content is None or after.content is None or length > self._max_row_bytes + 2:
            payload = too_long(length, self._max_row_bytes)
        else:
            line = before.content + window[row_start:row_end] + after.content
            payload = payload_or_problem(line, start + row_begins == 0, self._max_row_bytes)
        self._file.check()
        return LocatedRow(row_begins, length, payload)

    def abridged_at(self, start: int, offset: int, *, filled: bool) -> LocatedRow | None:
        """Read the row that holds a byte but for its long strings, if the survey found some in it."""
        row = self._long_rows.at(start + offset)
        if row is None:
            return None
        payload = abridged(row, self._checked_range, filled=filled, max_row_bytes=self._max_row_bytes)
        return LocatedRow(row.start - start, row.length, payload)

    def window_at(self, start: int, offset: int, path: tuple[str, ...]) -> LocatedWindow | None:
        """Read the cell that a byte belongs to, of the long text that a path leads to, if the survey found one in its row."""
        row = self._long_rows.at(start + offset)
        text = None if row is None else row.text(path)
        if row is None or text is None:
            return None
        cell = window(row, text, start + offset - row.start, self._checked_range)
        return LocatedWindow(row.start - start, row.length, *cell)

    def _checked_range(self, start: int, count: int) -> bytes:
        """Read bytes that the survey has seen. Raises SourceChangedError if they may be others by now."""
        content = self._file.range(start, count)
        self._file.check()
        return content

    def _grow_back(self, start: int, stop: int) -> _Side:
        """Read backwards from `stop`, in larger and larger steps, until the end of the line before."""
        pieces = []
        length = 0
        step = WINDOW_BYTES
        while stop > 0:
            begin = max(0, stop - step)
            piece = self._file.range(start + begin, stop - begin)
            found = piece.rfind(b"\n") + 1
            pieces.append(piece[found:])
            length += len(piece) - found
            if found:
                break
            if length > self._max_row_bytes:
                pieces.clear()
            stop = begin
            step = min(2 * step, _CHUNK_BYTES)
        return _Side(length, b"".join(reversed(pieces)) if length <= self._max_row_bytes else None)

    def _grow_forward(self, start: int, begin: int, size: int) -> _Side:
        """Read forwards from `begin`, in larger and larger steps, until this line's end, or the unit's."""
        pieces = []
        length = 0
        step = WINDOW_BYTES
        while begin < size:
            piece = self._file.range(start + begin, min(step, size - begin))
            found = piece.find(b"\n") + 1
            pieces.append(piece[: found or len(piece)])
            length += found or len(piece)
            if found:
                break
            if length > self._max_row_bytes + 2:
                pieces.clear()
            begin += len(piece)
            step = min(2 * step, _CHUNK_BYTES)
        return _Side(length, b"".join(pieces) if length <= self._max_row_bytes + 2 else None)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _fill(stream: ByteStream, buffer: bytearray) -> int:
    """Fill a buffer as far as a stream reaches; a piece at a time, since a stream may hold as much again as it is asked for."""
    filled = 0
    with memoryview(buffer) as view:
        while count := stream.readinto(view[filled : filled + _CHUNK_BYTES]):
            filled += count
    return filled


class _Side:
    """What lies on one side of a window: how many bytes, and the bytes, unless there are too many of them."""

    def __init__(self, length: int = 0, content: bytes | None = b"") -> None:
        self.length = length
        self.content = content
