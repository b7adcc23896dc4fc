"""Open source files for reads anywhere in them, with every byte counted and nothing that goes wrong left unnamed."""

from __future__ import annotations

import io
import os
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from zephon_core.errors import BudgetSpentError, InputError, SourceChangedError, TransientInputError
from zephon_core.readers.sources import file_system, transport_errors

__all__ = ["Allowance", "FoundFile", "KeptBytes", "OpenFile", "Tally", "cut_short", "local_stamp", "reading"]

_Range = tuple[str, int, int]


class _Piece(NamedTuple):
    """Some bytes of a file, from `start` on."""

    start: int
    content: bytes

    @property
    def stop(self) -> int:
        return self.start + len(self.content)


_piece_start = attrgetter("start")


@dataclass(frozen=True)
class FoundFile:
    """A file as its listing shows it.

    stamp: changes when the content does: time and inode of a local file, etag or time of a remote one; "" if nothing tells.
    etag: of a remote file; "" for local ones, and where the file system has none.
    """

    url: str
    bytes: int
    stamp: str
    etag: str = ""

    @property
    def is_local(self) -> bool:
        """Whether the operating system opens it: listings give local files as absolute paths."""
        return self.url.startswith("/")


class KeptBytes:
    """What is read once by all readers that share this: small files, footers, and what tells where pages lie.

    most_bytes: to keep; what comes later is read each time. Safe to share between threads: who comes second waits for the first.
    """

    def __init__(self, most_bytes: int) -> None:
        self._room = most_bytes
        self._lock = Lock()
        self._turns: dict[_Range, Lock] = {}
        self._pieces: dict[str, list[_Piece]] = {}

    def once(self, url: str, start: int, count: int, read: Callable[[], bytes]) -> bytes:
        """Return bytes start:start+count of a file; `read` reads what `pieces` doesn't tell of them, which is kept."""
        with self._lock:
            turn = self._turns.setdefault((url, start, count), Lock())
        with turn:
            content = read()
            self._keep(url, start, content)
            return content

    def pieces(self, url: str, start: int, stop: int) -> list[_Piece]:
        """Return what is kept of bytes start:stop of a file: pieces in order, none over another, the outer ones maybe longer."""
        with self._lock:
            kept = self._pieces.get(url)
            if kept is None:
                return []
            first = bisect_right(kept, start, key=_piece_start)
            if first and kept[first - 1].stop > start:
                first -= 1
            return kept[first : bisect_left(kept, stop, key=_piece_start)]

    def _keep(self, url: str, start: int, content: bytes) -> None:
        """Keep what isn't yet, while there is room."""
        at, stop = start, start + len(content)
        for piece in (*self.pieces(url, start, stop), _Piece(stop, b"")):
            new = content[at - start : max(at, piece.start) - start]
            with self._lock:
                if new and len(new) <= self._room:
                    self._room -= len(new)
                    insort(self._pieces.setdefault(url, []), _Piece(at, new), key=_piece_start)
            at = piece.stop


class Allowance:
    """Bytes that may be read yet, by all readers that share this. Safe to share between threads."""

    def __init__(self, limit: int) -> None:
        self._limit = self._left = limit
        self._lock = Lock()

    def take(self, url: str, count: int) -> None:
        """Take as many bytes as are about to be read. Raises BudgetSpentError, and takes none, if fewer are left."""
        with self._lock:
            if count > self._left:
                raise BudgetSpentError(
                    url,
                    f"{count:,} bytes more would be read, and {self._left:,} are left of the {self._limit:,} that may be",
                    remedy="Raise the byte budget.",
                )
            self._left -= count

    def give_back(self, count: int) -> None:
        """Take back what wasn't read after all."""
        with self._lock:
            self._left += count


class Tally:
    """Bytes read so far, by all files of a reader.

    kept: bytes that it shares with other readers; allowance: for it and others; None: all are its own, and it may read any number.
    """

    def __init__(self, kept: KeptBytes | None = None, allowance: Allowance | None = None) -> None:
        self.bytes_read = 0
        self.kept = kept
        self._allowance = allowance

    def count(self, url: str, wanted: int, read: Callable[[], bytes]) -> bytes:
        """Read up to so many bytes, and count them. Raises BudgetSpentError, and reads nothing, if they may not be read."""
        content = b""
        if self._allowance is not None:
            self._allowance.take(url, wanted)
        try:
            content = read()
        finally:
            self.bytes_read += len(content)
            if self._allowance is not None and len(content) < wanted:
                self._allowance.give_back(wanted - len(content))
        return content


