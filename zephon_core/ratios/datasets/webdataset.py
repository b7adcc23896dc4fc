"""WebDataset shards: tar files whose members are grouped into rows by their names.

`dir/0001.txt`, `dir/0001.meta.json` and `dir/0001.jpg` in a row make the row `dir/0001` with the fields txt, meta.json and jpg.
A shard is one unit; only its headers are read, and the members of the rows that are asked for.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon_core.errors import InputError
from zephon_core.ratios.datasets.files import OpenFile, Tally, cut_short
from zephon_core.ratios.datasets.formats import Part, ShardPlace, Survey, open_file
from zephon_core.ratios.datasets.json_lines import parse_quickly
from zephon_core.ratios.datasets.model import LocatedRow, TextColumn, payloads_or_problems
from zephon_core.readers.rows import RowProblem

__all__ = ["TarReader", "TarRows", "open_shard", "probe"]

_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)")
_TEXTS = frozenset(
    ("txt", "text", "md", "html", "htm", "xml", "csv", "tsv", "tex", "py", "cls", "cls2", "id", "index", "inx", "transcript")
)
_READAHEAD_BYTES = 4 << 20
_BLOCK_BYTES = 512


@dataclass(frozen=True)
class _Member:
    field: str
    start: int
    length: int


def probe(place: ShardPlace, tally: Tally) -> Survey:
    """Count the rows of a local file by its headers; those of a remote one are counted when it is read."""
    size = place.files[0].bytes
    rows = -1
    if place.files[0].is_local:
        with open_file(place, tally) as file:
            rows = sum(1 for _ in _rows(file))
    return Survey(rows, size, (Part(0, size, size, rows, False),) if rows and size else ())


def open_shard(place: ShardPlace, paths: Sequence[str] | None, tally: Tally) -> TarReader:
    """Open a tar file; only members that the paths begin with are read."""
    return TarReader(place, paths, tally)


class TarReader:
    """Reads a tar file's rows."""

    def __init__(self, place: ShardPlace, paths: Sequence[str] | None, tally: Tally) -> None:
        self._file = open_file(place, tally, readahead_bytes=_READAHEAD_BYTES, keep=True)
        self._paths = paths

    def read(self, part: int, start: int, size: int, rows: int) -> TarRows:
        """Find all rows; their members are read when they are asked for."""
        found = [[member for member in row if _is_wanted(member.field, self._paths)] for row in _rows(self._file)]
        self._file.check()
        return TarRows(found, self._file)

    def read_at(self, start: int, size: int, offset: int) -> LocatedRow:
        """Refuse: which row holds a byte is not known before all headers are read."""
        raise InputError(self._file.url, "can't be read at a byte: it is a tar file")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TarRows:
    """The rows of a tar file. Members stay in it until they are asked for."""

    def __init__(self, rows: Sequence[Sequence[_Member]], file: OpenFile) -> None:
        self._rows = rows
        self._file = file
        self.row_bytes: NDArray[np.int64] = np.array([sum(member.length for member in row) for row in rows], np.int64)

    def payload(self, row: int) -> dict[str, Any]:
        """Return a row's members by field: texts as str, .json parsed, anything else as bytes. Raises RowProblem."""
        decoded = {member.field: _decode(member.field, self._file.once(member.start, member.length)) for member in self._rows[row]}
        self._file.check()
        return decoded

    def payloads(self, rows: Sequence[int]) -> list[Any]:
        """Return many rows, a RowProblem in the place of each bad one."""
        return payloads_or_problems(self, rows)

    def texts(self, path: tuple[str, ...]) -> TextColumn | None:
        """Return None: members are files of their own."""
        return None


def _rows(file: OpenFile) -> Iterator[list[_Member]]:
    """Yield the members of each row: those in a row whose names are equal up to the first dot."""
    key = ""
    row: list[_Member] = []
    for name, member in _members(file):
        if name != key and row:
            yield row
            row = []
        key = name
        row.append(member)
    if row:
        yield row


def _members(file: OpenFile) -> Iterator[tuple[str, _Member]]:
    with _tar_errors(file.url):
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for info in tar:
                if info.offset_data + info.size > file.size_bytes:
                    raise cut_short(file.url, file.size_bytes)
                tar.members.clear()  # type: ignore[attr-defined]  # it would keep every header
                named = _NAME.fullmatch(info.name)
                if info.isreg() and not info.issparse() and named and not info.name.rpartition("/")[2].startswith("__"):
                    yield named[1], _Member(named[2].lower(), info.offset_data, info.size)
            # The module takes a header that it can't read for the end.
            block = file.range(tar.offset, _BLOCK_BYTES)
            if 0 < len(block) < _BLOCK_BYTES:
                raise cut_short(file.url, file.size_bytes)
            if block.strip(b"\0"):
                raise InputError(f"{file.url} (byte {tar.offset:,})", "is no tar header", remedy="Copy the file again, whole.")


@contextmanager
def _tar_errors(url: str) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise InputError(url, f"is no intact tar file ({error})", remedy="Copy the file again, whole.") from error


def _is_wanted(field: str, paths: Sequence[str] | None) -> bool:
    return paths is None or any(path == field or path.startswith((f"{field}.", f"{field}[]")) for path in paths)


def _decode(field: str, content: bytes) -> Any:
    kind = field.rpartition(".")[2]
    if kind in ("json", "jsn"):
        return parse_quickly(content)
    if kind not in _TEXTS:
        return content
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RowProblem("invalid UTF-8", f"its .{field} is no valid UTF-8 at byte {error.start}") from None
