"""Parquet shards: a unit is a row group, or of large ones a range of rows that ends where pages do.

Writers put up to a million rows into a row group, which is more than a sample needs. Where pages of its text can be found, the
group is cut there, and a read takes the pages that a range of rows lies in (`parquet_pages`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from zephon_core.errors import InputError
from zephon_core.ratios.datasets.columns import ColumnRows, check_batch
from zephon_core.ratios.datasets.files import OpenFile, Tally
from zephon_core.ratios.datasets.formats import WHOLE_BYTES, Part, ShardPlace, Survey, open_file
from zephon_core.ratios.datasets.model import LocatedRow
from zephon_core.ratios.datasets.nested_columns import can_be_joined, join_columns
from zephon_core.ratios.datasets.parquet_footer import BYTE_ARRAY, Chunk, Footer, Leaf, read_footer, whole_file
from zephon_core.ratios.datasets.parquet_pages import ColumnPages, Page, find_pages, range_file
from zephon_core.ratios.datasets.thrift_compact import ThriftError
from zephon_core.readers.arrow import arrow_errors
from zephon_core.readers.jsonl import DEFAULT_MAX_ROW_BYTES
from zephon_core.readers.parquet import chosen_columns

__all__ = ["ParquetReader", "open_shard", "probe"]

_BUFFER_BYTES = 1 << 20
_BATCH_BYTES = 64 << 20
_BATCH_ROWS = 16 << 10
# Row groups of fewer bytes are units as they are; in larger ones pages are put together up to the size of a unit.
_LARGE_GROUP_BYTES = 2 << 20
_UNIT_BYTES = 256 << 10
# A column decides where a row group is cut if it has this share of its bytes.
_LEAST_SHARE = 0.25
_KEPT_DICTIONARIES = 8
_MOST_ROWS = 1 << 60


def probe(place: ShardPlace, tally: Tally) -> Survey:
    """Read the footer, and find the pages of large row groups."""
    with open_file(place, tally) as file, arrow_errors(place.url):
        data = read_footer(file.range, file.size_bytes)
        metadata = _metadata(file, data)
        groups = [(group.num_rows, group.total_byte_size) for group in map(metadata.row_group, range(metadata.num_row_groups))]
        # Sizes of single columns would say it better, but pyarrow aborts the process where their records are broken or encrypted.
        if any(rows < 0 for rows, _ in groups) or sum(rows for rows, _ in groups) > _MOST_ROWS:
            raise InputError(place.url, "has a footer with an impossible number of rows", remedy="Write the file again.")
        whole = sum(max(size, 1) for _, size in groups)
        footer = _footer(data) if any(size >= _LARGE_GROUP_BYTES for _, size in groups) else None
        parts: list[Part] = []
        row = beside = 0
        for number, (rows, size) in enumerate(groups):
            group = Part(row, max(size, 1), max(1, file.size_bytes * max(size, 1) // whole), rows, False)
            cuts = _NO_CUTS
            if footer and size >= _LARGE_GROUP_BYTES:
                cuts = _cuts(file, tally, footer, number, group, hop=place.files[0].is_local)
            parts += _cut(group, cuts.pages) if rows else []
            beside = max(beside, cuts.beside_bytes)
            row += rows
    return Survey(row, file.size_bytes, tuple(parts), where={"beside_bytes": beside} if beside else {})


def _metadata(file: OpenFile, data: tuple[bytes, int] | None) -> Any:
    """Parse a footer as pyarrow does; it says what is wrong with a file that has none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pq.read_metadata(file if data is None else pa.BufferReader(whole_file(b"", data[0])))


def _footer(data: tuple[bytes, int] | None) -> Footer | None:
    """Parse a footer; None where it is odd: its row groups are read whole then."""
    try:
        return None if data is None else Footer(*data)
    except ThriftError:
        return None


class _Cuts(NamedTuple):
    """The pages that a row group is cut between; none, if it isn't. beside_bytes: see `_beside`."""

    pages: Sequence[Page]
    beside_bytes: int


_NO_CUTS = _Cuts((), 0)


