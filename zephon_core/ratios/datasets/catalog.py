"""The catalog of a data set: its shards and units, found out once and attached by later processes without opening a shard.

    <store>/catalogs/<key>/catalog.json    shards, problems, and a checksum of every array; written before the folder gets its name
    <store>/catalogs/<key>/<array>.npy     one array for each column of shards and units, mapped into memory when attached
    <store>/catalogs/files/                what looking at each file told, remembered while the file stays as it is

The key is the identity of the files as they lie there now: URLs, sizes, times and inodes, etags of remote ones.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from zephon_core.atomic import fsync_file, publish_directory, remove_tree, write_bytes
from zephon_core.errors import MissingArtifactError
from zephon_core.progress import Progress
from zephon_core.ratios.datasets.files import FoundFile
from zephon_core.ratios.datasets.formats import ShardPlace
from zephon_core.ratios.datasets.listing import Listing
from zephon_core.ratios.datasets.model import Shard, ShardProblem, UnitTable
from zephon_core.ratios.datasets.survey import Surveyed, survey_listing
from zephon_core.store import ArtifactStore

__all__ = ["Catalog", "build_catalog", "load_catalog"]

_FORMAT = 3
_SETTLING_NS = 2_000_000_000
_RETRY_S = 60
_SHARD_ARRAYS = ("rows", "raw_bytes", "stored_bytes")


@dataclass(frozen=True)
class Catalog:
    """Shards in canonical order, the units in them, and what could not be read.

    places: as many as shards, and where they lie. shard_arrays: int64 [shards] by name.
    directory: where it is stored for good, None if it isn't.
    """

    shards: tuple[Shard, ...]
    places: tuple[ShardPlace, ...]
    problems: tuple[ShardProblem, ...]
    shard_arrays: Mapping[str, NDArray[np.int64]]
    units: UnitTable
    directory: Path | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a stored catalog as the place where it is stored."""
        return (_attach_again, (self.directory,)) if self.directory else (Catalog, tuple(vars(self).values()))


def load_catalog(listing: Listing, format: str, store: ArtifactStore, *, workers: int, progress: Progress) -> Catalog:
    """Attach the stored catalog of a listing, else build and store it; of many callers at once, one builds.

    It is kept in memory only where a file was written to within the last two seconds, or changes in ways that can't be told,
    and where the store can't be written to. One with failures that may pass is good for a minute.
    """
    key = listing.key(format)
    directory = store.root / "catalogs" / key
    if key and (attached := attach_catalog(directory)):
        return attached
    settled = bool(key) and listing.newest_ns() + _SETTLING_NS < time.time_ns()
    with ExitStack() as held:
        if settled:
            try:
                held.enter_context(store.lease(f"catalog-{key}", progress))
            except OSError as error:
                progress.note(f"{store.root} can't be written to ({error.strerror}); the catalog is kept in memory")
                settled = False
            if attached := attach_catalog(directory):
                return attached
        catalog = build_catalog(listing, format, store, workers=workers, progress=progress)
        if not settled:
            return catalog
        try:
            store_catalog(catalog, directory)
        except OSError as error:
            progress.note(f"the catalog can't be stored in {directory} ({error.strerror}); it is kept in memory")
            return catalog
        return attach_catalog(directory) or catalog


def build_catalog(listing: Listing, format: str, store: ArtifactStore, *, workers: int, progress: Progress) -> Catalog:
    """Survey every file of a listing, and put shards and units into canonical order."""
    surveyed, problems = survey_listing(listing, format, store, workers=workers, progress=progress)
    surveyed = sorted(surveyed, key=lambda each: (each.shard.identity, each.shard.url))
    shards = tuple(each.shard for each in surveyed)
    arrays = {name: np.array([getattr(shard, name) for shard in shards], np.int64) for name in _SHARD_ARRAYS}
    problems = sorted((*problems, *listing.problems), key=lambda problem: problem.url)
    return Catalog(shards, tuple(each.place for each in surveyed), tuple(problems), arrays, _unit_table(surveyed))


