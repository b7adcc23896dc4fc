"""Find out what the files of a listing hold: many at once, each failure costing its own file only."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zephon_core.errors import InputError, TransientInputError
from zephon_core.fingerprint import canonical_json, file_sha256, fingerprint
from zephon_core.progress import Progress
from zephon_core.ratios.datasets.containers import container_places
from zephon_core.ratios.datasets.files import FoundFile, OpenFile, Tally, reading
from zephon_core.ratios.datasets.formats import Part, ShardPlace, Survey, shard_format
from zephon_core.ratios.datasets.listing import Listing, has_known_suffix, reason_of
from zephon_core.ratios.datasets.memory import FileMemory
from zephon_core.ratios.datasets.model import Shard, ShardProblem
from zephon_core.readers.sources import detect_format
from zephon_core.store import ArtifactStore

__all__ = ["Surveyed", "survey_listing"]

_SURVEY_VERSION = 4
_HEAD_BYTES = 4096
_NEAR_WORKERS = 8
_FAR_WORKERS = 32
# Hashes of larger files are kept at once, since reading them again would take long.
_LARGE_BYTES = 64 << 20


@dataclass(frozen=True)
class Surveyed:
    """A shard, where it lies, and its units."""

    shard: Shard
    place: ShardPlace
    parts: tuple[Part, ...]


def survey_listing(
    listing: Listing, format: str, store: ArtifactStore, *, workers: int, progress: Progress
) -> tuple[list[Surveyed], list[ShardProblem]]:
    """Survey all shards of a listing on `workers` threads (0: a default), in no particular order, and say which failed and why.

    format: taken for every single file, whatever its name; "" tells by name, else by content.
    """
    places, problems = _places(listing, format)
    surveyed = []
    total = sum(file.bytes for place in places for file in place.files)
    far = any(not file.is_local for place in places for file in place.files)
    threads = workers or (_FAR_WORKERS if far else min(_NEAR_WORKERS, 2 * (os.cpu_count() or 1)))
    surveyor = _Surveyor(store)
    with progress.phase("catalog", total=total, unit="B") as phase, ThreadPoolExecutor(threads) as pool:
        for place, outcome in zip(places, pool.map(surveyor.survey, places), strict=True):
            phase.advance(sum(file.bytes for file in place.files))
            if isinstance(outcome, Surveyed):
                surveyed.append(outcome)
            else:
                problems.append(outcome)
    surveyor.memory.flush()
    return surveyed, problems


def _places(listing: Listing, format: str) -> tuple[list[ShardPlace], list[ShardProblem]]:
    """Say where each shard lies. Single files of no known suffix have no format yet."""
    places = [ShardPlace(file.url, *_format_by_name(file.url, format), (file,)) for file in listing.files]
    problems = []
    for container in listing.containers:
        try:
            places.extend(container_places(container))
        except InputError as error:
            problems.append(_problem(container.url, error, sum(file.bytes for file in container.files)))
    return places, problems


def _format_by_name(url: str, format: str) -> tuple[str, str]:
    """Return (format, compression) as far as the name tells; "" where it doesn't."""
    name = url.lower().split("?")[0]
    compression = "gzip" if name.endswith((".gz", ".gzip", ".tgz")) else "zstd" if name.endswith((".zst", ".zstd")) else "none"
    if format:
        return format, compression
    if name.endswith((".tar", ".tar.gz", ".tgz", ".tar.zst")):
        return "webdataset", compression
    if name.endswith(".arrows"):
        return "arrow", "none"
    return "", ""


def _problem(url: str, error: InputError, stored_bytes: int) -> ShardProblem:
    return ShardProblem(url, reason_of(error, url), isinstance(error, TransientInputError), stored_bytes)


