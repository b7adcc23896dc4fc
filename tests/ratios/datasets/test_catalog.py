"""The stored catalog: built once, attached without opening a shard, rebuilt when it is broken, foreign or out of date."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zephon_core.errors import MissingArtifactError
from zephon_core.progress import Phase
from zephon_core.ratios.datasets import Dataset, catalog
from zephon_core.ratios.datasets.files import OpenFile
from zephon_core.store import ArtifactStore

Opener = Callable[..., Dataset]
Write = Callable[[str, bytes], Path]


@pytest.fixture
def folder(write: Write) -> Path:
    """Shards of three formats."""
    file = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": ["a", "b"]}), file)
    write("c.parquet", file.getvalue().to_pybytes())
    write("b.jsonl.gz", gzip.compress(b"[1]\n[2]\n"))
    return write("a.jsonl", b"[1]\n\n[3]").parent


@pytest.fixture
def opened_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """URLs of files from which something was read."""
    urls: list[str] = []
    really_range = OpenFile.range

    def spy(self: OpenFile, start: int, count: int) -> bytes:
        urls.append(self.url)
        return really_range(self, start, count)

    monkeypatch.setattr(OpenFile, "range", spy)
    return urls


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """An entry for each catalog that is built."""
    made: list[Any] = []
    really_build = catalog.build_catalog

    def spy(*rest: Any, **settings: Any) -> catalog.Catalog:
        made.append(rest)
        return really_build(*rest, **settings)

    monkeypatch.setattr(catalog, "build_catalog", spy)
    return made


def stored(store: ArtifactStore) -> list[Path]:
    return [path for path in (store.root / "catalogs").iterdir() if path.name != "files"]


def same(one: Dataset, other: Dataset) -> bool:
    return (
        (one.fingerprint, one.shards, one.problems) == (other.fingerprint, other.shards, other.problems)
        and all(np.array_equal(getattr(one.units, name), getattr(other.units, name)) for name in type(one.units).dtypes())
        and one.counts().tolist() == other.counts().tolist()
        and one.raw_bytes().tolist() == other.raw_bytes().tolist()
    )


def test_a_second_process_opens_no_shard(folder: Path, opened: Opener, store: ArtifactStore, opened_files: list[str]) -> None:
    first = opened(folder)
    assert opened_files
    opened_files.clear()
    second = opened(folder)
    assert opened_files == []
    assert same(first, second)
    assert isinstance(second.units.size, np.memmap)
    assert len(stored(store)) == 1


def test_what_is_stored_is_all_under_the_store(folder: Path, opened: Opener) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    dataset = opened(folder)
    with dataset.open() as reader:
        for unit in range(len(dataset.units)):
            reader.read(unit)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize("change", ["longer", "new", "gone", "touched"])
def test_a_change_is_seen(change: str, folder: Path, opened: Opener, write: Write) -> None:
    before = opened(folder)
    if change == "longer":
        write("a.jsonl", b"[1]\n\n[3]\n[4]")
    elif change == "new":
        write("d.jsonl", b"1\n")
    elif change == "gone":
        (folder / "a.jsonl").unlink()
    else:
        os.utime(folder / "a.jsonl", ns=(10**18, 10**18))
    after = opened(folder)
    assert same(before, after) == (change == "touched")


def break_document(folder: Path) -> None:
    path = folder / "catalog.json"
    path.write_bytes(path.read_bytes()[:-20])


def break_array(folder: Path) -> None:
    path = folder / "unit_size.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut_array(folder: Path) -> None:
    path = folder / "shard_rows.npy"
    path.write_bytes(path.read_bytes()[:-8])


def lose_array(folder: Path) -> None:
    (folder / "unit_part.npy").unlink()


def make_foreign(folder: Path) -> None:
    path = folder / "catalog.json"
    document = json.loads(path.read_bytes())
    document["key"] = "0" * 64
    document.pop("checksum")
    path.write_bytes(catalog._compact(document | {"checksum": catalog._document_checksum(document)}))


def make_future(folder: Path) -> None:
    path = folder / "catalog.json"
    document = json.loads(path.read_bytes())
    path.write_text(json.dumps({**document, "format": document["format"] + 1}))


def empty_it(folder: Path) -> None:
    (folder / "catalog.json").write_bytes(b"[]")


@pytest.mark.parametrize("damage", [break_document, break_array, cut_array, lose_array, make_foreign, make_future, empty_it])
def test_a_broken_or_foreign_catalog_is_rebuilt(
    damage: Callable[[Path], None], folder: Path, opened: Opener, store: ArtifactStore, builds: list[Any], tmp_path: Path
) -> None:
    # Not attached to what is damaged below.
    first = Dataset.from_path("set", str(folder), store=ArtifactStore(tmp_path / "another"))
    opened(folder)
    (directory,) = stored(store)
    damage(directory)
    assert len(builds) == 2
    for _ in range(2):
        assert same(opened(folder), first)
        assert len(builds) == 3


def test_what_a_killed_process_left_is_swept(folder: Path, opened: Opener, store: ArtifactStore) -> None:
    opened(folder)
    (directory,) = stored(store)
    left = directory.with_name(f"{directory.name}.1-abc.partial")
    directory.rename(left)
    opened(folder)
    assert stored(store) == [directory]


def test_a_file_of_this_moment_keeps_the_catalog_in_memory(folder: Path, opened: Opener, store: ArtifactStore) -> None:
    (folder / "new.jsonl").write_bytes(b"1\n")
    dataset = opened(folder)
    assert len(dataset.shards) == 4
    assert stored(store) == []


class Notes:
    """A progress that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.advanced: dict[str, float] = {}

    def phase(self, label: str, *, total: float | None, unit: str) -> AbstractContextManager[Phase]:
        notes = self

        class Counting:
            def advance(self, amount: float) -> None:
                notes.advanced[label] = notes.advanced.get(label, 0) + amount / (total or 1)

        return nullcontext(Counting())

    def note(self, message: str) -> None:
        self.notes.append(message)


