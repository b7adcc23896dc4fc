"""A named data set: what it is made of, by content, and a way to read it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from zephon_core.errors import InputError, SourceChangedError, SpecError, TransientInputError
from zephon_core.fingerprint import fingerprint
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.ratios.datasets.catalog import Catalog, load_catalog
from zephon_core.ratios.datasets.files import Allowance, KeptBytes, Tally, reading
from zephon_core.ratios.datasets.formats import AddressableReader, ShardReader, shard_format
from zephon_core.ratios.datasets.listing import is_unchanged, list_files
from zephon_core.ratios.datasets.model import LocatedRow, LocatedWindow, Shard, ShardProblem, UnitReader, UnitRows, UnitTable
from zephon_core.ratios.estimation import check_whole
from zephon_core.store import ArtifactStore

__all__ = ["Dataset"]

_OPEN_SHARDS = 16


class Dataset:
    """A named set of shards in canonical order: by content, so that neither names, paths nor the order of a listing matter.

    name: what the user calls it. fingerprint: 64 hex digits, of the shards' identities and formats and nothing else.
    shards: by identity; equal ones are all kept. problems: files that can't be read at all, which are no shards.
    It can be pickled; a process that unpickles it maps the stored catalog again.
    """

    def __init__(self, name: str, catalog: Catalog) -> None:
        self.name = name
        self._catalog = catalog
        shards = [[shard.format, shard.compression, shard.identity] for shard in catalog.shards]
        self.fingerprint = fingerprint("ratios.dataset", 1, shards=sorted(shards))

    @classmethod
    def from_path(
        cls,
        name: str,
        path: str | Path | Sequence[str | Path],
        *,
        format: str | None = None,
        store: ArtifactStore | str | Path | None = None,
        workers: int = 0,
        progress: Progress = NULL_PROGRESS,
    ) -> Dataset:
        """Find out what lies at a path: a directory (all files of known formats below it), a glob, a URL, or a list of them.

        format: of every single file, whatever its name says; None tells by suffix, else by content.
        store: where the catalog is kept; None: the default store. workers: threads that look at files; 0: a default.
        A file that can't be read becomes a problem of the data set. Raises InputError where there is no file of a known format,
        TransientInputError where the place can't be listed now, MissingExtraError for a format whose package isn't installed.
        """
        if not isinstance(name, str) or not name:
            raise SpecError("name", f"is {name!r}" if name else "is empty", wanted="what to call the data set")
        check_whole("workers", workers, least=0)
        if format is not None:
            shard_format(format)
        listing = list_files(path)
        opened = store if isinstance(store, ArtifactStore) else ArtifactStore(store or "")
        catalog = load_catalog(listing, format or "", opened, workers=workers, progress=progress)
        return cls(name, catalog)

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, {len(self.shards)} shards, {int(self.raw_bytes().sum()):,} raw bytes)"

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All shards that can be read, by identity."""
        return self._catalog.shards

    @property
    def problems(self) -> tuple[ShardProblem, ...]:
        """Files that can't be read at all, by URL."""
        return self._catalog.problems

    @property
    def units(self) -> UnitTable:
        """Everything that can be read on its own."""
        return self._catalog.units

    @property
    def readable_share(self) -> float:
        """The share of the stored bytes that lies in shards, and not in problems; those of unknown size count nothing."""
        stored = sum(shard.stored_bytes for shard in self.shards)
        unread = sum(problem.stored_bytes for problem in self.problems)
        return stored / (stored + unread) if stored + unread else float(bool(self.shards))

    @property
    def formats(self) -> dict[str, int]:
        """How many shards there are of each format, by its name."""
        return dict(sorted(Counter(shard.format for shard in self.shards).items()))

    def ids(self) -> NDArray[np.int64]:
        """Return the shards' ids, 0 and up: int64 [shards]."""
        return np.arange(len(self.shards), dtype=np.int64)

    def counts(self) -> NDArray[np.int64]:
        """Return each shard's rows, -1 where unknown: int64 [shards]."""
        return self._catalog.shard_arrays["rows"]

    def raw_bytes(self) -> NDArray[np.int64]:
        """Return each shard's raw bytes: int64 [shards]."""
        return self._catalog.shard_arrays["raw_bytes"]

    def beside_bytes(self) -> NDArray[np.int64]:
        """Return what a unit of each shard costs to read beside its own bytes, once for all near it, at most: int64 [shards]."""
        return np.array([int(place.where.get("beside_bytes", 0)) for place in self._catalog.places], np.int64)

    def names_in(self, url: str) -> list[str]:
        """Return the names that the first row of a shard has, in alphabetical order; none for a row that isn't a mapping."""
        shard = next((number for number, each in enumerate(self.shards) if each.url == url), -1)
        units = np.flatnonzero(self.units.shard == shard)
        if not len(units):
            return []
        with self.open() as reader:
            rows = reader.read(int(units[0]))
            payloads = rows.payloads([0]) if len(rows.row_bytes) else []
        return sorted(str(name) for payload in payloads if isinstance(payload, Mapping) for name in payload)

    @contextmanager
    def open(
        self, paths: Sequence[str] | None = None, *, kept: KeptBytes | None = None, allowance: Allowance | None = None
    ) -> Iterator[UnitReader]:
        """Open the data set for reading by one thread.

        paths: field paths (`text`, `messages[].content`); only columns on their way are decoded. None: all.
        kept: what readers that are open at the same time needn't read again; allowance: what they may read together, but for Lance,
        whose library reads by itself.
        """
        reader = _DatasetReader(self._catalog, paths, Tally(kept, allowance))
        try:
            yield reader
        finally:
            reader.close()


