"""Arrow IPC shards, files and streams: a unit is a record batch.

Where batches lie is told by a file's footer, and by walking from message to message in a stream, so no batch is read for it.
A batch of a stream is read as the stream of the schema, the dictionaries before it and itself.

The layout is that of the Arrow columnar format (https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zephon_core.errors import InputError
from zephon_core.ratios.datasets.columns import ColumnRows, check_batch
from zephon_core.ratios.datasets.files import OpenFile, Tally, cut_short
from zephon_core.ratios.datasets.formats import WHOLE_BYTES, Part, ShardPlace, Survey, open_file
from zephon_core.ratios.datasets.model import LocatedRow
from zephon_core.readers.arrow import arrow_errors, read_options

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowReader", "open_shard", "probe"]

_MAGIC = b"ARROW1"
_CONTINUATION = b"\xff\xff\xff\xff"
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_READAHEAD_BYTES = 64 << 10
_LARGEST_HEADER_BYTES = 256 << 20


@dataclass(frozen=True)
class _Message:
    """A message of the IPC format: where it lies, what precedes its body, its kind, and its number of rows (0 if it has none)."""

    start: int
    header: bytes
    body_bytes: int
    kind: int
    rows: int

    @property
    def length(self) -> int:
        return len(self.header) + self.body_bytes

    @property
    def body_start(self) -> int:
        return self.start + len(self.header)


def probe(place: ShardPlace, tally: Tally) -> Survey:
    """Find the record batches and their rows."""
    with open_file(place, tally, readahead_bytes=_READAHEAD_BYTES) as file, _broken_layout(place.url):
        batches = [message for message in _messages(file) if message.kind == _BATCH]
    parts = tuple(
        Part(0, max(1, batch.body_bytes), batch.length, batch.rows, False) if batch.rows else Part(0, 0, 0, 0, False)
        for batch in batches
    )
    return Survey(sum(batch.rows for batch in batches), file.size_bytes, parts)


@contextmanager
def _broken_layout(url: str) -> Iterator[None]:
    """Turn reads beyond a header's end into an InputError."""
    try:
        yield
    except struct.error as error:
        raise InputError(url, f"holds a broken Arrow message ({error})", remedy="Copy or write the file again.") from error


def _messages(file: OpenFile) -> Iterator[_Message]:
    """Yield the messages of a file or a stream, in order; bodies are passed over."""
    head = file.once(0, 8)
    if head.startswith(b"FEA1"):
        raise InputError(file.url, "is a Feather file of version 1", remedy="Write it again as version 2 (Arrow IPC) or Parquet.")
    position = 8 if head.startswith(_MAGIC) else 0
    while position + 4 <= file.size_bytes:
        file.seek(position)
        prefix = file.read(8)
        # Before Arrow 0.15 a length came without the continuation mark.
        mark_bytes = 4 if prefix.startswith(_CONTINUATION) else 0
        (length,) = struct.unpack_from("<i", prefix, mark_bytes)
        if length == 0:
            return
        if not 0 < length <= min(file.size_bytes, _LARGEST_HEADER_BYTES):
            raise InputError(f"{file.url} (byte {position:,})", "is no Arrow message", remedy="Copy or write the file again.")
        file.seek(position + mark_bytes + 4)
        header = file.read(length)
        kind, body_bytes, rows = _read_header(header)
        message = _Message(position, prefix[: mark_bytes + 4] + header, body_bytes, kind, rows)
        position += message.length
        if body_bytes < 0 or rows < 0 or position > file.size_bytes:
            raise cut_short(file.url, file.size_bytes)
        yield message


def _read_header(header: bytes) -> tuple[int, int, int]:
    """Read (kind, body bytes, rows) out of a Message, which is a flatbuffer. Raises struct.error."""
    (table,) = struct.unpack_from("<I", header)
    kind_at, content_at, body_at = (_field(header, table, number) for number in (1, 2, 3))
    kind = struct.unpack_from("<B", header, kind_at)[0] if kind_at else 0
    body_bytes = struct.unpack_from("<q", header, body_at)[0] if body_at else 0
    rows = 0
    if kind == _BATCH and content_at:
        rows_at = _field(header, content_at + struct.unpack_from("<I", header, content_at)[0], 0)
        rows = struct.unpack_from("<q", header, rows_at)[0] if rows_at else 0
    return kind, body_bytes, rows


def _field(buffer: bytes, table: int, number: int) -> int:
    """Return where a flatbuffer table keeps a field, 0 if it has its default value."""
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    slot = 4 + 2 * number
    if vtable < 0 or slot >= struct.unpack_from("<H", buffer, vtable)[0]:
        return 0
    (offset,) = struct.unpack_from("<H", buffer, vtable + slot)
    return table + offset if offset else 0


def open_shard(place: ShardPlace, paths: Sequence[str] | None, tally: Tally) -> ArrowReader:
    """Open an Arrow shard; only columns that the paths begin with are decoded."""
    return ArrowReader(place, paths, tally)


class ArrowReader:
    """Reads record batches."""

    def __init__(self, place: ShardPlace, paths: Sequence[str] | None, tally: Tally) -> None:
        self._url = place.url
        self._paths = paths
        self._file = open_file(place, tally, readahead_bytes=_READAHEAD_BYTES, keep=True)
        self._messages: list[_Message] | None = None
        self._footer: pa.ipc.RecordBatchFileReader | None = None
        if self._file.keeps and self._file.size_bytes <= WHOLE_BYTES:
            self._file.once(0, self._file.size_bytes)

    def read(self, part: int, start: int, size: int, rows: int) -> ColumnRows:
        """Decode the wanted columns of a record batch."""
        with arrow_errors(self._url), _broken_layout(self._url):
            is_file = self._file.once(0, 8).startswith(_MAGIC)
            batch = check_batch(self._from_file(part) if is_file else self._from_stream(part))
        self._file.check()
        return ColumnRows([batch])

    def _from_file(self, part: int) -> pa.RecordBatch:
        import pyarrow as pa

        if self._footer is None:
            schema = pa.ipc.open_file(self._file).schema
            self._file.seek(0)
            self._footer = pa.ipc.open_file(self._file, options=read_options(schema, self._paths))
        return self._footer.get_batch(part)

    def _from_stream(self, part: int) -> pa.RecordBatch:
        import pyarrow as pa

        if self._messages is None:
            self._messages = list(_messages(self._file))
        batches = [message for message in self._messages if message.kind == _BATCH]
        batch = batches[part]
        before = [message for message in self._messages if message.kind in (_SCHEMA, _DICTIONARY) and message.start < batch.start]
        pieces = [message.header + self._file.once(message.body_start, message.body_bytes) for message in before]
        content = b"".join((*pieces, batch.header, self._file.range(batch.body_start, batch.body_bytes)))
        schema = pa.ipc.open_stream(content).schema
        return pa.ipc.open_stream(content, options=read_options(schema, self._paths)).read_next_batch()

    def read_at(self, start: int, size: int, offset: int) -> LocatedRow:
        """Refuse: a row of a record batch can't be read alone."""
        raise InputError(self._url, "can't be read at a byte: it is an Arrow file")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
