"""Rows of a Parquet row group without the rest of it: where pages lie, and files in memory made of the pages wanted.

Pages are found by the offset index, or where a local file has none from one page's header to the next. Pages are copied, not
decoded: pyarrow gets a file of one row group that holds them, so that codecs, encodings and levels are its business. Columns
whose pages begin or end elsewhere than others' are filled up with nulls, which are cut off again; of a list of structs, one leaf
alone can be in a file, since its lists would differ from those of the others.

The layout is that of https://github.com/apache/parquet-format (parquet.thrift, PageIndex.md, Encodings.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from zephon_core.ratios.datasets import parquet_footer as layout
from zephon_core.ratios.datasets.parquet_footer import Chunk, Footer, Leaf, NewChunk, Read, whole_file
from zephon_core.ratios.datasets.thrift_compact import FALSE, I32, STRUCT, Struct, ThriftError, write_int, write_struct

__all__ = ["ColumnPages", "Page", "RangeFile", "find_pages", "range_file"]

_DATA, _INDEX, _DICTIONARY, _DATA_V2 = range(4)
_DICTIONARY_ENCODINGS = (2, 8)
_PLAIN = 0
_FIRST_HEADER_BYTES = 128
_LARGEST_HEADER_BYTES = 256 << 10
_MOST_PAGES = 1 << 20
_WIDTHS = {layout.INT32: 4, layout.FLOAT: 4, layout.INT64: 8, layout.DOUBLE: 8, layout.INT96: 12, layout.BYTE_ARRAY: 4}


class Page(NamedTuple):
    """A data page: its first row within the row group and how many it has, its bytes in the file, header included.

    decoded_bytes: how many bytes its values have, about. dictionary_bytes: its part of a dictionary that it needs, in the file.
    """

    row: int
    rows: int
    start: int
    stored_bytes: int
    decoded_bytes: int
    dictionary_bytes: int = 0


@dataclass(frozen=True)
class ColumnPages:
    """The data pages of a chunk, in order, and the bytes of its dictionary page (none: start == stop)."""

    pages: tuple[Page, ...]
    dictionary_start: int
    dictionary_stop: int

    def around(self, first: int, stop: int) -> tuple[Page, ...]:
        """Return the pages that hold rows first:stop."""
        return tuple(page for page in self.pages if page.row < stop and page.row + page.rows > first)


class _Header(NamedTuple):
    """A page's header. rows: -1 where it doesn't tell."""

    kind: int
    header_bytes: int
    body_bytes: int
    decoded_bytes: int
    values: int
    rows: int
    encoding: int


def find_pages(read: Read, chunk: Chunk, leaf: Leaf, rows: int, *, may_hop: bool) -> ColumnPages | None:
    """Find the pages of a chunk of a row group of so many rows; None where that can't be done, or can't be trusted.

    may_hop: reads of a few bytes are cheap.
    """
    try:
        if chunk.index is not None:
            return _by_index(read(chunk.index.start, chunk.index.bytes), chunk, rows)
        return _by_hopping(read, chunk, leaf, rows) if may_hop else None
    except ThriftError:
        return None


def _by_index(data: bytes, chunk: Chunk, rows: int) -> ColumnPages:
    index = Struct(data)
    places = [(place.integer(3), place.integer(1), place.integer(2)) for place in index.structs(1)]
    ends = [*(row for row, _, _ in places[1:]), rows]
    last_row, at = 0, chunk.start
    for number, (row, start, stored_bytes) in enumerate(places):
        if row < last_row or (number == 0 and row) or start < at or stored_bytes <= 0 or start + stored_bytes > chunk.stop:
            raise ThriftError("an offset index doesn't fit its pages")
        last_row, at = row, start + stored_bytes
    if not places or last_row > rows:
        raise ThriftError("an offset index doesn't fit its rows")
    count = len(places) if chunk.dictionary_pages < 0 else min(chunk.dictionary_pages, len(places))
    dictionary = _shared(places[0][1] - chunk.start, [end - row for (row, _, _), end in zip(places, ends, strict=True)], count)
    decoded = index.integers(2) if 2 in index else []
    if len(decoded) != len(places) or min(decoded) < 0:
        decoded = [stored_bytes + shared for (_, _, stored_bytes), shared in zip(places, dictionary, strict=True)]
    pages = tuple(
        Page(row, end - row, start, stored_bytes, values, shared)
        for (row, start, stored_bytes), end, values, shared in zip(places, ends, decoded, dictionary, strict=True)
    )
    return ColumnPages(pages, chunk.start, pages[0].start)


def _shared(dictionary_bytes: int, page_rows: Sequence[int], count: int) -> list[int]:
    """Share a dictionary among the first `count` pages, which need it, by their rows."""
    covered = max(1, sum(page_rows[:count]))
    return [dictionary_bytes * rows // covered if number < count else 0 for number, rows in enumerate(page_rows)]


def _by_hopping(read: Read, chunk: Chunk, leaf: Leaf, rows: int) -> ColumnPages | None:
    pages: list[Page] = []
    by_dictionary: list[bool] = []
    at, row, values = chunk.start, 0, 0
    dictionary = (at, at, 0)
    guess = _FIRST_HEADER_BYTES
    while row < rows or at < chunk.stop:
        if len(pages) > _MOST_PAGES:
            raise ThriftError("there is no end to the pages")
        header = _header_at(read, at, chunk.stop, guess)
        guess = max(_FIRST_HEADER_BYTES, header.header_bytes + 64)
        start, at = at, at + header.header_bytes + header.body_bytes
        if header.kind == _DICTIONARY:
            if pages or dictionary[2]:
                raise ThriftError("there is more than one dictionary")
            dictionary = (start, at, header.decoded_bytes)
        if header.kind not in (_DATA, _DATA_V2):
            continue
        page_rows = _rows_of(header, leaf)
        if page_rows is None:
            return None
        pages.append(Page(row, page_rows, start, at - start, header.decoded_bytes))
        by_dictionary.append(header.encoding in _DICTIONARY_ENCODINGS)
        row += page_rows
        values += header.values
    if row != rows or values != chunk.values:
        raise ThriftError("pages hold other rows than the footer tells")
    start, stop, decoded_bytes = dictionary
    covered = max(1, sum(page.rows for page, of_dictionary in zip(pages, by_dictionary, strict=True) if of_dictionary))
    spread = tuple(
        page._replace(
            decoded_bytes=page.decoded_bytes + decoded_bytes * page.rows // covered,
            dictionary_bytes=(stop - start) * page.rows // covered,
        )
        if of_dictionary
        else page
        for page, of_dictionary in zip(pages, by_dictionary, strict=True)
    )
    return ColumnPages(spread, start, stop)


def _rows_of(header: _Header, leaf: Leaf) -> int | None:
    """Return how many rows a data page has, None where its header doesn't tell. Pages of the second version hold whole rows."""
    if leaf.max_repetition:
        return header.rows if header.rows >= 0 else None
    if header.rows not in (-1, header.values):
        raise ThriftError("a page has other rows than values")
    return header.values


