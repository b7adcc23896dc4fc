"""Files and directories that are there whole or not at all, also after a power cut.

Write to a temporary name beside the target, flush it to the device, rename, flush the directory.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

__all__ = [
    "atomic_file",
    "fsync_directory",
    "fsync_file",
    "is_temporary",
    "publish_directory",
    "remove_tree",
    "temporary_name",
    "write_bytes",
    "write_json",
]

_TEMPORARY = ".tmp-"


def fsync_directory(path: Path) -> None:
    """Flush a directory's entries to the device."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_file(path: Path) -> None:
    """Flush a file's bytes to the device."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def temporary_name(path: Path) -> Path:
    """Name a sibling of `path` that nobody else uses."""
    return path.with_name(f"{_TEMPORARY}{path.name[:200]}-{os.getpid()}-{secrets.token_hex(4)}")


def is_temporary(path: Path) -> bool:
    """Say whether a file is an unfinished one of `atomic_file`: being written now, or left by a process that was killed."""
    return path.name.startswith(_TEMPORARY)


@contextmanager
def atomic_file(path: Path, *, keep: bool = False) -> Iterator[BinaryIO]:
    """Open a new file for writing that takes the place of `path` when the block ends without an error.

    keep: leave a file be that somebody else has put there by then.
    """
    temporary = temporary_name(path)
    try:
        with temporary.open("xb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        if not keep or not _linked(temporary, path):
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def _linked(temporary: Path, path: Path) -> bool:
    """Give a file the name `path` unless one has it; False where a file system has no links and the name is free."""
    try:
        path.hardlink_to(temporary)
    except OSError:
        if not path.exists():
            return False
    temporary.unlink()
    return True


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the content of `path`."""
    with atomic_file(path) as handle:
        handle.write(content)


def write_json(path: Path, value: Any) -> None:
    """Replace the content of `path` by `value` as indented JSON, not ASCII-escaped; NaN is refused."""
    write_bytes(path, (json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n").encode())


def publish_directory(source: Path, target: Path) -> None:
    """Give the directory `source` the name `target`, taking the place of what is there, and flush the parent.

    Both lie in one file system. Files inside are expected to be flushed already. Where a directory stands at `target`, there
    is an instant in which none does: readers retry or see it absent, never mixed.
    """
    fsync_directory(source)
    if target.exists():
        retired = temporary_name(target)
        target.rename(retired)
        source.rename(target)
        remove_tree(retired)
    else:
        source.rename(target)
    fsync_directory(target.parent)


def remove_tree(path: Path) -> None:
    """Remove a directory with all it holds, read-only files included; absent is fine."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
