"""Rows of Parquet files in parts of some megabytes: checked, with the place of each, and written again with more columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from zephon_core.errors import BadRowError, CorruptArtifactError, InputError, SpecError
from zephon_core.readers.arrow import RowBatch, arrow_errors
from zephon_core.readers.parquet import iter_parquet
from zephon_core.readers.sources import Source, detect_format, expand_source, open_source
from zephon_core.words import in_words
from zephon_core.xtoken.datums import (
    DatumColumns,
    check_list_column,
    check_names,
    list_column,
    offsets_of,
    ragged_column,
    row_and_position,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ParquetRows",
    "Part",
    "RowStream",
    "bad_columns",
    "bad_rows",
    "check_logprobs",
    "list_array",
    "logprob_rows",
    "parquet_writer",
    "stored_tables",
    "urls_of",
]

MAKE_ANEW = "Make it anew, with --refresh."

MOST_LOGPROB = 1e-3
"""Log-probabilities are at most 0, but for rounding."""

_OF_DATA_SETS = b"huggingface"
_HEAD_BYTES = 4096
_PART_BYTES = 4 << 20
_PART_ROWS = 2048


@dataclass(frozen=True)
class Part:
    """Some rows of one file. first: the number of the first among the rows of all files, from 0."""

    table: pa.Table
    source: Source
    first_in_source: int
    first: int

    def place(self, row: int) -> str:
        """Name a row of this part in messages."""
        return f"{self.source.url}:{self.first_in_source + row}"

    def datums(self) -> DatumColumns:
        """Take the rows as datums. Raises BadRowError for one that is none, or whose logprobs are above 0."""
        with bad_rows():
            datums = DatumColumns.from_arrow(self.table, place=self.place)
        check_logprobs("sampled_logprobs", datums.offsets, datums.logprobs, datums.loss, self.place)
        return datums

    def ids(self, column: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Take a column of token ids: offsets int64 [rows + 1], ids int64. Raises BadRowError for a null."""
        with bad_rows():
            offsets, ids = list_column(self.table, column, np.int64, place=self.place)
        return offsets, ids

    def with_column(self, name: str, values: pa.Array, schema: pa.Schema, kept: npt.NDArray[np.bool_] | None = None) -> pa.Table:
        """Return the rows, or those that are kept, as a table of a schema of `ParquetRows.schema_with`."""
        import pyarrow as pa

        table = self.table if kept is None or kept.all() else self.table.filter(pa.array(kept))
        columns = [values if column == name else table.column(column) for column in schema.names]
        return pa.Table.from_arrays(columns, schema=schema)


@dataclass(frozen=True)
class ParquetRows:
    """The rows of files, one after the other. schema: of the first, which has the columns of all. counts: of rows, by file."""

    sources: tuple[Source, ...]
    schema: pa.Schema
    counts: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many rows there are in all files."""
        return sum(self.counts)

    def place(self, row: int) -> str:
        """Name a row in messages, by its number among those of all files, from 0."""
        source, inside = row_and_position(offsets_of(np.array(self.counts[:-1], dtype=np.int64)), row)
        return f"{self.sources[source].url}:{inside + 1}"

    @staticmethod
    def open(sources: Sequence[Source]) -> ParquetRows:
        """Look at the files' footers.

        Raises InputError for another format, for no rows, for columns of the same name, and for files of different columns.
        """
        import pyarrow.parquet as pq

        schemas, counts = [], []
        for source in sources:
            if source.format != "parquet":
                raise InputError(source.url, f"is {source.format}", wanted="Parquet", remedy="Write the rows as Parquet.")
            with open_source(source.url, buffered=True) as handle, arrow_errors(source.url):
                file = pq.ParquetFile(handle, page_checksum_verification=True)
                schemas.append(file.schema_arrow)
                counts.append(file.metadata.num_rows)
        for source, schema in zip(sources, schemas, strict=True):
            check_names(source.url, schema.names)
            if not schema.equals(schemas[0]):
                found, wanted = _difference(schema, schemas[0])
                wanted = f"{wanted}, as {sources[0].url} has them"
                raise InputError(source.url, found, wanted=wanted, remedy="Write the files with the same columns and types.")
        if not sum(counts):
            raise InputError(urls_of(sources), f"hold{'s' if len(sources) == 1 else ''} no rows", wanted="at least one")
        return ParquetRows(tuple(sources), schemas[0], tuple(counts))

    @staticmethod
    def peek(sources: Sequence[str]) -> ParquetRows:
        """Look at the footers of files that aren't hashed yet, which takes a while. Raises what `resolve_sources` and `open` do."""
        found = []
        for name, url in (each for text in sources for each in expand_source(text)):
            with open_source(url) as handle:
                head = bytes(handle.read(_HEAD_BYTES))
            found.append(Source(name, url, *detect_format(url, head), 0, ""))
        return ParquetRows.open(found)

    def check_free(self, name: str) -> None:
        """Raise InputError where the files have a column of a name that is to be written, unless nothing but nulls is in it."""
        if name in self.schema.names and any(
            part.table.column(name).null_count < part.table.num_rows for part in self.parts([name])
        ):
            found = f"has a column {name}, which would be overwritten"
            raise InputError(self.sources[0].url, found, remedy="Rename it or drop it.")

    def parts(self, columns: Sequence[str] | None = None) -> Iterator[Part]:
        """Yield the rows, with some columns or all; those of small row groups together, since each part costs some milliseconds.

        Raises InputError, and SourceChangedError where a file is written to.
        """
        import pyarrow as pa

        first = 0
        for source in self.sources:
            inside = 1
            for batches in _gathered(iter_parquet(source, paths=columns)):
                table = pa.Table.from_batches(batches)
                yield Part(table if len(batches) == 1 else table.combine_chunks(), source, inside, first)
                inside += table.num_rows
                first += table.num_rows

    def schema_with(self, name: str, kind: pa.DataType) -> pa.Schema:
        """Return the schema with a column added at the end, or in the place of one of the same name."""
        import pyarrow as pa

        field, place = pa.field(name, kind), self.schema.get_field_index(name)
        schema = self.schema.append(field) if place < 0 else self.schema.set(place, field)
        kept = {key: value for key, value in (schema.metadata or {}).items() if key != _OF_DATA_SETS}  # it lists all columns
        return schema.with_metadata(kept or None)