class _DatasetReader:
    """Reads units, and keeps the shards that it read last open."""

    def __init__(self, catalog: Catalog, paths: Sequence[str] | None, tally: Tally) -> None:
        self._catalog = catalog
        self._paths = None if paths is None else tuple(paths)
        self._tally = tally
        self._open: OrderedDict[int, ShardReader] = OrderedDict()

    @property
    def bytes_read(self) -> int:
        """Bytes read so far, off the disk or wire."""
        return self._tally.bytes_read

    def read(self, unit: int) -> UnitRows:
        """See `UnitReader.read`."""
        units = self._catalog.units
        shard = int(units.shard[unit])
        with self._reading(shard):
            numbers = (units.part, units.start, units.size, units.rows)
            return self._shard(shard).read(*(int(column[unit]) for column in numbers))

    def read_at(self, unit: int, offset: int) -> LocatedRow:
        """See `UnitReader.read_at`."""
        units = self._catalog.units
        number = int(units.shard[unit])
        if not units.addressable[unit]:
            shard = self._catalog.shards[number]
            raise InputError(shard.url, f"can't be read at a byte: it is {shard.format}, compression {shard.compression}")
        with self._reading(number):
            return self._shard(number).read_at(int(units.start[unit]), int(units.size[unit]), offset)

    def abridged_at(self, unit: int, offset: int, *, filled: bool = False) -> LocatedRow | None:
        """See `UnitReader.abridged_at`."""
        if not self._catalog.units.addressable[unit]:
            return None
        with self._addressed(unit) as (reader, start):
            return reader.abridged_at(start, offset, filled=filled)

    def window_at(self, unit: int, offset: int, path: tuple[str, ...]) -> LocatedWindow | None:
        """See `UnitReader.window_at`."""
        if not self._catalog.units.addressable[unit]:
            return None
        with self._addressed(unit) as (reader, start):
            return reader.window_at(start, offset, path)

    @contextmanager
    def _addressed(self, unit: int) -> Iterator[tuple[AddressableReader, int]]:
        units = self._catalog.units
        shard = int(units.shard[unit])
        with self._reading(shard):
            yield cast(AddressableReader, self._shard(shard)), int(units.start[unit])

    @contextmanager
    def _reading(self, shard: int) -> Iterator[None]:
        """Name the shard in what goes wrong; what is wrong with a file that was changed meanwhile may be right again later."""
        url = self._catalog.shards[shard].url
        try:
            with reading(url):
                yield
        except TransientInputError:
            raise
        except InputError as error:
            if all(map(is_unchanged, self._catalog.places[shard].files)):
                raise
            raise SourceChangedError(url, "is not what the catalog says") from error

    def _shard(self, number: int) -> ShardReader:
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        place = self._catalog.places[number]
        opened = shard_format(place.format).open_shard(place, self._paths, self._tally)
        self._open[number] = opened
        if len(self._open) > _OPEN_SHARDS:
            self._open.popitem(last=False)[1].close()
        return opened

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()