def test_progress_adds_up(folder: Path, opened: Opener) -> None:
    notes = Notes()
    opened(folder, progress=notes)
    assert notes.advanced == {"catalog": pytest.approx(1)}


def test_a_store_that_can_not_be_written_to_costs_only_the_catalog(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    notes = Notes()
    dataset = Dataset.from_path("set", str(folder), store=ArtifactStore(tmp_path / "file" / "store"), progress=notes)
    assert len(dataset.shards) == 3
    assert any("kept in memory" in note for note in notes.notes)


def test_numbers_of_workers_and_orders_of_listing_make_no_difference(folder: Path, tmp_path: Path, write: Write) -> None:
    for number in range(20):
        write(f"more/{number}.jsonl", b"%d\n" % number)
    paths = [str(path) for path in sorted(folder.rglob("*")) if path.is_file()]
    datasets = [
        Dataset.from_path("set", order, store=ArtifactStore(tmp_path / f"store{workers}"), workers=workers)
        for workers, order in ((1, paths), (3, paths[::-1]), (16, paths[7:] + paths[:7]))
    ]
    assert same(datasets[0], datasets[1])
    assert same(datasets[0], datasets[2])


def test_many_at_once_build_one_catalog(folder: Path, store: ArtifactStore, builds: list[Any]) -> None:
    found: list[Dataset] = []
    threads = [threading.Thread(target=lambda: found.append(Dataset.from_path("set", str(folder), store=store))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(same(found[0], other) for other in found[1:])
    assert len(builds) == 1


def test_a_pickled_data_set_is_small_and_the_same_in_another_process(
    folder: Path, opened: Opener, write: Write, tmp_path: Path
) -> None:
    for number in range(200):
        write(f"more/{number}.jsonl", b"%d\n" % number)
    opened(folder)
    dataset = opened(folder)
    content = pickle.dumps(dataset)
    assert len(content) < 1000
    (tmp_path / "pickled").write_bytes(content)
    program = (
        "import pickle, sys; d = pickle.load(open(sys.argv[1], 'rb'))\n"
        "with d.open() as r: print(d.fingerprint, sum(len(r.read(u).row_bytes) for u in range(len(d.units))))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "pickled")], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.split() == [dataset.fingerprint, "207"]


def test_a_data_set_in_memory_is_pickled_whole(folder: Path, opened: Opener) -> None:
    (folder / "new.jsonl").write_bytes(b"1\n")
    dataset = opened(folder)
    assert same(pickle.loads(pickle.dumps(dataset)), dataset)


def test_a_pickle_whose_catalog_is_gone_says_so(folder: Path, opened: Opener, store: ArtifactStore) -> None:
    content = pickle.dumps(opened(folder))
    (directory,) = stored(store)
    (directory / "catalog.json").unlink()
    with pytest.raises(MissingArtifactError, match="Open the data set again"):
        pickle.loads(content)


def test_what_looking_at_files_told_is_remembered(folder: Path, opened: Opener, write: Write, opened_files: list[str]) -> None:
    opened(folder)
    opened_files.clear()
    write("d.jsonl", b"1\n")
    assert sorted(opened(folder).counts().tolist()) == [1, 2, 2, 3]
    assert {Path(url).name for url in opened_files} == {"d.jsonl"}
    opened_files.clear()
    write("a.jsonl", b"7\n")
    assert sorted(opened(folder).counts().tolist()) == [1, 1, 2, 2]
    assert {Path(url).name for url in opened_files} == {"a.jsonl"}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 1, "files": []}', b'{"format": 9, "files": {}}'])
def test_a_broken_memory_is_none(content: bytes, folder: Path, opened: Opener, store: ArtifactStore, write: Write) -> None:
    first = opened(folder)
    write("d.jsonl", b"1\n")
    for document in (store.root / "catalogs" / "files").iterdir():
        document.write_bytes(content)
    assert sorted(opened(folder).counts().tolist()) == [1, 2, 2, 3]
    (folder / "d.jsonl").unlink()
    assert same(opened(folder), first)


@pytest.mark.parametrize("entry", [None, {}, {"stamp": []}, {"facts": {"kind": [1, "jsonl", "none"], "survey": {}, "sha256": 3}}])
def test_a_broken_entry_of_the_memory_is_none(entry: Any, folder: Path, opened: Opener, store: ArtifactStore, write: Write) -> None:
    opened(folder)
    (document,) = (store.root / "catalogs" / "files").iterdir()
    content = json.loads(document.read_bytes())
    for url, known in content["files"].items():
        content["files"][url] = {**known, **entry} if isinstance(entry, dict) else entry
    document.write_bytes(json.dumps(content).encode())
    write("d.jsonl", b"1\n")
    assert sorted(opened(folder).counts().tolist()) == [1, 2, 2, 3]


def test_names_that_are_no_utf8_are_kept(folder: Path, opened: Opener) -> None:
    odd = os.fsdecode(bytes(str(folder), "utf-8") + b"/\xff.jsonl")
    Path(odd).write_bytes(b"1\n")
    os.utime(odd, ns=(10**18, 10**18))
    opened(folder)
    dataset = opened(folder)
    assert odd in [shard.url for shard in dataset.shards]


def test_failures_that_may_pass_are_tried_again_after_a_while(
    folder: Path, opened: Opener, builds: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [folder, folder / "absent.jsonl"]
    dataset = opened(paths)
    assert [problem.transient for problem in dataset.problems] == [True]
    again = opened(paths)
    assert same(again, dataset)
    assert len(builds) == 1
    assert same(pickle.loads(pickle.dumps(again)), dataset)
    monkeypatch.setattr(catalog.time, "time", lambda: 4e9)
    assert same(opened(paths), dataset)
    assert len(builds) == 2


BUILD_AND_STOP = """
import sys, time
from zephon_core.ratios.datasets import Dataset, catalog
from zephon_core.store import ArtifactStore

def stop(source, target):
    print("ready", flush=True)
    time.sleep(60)

catalog.publish_directory = stop
Dataset.from_path("set", sys.argv[1], store=ArtifactStore(sys.argv[2]))
"""


def test_a_killed_build_leaves_nothing_in_the_way(folder: Path, opened: Opener, store: ArtifactStore) -> None:
    with subprocess.Popen([sys.executable, "-c", BUILD_AND_STOP, str(folder), str(store.root)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()
    assert [path.suffix for path in stored(store)] == [".partial"]
    assert len(opened(folder).shards) == 3
    assert [path.suffix for path in stored(store)] == [""]
