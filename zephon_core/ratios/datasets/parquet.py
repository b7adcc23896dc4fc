"""Parquet shards: a unit is a row group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zephon_core.errors import InputError
from zephon_core.ratios.datasets.columns import ColumnRows, check_batch
from zephon_core.ratios.datasets.files import OpenFile, Tally
from zephon_core.ratios.datasets.formats import Part, ShardPlace, Survey, open_file
from zephon_core.ratios.datasets.model import LocatedRow
from zephon_core.readers.arrow import arrow_errors
from zephon_core.readers.jsonl import DEFAULT_MAX_ROW_BYTES
from zephon_core.readers.parquet import chosen_columns

__all__ = ["ParquetReader", "open_shard", "probe"]

_BUFFER_BYTES = 1 << 20
_WHOLE_BYTES = 128 << 10
_BATCH_BYTES = 64 << 20
_BATCH_ROWS = 16 << 10


def probe(place: ShardPlace, tally: Tally) -> Survey:
    """Read the footer."""
    import pyarrow.parquet as pq

    with open_file(place, tally) as file, arrow_errors(place.url):
        metadata = pq.read_metadata(file)
        groups = [(group.num_rows, group.total_byte_size) for group in map(metadata.row_group, range(metadata.num_row_groups))]
    # The sizes of single columns would say it better, but pyarrow aborts the process where their records are broken or encrypted.
    if any(rows < 0 for rows, _ in groups):
        raise InputError(place.url, "has a footer with a negative number of rows", remedy="Write the file again.")
    whole = sum(max(size, 1) for _, size in groups)
    parts = tuple(
        Part(0, max(size, 1), max(1, file.size_bytes * max(size, 1) // whole), rows, False) if rows else Part(0, 0, 0, 0, False)
        for rows, size in groups
    )
    return Survey(sum(rows for rows, _ in groups), file.size_bytes, parts)


def open_shard(place: ShardPlace, paths: Sequence[str] | None, tally: Tally) -> ParquetReader:
    """Open a Parquet shard; only leaf columns on the way of the paths are decoded."""
    return ParquetReader(place, paths, tally)


class ParquetReader:
    """Reads row groups. The footer is read once."""

    def __init__(self, place: ShardPlace, paths: Sequence[str] | None, tally: Tally) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._url = place.url
        self._source = OpenFile(place.files[0], tally)
        # Far away, one request a column; here, a page at a time.
        far = not place.files[0].is_local
        with arrow_errors(place.url):
            size = self._source.size_bytes
            small = size <= _WHOLE_BYTES  # in one go: the library reads 64 KiB for the footer alone
            self._file: Any = pq.ParquetFile(
                pa.BufferReader(self._source.range(0, size)) if small else self._source,
                buffer_size=0 if far else _BUFFER_BYTES,
                pre_buffer=far,
                page_checksum_verification=True,
            )
            self._columns = chosen_columns(self._file, paths)

    def read(self, part: int, start: int, size: int) -> ColumnRows:
        """Decode the wanted columns of a row group."""
        with arrow_errors(self._url):
            group = self._file.metadata.row_group(part)
            rows = group.num_rows
            if group.total_byte_size > max(rows, 1) * (DEFAULT_MAX_ROW_BYTES + _BUFFER_BYTES):
                raise InputError(
                    self._url,
                    f"row group {part} holds {group.total_byte_size:,} bytes in {rows:,} rows",
                    wanted=f"at most {DEFAULT_MAX_ROW_BYTES:,} a row",
                    remedy="Write it again without its largest values.",
                )
            step = int(max(16, min(_BATCH_ROWS, _BATCH_BYTES * rows // max(group.total_byte_size, 1))))
            batches = list(self._file.iter_batches(step, row_groups=[part], columns=self._columns, use_threads=False))
            for batch in batches:
                check_batch(batch)
        self._source.check()
        if sum(batch.num_rows for batch in batches) != rows:
            raise InputError(self._url, f"row group {part} doesn't hold the {rows:,} rows that its footer tells")
        return ColumnRows(batches)

    def read_at(self, start: int, size: int, offset: int) -> LocatedRow:
        """Refuse: a row of a row group can't be read alone."""
        raise InputError(self._url, "can't be read at a byte: it is a Parquet file")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._source.close()
