"""JSONL in blocks of whole lines: bounded memory, exact origins, no line dropped in silence.

Lines end at LF; a CR before it belongs to the end. Nothing here looks into a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from zephon_core.readers.sources import Source
from zephon_core.readers.streams import ByteStream, open_stream

__all__ = ["DEFAULT_MAX_ROW_BYTES", "LineBlock", "LongLine", "iter_blocks", "iter_lines"]

DEFAULT_MAX_ROW_BYTES = 64 << 20
HEAD_BYTES = 1 << 10
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class LineBlock:
    """Whole lines: buffer[begin:end], the last with its LF, unless the source ends without one.

    byte_offset: of the first line in the decompressed stream. stored_bytes: of the source as stored, read for this block.
    """

    buffer: bytearray
    begin: int
    end: int
    byte_offset: int
    stored_bytes: int


@dataclass(frozen=True)
class LongLine:
    """One line that is longer than allowed: its first bytes and its true length in bytes, without the line end."""

    head: bytes
    length: int
    byte_offset: int
    stored_bytes: int


def iter_blocks(
    source: Source,
    *,
    block_bytes: int = 1 << 20,
    max_row_bytes: int = DEFAULT_MAX_ROW_BYTES,
    allocate: Callable[[int], bytearray] = bytearray,
) -> Iterator[LineBlock | LongLine]:
    """Yield a source's lines in order, about `block_bytes` at a time; a byte order mark at the start is passed over.

    allocate: gives a buffer of at least so many bytes, and may give one out again once its block is done with.
    A line that doesn't fit a block gets a larger one, up to `max_row_bytes`; beyond, it becomes a LongLine and is never held.
    Raises InputError for a source that is cut, corrupt or unreadable, SourceChangedError for one that is written to meanwhile.
    """
    with open_stream(source) as stream:
        yield from _Blocks(stream, block_bytes, max_row_bytes, allocate).run()


class _Blocks:
    def __init__(self, stream: ByteStream, block_bytes: int, max_row_bytes: int, allocate: Callable[[int], bytearray]) -> None:
        self._stream = stream
        self._block_bytes = block_bytes
        self._longest = max_row_bytes + 2
        self._allocate = allocate
        self._capacity = block_bytes
        self._buffer = allocate(block_bytes)
        self._begin = 0
        self._filled = 0
        self._offset = 0
        self._reported = 0

    def run(self) -> Iterator[LineBlock | LongLine]:
        searched = 0
        while self._fill():
            if self._offset == 0 and self._buffer.startswith(_BOM, 0, self._filled):
                self._begin = self._offset = searched = len(_BOM)
            end = self._buffer.rfind(b"\n", searched, self._filled) + 1
            if end:
                yield self._cut(end)
                searched = 0
            elif self._filled - self._begin > self._longest - 1:
                yield self._pass_long_line()
                searched = 0
            else:
                searched = self._filled
        if self._filled > self._begin:
            yield self._cut(self._filled)

    def _fill(self) -> bool:
        """Read until the buffer is full or the source ends; False if there was nothing more."""
        if self._filled == self._capacity:
            self._capacity = min(2 * self._capacity, self._begin + self._longest + self._block_bytes)
            larger = self._allocate(self._capacity)
            larger[: self._filled] = memoryview(self._buffer)[: self._filled]
            self._buffer = larger
        with memoryview(self._buffer) as view:
            count = self._stream.readinto(view[self._filled : min(self._capacity, self._filled + self._block_bytes)])
        self._filled += count
        return count > 0

    def _cut(self, end: int) -> LineBlock:
        """Hand out the lines up to `end` and carry the rest into a new buffer."""
        block = LineBlock(self._buffer, self._begin, end, self._offset, self._stored())
        rest = self._filled - end
        self._capacity = max(self._block_bytes, rest)
        buffer = self._allocate(self._capacity)
        buffer[:rest] = memoryview(self._buffer)[end : self._filled]
        self._offset += end - self._begin
        self._buffer, self._begin, self._filled = buffer, 0, rest
        return block

    def _pass_long_line(self) -> LongLine:
        head = bytes(self._buffer[self._begin : self._filled][:HEAD_BYTES])
        offset = self._offset
        length = self._filled - self._begin
        last = self._buffer[self._filled - 1]
        while True:
            with memoryview(self._buffer) as view:
                count = self._stream.readinto(view[: self._block_bytes])
            end = self._buffer.find(b"\n", 0, count)
            line = end if end >= 0 else count
            length += line
            head += self._buffer[: min(line, HEAD_BYTES - len(head))]
            last = self._buffer[line - 1] if line else last
            if end >= 0 or count == 0:
                break
        ended = end >= 0
        self._offset += length + ended
        rest = count - end - 1 if ended else 0
        self._buffer[:rest] = self._buffer[end + 1 : end + 1 + rest]
        self._begin, self._filled = 0, rest
        if ended and last == 0x0D:
            length -= 1
        return LongLine(head[:length], length, offset, self._stored())

    def _stored(self) -> int:
        new = self._stream.consumed_bytes - self._reported
        self._reported += new
        return new


def iter_lines(source: Source, *, max_row_bytes: int = DEFAULT_MAX_ROW_BYTES) -> Iterator[tuple[int, int, bytes | LongLine]]:
    """Yield (line number from 1, byte offset, line without its end) of every line, empty ones included."""
    number = 0
    for block in iter_blocks(source, max_row_bytes=max_row_bytes):
        if isinstance(block, LongLine):
            number += 1
            yield number, block.byte_offset, block
            continue
        begin = block.begin
        while begin < block.end:
            number += 1
            found = block.buffer.find(b"\n", begin, block.end)
            end = found if found >= 0 else block.end
            offset = block.byte_offset + begin - block.begin
            line = bytes(block.buffer[begin:end])
            begin = end + 1
            if found >= 0:
                line = line.removesuffix(b"\r")
            if len(line) > max_row_bytes:
                yield number, offset, LongLine(line[:HEAD_BYTES], len(line), offset, 0)
            else:
                yield number, offset, line
