"""What a data set is made of: shards, the units that can be read on their own, and their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from zephon_core.readers.rows import RowProblem

__all__ = [
    "BLANK_ROW",
    "LocatedRow",
    "LocatedWindow",
    "Shard",
    "ShardProblem",
    "TextColumn",
    "UnitReader",
    "UnitRows",
    "UnitTable",
    "WholeUnits",
    "good_payloads",
    "payloads_or_problems",
]


class _BlankRow:
    """The payload of an empty line."""

    def __repr__(self) -> str:
        return "BLANK_ROW"

    def __reduce__(self) -> str:
        return "BLANK_ROW"


BLANK_ROW: Final = _BlankRow()
"""The payload of a line that holds nothing but white space: a row of zero tokens, whose bytes are scheduled all the same."""


@dataclass(frozen=True)
class Shard:
    """One file, one chunk of an MDS or LitData set, or one fragment of a Lance table.

    format: jsonl, parquet, arrow, webdataset, mds, litdata or lance. compression: none, gzip or zstd, of the file as a whole.
    rows: -1 where nothing short of reading it all tells. raw_bytes: what the training's loader charges it with: the file's
    size; the decompressed size of compressed JSONL; the index's figure for MDS and LitData. stored_bytes: on the disk or wire.
    identity: 64 hex digits that equal content shares wherever it lies: of the bytes, or of size and etag where they are remote.
    """

    url: str
    format: str
    compression: str
    rows: int
    raw_bytes: int
    stored_bytes: int
    identity: str


@dataclass(frozen=True)
class ShardProblem:
    """A file that can't be read at all, and why.

    transient: a later try may succeed without anyone changing the file (I/O, credentials, a file that went away).
    stored_bytes: its size, 0 if that isn't known either.
    """

    url: str
    reason: str
    transient: bool
    stored_bytes: int


@dataclass(frozen=True)
class UnitTable:
    """Everything that can be read on its own, in canonical order: by shard, then by position in the shard. All are [units].

    shard (int32): index into the data set's shards. part (int32): its number in the shard.
    start (int64): first byte of a JSONL unit in its shard's decompressed bytes, first row of a Parquet unit in its shard, else 0.
    size (int64): weight to draw it by, positive: decoded bytes. For JSONL exactly the bytes of its lines, so that the sizes of
    a shard's units add up to its raw bytes. stored_bytes (int64): what reading it costs off the disk or wire.
    rows (int64): -1 where unknown. addressable (bool): `UnitReader.read_at` works on it.
    """

    shard: NDArray[np.int32]
    part: NDArray[np.int32]
    start: NDArray[np.int64]
    size: NDArray[np.int64]
    stored_bytes: NDArray[np.int64]
    rows: NDArray[np.int64]
    addressable: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.shard)

    @classmethod
    def dtypes(cls) -> dict[str, np.dtype[Any]]:
        """Return the columns' names and dtypes, in order."""
        kinds = {"shard": np.int32, "part": np.int32, "addressable": np.bool_}
        return {field.name: np.dtype(kinds.get(field.name, np.int64)) for field in fields(cls)}


class TextColumn(Protocol):
    """One column of texts, measured without making Python strings.

    lengths: int64 [rows], UTF-8 bytes, 0 for null. is_null: bool [rows].
    """

    @property
    def lengths(self) -> NDArray[np.int64]:
        """UTF-8 bytes of each text: int64 [rows], 0 for null."""

    @property
    def is_null(self) -> NDArray[np.bool_]:
        """Whether there is no text: bool [rows]."""

    def text(self, row: int) -> str:
        """Return one text, "" for null. Raises RowProblem where it is no valid UTF-8."""


class UnitRows(Protocol):
    """The rows of one unit, decoded as far as they are asked for.

    row_bytes: int64 [rows]. JSONL: bytes of each line with its end (their sum is the unit's size). Other formats: content bytes
    (UTF-8 of strings, bytes, buffers of numbers; keys excluded) of the columns that were decoded.
    """

    @property
    def row_bytes(self) -> NDArray[np.int64]:
        """Bytes of each row: int64 [rows]."""

    def payload(self, row: int) -> Any:
        """Return a decoded row: a dictionary, text or bytes; BLANK_ROW for an empty line. Raises RowProblem for a bad row."""

    def payloads(self, rows: Sequence[int]) -> list[Any]:
        """Return many rows at once, a RowProblem in the place of each bad one."""

    def texts(self, path: tuple[str, ...]) -> TextColumn | None:
        """Return the column of texts that a field path leads to, None where there is none."""


@dataclass(frozen=True)
class LocatedRow:
    """The row that holds a given byte of an addressable unit.

    start, length: its place in the unit, in bytes, its line end included. payload: as `UnitRows.payload` gives it, or what is
    wrong with the row.
    """

    start: int
    length: int
    payload: Any


@dataclass(frozen=True)
class LocatedWindow:
    """A cell of a long text in a row that is not read whole, and what stands around it.

    start, length: the row's place in its unit, in bytes. text: the cell is its characters begin to end.
    shared: how many of the row's bytes belong to this cell; each byte of the row belongs to one.
    """

    start: int
    length: int
    text: str
    begin: int
    end: int
    shared: int


class WholeUnits(Protocol):
    """Reads units of one data set, one after the other.

    bytes_read: so far, off the disk or wire.
    """

    @property
    def bytes_read(self) -> int:
        """Bytes read so far, off the disk or wire."""

    def read(self, unit: int) -> UnitRows:
        """Read a whole unit. Raises InputError where it is corrupt, TransientInputError where it can't be reached now."""


class UnitReader(WholeUnits, Protocol):
    """Reads units, and single rows, of one data set; belongs to one thread. Nothing is written to sources or beside them."""

    def read_at(self, unit: int, offset: int) -> LocatedRow:
        """Read the row that holds byte `offset` of an addressable unit, and little else. Raises as `read` does."""

    def abridged_at(self, unit: int, offset: int, *, filled: bool = False) -> LocatedRow | None:
        """Read the row that holds byte `offset` of a unit, but for its long strings; None unless it is known to have some.

        They are empty, then; filled: those that names lead to become others of as many characters. Raises as `read` does.
        """

    def window_at(self, unit: int, offset: int, path: tuple[str, ...]) -> LocatedWindow | None:
        """Read the cell of a long text that byte `offset` of a unit belongs to; None unless the row is known to have one.

        path: of the text; a row that is nothing but a text is that text, whatever the path. Raises as `read` does.
        """


def payloads_or_problems(rows: UnitRows, wanted: Sequence[int]) -> list[Any]:
    """Decode rows one by one; what `UnitRows.payloads` comes down to where a format knows no better way."""
    decoded: list[Any] = []
    for row in wanted:
        try:
            decoded.append(rows.payload(row))
        except RowProblem as problem:
            decoded.append(problem)
    return decoded


def good_payloads(payloads: Sequence[Any]) -> list[Any]:
    """Leave out rows without content, and what stands in the place of bad ones."""
    return [payload for payload in payloads if payload is not BLANK_ROW and not isinstance(payload, RowProblem)]