def _unit_table(surveyed: Sequence[Surveyed]) -> UnitTable:
    rows = [
        (number, part_number, part.start, part.size, part.stored_bytes, part.rows, part.addressable)
        for number, each in enumerate(surveyed)
        for part_number, part in enumerate(each.parts)
        if part.size > 0
    ]
    columns = zip(*rows, strict=True) if rows else ([] for _ in UnitTable.dtypes())
    return UnitTable(*(np.array(column, dtype) for column, dtype in zip(columns, UnitTable.dtypes().values(), strict=True)))


def store_catalog(catalog: Catalog, directory: Path) -> None:
    """Write a catalog, whole or not at all; to be called under its lease. Raises OSError."""
    for left in directory.parent.glob(f"{directory.name}.*.partial"):  # by a process that was killed
        remove_tree(left)
    partial = directory.with_name(f"{directory.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    partial.mkdir(parents=True)
    try:
        arrays = {}
        for name, array in _arrays(catalog):
            path = partial / f"{name}.npy"
            np.save(path, array)
            fsync_file(path)
            arrays[name] = _checksum(path)
        document = {
            "format": _FORMAT,
            "key": directory.name,
            "shards": [[shard.url, shard.format, shard.compression, shard.identity] for shard in catalog.shards],
            "places": [
                [[[file.url, file.bytes, file.stamp, file.etag] for file in place.files], dict(place.details), dict(place.where)]
                for place in catalog.places
            ],
            "problems": [asdict(problem) for problem in catalog.problems],
            "arrays": arrays,
            "good_until": int(time.time()) + _RETRY_S if _may_change(catalog.problems) else None,
        }
        document["checksum"] = _document_checksum(document)
        write_bytes(partial / "catalog.json", _compact(document))
        publish_directory(partial, directory)
    finally:
        remove_tree(partial)


def attach_catalog(directory: Path) -> Catalog | None:
    """Map a stored catalog; None where it is absent, out of date, broken, of another version, or another's."""
    try:
        document = json.loads((directory / "catalog.json").read_bytes())
        if document["format"] != _FORMAT or document["key"] != directory.name:
            return None
        if document.pop("checksum") != _document_checksum(document):
            return None
        if document["good_until"] is not None and document["good_until"] < time.time():
            return None
        arrays = {name: _attach(directory / f"{name}.npy", checksum) for name, checksum in document["arrays"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    numbers = {name: arrays[f"shard_{name}"] for name in _SHARD_ARRAYS}
    rows = zip(document["shards"], *(numbers[name].tolist() for name in _SHARD_ARRAYS), strict=True)
    shards = tuple(
        Shard(url, format, compression, lines, raw_bytes, stored_bytes, identity)
        for (url, format, compression, identity), lines, raw_bytes, stored_bytes in rows
    )
    places = tuple(
        ShardPlace(shard.url, shard.format, shard.compression, tuple(FoundFile(*file) for file in files), details, where)
        for shard, (files, details, where) in zip(shards, document["places"], strict=True)
    )
    problems = tuple(ShardProblem(**problem) for problem in document["problems"])
    units = UnitTable(**{name: arrays[f"unit_{name}"] for name in UnitTable.dtypes()})
    return Catalog(shards, places, problems, numbers, units, None if _may_change(problems) else directory)


def _may_change(problems: Iterable[ShardProblem]) -> bool:
    return any(problem.transient for problem in problems)


def _attach_again(directory: Path) -> Catalog:
    catalog = attach_catalog(directory)
    if catalog is None:
        raise MissingArtifactError(str(directory), "holds no catalog any more", remedy="Open the data set again.")
    return catalog


def _arrays(catalog: Catalog) -> Iterator[tuple[str, NDArray[Any]]]:
    for name in _SHARD_ARRAYS:
        yield f"shard_{name}", catalog.shard_arrays[name]
    for name in UnitTable.dtypes():
        yield f"unit_{name}", getattr(catalog.units, name)


def _attach(path: Path, checksum: str) -> NDArray[Any]:
    if _checksum(path) != checksum:
        raise ValueError(f"{path} has another checksum")
    array: NDArray[Any] = np.load(path, mmap_mode="r")
    return array


def _checksum(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as handle:
        while chunk := handle.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _document_checksum(document: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(_compact(document))


def _compact(document: Mapping[str, Any]) -> bytes:
    # Escaped, since names of files need not be valid UTF-8.
    return json.dumps(document, ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode()
