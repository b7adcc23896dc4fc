"""Record batches of Parquet files, row group by row group, page by page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from zephon_core.errors import InputError
from zephon_core.readers.arrow import BATCH_BYTES, BATCH_ROWS, RowBatch, arrow_errors, cut_batch, wanted_leaves
from zephon_core.readers.jsonl import DEFAULT_MAX_ROW_BYTES
from zephon_core.readers.sources import Source, open_source
from zephon_core.readers.streams import guard_unchanged

if TYPE_CHECKING:
    import pyarrow.parquet as pq

__all__ = ["chosen_columns", "iter_parquet"]

_BUFFER_BYTES = 1 << 20


def iter_parquet(
    source: Source, *, paths: Sequence[str] | None = None, max_row_bytes: int = DEFAULT_MAX_ROW_BYTES
) -> Iterator[RowBatch]:
    """Yield the rows of a Parquet file, a few megabytes at a time.

    paths: field paths (`query`, `candidates[].text`); only the leaf columns on their way are decoded. None: all.
    Memory is bounded by pages, not by row groups. Raises InputError for a file that is corrupt, encrypted or cut short, and
    for one whose rows are longer than `max_row_bytes` on average, which can't be read without holding them.
    """
    import pyarrow.parquet as pq

    with open_source(source.url, buffered=True) as handle, guard_unchanged(source, handle), arrow_errors(source.url):
        file = pq.ParquetFile(handle, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True)
        names = chosen_columns(file, paths)
        row = 1
        decoded_bytes = 0
        for group in range(file.num_row_groups):
            rows = _batch_rows(source, file.metadata.row_group(group), group, decoded_bytes / row, max_row_bytes)
            for batch in file.iter_batches(rows, row_groups=[group], columns=names, use_threads=False):
                decoded_bytes += batch.nbytes
                share = source.bytes / max(file.metadata.num_rows, 1)
                for part in cut_batch(batch):
                    yield RowBatch(part, row, int(part.num_rows * share))
                    row += part.num_rows


def chosen_columns(file: pq.ParquetFile, paths: Sequence[str] | None) -> list[str] | None:
    """Name the leaf columns that lie on the way of field paths, None for all."""
    if paths is None:
        return None
    leaves = wanted_leaves(file.schema_arrow, paths)
    schema = file.schema
    columns = [schema.column(number).path for number in range(len(schema))]
    if len(leaves) == len(schema):
        return [column for column, wanted in zip(columns, leaves, strict=True) if wanted]
    names = {path.split(".")[0].removesuffix("[]") for path in paths}
    return [column for column in columns if column.split(".")[0] in names]


def _batch_rows(source: Source, group: pq.RowGroupMetaData, number: int, known_row_bytes: float, max_row_bytes: int) -> int:
    """Choose how many rows to decode at once: by what rows took so far, at first by what all columns take.

    The sizes of single columns would say it better, but pyarrow aborts the process where their records are broken or encrypted.
    """
    rows = max(group.num_rows, 1)
    if group.total_byte_size > rows * (max_row_bytes + _BUFFER_BYTES):
        raise InputError(
            source.url,
            f"row group {number} holds {group.total_byte_size:,} bytes in {rows:,} rows",
            wanted=f"at most {max_row_bytes:,} a row",
            remedy="Write it again without its largest values, or raise max_row_bytes.",
        )
    row_bytes = known_row_bytes or group.total_byte_size / rows
    return int(max(16, min(BATCH_ROWS, BATCH_BYTES / max(row_bytes, 1))))