def local_stamp(status: os.stat_result) -> str:
    """Say what tells a local file's content from an earlier one of the same size."""
    return f"{status.st_mtime_ns}-{status.st_ino}"


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Turn what goes wrong between here and a file into an InputError, a TransientInputError where a later try may succeed."""
    try:
        yield
    except FileNotFoundError:
        raise TransientInputError(url, "is not there") from None
    except transport_errors() as error:
        words = " ".join(str(getattr(error, "strerror", None) or error or type(error).__name__).split())
        raise TransientInputError(url, f"can't be read ({words[:200]})") from error


def cut_short(url: str, offset: int) -> InputError:
    """Say that a file ends where it must not."""
    return InputError(f"{url} (byte {offset:,})", "is cut short", remedy="Copy the file again, whole.")


class OpenFile(io.RawIOBase):
    """A source file, opened at the first read. Raises SourceChangedError if it isn't the one that was found.

    It is a file object for libraries that want one; `range` is for code that knows what it wants.
    readahead_bytes: how much to ask for at once of a remote file that is read from front to back. keep: what is read as from a file
    object is read `once`.
    """

    def __init__(self, found: FoundFile, tally: Tally, *, readahead_bytes: int = 0, keep: bool = False) -> None:
        super().__init__()
        self.url = found.url
        self._found = found
        self._tally = tally
        self._position = 0
        self._descriptor = -1
        self._readahead_bytes = readahead_bytes
        self._ahead = (0, b"")
        self._keep = keep
        self._local = Path(found.url) if found.is_local else None

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return self._found.bytes

    @property
    def keeps(self) -> bool:
        """Whether what is read `once` is kept."""
        return self._tally.kept is not None

    def range(self, start: int, count: int) -> bytes:
        """Return bytes start:start+count, fewer only at the end of the file. What is kept of them isn't read again."""
        stop = min(start + count, self.size_bytes)
        kept = self._tally.kept
        found: list[bytes] = []
        at = start
        for piece in () if kept is None else kept.pieces(self.url, start, stop):
            if piece.start > at:
                found.append(self._read_range(at, piece.start))
            found.append(piece.content[max(0, at - piece.start) : stop - piece.start])
            at = piece.stop
        if at < stop:
            found.append(self._read_range(at, stop))
        return found[0] if len(found) == 1 else b"".join(found)

    def once(self, start: int, count: int) -> bytes:
        """Return bytes as `range` does, from memory where another reader of the same has read them."""
        kept = self._tally.kept
        return self.range(start, count) if kept is None else kept.once(self.url, start, count, lambda: self.range(start, count))

    def _read_range(self, start: int, stop: int) -> bytes:
        count = stop - start

        def read() -> bytes:
            with reading(self.url):
                return self._remote_range(start, count) if self._local is None else self._local_range(self._local, start, count)

        content = self._tally.count(self.url, count, read)
        if len(content) != count:  # there were that many when it was found
            raise self._changed()
        return content

    def _piece(self, start: int, count: int) -> bytes:
        return self.once(start, count) if self._keep else self.range(start, count)

    def check(self) -> None:
        """Raise SourceChangedError if the open file has been written to since it was found."""
        if self._descriptor < 0:
            return
        status = os.fstat(self._descriptor)
        if (status.st_size, str(status.st_mtime_ns)) != (self.size_bytes, self._found.stamp.split("-")[0]):
            raise self._changed()

    def _changed(self) -> SourceChangedError:
        return SourceChangedError(self.url, "is not what the catalog says")

    def _local_range(self, path: Path, start: int, count: int) -> bytes:
        if self._descriptor < 0:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self.check()
            except SourceChangedError:
                self._let_go()  # nothing of it is read, however often it is tried
                raise
        parts = []
        while count:
            part = os.pread(self._descriptor, count, start)
            if not part:
                break
            parts.append(part)
            start += len(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _remote_range(self, start: int, count: int) -> bytes:
        system, path = file_system(self.url)
        return bytes(system.cat_file(path, start=start, end=start + count))

    def close(self) -> None:
        """Close the file; closing again does nothing."""
        self._let_go()
        super().close()

    def _let_go(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that reads can begin anywhere."""
        return True

    def tell(self) -> int:
        """Return where the next read begins."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Set where the next read begins."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer from here on."""
        view = memoryview(buffer).cast("B")
        content = self.read(len(view))
        view[: len(content)] = content
        return len(content)

    def read(self, size: int = -1, /) -> bytes:
        """Return the next `size` bytes, all that are left if it is negative."""
        count = self.size_bytes if size < 0 else size
        reads_ahead = self._readahead_bytes and self._local is None
        content = self._read_ahead(count) if reads_ahead else self._piece(self._position, count)
        self._position += len(content)
        return content

    def _read_ahead(self, count: int) -> bytes:
        start, content = self._ahead
        skip = self._position - start
        # All that is asked for, or none: not everybody asks again for what is missing.
        if not 0 <= skip <= len(content) - min(count, self.size_bytes - self._position):
            content = self._piece(self._position, max(count, self._readahead_bytes))
            self._ahead = (self._position, content)
            skip = 0
        return content[skip : skip + count]
