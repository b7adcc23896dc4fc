"""Every step's result is an artifact: an immutable directory under its kind and fingerprint.

    <store>/<kind>/<fingerprint>/            finished; artifact.json, written last, says what it holds
    <store>/<kind>/<fingerprint>.partial/    in work or interrupted; recipe.json says what it will be
    <store>/leases/                          who is working on what
    <store>/published/                       which artifacts were published where

A finished artifact appears by one rename after its files are on the device, so a reader sees all of it or none. What is
interrupted stays as a partial directory, and the next run of the same recipe finishes it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from zephon_core.atomic import fsync_directory, fsync_file, is_temporary, publish_directory, remove_tree, write_json
from zephon_core.errors import CorruptArtifactError, MismatchError, MissingArtifactError, SpecError
from zephon_core.fingerprint import FileMemo, canonical_json, file_sha256, fingerprint
from zephon_core.locks import Lease, LeaseOwner
from zephon_core.progress import NULL_PROGRESS, Progress

__all__ = [
    "ArtifactRecord",
    "ArtifactRef",
    "ArtifactStore",
    "Built",
    "FileRecord",
    "Recipe",
    "build_in_order",
    "clear_partial",
    "default_store_root",
    "package_versions",
]

RECORD_NAME = "artifact.json"
RECIPE_NAME = "recipe.json"
RECORD_FORMAT = 1
_COPY_BYTES = 16 << 20


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ArtifactRef(_Frozen):
    """A small, portable name of a finished artifact; what Prefect persists in place of data."""

    kind: str
    fingerprint: str
    url: str

    @property
    def key(self) -> str:
        """The artifact's name as one word: `<kind>-<fingerprint>`."""
        return f"{self.kind}-{self.fingerprint}"

    @property
    def path(self) -> Path:
        """The artifact's directory."""
        return Path(self.url)


class FileRecord(_Frozen):
    """A file's size in bytes and the SHA-256 of its content, 64 hex digits."""

    bytes: int
    sha256: str


class ArtifactRecord(_Frozen):
    """What artifact.json says."""

    format: int = RECORD_FORMAT
    kind: str
    fingerprint: str
    inputs: dict[str, str] = Field(description="fingerprints of the artifacts and sources this was made from")
    spec: dict[str, Any] = Field(description="the options that decided the result")
    files: dict[str, FileRecord]
    statistics: dict[str, Any]
    versions: dict[str, str]
    created: str
    seconds: float

    @classmethod
    def read(cls, directory: Path) -> ArtifactRecord:
        """Read a directory's record. Raises MissingArtifactError or CorruptArtifactError."""
        path = directory / RECORD_NAME
        try:
            record = cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise MissingArtifactError(str(directory), "holds no artifact", wanted=f"a directory with {RECORD_NAME}") from None
        except (OSError, ValueError) as error:
            raise CorruptArtifactError(
                str(path), f"can't be read ({_first_line(error)})", remedy="Delete the directory."
            ) from error
        if record.format > RECORD_FORMAT:
            raise CorruptArtifactError(
                str(path), f"has format {record.format}", wanted=f"at most {RECORD_FORMAT}", remedy="Upgrade zephon-flows."
            )
        return record


@dataclass(frozen=True)
class Recipe:
    """What an artifact will be: its kind and fingerprint, and for people the inputs and options behind that fingerprint."""

    kind: str
    fingerprint: str
    inputs: Mapping[str, str]
    spec: Mapping[str, Any]

    @staticmethod
    def made_of(kind: str, version: int, inputs: Mapping[str, str], spec: Mapping[str, Any]) -> Recipe:
        """Return what version `version` of the step that makes this kind makes of these inputs with these options."""
        return Recipe(kind, fingerprint(kind, version, inputs=inputs, spec=spec), inputs, spec)

    @property
    def key(self) -> str:
        """The artifact's name as one word: `<kind>-<fingerprint>`."""
        return f"{self.kind}-{self.fingerprint}"


@dataclass(frozen=True)
class Built:
    """The outcome of a build: the artifact, and whether it was there already."""

    ref: ArtifactRef
    cached: bool