def _gathered(batches: Iterator[RowBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Put neighbouring batches together until they are some megabytes or some thousand rows."""
    held: list[pa.RecordBatch] = []
    held_bytes = held_rows = 0
    for each in batches:
        held.append(each.batch)
        held_bytes += each.batch.nbytes
        held_rows += each.batch.num_rows
        if held_bytes >= _PART_BYTES or held_rows >= _PART_ROWS:
            yield held
            held, held_bytes, held_rows = [], 0, 0
    if held:
        yield held


def urls_of(sources: Sequence[Source]) -> str:
    """Name files in messages."""
    return ", ".join(source.url for source in sources)


def _difference(schema: pa.Schema, first: pa.Schema) -> tuple[str, str]:
    """Say what a schema has that the first hasn't, and the other way round: found, and wanted."""
    more, fewer = _listed(schema, first), _listed(first, schema)
    if more and fewer:
        return f"has columns {more}", fewer
    if more:
        return f"has more columns: {more}", f"{', '.join(first.names)} alone"
    if fewer:
        return f"has no columns {fewer}", ", ".join(first.names)
    return f"has columns in another order, {', '.join(schema.names)}", ", ".join(first.names)


def _listed(schema: pa.Schema, other: pa.Schema) -> str:
    """List the columns of a schema that another has not."""
    alien = [field for field in schema if other.get_field_index(field.name) < 0 or other.field(field.name) != field]
    return ", ".join(f"{field.name} ({field.type}{'' if field.nullable else ' not null'})" for field in alien)


def check_logprobs(
    column: str,
    offsets: npt.NDArray[np.int64],
    values: npt.NDArray[np.float64],
    used: npt.NDArray[np.bool_],
    place: Callable[[int], str],
) -> None:
    """Raise BadRowError for a number above 0 among the logprobs that are used: bool, one a value. Infinite ones drop a datum."""
    above = used & (values > MOST_LOGPROB) & (values < np.inf)
    if above.any():
        wrong = int(np.argmax(above))
        row, position = row_and_position(offsets, wrong)
        found = f"has a {column} of {values[wrong]} at position {position}"
        raise BadRowError(place(row), found, wanted="at most 0", remedy="Turn the sign of negative log-likelihoods.")


@contextmanager
def bad_rows() -> Iterator[None]:
    """Let what is wrong with the values of a file be the file's fault, not that of a setting."""
    try:
        yield
    except SpecError as error:
        raise BadRowError(error.where, error.found, wanted=error.wanted, remedy=error.remedy or "Fix or drop the row.") from None


@contextmanager
def bad_columns(rows: ParquetRows) -> Iterator[None]:
    """Let what is wrong with the columns of files be the files' fault, not that of a setting."""
    try:
        yield
    except SpecError as error:
        url = rows.sources[0].url
        raise InputError(url, f"{error.where} {error.found}", wanted=error.wanted, remedy=error.remedy) from None


class RowStream:
    """Tables that come in one size, taken in another."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables = tables
        self._rest: list[pa.Table] = []

    def take(self, count: int) -> pa.Table:
        """Return the next `count` rows; fewer only at the end."""
        import pyarrow as pa

        rows = sum(table.num_rows for table in self._rest)
        while (rows < count or not self._rest) and (table := next(self._tables, None)) is not None:
            self._rest.append(table)
            rows += table.num_rows
        whole = pa.concat_tables(self._rest)
        self._rest = [whole.slice(count)]
        return whole.slice(0, count)


def stored_tables(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield the rows of a file of the store, a row group at a time, as it was written. Raises CorruptArtifactError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group, columns=None if columns is None else list(columns), use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptArtifactError(str(path), f"can't be decoded ({in_words(error)})", remedy=MAKE_ANEW) from error


@contextmanager
def parquet_writer(path: Path, schema: pa.Schema) -> Iterator[Any]:
    """Open a Parquet file for writing tables, each a row group."""
    import pyarrow.parquet as pq

    with path.open("wb") as handle, pq.ParquetWriter(handle, schema, compression="zstd") as writer:
        yield writer


def logprob_rows(table: pa.Table, column: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Take a column of lists of logprobs: offsets int64 [rows + 1], values float64, NaN for null; a null list has no values."""
    import pyarrow as pa

    check_list_column(table.schema, column)
    offsets, values, _ = ragged_column(table, column)
    return offsets, values.cast(pa.float64()).to_numpy(zero_copy_only=False).astype(np.float64, copy=False)


def list_array(lengths: npt.NDArray[np.int64], values: pa.Array) -> pa.Array:
    """Lay flat values out as lists of these lengths."""
    import pyarrow as pa

    return pa.ListArray.from_arrays(pa.array(offsets_of(lengths).astype(np.int32)), values)
