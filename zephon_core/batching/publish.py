"""Put a plan's folder where a trainer wants it: the plan's files and its report, as links into the store where that is possible.

The folder appears in one rename, with batches.json inside, which says what it holds.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zephon_core.atomic import publish_directory, remove_tree, write_json
from zephon_core.errors import SpecError
from zephon_core.fingerprint import file_sha256
from zephon_core.locks import alone_in
from zephon_core.readers.sources import local_path
from zephon_core.store import ArtifactRef, ArtifactStore, FileRecord, link_or_copy

__all__ = ["MANIFEST_NAME", "check_output", "publish_plan"]

MANIFEST_NAME = "batches.json"
MANIFEST_FORMAT = 1

_WANTED = "a new folder, an empty one, or one that holds planned batches"


def check_output(output: str) -> None:
    """Raise SpecError for a place where no plan can be published, before any work is done."""
    if local_path(output) is None:
        raise SpecError(
            output, "is a URL", wanted="a folder", remedy="Publish to a folder, and copy that; or push the artifacts (store push)."
        )
    path = Path(output).expanduser().absolute()
    standing = next(place for place in (path, *path.parents) if place.exists())
    if not standing.is_dir():
        raise SpecError(str(standing), "is no folder", wanted=_WANTED)
    if not os.access(standing, os.W_OK | os.X_OK):
        raise SpecError(str(standing), "can't be written to", remedy="Name another output, or change the folder's permissions.")
    _check_is_ours(path)


def publish_plan(store: ArtifactStore, name: str, plan: ArtifactRef, report: ArtifactRef, output: Path) -> Path:
    """Make `output` this plan, in one step; return its absolute path. A folder that is this plan already is left alone.

    Raises SpecError for a folder that holds something else than a plan.
    """
    output = output.expanduser().absolute()
    places = {file: ref.path for ref in (plan, report) for file in store.record(ref).files}
    files = {file: record for ref in (plan, report) for file, record in store.record(ref).files.items()}
    manifest = {
        "format": MANIFEST_FORMAT,
        "name": name,
        "fingerprints": {"plan": plan.fingerprint, "report": report.fingerprint},
        "files": {file: record.model_dump() for file, record in sorted(files.items())},
    }
    if not _is_there(output, manifest, files, places):
        output.parent.mkdir(parents=True, exist_ok=True)
        staging = output.with_name(f".{output.name}.staging-{os.getpid()}-{secrets.token_hex(4)}")
        staging.mkdir()
        try:
            for file, place in places.items():
                link_or_copy(place / file, staging / file)
            write_json(staging / MANIFEST_NAME, manifest)
            with alone_in(output.parent):
                _check_is_ours(output)
                publish_directory(staging, output)
        except BaseException:
            remove_tree(staging)
            raise
    for ref in (plan, report):
        store.note_published(ref, output)
    return output


def _check_is_ours(output: Path) -> None:
    if output.is_dir() and any(output.iterdir()) and not (output / MANIFEST_NAME).is_file():
        raise SpecError(str(output), "holds files that are no planned batches", wanted=_WANTED)


def _is_there(output: Path, manifest: Mapping[str, Any], files: Mapping[str, FileRecord], places: Mapping[str, Path]) -> bool:
    """Say whether a folder is this plan already: each file the store's own, or of the same content."""
    try:
        same = json.loads((output / MANIFEST_NAME).read_bytes()) == manifest
        return same and all(
            (output / file).samefile(places[file] / file) or file_sha256(output / file) == record.sha256
            for file, record in files.items()
        )
    except (OSError, ValueError, RecursionError):
        return False