def _header_at(read: Read, at: int, stop: int, guess: int) -> _Header:
    while True:
        data = read(at, min(guess, stop - at))
        try:
            return _parse_header(data, stop - at)
        except ThriftError:
            if guess >= min(stop - at, _LARGEST_HEADER_BYTES):
                raise
            guess *= 4


def _parse_header(data: bytes, room: int) -> _Header:
    """Read the header of a page that has `room` bytes at most."""
    header = Struct(data)
    kind, decoded_bytes, body_bytes = header.integer(1), header.integer(2), header.integer(3)
    if body_bytes < 0 or decoded_bytes < 0 or header.stop + body_bytes > room:
        raise ThriftError("a page goes beyond its column")
    values = encoding = 0
    rows = -1
    if kind == _DATA:
        inner = header.struct(5)
        values, encoding = inner.integer(1), inner.integer(2)
    elif kind == _DATA_V2:
        inner = header.struct(8)
        values, encoding, rows = inner.integer(1), inner.integer(4), inner.integer(3)
        if rows < 0:
            raise ThriftError("a page has a negative number of rows")
    if values < 0:
        raise ThriftError("a page has a negative number of values")
    return _Header(kind, header.stop, body_bytes, decoded_bytes, values, rows, encoding)


@dataclass(frozen=True)
class RangeFile:
    """A Parquet file in memory. Its rows skip:skip+rows are those wanted. decoded_bytes: of its pages, not compressed."""

    content: bytes
    rows: int
    skip: int
    decoded_bytes: int


class _Copied(NamedTuple):
    """Pages copied from a chunk, of rows first:stop."""

    leaf: Leaf
    dictionary: bytes
    body: bytes
    first: int
    stop: int
    values: int
    decoded_bytes: int


