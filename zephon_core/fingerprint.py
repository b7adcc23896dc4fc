"""Identities: equal fingerprint, equal bytes.

A fingerprint is the SHA-256 of a canonical JSON document that names the algorithm and its version, the inputs' fingerprints
and the options that decide the result. Paths, host names, numbers of threads and the like stay out of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from zephon_core.atomic import write_bytes
from zephon_core.errors import ArtifactError

__all__ = ["FileMemo", "canonical_json", "file_sha256", "fingerprint"]

_SETTLING_NS = 2_000_000_000


def canonical_json(value: Any) -> bytes:
    """Render a value as the one JSON text that stands for it: sorted keys, no blanks, UTF-8, models as their fields.

    Raises TypeError for a value without a canonical form (sets, bytes, NaN, objects): better none than an accidental identity.
    """
    return json.dumps(_plain(value), ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode(
        "utf-8", "surrogatepass"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return _plain(value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{value!r} has no canonical form")
        return value
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"key {key!r} is no text and has no canonical form")
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(item) for item in value]
    raise TypeError(f"a {type(value).__name__} has no canonical form")


def fingerprint(algorithm: str, version: int, **parts: Any) -> str:
    """Return the identity (64 hex digits) of what version `version` of `algorithm` makes of `parts`."""
    document = {"algorithm": algorithm, "version": version, "parts": parts}
    return hashlib.sha256(canonical_json(document)).hexdigest()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 (64 hex digits) of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


class FileMemo:
    """SHA-256 of files, remembered while their path, size, inode and times stay the same.

    The memory is a folder of small JSON documents, written atomically; a lost or broken one only costs reading the file again.
    A file changed within the last two seconds is hashed but not remembered: its times could not tell the next change.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sha256(self, path: Path) -> str:
        """Return the SHA-256 (64 hex digits) of a local file's bytes.

        Raises OSError where it can't be read, ArtifactError where the memory can't be written.
        """
        path = path.resolve()
        stamp = self._stamp(path)
        document = self._folder / f"{hashlib.sha256(os.fsencode(path)).hexdigest()}.json"
        known = self._read(document)
        if known is not None and known.get("stamp") == stamp:
            return str(known["sha256"])
        digest = file_sha256(path)
        status = path.stat()
        settled = status.st_mtime_ns + _SETTLING_NS < time.time_ns()
        if settled and self._stamp(path) == stamp:
            self._write(document, {"path": str(path), "stamp": stamp, "sha256": digest})
        return digest

    def _write(self, document: Path, value: dict[str, Any]) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_bytes(document, json.dumps(value).encode())
        except OSError as error:  # of the store, which is not to be blamed on the file that was hashed
            raise ArtifactError(
                str(self._folder),
                f"can't be written ({error.strerror or error})",
                remedy="Name a store that is a folder with free space and may be written to (--store, run.store).",
            ) from error

    @staticmethod
    def _stamp(path: Path) -> list[int]:
        status = path.stat()
        return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]

    @staticmethod
    def _read(document: Path) -> dict[str, Any] | None:
        try:
            value = json.loads(document.read_bytes())
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) and isinstance(value.get("sha256"), str) else None
