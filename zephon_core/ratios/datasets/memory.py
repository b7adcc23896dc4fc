"""What looking at files told, remembered while they stay as they are: one small document for each folder of files.

A lost or broken document only costs looking again, so documents are written seldom, and two writers may undo each other's.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from pathlib import Path
from typing import Any

from zephon_core.atomic import write_bytes
from zephon_core.ratios.datasets.files import FoundFile, reading

__all__ = ["FileMemory"]

_FORMAT = 1
_FLUSH_S = 20.0
_SETTLING_NS = 2_000_000_000


class FileMemory:
    """Facts about files by URL; safe to share between threads. `flush` it at the end.

    A fact is forgotten when its file's size, times, inode or etag change. A file changed within the last two seconds is not
    remembered: its times could not tell the next change.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._documents: dict[str, dict[str, Any]] = {}
        self._dirty: set[str] = set()
        self._flushed = time.monotonic()

    def recall(self, file: FoundFile) -> dict[str, Any]:
        """Return what is known of a file as it is now; nothing is known of most. Raises TransientInputError if it is gone."""
        stamp = full_stamp(file)
        with self._lock:
            entry = self._document(file.url).get(file.url)
        if not stamp or not isinstance(entry, dict) or entry.get("stamp") != stamp or not isinstance(entry.get("facts"), dict):
            return {}
        return dict(entry["facts"])

    def remember(self, file: FoundFile, facts: dict[str, Any]) -> None:
        """Keep what was found out about a file, if it is still the one that was listed."""
        stamp = full_stamp(file)
        if not stamp or not _is_the_listed_one(file, stamp):
            return
        with self._lock:
            self._document(file.url)[file.url] = {"stamp": stamp, "facts": facts}
            self._dirty.add(_folder_of(file.url))
            due = time.monotonic() - self._flushed > _FLUSH_S
        if due:
            self.flush()

    def flush(self) -> None:
        """Write the documents that have changed. Where there is no room for them, they are forgotten."""
        with self._lock:
            changed = {url: json.dumps({"format": _FORMAT, "files": self._documents[url]}) for url in sorted(self._dirty)}
            self._dirty.clear()
            self._flushed = time.monotonic()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for url, content in changed.items():
                write_bytes(self._path(url), content.encode())
        except OSError:
            return

    def _document(self, url: str) -> dict[str, Any]:
        folder = _folder_of(url)
        if folder not in self._documents:
            self._documents[folder] = self._read(self._path(folder))
        return self._documents[folder]

    def _path(self, folder: str) -> Path:
        return self._folder / f"{hashlib.sha256(folder.encode('utf-8', 'surrogateescape')).hexdigest()}.json"

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        try:
            value = json.loads(path.read_bytes())
        except (OSError, ValueError):
            return {}
        files = value.get("files") if isinstance(value, dict) and value.get("format") == _FORMAT else None
        return files if isinstance(files, dict) else {}


def full_stamp(file: FoundFile) -> list[Any]:
    """Say in JSON what tells a file's content from another one's, as far as the file system knows; nothing if it doesn't."""
    if not file.is_local:
        return [file.bytes, file.stamp] if file.stamp else []
    with reading(file.url):
        status = Path(file.url).stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


def _is_the_listed_one(file: FoundFile, stamp: list[Any]) -> bool:
    if not file.is_local:
        return True
    modified_ns = int(file.stamp.split("-")[0])
    return bool(stamp[:2] == [file.bytes, modified_ns] and modified_ns + _SETTLING_NS < time.time_ns())


def _folder_of(url: str) -> str:
    return url.rpartition("/")[0]
