"""Lance tables, through pylance: a shard is a fragment of the latest version, a unit is a range of its rows.

Deleted rows are none. A shard's identity is that of its data files and its deletion file.

What is broken must not end the process, as it would in three places of the library: it sets memory aside for as many columns as a
data file's footer names, and for deletions as a broken file of them tells; and while it streams rows it can't hand on an error
whose text has a zero byte. So footers and deletions are checked before it reads them, and a fragment's first row is taken, which
reads all that its files say of themselves, before any is streamed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING, Any

from zephon_core.errors import InputError, MissingExtraError
from zephon_core.ratios.datasets.columns import ColumnRows, check_batch
from zephon_core.ratios.datasets.files import FoundFile, OpenFile, Tally
from zephon_core.ratios.datasets.formats import Part, ShardPlace, Survey
from zephon_core.ratios.datasets.listing import Container, inside
from zephon_core.ratios.datasets.model import LocatedRow
from zephon_core.readers.arrow import arrow_errors

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LanceReader", "open_shard", "places", "probe"]

RANGE_ROWS = 16 << 10

_FOOTER = struct.Struct("<QQQIIHH4s")
_ENTRY_BYTES = 16


def places(container: Container) -> list[ShardPlace]:
    """List the fragments of a table's latest version. Raises InputError, MissingExtraError."""
    table = _open(container.url)
    files = {file.url: file for file in container.files}
    found = []
    with _lance_errors(container.url):
        for fragment in table.get_fragments():
            metadata = fragment.metadata
            urls = [(inside(container.url, f"data/{file.path}"), int(file.file_size_bytes or 0)) for file in metadata.files]
            details = {"rows": int(metadata.num_rows), "fields": [list(file.fields) for file in metadata.files]}
            if metadata.deletion_file is not None:
                deletions = metadata.deletion_file
                urls.append((inside(container.url, deletions.path(metadata.id)), 0))
            # A file that is named and isn't there is found out when it is opened.
            kept = tuple(files.get(url) or FoundFile(url, size, "") for url, size in urls)
            where = {"table": container.url, "version": int(table.version), "fragment": int(metadata.id)}
            found.append(ShardPlace(urls[0][0], "lance", "none", kept, details, where))
    return found


def probe(place: ShardPlace, tally: Tally) -> Survey:
    """Cut a fragment into ranges of rows. Raises InputError for files that the library would better not see."""
    for file in place.files:
        if "/data/" in file.url:
            _check_footer(file, tally)
        elif file.url.endswith(".arrow"):
            _check_deletions(file, tally)
    rows = place.details["rows"]
    raw_bytes = sum(file.bytes for file in place.files if "/data/" in file.url)
    cuts = [*range(0, rows, RANGE_ROWS), rows] if rows else []
    parts = tuple(
        Part(0, max(1, raw_bytes * (stop - begin) // rows), max(1, raw_bytes * (stop - begin) // rows), stop - begin, False)
        for begin, stop in pairwise(cuts)
    )
    return Survey(rows, raw_bytes, parts)


def open_shard(place: ShardPlace, paths: Sequence[str] | None, tally: Tally) -> LanceReader:
    """Open a fragment; only columns that the paths begin with are decoded."""
    return LanceReader(place, paths, tally)


class LanceReader:
    """Reads ranges of rows of one fragment."""

    def __init__(self, place: ShardPlace, paths: Sequence[str] | None, tally: Tally) -> None:
        self._place = place
        self._tally = tally
        self._table = _open(place.where["table"], place.where["version"])
        with _lance_errors(place.url):
            self._fragment = self._table.get_fragment(place.where["fragment"])
            names = None if paths is None else {path.split(".")[0].removesuffix("[]") for path in paths}
            schema = self._table.schema.names
            # No column at all can't be asked for.
            self._columns = None if names is None else [name for name in schema if name in names] or schema[:1]
            self._fragment.take([0], columns=self._columns)

    def read(self, part: int, start: int, size: int, rows: int) -> ColumnRows:
        """Decode the wanted columns of a range of rows."""
        wanted = min(RANGE_ROWS, self._place.details["rows"] - part * RANGE_ROWS)
        with _lance_errors(self._place.url):
            batches: list[pa.RecordBatch] = list(
                self._fragment.to_batches(columns=self._columns, offset=part * RANGE_ROWS, limit=wanted)
            )
            for batch in batches:
                check_batch(batch)
            self._tally.bytes_read += self._table.io_stats_incremental().read_bytes
        if sum(batch.num_rows for batch in batches) != wanted:
            raise InputError(self._place.url, f"doesn't hold the {self._place.details['rows']:,} rows that its table tells")
        return ColumnRows(batches)

    def read_at(self, start: int, size: int, offset: int) -> LocatedRow:
        """Refuse: no row of a Lance table is found by a byte."""
        raise InputError(self._place.url, "can't be read at a byte: it is part of a Lance table")

    def close(self) -> None:
        """Do nothing: the library closes its files itself."""


def _check_footer(file: FoundFile, tally: Tally) -> None:
    """Raise InputError if a data file (of format 2 and later) tells more columns or buffers than it has room to describe."""
    with OpenFile(file, tally) as handle:
        content = handle.range(max(0, file.bytes - _FOOTER.size), _FOOTER.size)
    if len(content) < _FOOTER.size:
        raise InputError(file.url, f"is no Lance file: it has {file.bytes:,} bytes")
    *starts, buffers, columns, major, minor, magic = _FOOTER.unpack(content)
    if magic != b"LANC" or (major, minor) < (0, 3):
        return  # the library says what is wrong, or reads an older footer
    if max(starts) > file.bytes or _ENTRY_BYTES * (buffers + columns) > file.bytes:
        raise InputError(file.url, f"has a broken footer ({columns:,} columns, {buffers:,} buffers in {file.bytes:,} bytes)")


def _check_deletions(file: FoundFile, tally: Tally) -> None:
    """Raise InputError if a file of deleted rows isn't whole."""
    import pyarrow as pa

    with OpenFile(file, tally) as handle:
        content = handle.range(0, file.bytes)
    with arrow_errors(file.url):
        pa.ipc.open_file(pa.BufferReader(content)).read_all().validate(full=True)


def _open(url: str, version: int | None = None) -> Any:
    with _lance_errors(url):
        return _library(url).dataset(url, version=version)


def _library(url: str) -> ModuleType:
    try:
        import lance
    except ImportError as error:
        raise MissingExtraError(
            url, "is a Lance table, and pylance isn't installed", remedy="pip install 'zephon-flows[lance]'."
        ) from error
    module: ModuleType = lance
    return module


@contextmanager
def _lance_errors(url: str) -> Iterator[None]:
    """Turn what the library raises for broken or absent data into an InputError."""
    with arrow_errors(url):
        try:
            yield
        except RuntimeError as error:
            raise InputError(url, f"can't be read ({' '.join(str(error).split())[:200]})") from error
        except BaseException as error:
            # A panic of the library's Rust code is no Exception, and its class can't be imported.
            if type(error).__name__ != "PanicException":
                raise
            raise InputError(url, f"can't be decoded ({' '.join(str(error).split())[:200]})") from error
