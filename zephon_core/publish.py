"""Finished artifacts where people want them: a folder with their files, as links into the store where that is possible.

A published folder appears in one rename, with a manifest inside, which says what it holds.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zephon_core.atomic import publish_directory, remove_tree, write_json
from zephon_core.errors import SpecError
from zephon_core.fingerprint import file_sha256
from zephon_core.locks import alone_in
from zephon_core.readers.sources import local_path
from zephon_core.store import ArtifactRef, ArtifactStore, FileRecord, link_or_copy

__all__ = ["PublishedKind", "output_place"]

MANIFEST_FORMAT = 1


def output_place(output: str, *, wanted: str) -> Path:
    """Return the absolute path of an output. Raises SpecError where no folder can be made: a URL, a file, no permission.

    That one can be made is tried out: some file systems (/proc) say that it can and refuse it.
    """
    if local_path(output) is None or "://" in output:
        raise SpecError(
            output, "is a URL", wanted="a folder", remedy="Publish to a folder, and copy that; or push the artifacts (store push)."
        )
    path = Path(output).expanduser().absolute()
    standing = next(place for place in (path, *path.parents) if place.exists())
    if not standing.is_dir():
        raise SpecError(str(standing), "is no folder", wanted=wanted)
    remedy = "Name another output, or change the folder's permissions."
    if not os.access(standing, os.W_OK | os.X_OK):
        raise SpecError(str(standing), "can't be written to", remedy=remedy)
    if standing != path:
        try:
            Path(tempfile.mkdtemp(prefix=".zephon-", dir=standing)).rmdir()
        except OSError as error:
            raise SpecError(str(standing), f"holds no new folder ({error.strerror})", remedy=remedy) from error
    return path


@dataclass(frozen=True)
class PublishedKind:
    """What some published folders hold. manifest_name: the file that says so. holds: what that is, in the plural."""

    manifest_name: str
    holds: str

    def check_output(self, output: str) -> None:
        """Raise SpecError for a place where none can be published, before any work is done."""
        self._check_is_ours(output_place(output, wanted=self._wanted))

    def publish(self, store: ArtifactStore, name: str, artifacts: Mapping[str, ArtifactRef], output: Path) -> Path:
        """Make `output` these artifacts' files, in one step; return its absolute path. One that is so already is left alone.

        artifacts: by what the manifest calls them. Raises SpecError for a folder that holds something else.
        """
        output = output.expanduser().absolute()
        places = {file: ref.path for ref in artifacts.values() for file in store.record(ref).files}
        files = {file: record for ref in artifacts.values() for file, record in store.record(ref).files.items()}
        manifest = {
            "format": MANIFEST_FORMAT,
            "name": name,
            "fingerprints": {called: ref.fingerprint for called, ref in artifacts.items()},
            "files": {file: record.model_dump() for file, record in sorted(files.items())},
        }
        if not self._is_there(output, manifest, files, places):
            output.parent.mkdir(parents=True, exist_ok=True)
            staging = output.with_name(f".{output.name}.staging-{os.getpid()}-{secrets.token_hex(4)}")
            staging.mkdir()
            try:
                for file, place in places.items():
                    link_or_copy(place / file, staging / file)
                write_json(staging / self.manifest_name, manifest)
                with alone_in(output.parent):
                    self._check_is_ours(output)
                    publish_directory(staging, output)
            except BaseException:
                remove_tree(staging)
                raise
        for ref in artifacts.values():
            store.note_published(ref, output)
        return output

    @property
    def _wanted(self) -> str:
        return f"a new folder, an empty one, or one that holds {self.holds}"

    def _check_is_ours(self, output: Path) -> None:
        if output.is_dir() and any(output.iterdir()) and not (output / self.manifest_name).is_file():
            raise SpecError(str(output), f"holds files that are no {self.holds}", wanted=self._wanted)

    def _is_there(
        self, output: Path, manifest: Mapping[str, Any], files: Mapping[str, FileRecord], places: Mapping[str, Path]
    ) -> bool:
        """Say whether a folder is this already: each file the store's own, or of the same content."""
        try:
            same = json.loads((output / self.manifest_name).read_bytes()) == manifest
            return same and all(
                (output / file).samefile(places[file] / file) or file_sha256(output / file) == record.sha256
                for file, record in files.items()
            )
        except (OSError, ValueError, RecursionError):
            return False
