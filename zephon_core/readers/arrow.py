"""Record batches of Arrow IPC files, streams and Feather files, and what Arrow and Parquet readers share.

Batches are checked structurally before anyone looks at their buffers; text is not: a caller meets invalid UTF-8 row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from zephon_core.errors import InputError
from zephon_core.readers.sources import Source, open_source
from zephon_core.readers.streams import guard_unchanged

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RowBatch", "arrow_errors", "cut_batch", "iter_arrow", "read_options", "wanted_leaves"]

BATCH_BYTES = 8 << 20
BATCH_ROWS = 4096


@dataclass(frozen=True)
class RowBatch:
    """Some rows of a columnar source, with the columns asked for.

    first_row: number of the first row, from 1. stored_bytes: the batch's share of the source as stored.
    """

    batch: pa.RecordBatch
    first_row: int
    stored_bytes: int


def iter_arrow(source: Source, *, paths: Sequence[str] | None = None) -> Iterator[RowBatch]:
    """Yield the rows of an IPC file, IPC stream or Feather file, a few megabytes at a time.

    paths: field paths (`query`, `candidates[].text`); only the columns that they begin with are read. None: all.
    A record batch is held whole while it is cut up. Raises InputError for a source that is corrupt or cut short.
    """
    with open_source(source.url, buffered=True) as handle, guard_unchanged(source, handle), arrow_errors(source.url):
        row = 1
        for batch, stored_bytes in _record_batches(source, handle, paths):
            for part in cut_batch(batch):
                yield RowBatch(part, row, stored_bytes * part.num_rows // max(batch.num_rows, 1))
                row += part.num_rows


def _record_batches(source: Source, handle: BinaryIO, paths: Sequence[str] | None) -> Iterator[tuple[pa.RecordBatch, int]]:
    import pyarrow as pa

    magic = bytes(handle.read(6))
    handle.seek(0)
    if magic.startswith(b"FEA1"):
        raise InputError(source.url, "is a Feather file of version 1", remedy="Write it again as version 2 (Arrow IPC) or Parquet.")
    if magic == b"ARROW1":
        schema = pa.ipc.open_file(handle).schema
        handle.seek(0)
        reader = pa.ipc.open_file(handle, options=read_options(schema, paths))
        for number in range(reader.num_record_batches):
            yield _checked(reader.get_batch(number)), source.bytes // reader.num_record_batches
        return
    schema = pa.ipc.open_stream(handle).schema
    handle.seek(0)
    stored_bytes = 0
    for batch in pa.ipc.open_stream(handle, options=read_options(schema, paths)):
        position = handle.tell()
        yield _checked(batch), position - stored_bytes
        stored_bytes = position


def read_options(schema: pa.Schema, paths: Sequence[str] | None) -> pa.ipc.IpcReadOptions:
    """Have only those columns read that field paths begin with; None: all."""
    import pyarrow as pa

    if paths is None:
        return pa.ipc.IpcReadOptions()
    names = {path.split(".")[0].removesuffix("[]") for path in paths}
    included = [number for number, name in enumerate(schema.names) if name in names]
    # An empty list would mean all columns.
    return pa.ipc.IpcReadOptions(included_fields=included or [0] if len(schema) else [])


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Check buffer sizes and last offsets: cheap, and what lies between is checked where it is used."""
    batch.validate()
    return batch


@contextmanager
def arrow_errors(url: str) -> Iterator[None]:
    """Turn whatever pyarrow raises for broken data into an InputError of one line."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        words = " ".join(str(error).split())
        found = f"can't be decoded ({words[:200]})" if words else f"can't be decoded ({type(error).__name__})"
        raise InputError(url, found, remedy="Copy or write the file again.") from error


def cut_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch into pieces of about BATCH_BYTES and at most BATCH_ROWS rows, without copying."""
    rows = batch.num_rows
    step = max(1, min(BATCH_ROWS, rows * BATCH_BYTES // max(batch.nbytes, 1)))
    for start in range(0, rows, step):
        yield batch.slice(start, step)


def wanted_leaves(schema: pa.Schema, paths: Sequence[str]) -> list[bool]:
    """Tell for every leaf column of a schema, depth first, whether a field path leads to it, through it or past it."""
    steps = [tuple(name.removesuffix("[]") for name in path.split(".")) for path in paths]
    chosen: list[bool] = []
    for column in schema:
        _choose(column.type, _below(steps, column.name), chosen.append)
    return chosen


def _below(steps: list[tuple[str, ...]], name: str) -> list[tuple[str, ...]]:
    return [step[1:] for step in steps if step and step[0] == name] + [step for step in steps if not step]


def _choose(kind: Any, steps: list[tuple[str, ...]], choose: Callable[[bool], None]) -> None:
    import pyarrow as pa
    from pyarrow import types

    if isinstance(kind, pa.BaseExtensionType):
        _choose(kind.storage_type, steps, choose)
    elif types.is_struct(kind):
        for child in kind:
            _choose(child.type, _below(steps, child.name), choose)
    elif types.is_map(kind):
        _choose(kind.key_type, steps, choose)
        _choose(kind.item_type, steps, choose)
    elif types.is_nested(kind) and kind.num_fields == 1:
        _choose(kind.field(0).type, steps, choose)
    else:
        choose(bool(steps))