def build_in_order(steps: Mapping[str, Callable[[], Built]]) -> tuple[dict[str, bool], dict[str, float]]:
    """Take steps one after the other; return which were there already, and how many seconds each took, by name."""
    cached, seconds = {}, {}
    for name, step in steps.items():
        started = time.monotonic()
        cached[name] = step().cached
        seconds[name] = round(time.monotonic() - started, 3)
    return cached, seconds


def default_store_root() -> Path:
    """Return $ZEPHON_STORE, else `zephon-flows` in the user's cache directory."""
    if root := os.environ.get("ZEPHON_STORE"):
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "zephon-flows"


def package_versions(*names: str) -> dict[str, str]:
    """Return the versions of Python and of those of the named packages that are installed."""
    versions = {"python": platform.python_version()}
    for name in ("zephon-flows", *names):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


class ArtifactStore:
    """A folder of artifacts on a local or shared file system.

    root: the folder; made when the first work begins. Empty: see `default_store_root`.
    lease_timeout_s: how long to wait for another process that does the same work; None waits for ever.
    """

    def __init__(self, root: str | Path = "", *, lease_timeout_s: float | None = None) -> None:
        self.root = Path(root).expanduser().absolute() if str(root) else default_store_root().absolute()
        self._lease_timeout_s = lease_timeout_s

    def __repr__(self) -> str:
        return f"ArtifactStore({str(self.root)!r})"

    @property
    def memo(self) -> FileMemo:
        """The memory of content hashes of local files that this store keeps."""
        return FileMemo(self.root / "memo")

    def directory(self, kind: str, fingerprint: str) -> Path:
        """Return where the artifact lies, or would."""
        for name, word in (("kind", kind), ("fingerprint", fingerprint)):
            if not word or not all(letter.isalnum() or letter in "-_" for letter in word):
                raise SpecError(name, f"is {word!r}", wanted="letters, digits, - and _")
        return self.root / kind / fingerprint

    def find(self, kind: str, fingerprint: str) -> ArtifactRef | None:
        """Return the artifact if it is there and every file has its recorded size, else None. Reads no file's content."""
        directory = self.directory(kind, fingerprint)
        try:
            record = ArtifactRecord.read(directory)
            _check_sizes(directory, record)
        except (MissingArtifactError, CorruptArtifactError):
            return None
        if (record.kind, record.fingerprint) != (kind, fingerprint):
            return None
        return ArtifactRef(kind=kind, fingerprint=fingerprint, url=str(directory))

    def needed(self, recipe: Recipe) -> ArtifactRef:
        """Return the artifact of a recipe that an earlier step has made. Raises MissingArtifactError where none has."""
        ref = self.find(recipe.kind, recipe.fingerprint)
        if ref is None:
            found = f"holds no valid {recipe.key}"
            raise MissingArtifactError(str(self.root), found, remedy="Run the steps before this one first.")
        return ref

    def record(self, ref: ArtifactRef) -> ArtifactRecord:
        """Return what an artifact's record says. Raises MissingArtifactError or CorruptArtifactError."""
        return ArtifactRecord.read(ref.path)

    def build(
        self,
        recipe: Recipe,
        produce: Callable[[Path], Mapping[str, Any]],
        *,
        force: bool = False,
        known: Mapping[str, FileRecord] | None = None,
        progress: Progress = NULL_PROGRESS,
    ) -> Built:
        """Return the artifact of `recipe`, made by `produce` where it isn't there yet; of many callers at once, one makes it.

        produce: fills the directory it is given, which may hold what a killed earlier run of the same recipe left, and
        returns statistics for the record.
        force: make it anew beside the old one, compare, and put it in place.
        known: see `commit`.
        """
        if not force and (ref := self.find(recipe.kind, recipe.fingerprint)):
            return Built(ref, cached=True)
        started = time.time()
        with self.lease(recipe.key, progress) as lease:
            found = self.find(recipe.kind, recipe.fingerprint)
            if found and (not force or _created_after(found, started)):
                return Built(found, cached=True)
            if found is None and self.directory(recipe.kind, recipe.fingerprint).exists():
                progress.note(f"{recipe.key} failed its check and is made again")
            before = time.monotonic()
            partial = self.partial(recipe)
            statistics = produce(partial)
            seconds = time.monotonic() - before
            ref = self.commit(recipe, statistics, lease, seconds=seconds, known=known, progress=progress)
        return Built(ref, cached=False)

    @contextmanager
    def lease(self, name: str, progress: Progress = NULL_PROGRESS) -> Iterator[Lease]:
        """Hold the lease called `name` (an artifact's key, or that and a part's); waits for whoever has it and says so."""

        def say(owner: LeaseOwner | None) -> None:
            who = f"process {owner.pid} on {owner.host}" if owner else "another process"
            progress.note(f"{name}: waiting for {who}, which is making it")

        with Lease(self.lease_path(name), timeout_s=self._lease_timeout_s, on_wait=say) as lease:
            yield lease

    def lease_path(self, name: str) -> Path:
        """Return the document of the lease called `name`."""
        return self.root / "leases" / f"{name}.lease"

    def partial_path(self, recipe: Recipe) -> Path:
        """Return where `recipe` is made before it is finished."""
        directory = self.directory(recipe.kind, recipe.fingerprint)
        return directory.with_name(f"{directory.name}.partial")

    def partial(self, recipe: Recipe, *, shared: bool = False) -> Path:
        """Return the directory in which `recipe` is made, created if need be; to be called under the recipe's lease.

        shared: other processes may be working there on parts of their own, so that their unfinished files must be left alone.
        Raises MismatchError if it was begun for other inputs or options.
        """
        partial = self.partial_path(recipe)
        partial.mkdir(parents=True, exist_ok=True)
        for path in partial.rglob("*"):
            if is_temporary(path):
                if not shared:
                    path.unlink()
            elif (status := path.stat()).st_nlink == 1:  # a run killed while it sealed its files left them read-only
                path.chmod(stat.S_IMODE(status.st_mode) | stat.S_IWUSR)
        document = {
            "kind": recipe.kind,
            "fingerprint": recipe.fingerprint,
            "inputs": dict(recipe.inputs),
            "spec": dict(recipe.spec),
        }
        path = partial / RECIPE_NAME
        if path.exists():
            found = json.loads(path.read_bytes())
            if canonical_json(found) != canonical_json(document):
                raise MismatchError(
                    str(path), "was begun for other inputs or options", remedy=f"Delete {partial} to begin it anew."
                )
        else:
            write_json(path, document)
        return partial

    def commit(
        self,
        recipe: Recipe,
        statistics: Mapping[str, Any],
        lease: Lease,
        *,
        seconds: float,
        known: Mapping[str, FileRecord] | None = None,
        progress: Progress = NULL_PROGRESS,
    ) -> ArtifactRef:
        """Turn the partial directory of `recipe` into the finished artifact.

        Every file is flushed, hashed and made read-only, the record written, the directory renamed.
        known: records of files that are links into other artifacts, by name; they are not hashed again.
        Raises LeaseLostError if another process took the work over in the meantime.
        """
        directory = self.directory(recipe.kind, recipe.fingerprint)
        partial = self.partial_path(recipe)
        (partial / RECIPE_NAME).unlink(missing_ok=True)
        (partial / RECORD_NAME).unlink(missing_ok=True)
        files = _seal_files(partial, known or {}, progress)
        record = ArtifactRecord(
            kind=recipe.kind,
            fingerprint=recipe.fingerprint,
            inputs=dict(recipe.inputs),
            spec=dict(recipe.spec),
            files=files,
            statistics=dict(statistics),
            versions=package_versions("numpy", "pyarrow", "tokenizers", "torch", "transformers", "bitsandbytes"),
            created=datetime.now(UTC).isoformat(timespec="milliseconds"),
            seconds=round(seconds, 3),
        )
        _compare_with_old(directory, record, progress)
        write_json(partial / RECORD_NAME, record.model_dump())
        lease.check()
        publish_directory(partial, directory)
        return ArtifactRef(kind=recipe.kind, fingerprint=recipe.fingerprint, url=str(directory))

    def verify(self, ref: ArtifactRef, *, progress: Progress = NULL_PROGRESS) -> None:
        """Read every file of an artifact and compare it with the record. Raises CorruptArtifactError for the first that differs."""
        record = self.record(ref)
        _check_sizes(ref.path, record)
        total = sum(file.bytes for file in record.files.values())
        with progress.phase("verify", total=total, unit="B") as phase:
            for name, file in record.files.items():
                digest = file_sha256(ref.path / name)
                if digest != file.sha256:
                    raise CorruptArtifactError(
                        str(ref.path / name),
                        f"has SHA-256 {digest}",
                        wanted=file.sha256,
                        remedy="Delete the artifact and rebuild it.",
                    )
                phase.advance(file.bytes)

    def note_published(self, ref: ArtifactRef, output: Path) -> None:
        """Remember that `ref` was published at `output`, so that gc keeps it while the output stands."""
        name = f"{ref.key}-{hashlib.sha256(str(output).encode()).hexdigest()[:16]}.json"
        folder = self.root / "published"
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / name, {"kind": ref.kind, "fingerprint": ref.fingerprint, "output": str(output)})


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` the same content as `source`: a hard link on one file system, a flushed copy elsewhere."""
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:  # another file system, or one without hard links
        with source.open("rb") as reader, target.open("xb") as writer:
            shutil.copyfileobj(reader, writer, _COPY_BYTES)
            writer.flush()
            os.fsync(writer.fileno())
        target.chmod(stat.S_IMODE(source.stat().st_mode))


def _seal_files(directory: Path, known: Mapping[str, FileRecord], progress: Progress) -> dict[str, FileRecord]:
    paths = sorted(path for path in directory.rglob("*") if path.is_file() and not is_temporary(path))
    names = {path: path.relative_to(directory).as_posix() for path in paths}
    files: dict[str, FileRecord] = {}
    total = sum(path.stat().st_size for path in paths if names[path] not in known)
    with progress.phase("seal", total=total, unit="B") as phase:
        for path in paths:
            if record := known.get(names[path]):
                files[names[path]] = record
                continue
            fsync_file(path)
            path.chmod(0o444)
            size = path.stat().st_size
            files[names[path]] = FileRecord(bytes=size, sha256=file_sha256(path))
            phase.advance(size)
    for folder in sorted({path.parent for path in paths}, reverse=True):
        fsync_directory(folder)
    return files


def _check_sizes(directory: Path, record: ArtifactRecord) -> None:
    for name, file in record.files.items():
        path = directory / name
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise CorruptArtifactError(str(path), "is missing", remedy="Delete the artifact and rebuild it.") from None
        if size != file.bytes:
            raise CorruptArtifactError(
                str(path), f"has {size:,} bytes", wanted=f"{file.bytes:,}", remedy="Delete the artifact and rebuild it."
            )


def _compare_with_old(directory: Path, record: ArtifactRecord, progress: Progress) -> None:
    """Say how a recomputed artifact differs from the one it replaces."""
    try:
        old = ArtifactRecord.read(directory)
    except (MissingArtifactError, CorruptArtifactError):
        return
    differing = sorted(name for name in old.files.keys() | record.files.keys() if old.files.get(name) != record.files.get(name))
    if differing:
        progress.note(f"{record.kind} recomputed: {', '.join(differing)} differ from before; the new files take their place")
    else:
        progress.note(f"{record.kind} recomputed: every file is the same as before")


def _created_after(ref: ArtifactRef, moment: float) -> bool:
    return datetime.fromisoformat(ArtifactRecord.read(ref.path).created).timestamp() >= moment


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def clear_partial(directory: Path) -> None:
    """Remove the files that a killed run of a step left, for a step that begins anew."""
    for leftover in directory.iterdir():
        if leftover.name != RECIPE_NAME:
            leftover.unlink()


def discard(path: Path) -> None:
    """Remove an artifact or partial directory in one step: rename first, so that no reader sees half of it."""
    doomed = path.with_name(f"{path.name}.doomed-{os.getpid()}")
    try:
        path.rename(doomed)
    except FileNotFoundError:
        return
    remove_tree(doomed)
