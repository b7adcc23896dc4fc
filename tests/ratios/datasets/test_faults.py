"""What goes wrong between the catalog and a read, and far away: each costs its own unit, with a reason."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from zephon_core.errors import SourceChangedError, TransientInputError
from zephon_core.ratios.datasets import Dataset

Opener = Callable[..., Dataset]
Write = Callable[[str, bytes], Path]


def parquet_bytes(rows: int = 3) -> bytes:
    file = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": ["x" * 1000] * rows}), file)
    return bytes(file.getvalue())


def unit_of(dataset: Dataset, name: str) -> int:
    return [Path(dataset.shards[shard].url).name for shard in dataset.units.shard].index(name)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_a_shard_that_vanishes(name: str, write: Write, opened: Opener) -> None:
    content = {"a.jsonl": b"1\n2\n", "a.jsonl.gz": gzip.compress(b"1\n2\n"), "a.parquet": parquet_bytes()}[name]
    path = write(name, content)
    dataset = opened([path, write("good.jsonl", b"1\n")])
    path.unlink()
    with dataset.open() as reader:
        with pytest.raises(TransientInputError, match="is not there"):
            reader.read(unit_of(dataset, name))
        assert reader.read(unit_of(dataset, "good.jsonl")).payload(0) == 1
    assert len(opened(path.parent).shards) == 1


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_a_shard_that_is_cut_or_replaced(name: str, write: Write, opened: Opener) -> None:
    content = {"a.jsonl": b"1\n2\n", "a.jsonl.gz": gzip.compress(b"1\n2\n"), "a.parquet": parquet_bytes()}[name]
    path = write(name, content)
    dataset = opened(path)
    write(name, content[:-2])
    with dataset.open() as reader, pytest.raises(SourceChangedError, match="is not what the catalog says"):
        reader.read(0)
    path.write_bytes(content)
    with dataset.open() as reader, pytest.raises(SourceChangedError):
        reader.read(0)


def test_a_shard_that_is_written_to_while_it_is_open(write: Write, opened: Opener) -> None:
    path = write("a.jsonl", b"1\n2\n")
    dataset = opened(path)
    with dataset.open() as reader:
        assert reader.read_at(0, 3).payload == 2
        with path.open("r+b") as file:
            file.write(b"3")
        with pytest.raises(SourceChangedError):
            reader.read_at(0, 0)
        with pytest.raises(SourceChangedError):
            reader.read(0)


def test_compressed_files_that_are_cut_or_broken(write: Write, opened: Opener) -> None:
    import zstandard

    rows = b"".join(b'{"n": %d}\n' % number for number in range(5000))
    packed, squeezed = gzip.compress(rows), zstandard.compress(rows)
    write("cut.jsonl.gz", packed[:-100])
    write("cut.jsonl.zst", squeezed[:-100])
    write("broken.jsonl.gz", packed[:2000] + b"\xff" * 50 + packed[2050:])
    write("garbage.jsonl.gz", packed + b"garbage")
    dataset = opened(write("good.jsonl.gz", packed).parent)
    assert dataset.counts().tolist() == [5000]
    reasons = {Path(problem.url).name: problem.reason for problem in dataset.problems}
    assert sorted(reasons) == ["broken.jsonl.gz", "cut.jsonl.gz", "cut.jsonl.zst", "garbage.jsonl.gz"]
    assert re.fullmatch(r"is cut short .*\(byte [\d,]+\)\. Copy the file again, whole", reasons["cut.jsonl.gz"])
    assert "is cut short" in reasons["cut.jsonl.zst"]
    assert not any(problem.transient for problem in dataset.problems)


def test_fields_that_some_rows_lack_are_the_callers_business(write: Write, opened: Opener) -> None:
    dataset = opened(write("a.jsonl", b'{"text": "a"}\n{"other": 1}\n"bare"\n'))
    with dataset.open(["text"]) as reader:
        assert reader.read(0).payloads(range(3)) == [{"text": "a"}, {"other": 1}, "bare"]


LIST_PROBLEMS = """
import json, sys
from zephon_core.ratios.datasets import Dataset
from zephon_core.store import ArtifactStore
dataset = Dataset.from_path("data", sys.argv[1], store=ArtifactStore(sys.argv[2]))
print(json.dumps([[problem.url, problem.transient] for problem in dataset.problems]))
"""


def test_files_without_permission(write: Write, tmp_path: Path) -> None:
    path = write("a.jsonl", b"1\n")
    path.chmod(0)
    folder = write("b.jsonl", b"2\n").parent
    # Root may read everything, unless that right is taken away.
    drop = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    command = [*drop, sys.executable, "-c", LIST_PROBLEMS, str(folder), str(tmp_path / "their-store")]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert found == [[str(path), True]]


class FlakyFileSystem(MemoryFileSystem):
    """A file system that refuses what `refused` names, as one does without credentials."""

    protocol = "flaky"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    refused: ClassVar[set[str]] = set()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("flaky://", "memory://")))

    def _refuse(self, path: str) -> None:
        if any(name in path for name in self.refused):
            raise PermissionError(13, "Access Denied")

    def cat_file(self, path: str, *rest: Any, **settings: Any) -> bytes:
        self._refuse(path)
        return bytes(super().cat_file(path, *rest, **settings))

    def info(self, path: str, **settings: Any) -> dict[str, Any]:
        self._refuse(path)
        return dict(super().info(path, **settings))


@pytest.fixture
def far() -> Any:
    """A file system far away, with three shards in `flaky://set`."""
    fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
    system = fsspec.filesystem("flaky")
    system.pipe("/set/a.jsonl", b"[1]\n[2]\n")
    system.pipe("/set/b.parquet", parquet_bytes())
    system.pipe("/set/c.jsonl.gz", gzip.compress(b"[3]\n"))
    yield system
    FlakyFileSystem.refused = set()
    system.rm("/set", recursive=True)


def test_shards_far_away(far: Any, opened: Opener) -> None:
    dataset = opened("flaky://set")
    assert sorted(shard.format for shard in dataset.shards) == ["jsonl", "jsonl", "parquet"]
    with dataset.open() as reader:
        assert sorted(len(reader.read(unit).row_bytes) for unit in range(3)) == [1, 2, 3]
        assert reader.bytes_read > 0


def test_a_shard_that_is_refused_now(far: Any, opened: Opener) -> None:
    FlakyFileSystem.refused = {"b.parquet", "c.jsonl"}
    dataset = opened("flaky://set")
    assert len(dataset.shards) == 1
    assert [(problem.reason, problem.transient) for problem in dataset.problems] == [("can't be read (Access Denied)", True)] * 2
    assert all(problem.stored_bytes > 0 for problem in dataset.problems)


def test_a_place_that_can_not_be_listed_now(far: Any, opened: Opener) -> None:
    FlakyFileSystem.refused = {"set"}
    with pytest.raises(TransientInputError, match="Access Denied"):
        opened("flaky://set")


@pytest.mark.parametrize("name", ["a.jsonl", "b.parquet", "c.jsonl.gz"])
def test_a_read_that_is_refused_now(name: str, far: Any, opened: Opener) -> None:
    dataset = opened("flaky://set")
    FlakyFileSystem.refused = {name}
    with dataset.open() as reader, pytest.raises(TransientInputError, match="Access Denied"):
        reader.read(unit_of(dataset, name))


def test_a_shard_far_away_that_got_shorter(far: Any, opened: Opener) -> None:
    dataset = opened("flaky://set")
    far.pipe("/set/a.jsonl", b"[1]\n")
    with dataset.open() as reader, pytest.raises(SourceChangedError, match="is not what the catalog says"):
        reader.read(unit_of(dataset, "a.jsonl"))


def test_a_shard_far_away_that_was_replaced_while_it_was_read_may_be_whole_again(far: Any, opened: Opener) -> None:
    whole = far.cat("/set/c.jsonl.gz")
    dataset = opened("flaky://set")
    far.pipe("/set/c.jsonl.gz", whole[:-8] + whole)
    with dataset.open() as reader, pytest.raises(TransientInputError, match="is not what the catalog says"):
        reader.read(unit_of(dataset, "c.jsonl.gz"))


def test_identity_far_away_is_size_and_etag(far: Any, opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = opened("flaky://set").fingerprint
    really_info, really_find = MemoryFileSystem.info, MemoryFileSystem.find

    def with_etag(info: dict[str, Any]) -> dict[str, Any]:
        return info | {"ETag": '"abc"'}

    def find(self: MemoryFileSystem, *rest: Any, **settings: Any) -> Any:
        found = really_find(self, *rest, **settings)
        return {name: with_etag(info) for name, info in found.items()} if isinstance(found, dict) else found

    monkeypatch.setattr(MemoryFileSystem, "info", lambda self, *rest, **settings: with_etag(really_info(self, *rest, **settings)))
    monkeypatch.setattr(MemoryFileSystem, "find", find)
    tagged = opened("flaky://set")
    assert tagged.fingerprint != plain
    for name in ("a.jsonl", "b.parquet", "c.jsonl.gz"):
        far.pipe(f"/other/deep/{name}", far.cat(f"/set/{name}"))
    try:
        assert opened("flaky://other").fingerprint == tagged.fingerprint
    finally:
        far.rm("/other", recursive=True)
