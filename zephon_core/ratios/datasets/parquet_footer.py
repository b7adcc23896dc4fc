"""A Parquet file's footer, as far as single pages need it: pyarrow tells neither where they lie nor can it read them alone.

The layout is that of parquet.thrift (https://github.com/apache/parquet-format); numbers of fields are those in there.
Footers that are odd in any way raise ThriftError; files that have one are read by row groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from zephon_core.ratios.datasets.thrift_compact import I64, LIST, STRUCT, Struct, ThriftError, write_int, write_list, write_struct

__all__ = [
    "BOOLEAN",
    "BYTE_ARRAY",
    "DOUBLE",
    "FIXED_LEN_BYTE_ARRAY",
    "FLOAT",
    "INT32",
    "INT64",
    "INT96",
    "MAGIC",
    "Chunk",
    "Footer",
    "Leaf",
    "NewChunk",
    "Read",
    "read_footer",
    "tail_bytes",
    "whole_file",
]

Read = Callable[[int, int], bytes]
"""Reads bytes start:start+count of a file."""

MAGIC = b"PAR1"
BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY = range(8)
_REQUIRED, _OPTIONAL, _REPEATED = range(3)
_DICTIONARY_ENCODINGS = (2, 8)
_DATA_PAGES = (0, 3)
# What is read of a file's end, in the hope that the footer is in it: the more the larger the file.
_TAIL_BYTES = (8 << 10, 64 << 10)
_TAIL_SHARE = 16
_LARGEST_BYTES = 32 << 20
_DEEPEST_SCHEMA = 64


@dataclass(frozen=True)
class Leaf:
    """A leaf column of the schema.

    path: names joined by dots. root: number of the column that it belongs to. type: physical; type_length: width of a fixed one.
    max_definition, max_repetition: depths of its levels.
    """

    path: str
    root: int
    type: int
    type_length: int
    max_definition: int
    max_repetition: int


class IndexPlace(NamedTuple):
    """Where an offset index lies."""

    start: int
    bytes: int


@dataclass(frozen=True)
class Chunk:
    """A leaf column's part of a row group.

    start, stop: its bytes in the file, dictionary page first if there is one. values: nulls included. decoded_bytes: of its pages,
    encoded but not compressed. dictionary_pages: how many of its data pages are encoded by dictionary, -1 where it isn't told.
    meta: what else the footer says.
    """

    start: int
    stop: int
    values: int
    decoded_bytes: int
    dictionary_pages: int
    index: IndexPlace | None
    meta: Struct

    @property
    def bytes(self) -> int:
        """Bytes in the file."""
        return self.stop - self.start

    @property
    def dictionary_bytes(self) -> int:
        """Bytes in the file of its dictionary page, as far as the footer tells."""
        return max(0, self.meta.integer(9) - self.start)


class NewChunk(NamedTuple):
    """A chunk to be described in a footer: where its pages lie, if there is a dictionary page, how many values and bytes."""

    start: int
    data_start: int
    stop: int
    values: int
    decoded_bytes: int


class Footer:
    """The footer of a file whose content ends, and whose footer begins, at byte `start`."""

    def __init__(self, data: bytes, start: int) -> None:
        self._top = Struct(data)
        self._start = start
        self._groups = self._top.places(4)
        if 8 in self._top:
            raise ThriftError("columns are encrypted")

    def __len__(self) -> int:
        """Return the number of row groups."""
        return len(self._groups)

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """All leaf columns, in order."""
        elements = self._top.structs(2)
        leaves: list[Leaf] = []
        at = 1
        for root in range(elements[0].integer(5, 0) if elements else 0):
            at = _walk(elements, at, root, (), (0, 0), leaves)
        if at != len(elements):
            raise ThriftError("the schema has loose ends")
        return tuple(leaves)

    def chunks(self, group: int) -> tuple[Chunk, ...]:
        """Return the chunks of a row group, one for each leaf column."""
        chunks = tuple(self._chunk(column) for column in self._group(group).structs(1))
        if len(chunks) != len(self.leaves):
            raise ThriftError("a row group has not all columns")
        return chunks

    def _group(self, number: int) -> Struct:
        return Struct(self._top.data, self._groups[number].start)

    def _chunk(self, column: Struct) -> Chunk:
        if 1 in column or 8 in column or 9 in column:
            raise ThriftError("a column lies in another file or is encrypted")
        meta = column.struct(3)
        first, dictionary = meta.integer(9), meta.integer(11, 0)
        start = min(first, dictionary) if dictionary > 0 else first
        stop = start + meta.integer(7)
        if not len(MAGIC) <= start <= stop <= self._start:
            raise ThriftError("a column lies outside of the file")
        index = IndexPlace(column.integer(4), column.integer(5)) if 4 in column and 5 in column else None
        if index and not (index.start > 0 and 0 < index.bytes <= min(_LARGEST_BYTES, self._start - index.start)):
            raise ThriftError("an index lies outside of the file")
        return Chunk(start, stop, meta.integer(5), meta.integer(6), _dictionary_pages(meta), index, meta)

    def rewritten(self, group: int, rows: int, chunks: Mapping[int, NewChunk]) -> bytes:
        """Return the footer of a file with one row group, which has these chunks by leaf; the others must not be read."""
        columns = []
        for number, place in enumerate(self._group(group).places(1)):
            new = chunks.get(number)
            columns.append(self._top.data[place.start : place.stop] if new is None else _column(self._top.data, place.start, new))
        row_group = {
            1: (LIST, write_list(STRUCT, columns)),
            2: (I64, write_int(sum(chunk.decoded_bytes for chunk in chunks.values()))),
            3: (I64, write_int(rows)),
        }
        top = self._top.raw(1, 2, 5, 6, 7)
        top[3] = (I64, write_int(rows))
        top[4] = (LIST, write_list(STRUCT, [write_struct(row_group)]))
        return write_struct(top)


def _dictionary_pages(meta: Struct) -> int:
    if 13 not in meta:
        return -1
    pages = [(stats.integer(1), stats.integer(2), stats.integer(3)) for stats in meta.structs(13)]
    return sum(count for page, encoding, count in pages if page in _DATA_PAGES and encoding in _DICTIONARY_ENCODINGS)


def _column(data: bytes, start: int, new: NewChunk) -> bytes:
    meta = Struct(data, start).struct(3).raw(1, 2, 3, 4)
    meta[5] = (I64, write_int(new.values))
    meta[6] = (I64, write_int(new.decoded_bytes))
    meta[7] = (I64, write_int(new.stop - new.start))
    meta[9] = (I64, write_int(new.data_start))
    if new.data_start > new.start:
        meta[11] = (I64, write_int(new.start))
    return write_struct({2: (I64, write_int(new.start)), 3: (STRUCT, write_struct(meta))})


def _walk(elements: list[Struct], at: int, root: int, names: tuple[str, ...], levels: tuple[int, int], leaves: list[Leaf]) -> int:
    """Go down a schema from its element `at`, and return where the next one on its level is."""
    if at >= len(elements) or len(names) > _DEEPEST_SCHEMA:
        raise ThriftError("the schema ends too early, or is too deep")
    element = elements[at]
    kind = element.integer(3)
    if kind not in (_REQUIRED, _OPTIONAL, _REPEATED):
        raise ThriftError("a column is of an unknown kind")
    definition, repetition = levels[0] + (kind in (_OPTIONAL, _REPEATED)), levels[1] + (kind == _REPEATED)
    names = (*names, element.binary(4).decode("utf-8", "replace"))
    at += 1
    children = element.integer(5, 0)
    if children <= 0:
        leaves.append(Leaf(".".join(names), root, element.integer(1), element.integer(2, 0), definition, repetition))
    for _ in range(children):
        at = _walk(elements, at, root, names, (definition, repetition), leaves)
    return at


def tail_bytes(file_bytes: int) -> int:
    """Return how much of a file's end is read for its footer."""
    return min(file_bytes, max(_TAIL_BYTES[0], min(_TAIL_BYTES[1], file_bytes // _TAIL_SHARE)))


def read_footer(read: Read, file_bytes: int) -> tuple[bytes, int] | None:
    """Read the bytes of a file's footer, and say where it begins; None where there is none that can be read, or too large a one."""
    tail_start = file_bytes - tail_bytes(file_bytes)
    tail = read(tail_start, file_bytes - tail_start)
    if len(tail) < 12 or tail[-4:] != MAGIC:
        return None
    count = int.from_bytes(tail[-8:-4], "little")
    start = file_bytes - 8 - count
    if start < len(MAGIC) or count > _LARGEST_BYTES:
        return None
    return (tail[start - tail_start : -8] if start >= tail_start else read(start, count)), start


def whole_file(pages: bytes, footer: bytes) -> bytes:
    """Put a file together; its pages begin at byte 4."""
    return b"".join((MAGIC, pages, footer, len(footer).to_bytes(4, "little"), MAGIC))
