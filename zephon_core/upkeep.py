"""Keep a store in order: list it, throw away what nobody needs, move artifacts to and from other places."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from zephon_core.atomic import publish_directory, remove_tree, temporary_name
from zephon_core.errors import CorruptArtifactError, InputError, MissingArtifactError, SpecError
from zephon_core.fingerprint import file_sha256
from zephon_core.locks import is_held
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.readers.sources import file_system, transport_errors, transport_words
from zephon_core.store import RECORD_NAME, ArtifactRecord, ArtifactRef, ArtifactStore, discard

__all__ = ["Entry", "list_entries", "pull", "push", "resolve", "sweep"]

_NOT_KINDS = {"catalogs", "leases", "memo", "published", "remote"}


@dataclass(frozen=True)
class Entry:
    """Something in a store: a finished artifact, unfinished work, or a directory that fails its check.

    state: "finished", "in work", "interrupted" or "damaged". created_s: seconds since the epoch.
    """

    kind: str
    fingerprint: str
    path: Path
    state: str
    bytes: int
    created_s: float
    inputs: tuple[str, ...]
    published: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the entry as plain values."""
        return {**vars(self), "path": str(self.path), "inputs": list(self.inputs), "published": list(self.published)}


def list_entries(store: ArtifactStore) -> list[Entry]:
    """Return all that lies in a store, by kind and then from old to new."""
    published = _published(store)
    entries = [
        _entry(store, folder, published)
        for kind in sorted(_folders(store.root))
        if kind.name not in _NOT_KINDS
        for folder in _folders(kind)
        if ".doomed-" not in folder.name and not folder.name.startswith(".")
    ]
    return sorted(entries, key=lambda entry: (entry.kind, entry.created_s))