def range_file(
    read: Read,
    footer: Footer,
    group: int,
    columns: Sequence[tuple[int, ColumnPages]],
    first: int,
    stop: int,
    *,
    read_dictionary: Read,
    keep_shared: Read | None,
) -> RangeFile:
    """Make a file of a row group's rows first:stop and some more, of some leaf columns. Raises ThriftError for broken pages.

    read_dictionary: reads a dictionary, and keeps it. keep_shared: reads a page that has other rows as well before it is read with
    others, so that it is kept; None: it is read each time.
    """
    if keep_shared is not None:
        for page in (page for _, pages in columns for page in pages.around(first, stop)):
            if page.row < first or page.row + page.rows > stop:
                keep_shared(page.start, page.stored_bytes)
    copied = {number: _copy(read, read_dictionary, footer.leaves[number], pages, first, stop) for number, pages in columns}
    begin = min((each.first for each in copied.values()), default=first)
    end = max((each.stop for each in copied.values()), default=stop)
    pieces: list[bytes] = []
    new: dict[int, NewChunk] = {}
    at = len(layout.MAGIC)
    for number, each in copied.items():
        before, after = _padding(each.leaf, each.first - begin), _padding(each.leaf, end - each.stop)
        pieces += (each.dictionary, before, each.body, after)
        data_start = at + len(each.dictionary)
        chunk_stop = data_start + len(before) + len(each.body) + len(after)
        values = each.values + each.first - begin + end - each.stop
        new[number] = NewChunk(at, data_start, chunk_stop, values, each.decoded_bytes + len(before) + len(after))
        at = chunk_stop
    # A row more is promised than there is, so that how many are found shows how many there are.
    content = whole_file(b"".join(pieces), footer.rewritten(group, end - begin + bool(new), new))
    return RangeFile(content, end - begin, first - begin, sum(each.decoded_bytes for each in copied.values()))


def _copy(read: Read, read_dictionary: Read, leaf: Leaf, column: ColumnPages, first: int, stop: int) -> _Copied:
    pages = column.around(first, stop)
    if not pages:
        raise ThriftError("a column lacks rows")
    start = pages[0].start
    span = read(start, pages[-1].start + pages[-1].stored_bytes - start)
    body = []
    values = decoded_bytes = 0
    by_dictionary = False
    for page in pages:
        data = span[page.start - start :][: page.stored_bytes]
        header = _parse_header(data, page.stored_bytes)
        rows = _rows_of(header, leaf) if header.kind in (_DATA, _DATA_V2) else -1
        if header.header_bytes + header.body_bytes != page.stored_bytes or rows not in (None, page.rows):
            raise ThriftError("a page isn't what the index says")
        values += header.values
        decoded_bytes += header.decoded_bytes
        by_dictionary |= header.encoding in _DICTIONARY_ENCODINGS
        body.append(data)
    dictionary = b""
    if by_dictionary:
        dictionary = read_dictionary(column.dictionary_start, column.dictionary_stop - column.dictionary_start)
        decoded_bytes += _parse_header(dictionary, len(dictionary)).decoded_bytes
    return _Copied(leaf, dictionary, b"".join(body), pages[0].row, pages[-1].row + pages[-1].rows, values, decoded_bytes)


def _padding(leaf: Leaf, rows: int) -> bytes:
    """Make a data page (of the second version, not compressed) of so many rows that hold nothing, or zeros where they must."""
    if not rows:
        return b""
    # One run of the level 0, as RLE has it.
    run = _run_of_zeros(rows)
    repetition = run if leaf.max_repetition else b""
    definition = run if leaf.max_definition else b""
    values = b"" if leaf.max_definition else _zeros(leaf, rows)
    body = repetition + definition + values
    numbers = {1: rows, 2: rows if leaf.max_definition else 0, 3: rows, 4: _PLAIN, 5: len(definition), 6: len(repetition)}
    inner = {number: (I32, write_int(value)) for number, value in numbers.items()}
    header = {1: (I32, write_int(_DATA_V2)), 2: (I32, write_int(len(body))), 3: (I32, write_int(len(body)))}
    return write_struct({**header, 8: (STRUCT, write_struct({**inner, 7: (FALSE, b"")}))}) + body


def _run_of_zeros(count: int) -> bytes:
    # A length shifted left by one; write_int does just that.
    return write_int(count) + b"\0"


def _zeros(leaf: Leaf, rows: int) -> bytes:
    if leaf.type == layout.BOOLEAN:
        return bytes(-(-rows // 8))
    return bytes(rows * (leaf.type_length if leaf.type == layout.FIXED_LEN_BYTE_ARRAY else _WIDTHS[leaf.type]))