class _Surveyor:
    """Surveys one shard at a time; safe to share between threads."""

    def __init__(self, store: ArtifactStore) -> None:
        self._hashes = store.memo
        self.memory = FileMemory(store.root / "catalogs" / "files")

    def survey(self, place: ShardPlace) -> Surveyed | ShardProblem:
        stored_bytes = sum(file.bytes for file in place.files)
        try:
            return self._survey(place, stored_bytes)
        except InputError as error:
            return _problem(place.url, error, stored_bytes)

    def _survey(self, place: ShardPlace, stored_bytes: int) -> Surveyed:
        if not place.format:
            format, compression = _sniffed(place.files[0])
            place = replace(place, format=format, compression=compression)
        if place.compression != "none" and place.format in ("parquet", "arrow", "webdataset"):
            raise InputError(
                place.url, f"is a {place.format} file compressed as a whole", remedy="Decompress it: its rows can't be reached."
            )
        if place.details:
            survey = _probe(place)
            contents = [self._content(file, self.memory.recall(file)) for file in place.files]
            identity = fingerprint("ratios.shard", 1, contents=contents, details=place.details)
        else:
            survey, identity = self._survey_file(place, place.files[0])
        shard = Shard(place.url, place.format, place.compression, survey.rows, survey.raw_bytes, stored_bytes, identity)
        return Surveyed(shard, replace(place, where={**place.where, **survey.where}), survey.parts)

    def _survey_file(self, place: ShardPlace, file: FoundFile) -> tuple[Survey, str]:
        """Survey a file that is a shard of its own, or recall what an earlier survey told; its content is its identity."""
        kind = [_SURVEY_VERSION, place.format, place.compression]
        known = self.memory.recall(file)
        survey = _recalled(known) if known.get("kind") == kind else None
        if survey is None:
            survey = _probe(place)
            content = survey.content_sha256 or self._content(file, known)
            self.memory.remember(file, {"kind": kind, "sha256": content, "survey": _told(survey)})
            return survey, content
        return survey, str(known["sha256"])

    def _content(self, file: FoundFile, known: Mapping[str, Any]) -> str:
        """Return the SHA-256 of a local file; of (size, etag) of a remote one that has an etag, else of its bytes."""
        if file.etag and not file.is_local:
            return hashlib.sha256(canonical_json([file.bytes, file.etag])).hexdigest()
        if isinstance(known.get("sha256"), str):
            return str(known["sha256"])
        content = self._read_content(file)
        self.memory.remember(file, {**known, "sha256": content})
        return content

    def _read_content(self, file: FoundFile) -> str:
        if file.is_local:
            path = Path(file.url)
            with reading(file.url):
                try:
                    return self._hashes.sha256(path) if file.bytes >= _LARGE_BYTES else file_sha256(path)
                except OSError:  # no room to remember it, or nothing to read: what it is shows now
                    return file_sha256(path)
        digest = hashlib.sha256()
        with OpenFile(file, Tally()) as handle:
            offset = 0
            while chunk := handle.range(offset, 8 << 20):
                digest.update(chunk)
                offset += len(chunk)
        return digest.hexdigest()


def _probe(place: ShardPlace) -> Survey:
    with reading(place.url):
        return shard_format(place.format).probe(place, Tally())


def _sniffed(file: FoundFile) -> tuple[str, str]:
    head = b""
    if not has_known_suffix(file.url):
        with OpenFile(file, Tally()) as handle:
            head = handle.range(0, _HEAD_BYTES)
    return detect_format(file.url, head)


def _told(survey: Survey) -> dict[str, Any]:
    return {
        "rows": survey.rows,
        "raw_bytes": survey.raw_bytes,
        "parts": [list(part) for part in survey.parts],
        "content_sha256": survey.content_sha256,
        "where": dict(survey.where),
    }


def _recalled(known: Mapping[str, Any]) -> Survey | None:
    try:
        survey = known["survey"]
        if not isinstance(known["sha256"], str):
            return None
        parts = tuple(Part(*part) for part in survey["parts"])
        return Survey(survey["rows"], survey["raw_bytes"], parts, survey["content_sha256"], survey["where"])
    except (KeyError, TypeError):
        return None