def _cuts(file: OpenFile, tally: Tally, footer: Footer, number: int, group: Part, *, hop: bool) -> _Cuts:
    """Find the pages of the column that a row group is cut by: of the most texts, else of the most bytes."""
    try:
        chunks = footer.chunks(number) if number < len(footer) else ()
        leaves = footer.leaves
    except ThriftError:
        return _NO_CUTS
    total = sum(chunk.decoded_bytes for chunk in chunks)

    def rank(column: int) -> tuple[bool, int]:
        return leaves[column].type == BYTE_ARRAY, chunks[column].decoded_bytes

    for column in sorted(range(len(chunks)), key=rank, reverse=True):
        if chunks[column].decoded_bytes >= _LEAST_SHARE * total:
            before = tally.bytes_read
            found = find_pages(file.range, chunks[column], leaves[column], group.rows, may_hop=hop)
            if found is not None:
                hopped = (tally.bytes_read - before) / max(1, chunks[column].bytes) if hop else 1.0
                return _Cuts(found.pages, _beside(chunks, leaves, hopped))
    return _NO_CUTS


def _beside(chunks: Sequence[Chunk], leaves: Sequence[Leaf], hopped: float) -> int:
    """Return what is read of a row group that is cut beside the pages wanted: once, to find them, and for their dictionaries.

    hopped: the share of a column that is read to find pages that no index tells. Columns of lists are read whole, where none does.
    """
    beside = 0
    for chunk, leaf in zip(chunks, leaves, strict=True):
        if chunk.index is not None:
            found = chunk.index.bytes
        else:
            found = chunk.bytes if leaf.max_repetition else math.ceil(hopped * chunk.bytes)
        beside += found + chunk.dictionary_bytes
    return beside


def _cut(group: Part, pages: Sequence[Page]) -> Iterator[Part]:
    """Cut a row group between pages, into parts whose sizes add up to its own."""
    pages = [page for page in pages if page.rows]
    total = sum(page.decoded_bytes for page in pages)
    stored = sum(page.stored_bytes + page.dictionary_bytes for page in pages)
    if len(pages) < 2 or not total or not stored:
        yield group
        return
    row = decoded_bytes = stored_bytes = 0
    size = cost = 0
    for page in pages:
        decoded_bytes += page.decoded_bytes
        stored_bytes += page.stored_bytes + page.dictionary_bytes
        stop = page.row + page.rows
        reached, spent = group.size * decoded_bytes // total, group.stored_bytes * stored_bytes // stored
        if stop > row and (stop == group.rows or min(reached - size, group.size - reached) >= _UNIT_BYTES):
            yield Part(group.start + row, max(1, reached - size), max(1, spent - cost), stop - row, False)
            row, size, cost = stop, reached, spent


def open_shard(place: ShardPlace, paths: Sequence[str] | None, tally: Tally) -> ParquetReader:
    """Open a Parquet shard; only leaf columns on the way of the paths are decoded."""
    return ParquetReader(place, paths, tally)


class _LeafPages(NamedTuple):
    """A leaf column by number, and its pages in a row group."""

    number: int
    pages: ColumnPages


class _Found(NamedTuple):
    """The pages of a row group's wanted leaf columns.

    together: those that are decoded together. alone: those that are each decoded alone, by column. rest: paths of those without.
    """

    together: tuple[_LeafPages, ...]
    alone: dict[int, list[_LeafPages]]
    rest: list[str]


