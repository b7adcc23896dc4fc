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

__all__ = ["iter_parquet"]

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

    with open_source(source.url) as handle, guard_unchanged(source, handle), arrow_errors(source.url):
        file = pq.ParquetFile(handle, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        columns = _columns(file, paths)
        row = 1
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            for batch in file.iter_batches(
                batch_size=_batch_rows(source, file, group, columns, max_row_bytes),
                row_groups=[group],
                columns=None if columns is None else [file.schema.column(number).path for number in columns],
                use_threads=False,
            ):
                for part in cut_batch(batch):
                    share = part.num_rows / max(file.metadata.num_rows, rows, 1)
                    yield RowBatch(part, row, int(source.bytes * share))
                    row += part.num_rows


def _columns(file: pq.ParquetFile, paths: Sequence[str] | None) -> list[int] | None:
    """Numbers of the leaf columns to decode, None for all."""
    if paths is None:
        return None
    leaves = wanted_leaves(file.schema_arrow, paths)
    if len(leaves) == len(file.schema):
        return [number for number, wanted in enumerate(leaves) if wanted]
    names = {path.split(".")[0].removesuffix("[]") for path in paths}
    return [number for number in range(len(file.schema)) if file.schema.column(number).path.split(".")[0] in names]


def _batch_rows(source: Source, file: pq.ParquetFile, group: int, columns: list[int] | None, max_row_bytes: int) -> int:
    metadata = file.metadata.row_group(group)
    chosen = range(metadata.num_columns) if columns is None else columns
    sizes = {number: metadata.column(number).total_uncompressed_size for number in chosen}
    rows = max(metadata.num_rows, 1)
    largest = max(sizes, key=lambda number: sizes[number], default=-1)
    if largest >= 0 and sizes[largest] > rows * (max_row_bytes + _BUFFER_BYTES):
        raise InputError(
            source.url,
            f"row group {group} holds {sizes[largest]:,} bytes of {file.schema.column(largest).path!r} in {rows:,} rows",
            wanted=f"at most {max_row_bytes:,} a row",
            remedy="Write it again without the longest values, or raise max_row_bytes.",
        )
    return max(16, min(BATCH_ROWS, rows * BATCH_BYTES // max(sum(sizes.values()), 1)))
