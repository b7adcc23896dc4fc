"""Small data sets on disk, old enough for their catalogs to be stored."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from zephon_core.ratios.datasets import Dataset
from zephon_core.store import ArtifactStore

Opener = Callable[..., Dataset]


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, bytes], Path]:
    """A function (name, bytes) -> path of a file below `tmp_path`/data, last written to an hour ago."""

    def write_file(name: str, content: bytes) -> Path:
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        age(path)
        return path

    return write_file


@pytest.fixture
def opened(store: ArtifactStore) -> Opener:
    """A function (path, **settings) -> data set, its catalog in `store`."""

    def open_dataset(path: object, **settings: object) -> Dataset:
        names = [str(each) for each in path] if isinstance(path, list) else str(path)
        return Dataset.from_path("set", names, store=store, **settings)  # type: ignore[arg-type]

    return open_dataset


def age(path: Path) -> None:
    """Set a file's time back by an hour."""
    then = path.stat().st_mtime_ns - 3600 * 10**9
    os.utime(path, ns=(then, then))