class ParquetReader:
    """Reads row groups and ranges of their rows. The footer is read once, and pages are looked for once."""

    def __init__(self, place: ShardPlace, paths: Sequence[str] | None, tally: Tally) -> None:
        import pyarrow as pa

        self._url = place.url
        self._source = OpenFile(place.files[0], tally)
        self._shared_source = OpenFile(place.files[0], tally, keep=True)
        self._far = not place.files[0].is_local
        with arrow_errors(place.url):
            size = self._source.size_bytes
            small = size <= WHOLE_BYTES  # in one go: the library reads 64 KiB for the footer alone
            self._content = self._source.once(0, size) if small else b""
            self._data = read_footer(self._read_once, size)
            metadata = _metadata(self._source, self._data)
            self._file = self._opened(pa.BufferReader(self._content) if small else self._source, metadata)
            self._columns = chosen_columns(self._file, paths)
        groups = self._file.metadata.num_row_groups
        self._starts = np.cumsum([0, *(self._file.metadata.row_group(number).num_rows for number in range(groups))])
        self._found: dict[int, _Found | None] = {}
        self._dictionaries: dict[int, bytes] = {}
        self._kept: tuple[int, list[Any]] = (-1, [])

    def _opened(self, source: Any, metadata: Any) -> Any:
        import pyarrow.parquet as pq

        return pq.ParquetFile(
            source,
            metadata=metadata,
            buffer_size=0 if self._far else _BUFFER_BYTES,  # far away, one request a column; here, a page at a time
            pre_buffer=self._far,
            page_checksum_verification=True,
        )

    @cached_property
    def _shared_file(self) -> Any:
        """The file, of which others that share it needn't read the same columns of a row group again."""
        return self._opened(self._shared_source, self._file.metadata)

    def read(self, part: int, start: int, size: int, rows: int) -> ColumnRows:
        """Decode the wanted columns of a row group, or of a range of its rows."""
        group = int(np.searchsorted(self._starts, start, "right")) - 1
        first = start - int(self._starts[group])
        with arrow_errors(self._url):
            if rows == self._file.metadata.row_group(group).num_rows:
                batches = self._read_group(self._file, group, self._columns)
            else:
                batches = self._read_rows(group, first, rows)
        self._source.check()
        if sum(batch.num_rows for batch in batches) != rows:
            raise InputError(self._url, f"rows {start + 1:,} to {start + rows:,} aren't all there")
        return ColumnRows(batches)

    def _read_group(self, file: Any, number: int, columns: list[str] | None) -> list[Any]:
        group = self._file.metadata.row_group(number)
        return self._decode(file, number, columns, group.num_rows, group.total_byte_size)

    def _read_rows(self, group: int, first: int, rows: int) -> list[Any]:
        """Decode a range of rows from their pages, and columns whose pages can't be found from the whole row group."""
        import pyarrow as pa

        if group not in self._found:
            self._found[group] = self._find(group)
        found = self._found[group]
        if found is None:
            return _sliced(self._all_rows(group, self._columns), first, rows)
        if not found.alone and not found.rest:
            return self._read_pages(group, found.together, first, rows)
        names, kinds = self._file.schema_arrow.names, self._file.schema_arrow.types
        columns: dict[str, Any] = {}
        if found.together:
            columns.update(_columns(self._read_pages(group, found.together, first, rows)))
        for root, leaves in found.alone.items():
            arrays = [columns[names[root]]] if names[root] in columns else []
            arrays += [_columns(self._read_pages(group, (leaf,), first, rows))[names[root]] for leaf in leaves]
            columns[names[root]] = join_columns(kinds[root], arrays)
        if found.rest:
            columns.update(_columns(_sliced(self._all_rows(group, found.rest), first, rows)))
        ordered = [name for name in names if name in columns]
        return [pa.RecordBatch.from_arrays([columns[name] for name in ordered], names=ordered)]

    def _all_rows(self, number: int, columns: list[str] | None) -> list[Any]:
        """Decode columns of a whole row group, and keep them for other ranges of its rows."""
        if self._kept[0] != number:
            self._kept = (-1, [])  # before the next ones are read: two large ones may not fit
            self._kept = (number, self._read_group(self._shared_file, number, columns))
        return self._kept[1]

    def _read_pages(self, group: int, leaves: Sequence[_LeafPages], first: int, rows: int) -> list[Any]:
        """Decode some leaf columns of a range of rows."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._footer is None:
            return []
        columns = [(leaf.number, leaf.pages) for leaf in leaves]
        made = range_file(
            self._read,
            self._footer,
            group,
            columns,
            first,
            first + rows,
            read_dictionary=self._dictionary,
            keep_shared=self._read_once if self._source.keeps and not self._far else None,  # far away, it would be a request more
        )
        file = pq.ParquetFile(pa.BufferReader(made.content), page_checksum_verification=True)
        names = [self._footer.leaves[leaf.number].path for leaf in leaves]
        return _sliced(self._decode(file, 0, names, made.rows, made.decoded_bytes), made.skip, rows)

    def _decode(self, file: Any, group: int, columns: list[str] | None, rows: int, decoded_bytes: int) -> list[Any]:
        if decoded_bytes > max(rows, 1) * (DEFAULT_MAX_ROW_BYTES + _BUFFER_BYTES):
            raise InputError(
                self._url,
                f"a row group or a part of it holds {decoded_bytes:,} bytes in {rows:,} rows",
                wanted=f"at most {DEFAULT_MAX_ROW_BYTES:,} a row",
                remedy="Write it again without its largest values.",
            )
        step = int(max(16, min(_BATCH_ROWS, _BATCH_BYTES * rows // max(decoded_bytes, 1))))
        batches = list(file.iter_batches(step, row_groups=[group], columns=columns, use_threads=False))
        if sum(batch.num_rows for batch in batches) != rows:
            raise InputError(self._url, f"row group {group} doesn't hold the {rows:,} rows that it should")
        return [check_batch(batch) for batch in batches]

    @cached_property
    def _footer(self) -> Footer | None:
        return _footer(self._data)

    def _find(self, group: int) -> _Found | None:
        """Find the pages of all columns wanted; None where the footer is odd, or its names are."""
        if self._footer is None:
            return None
        try:
            leaves, chunks = self._footer.leaves, self._footer.chunks(group)
        except ThriftError:
            return None
        wanted = [number for number, leaf in enumerate(leaves) if self._columns is None or leaf.path in self._columns]
        names = self._file.schema_arrow.names
        if len(wanted) != len(leaves if self._columns is None else self._columns) or len(set(names)) < len(names):
            return None
        if _ambiguous([leaf.path for leaf in leaves]) or any(leaf.root >= len(names) for leaf in leaves):
            return None
        rows = int(self._starts[group + 1] - self._starts[group])
        pages = {
            number: find_pages(self._read_once, chunks[number], leaves[number], rows, may_hop=not self._far) for number in wanted
        }
        lists = [leaves[number].root for number in wanted if leaves[number].max_repetition]
        kinds = self._file.schema_arrow.types
        rest = {leaves[number].root for number in wanted if pages[number] is None}
        rest |= {root for root in lists if lists.count(root) > 1 and not can_be_joined(kinds[root])}
        together: list[_LeafPages] = []
        alone: dict[int, list[_LeafPages]] = {}
        begun: set[int] = set()
        for number, found in pages.items():
            leaf = leaves[number]
            if found is None or leaf.root in rest:
                continue
            # Nulls can't stand in for lists of a fixed size, and not for others beside leaves that have them.
            if leaf.max_repetition and (leaf.root in begun or not can_be_joined(kinds[leaf.root])):
                alone.setdefault(leaf.root, []).append(_LeafPages(number, found))
                continue
            together.append(_LeafPages(number, found))
            begun |= {leaf.root} if leaf.max_repetition else set()
        return _Found(tuple(together), alone, [leaves[number].path for number in wanted if leaves[number].root in rest])

    def _read(self, start: int, count: int) -> bytes:
        return self._content[start : start + count] if self._content else self._source.range(start, count)

    def _read_once(self, start: int, count: int) -> bytes:
        return self._read(start, count) if self._content else self._source.once(start, count)

    def _dictionary(self, start: int, count: int) -> bytes:
        """Read a dictionary page, and keep it: other pages of its column need it, too."""
        if start not in self._dictionaries:
            if len(self._dictionaries) >= _KEPT_DICTIONARIES:
                self._dictionaries.clear()
            self._dictionaries[start] = self._read_once(start, count)
        return self._dictionaries[start]

    def read_at(self, start: int, size: int, offset: int) -> LocatedRow:
        """Refuse: a row of a row group can't be read alone."""
        raise InputError(self._url, "can't be read at a byte: it is a Parquet file")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._source.close()
        self._shared_source.close()


def _ambiguous(paths: Sequence[str]) -> bool:
    """Say whether a path, or what another begins with, stands for several leaf columns: pyarrow is told by them what to read."""
    beginnings = {path[:at] for path in paths for at, character in enumerate(path) if character == "."}
    return len(set(paths)) < len(paths) or bool(beginnings.intersection(paths))


def _columns(batches: Sequence[Any]) -> dict[str, Any]:
    """Put batches together, and return their columns by name."""
    import pyarrow as pa

    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def _sliced(batches: Sequence[Any], first: int, rows: int) -> list[Any]:
    """Return rows first:first+rows of batches, without copying."""
    found = []
    for batch in batches:
        begin, stop = max(0, first), min(batch.num_rows, first + rows)
        if begin < stop:
            found.append(batch.slice(begin, stop - begin))
        first -= batch.num_rows
    return found
