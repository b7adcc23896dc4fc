"""Byte streams of plain and compressed sources that end with an error, not in silence, where the data are cut or corrupt."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Protocol

from zephon_core.errors import InputError, SourceChangedError
from zephon_core.readers.sources import Source, local_path, open_source

__all__ = ["ByteStream", "decompressed", "guard_unchanged", "open_stream"]

_READ_BYTES = 1 << 20
_ZSTD_FEED_BYTES = 8 << 10
_ZSTD_WINDOW_BYTES = 128 << 20


class ByteStream(Protocol):
    """A source's bytes after decompression."""

    consumed_bytes: int
    """Bytes read from the source as stored."""

    def readinto(self, target: memoryview) -> int:
        """Fill `target` as far as possible; return the bytes written, 0 only at the end. Raises InputError where data break off."""


@contextmanager
def open_stream(source: Source) -> Iterator[ByteStream]:
    """Open a JSONL source. Raises InputError, and SourceChangedError as `guard_unchanged` does."""
    with open_source(source.url) as handle, guard_unchanged(source, handle):
        yield decompressed(source.url, source.compression, handle)


def decompressed(url: str, compression: str, handle: BinaryIO) -> ByteStream:
    """Return the bytes behind an open file; its compression is none, gzip or zstd. url names it in messages."""
    if compression == "gzip":
        return _GzipStream(url, handle)
    if compression == "zstd":
        return _ZstdStream(url, handle)
    return _PlainStream(handle)


@contextmanager
def guard_unchanged(source: Source, handle: BinaryIO) -> Iterator[None]:
    """Raise SourceChangedError where an open local file isn't as long as the one identified, or is written to meanwhile."""
    before = _stamp(source, handle)
    if before and before[0] != source.bytes:
        raise _changed(source)
    try:
        yield
    except InputError as error:
        if _stamp(source, handle) != before:
            raise _changed(source) from error
        raise
    if _stamp(source, handle) != before:
        raise _changed(source)


def _stamp(source: Source, handle: BinaryIO) -> tuple[int, ...]:
    """Size and times of the open file itself, whatever its name points to by now; nothing for remote ones."""
    if local_path(source.url) is None:
        return ()
    status = os.fstat(handle.fileno())
    return status.st_size, status.st_mtime_ns


def _changed(source: Source) -> SourceChangedError:
    return SourceChangedError(source.url, "is not what this run identified", remedy="Run again once nothing writes to it any more.")


class _PlainStream:
    def __init__(self, handle: BinaryIO) -> None:
        self._handle = handle
        self.consumed_bytes = 0

    def readinto(self, target: memoryview) -> int:
        filled = 0
        while filled < len(target):
            count: int = self._handle.readinto(target[filled:])  # type: ignore[attr-defined]
            if not count:
                break
            filled += count
        self.consumed_bytes += filled
        return filled


class _Inflating:
    """What gzip and zstd share: pull compressed chunks, hand out decompressed bytes."""

    kind = ""

    def __init__(self, url: str, handle: BinaryIO) -> None:
        self._url = url
        self._handle = handle
        self._ready = memoryview(b"")
        self.consumed_bytes = 0

    def readinto(self, target: memoryview) -> int:
        filled = 0
        while filled < len(target):
            if not self._ready:
                self._ready = memoryview(self._next(len(target) - filled))
                if not self._ready:
                    break
            count = min(len(self._ready), len(target) - filled)
            target[filled : filled + count] = self._ready[:count]
            self._ready = self._ready[count:]
            filled += count
        return filled

    def _next(self, wanted_bytes: int) -> bytes:
        """Return some decompressed bytes, none only at the end."""
        raise NotImplementedError

    def _pull(self, count: int) -> bytes:
        chunk = bytes(self._handle.read(count))
        self.consumed_bytes += len(chunk)
        return chunk

    def _cut(self) -> InputError:
        return InputError(
            f"{self._url} (byte {self.consumed_bytes:,})",
            f"is cut short inside its {self.kind} data",
            remedy="Copy the file again, whole.",
        )

    def _corrupt(self, unread_bytes: int, error: object) -> InputError:
        place = f"{self._url} (byte {max(0, self.consumed_bytes - unread_bytes):,})"
        return InputError(place, f"is no intact {self.kind} data ({error})", remedy="Copy the file again, whole.")


class _GzipStream(_Inflating):
    """Members of RFC 1952 one after another; zeros after the last one are padding, anything else is corruption."""

    kind = "gzip"

    def __init__(self, url: str, handle: BinaryIO) -> None:
        super().__init__(url, handle)
        self._member: zlib._Decompress | None = None
        self._input = b""

    def _next(self, wanted_bytes: int) -> bytes:
        while True:
            if not self._input:
                self._input = self._pull(_READ_BYTES)
                if not self._input:
                    if self._member is not None:
                        raise self._cut()
                    return b""
            if self._member is None:
                self._input = self._input.lstrip(b"\0") if self.consumed_bytes > len(self._input) else self._input
                if not self._input:
                    continue
                self._member = zlib.decompressobj(wbits=31)
            try:
                output = self._member.decompress(self._input, max(wanted_bytes, 1 << 16))
            except zlib.error as error:
                raise self._corrupt(len(self._input), error) from error
            if self._member.eof:
                self._input = self._member.unused_data
                self._member = None
            else:
                self._input = self._member.unconsumed_tail
            if output:
                return output


class _ZstdStream(_Inflating):
    """Frames of RFC 8878 one after another, skippable ones included.

    A frame is fed in small pieces: the library hands out all that a piece decompresses to, up to 32,768 times its size.
    """

    kind = "zstd"

    def __init__(self, url: str, handle: BinaryIO) -> None:
        import zstandard

        super().__init__(url, handle)
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        self._error = zstandard.ZstdError
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._input = memoryview(b"")

    def _next(self, wanted_bytes: int) -> bytes:
        while True:
            if not self._input:
                self._input = memoryview(self._pull(_READ_BYTES))
                if not self._input:
                    if self._frame is not None:
                        raise self._cut()
                    return b""
            if self._frame is None:
                self._frame = self._decompressor.decompressobj()
            piece = self._input[:_ZSTD_FEED_BYTES]
            try:
                output = self._frame.decompress(piece)
            except self._error as error:
                raise self._corrupt(len(self._input), error) from error
            used = len(piece)
            if self._frame.eof:
                used -= len(self._frame.unused_data)
                self._frame = None
            self._input = self._input[used:]
            if output:
                return output