def _folders(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (child for child in path.iterdir() if child.is_dir())


def _entry(store: ArtifactStore, folder: Path, published: dict[str, tuple[str, ...]]) -> Entry:
    kind, fingerprint = folder.parent.name, folder.name.removesuffix(".partial")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    created_s = folder.stat().st_mtime
    inputs: tuple[str, ...] = ()
    if folder.name.endswith(".partial"):
        leases = store.lease_path(f"{kind}-{fingerprint}").parent.glob(f"{kind}-{fingerprint}*.lease")
        state = "in work" if any(is_held(path) for path in leases) else "interrupted"
    elif store.find(kind, fingerprint):
        record = ArtifactRecord.read(folder)
        state, created_s = "finished", datetime.fromisoformat(record.created).timestamp()
        inputs = tuple(record.inputs.values())
    else:
        state = "damaged"
    return Entry(kind, fingerprint, folder, state, size, created_s, inputs, published.get(f"{kind}-{fingerprint}", ()))


def _published(store: ArtifactStore) -> dict[str, tuple[str, ...]]:
    """Where each artifact was published, as far as those places still stand."""
    places: dict[str, list[str]] = {}
    for path in sorted((store.root / "published").glob("*.json")):
        note = json.loads(path.read_bytes())
        if Path(note["output"]).exists():
            places.setdefault(f"{note['kind']}-{note['fingerprint']}", []).append(note["output"])
    return {key: tuple(outputs) for key, outputs in places.items()}


def resolve(store: ArtifactStore, name: str) -> ArtifactRef:
    """Return the one finished artifact that `name` means: a key, a fingerprint, or the beginning of either. Raises SpecError."""
    found = [
        entry
        for entry in list_entries(store)
        if entry.state == "finished"
        and (entry.fingerprint.startswith(name) or f"{entry.kind}-{entry.fingerprint}".startswith(name))
    ]
    if len(found) != 1:
        raise SpecError(
            name, f"means {len(found)} artifacts in {store.root}", wanted="one", remedy="`zephon-flows store list` shows them."
        )
    return ArtifactRef(kind=found[0].kind, fingerprint=found[0].fingerprint, url=str(found[0].path))


def sweep(
    store: ArtifactStore, *, older_than_s: float, keep_bytes: int | None = None, dry_run: bool = True, now_s: float | None = None
) -> list[Entry]:
    """Choose what nobody needs, oldest first, and unless `dry_run` remove it; return what was chosen.

    older_than_s: nothing younger is chosen. keep_bytes: stop choosing once the rest fits into so many bytes; None chooses all.
    Never chosen: work that somebody holds a lease on, an artifact that is published somewhere, and what either was made from.
    """
    entries = list_entries(store)
    now_s = time.time() if now_s is None else now_s
    kept = _reachable(entries)
    candidates = [e for e in entries if e.fingerprint not in kept and e.state != "in work" and now_s - e.created_s >= older_than_s]
    left_bytes = sum(entry.bytes for entry in entries)
    chosen = []
    for entry in sorted(candidates, key=lambda entry: entry.created_s):
        if keep_bytes is not None and left_bytes <= keep_bytes:
            break
        chosen.append(entry)
        left_bytes -= entry.bytes
    if not dry_run:
        for entry in chosen:
            discard(entry.path)
    return chosen


def _reachable(entries: Sequence[Entry]) -> set[str]:
    """Fingerprints of what is published or in work, and of all that it was made from."""
    inputs = {entry.fingerprint: entry.inputs for entry in entries}
    queue = [entry.fingerprint for entry in entries if entry.published or entry.state == "in work"]
    for entry in entries:
        if entry.state == "in work":
            recipe = entry.path / "recipe.json"
            queue.extend(json.loads(recipe.read_bytes())["inputs"].values() if recipe.exists() else ())
    kept: set[str] = set()
    while queue:
        fingerprint = queue.pop()
        if fingerprint not in kept:
            kept.add(fingerprint)
            queue.extend(inputs.get(fingerprint, ()))
    return kept


def push(store: ArtifactStore, ref: ArtifactRef, url: str, *, progress: Progress = NULL_PROGRESS) -> str:
    """Copy a finished artifact to an fsspec URL, its record last; return where it lies there.

    What is there already under this fingerprint is left alone. Raises InputError where the place can't be reached.
    """
    filesystem, root = file_system(url)
    target = f"{root.rstrip('/')}/{ref.kind}/{ref.fingerprint}"
    try:
        if filesystem.exists(f"{target}/{RECORD_NAME}"):
            return str(filesystem.unstrip_protocol(target))
        _put(store, ref, filesystem, target, progress)
    except transport_errors() as error:
        raise InputError(url, f"can't be pushed to ({transport_words(error)})") from error
    return str(filesystem.unstrip_protocol(target))


def _put(store: ArtifactStore, ref: ArtifactRef, filesystem: Any, target: str, progress: Progress) -> None:
    record = store.record(ref)
    with progress.phase("push", total=sum(file.bytes for file in record.files.values()), unit="B") as phase:
        for name, file in record.files.items():
            filesystem.makedirs(f"{target}/{name}".rpartition("/")[0], exist_ok=True)
            filesystem.put_file(str(ref.path / name), f"{target}/{name}")
            phase.advance(file.bytes)
    filesystem.put_file(str(ref.path / RECORD_NAME), f"{target}/{RECORD_NAME}")


def pull(store: ArtifactStore, url: str, *, progress: Progress = NULL_PROGRESS) -> ArtifactRef:
    """Copy an artifact from an fsspec URL into a store, check every file's SHA-256, and return its reference.

    Raises InputError where no artifact lies there or the place can't be reached, CorruptArtifactError for a file that came out
    otherwise.
    """
    filesystem, root = file_system(url.rstrip("/"))
    try:
        content = filesystem.cat_file(f"{root}/{RECORD_NAME}")
    except FileNotFoundError:
        raise InputError(url, "holds no artifact", wanted=RECORD_NAME) from None
    except transport_errors() as error:
        raise InputError(url, f"can't be read ({transport_words(error)})") from error
    store.root.mkdir(parents=True, exist_ok=True)
    staging = temporary_name(store.root / "pull")
    staging.mkdir()
    try:
        (staging / RECORD_NAME).write_bytes(content)
        record = ArtifactRecord.read(staging)
        if found := store.find(record.kind, record.fingerprint):
            return found
        with progress.phase("pull", total=sum(file.bytes for file in record.files.values()), unit="B") as phase:
            for name, file in record.files.items():
                (staging / name).parent.mkdir(parents=True, exist_ok=True)
                filesystem.get_file(f"{root}/{name}", str(staging / name))
                if file_sha256(staging / name) != file.sha256:
                    raise CorruptArtifactError(f"{url}/{name}", "came out with another SHA-256", wanted=file.sha256)
                (staging / name).chmod(0o444)
                phase.advance(file.bytes)
        target = store.directory(record.kind, record.fingerprint)
        target.parent.mkdir(parents=True, exist_ok=True)
        publish_directory(staging, target)
    except FileNotFoundError as error:
        raise MissingArtifactError(url, f"lacks a file its record names ({error})") from None
    except transport_errors() as error:
        raise InputError(url, f"can't be pulled ({transport_words(error)})") from error
    finally:
        remove_tree(staging)
    return ArtifactRef(kind=record.kind, fingerprint=record.fingerprint, url=str(target))
