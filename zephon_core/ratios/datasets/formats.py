"""What a format has to offer, and which formats there are.

To add one: a module with `probe` and `open_shard` as described here, an entry in `_MODULES`, and its suffixes in listing.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

from zephon_core.errors import SpecError
from zephon_core.ratios.datasets.files import FoundFile, OpenFile, Tally
from zephon_core.ratios.datasets.model import LocatedRow, LocatedWindow, UnitRows

__all__ = [
    "FORMATS",
    "WHOLE_BYTES",
    "AddressableReader",
    "Part",
    "ShardFormat",
    "ShardPlace",
    "ShardReader",
    "Survey",
    "open_file",
    "shard_format",
]

_MODULES = {
    "arrow": "arrow",
    "jsonl": "jsonl",
    "lance": "lance",
    "litdata": "litdata",
    "mds": "mds",
    "parquet": "parquet",
    "webdataset": "webdataset",
}
FORMATS = tuple(sorted(_MODULES))
WHOLE_BYTES = 128 << 10
"""Parquet and Arrow files of up to so many bytes are read in one go, and once."""


class Part(NamedTuple):
    """One unit of a shard; see `UnitTable`."""

    start: int
    size: int
    stored_bytes: int
    rows: int
    addressable: bool


@dataclass(frozen=True)
class ShardPlace:
    """Where a shard lies, and what a format noted down about it when it was surveyed.

    files: the file, or all files of a Lance fragment. details: JSON-able; part of the shard's identity. where: JSON-able, and not.
    """

    url: str
    format: str
    compression: str
    files: tuple[FoundFile, ...]
    details: Mapping[str, Any] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Survey:
    """What probing a shard brought to light. content_sha256: of a file that was read whole anyway, else "".

    where: goes into `ShardPlace.where`.
    """

    rows: int
    raw_bytes: int
    parts: tuple[Part, ...]
    content_sha256: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)


class ShardReader(Protocol):
    """Reads one shard. It holds files open until it is closed."""

    def read(self, part: int, start: int, size: int, rows: int) -> UnitRows:
        """Read a unit; part, start, size and rows as in the unit table."""

    def read_at(self, start: int, size: int, offset: int) -> LocatedRow:
        """Read the row that holds byte `offset` of the unit at start, start+size; for addressable units only."""

    def close(self) -> None:
        """Close its files."""


class AddressableReader(ShardReader, Protocol):
    """Reads a shard of which units are addressable; start is that of the unit."""

    def abridged_at(self, start: int, offset: int, *, filled: bool) -> LocatedRow | None:
        """See `UnitReader.abridged_at`."""

    def window_at(self, start: int, offset: int, path: tuple[str, ...]) -> LocatedWindow | None:
        """See `UnitReader.window_at`."""


class ShardFormat(Protocol):
    """A module that knows a format."""

    def probe(self, place: ShardPlace, tally: Tally) -> Survey:
        """Find out a shard's rows and units, from a footer or an index if there is one. Raises InputError."""

    def open_shard(self, place: ShardPlace, paths: Sequence[str] | None, tally: Tally) -> ShardReader:
        """Open a shard for reading. paths: field paths whose columns are wanted, None for all. Raises InputError."""


def shard_format(name: str) -> ShardFormat:
    """Return the module of a format. Raises SpecError for a name that none has."""
    if name not in _MODULES:
        raise SpecError("format", f"is {name!r}", wanted=", ".join(FORMATS))
    return cast(ShardFormat, import_module(f"zephon_core.ratios.datasets.{_MODULES[name]}"))


def open_file(place: ShardPlace, tally: Tally, *, readahead_bytes: int = 0, keep: bool = False) -> OpenFile:
    """Open the one file of a shard."""
    return OpenFile(place.files[0], tally, readahead_bytes=readahead_bytes, keep=keep)
