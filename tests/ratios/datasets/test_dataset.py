"""Data sets: identity by content, canonical order, formats side by side, and settings that are refused."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zephon_core.errors import InputError, SpecError
from zephon_core.ratios import Dataset
from zephon_core.store import ArtifactStore

Opener = Callable[..., Dataset]
Write = Callable[[str, bytes], Path]


def test_equal_content_has_one_fingerprint_wherever_it_lies(write: Write, opened: Opener, tmp_path: Path) -> None:
    for number in range(5):
        write(f"one/{number}.jsonl", b"%d\n" % number * 3)
        write(f"two/deep/x{9 - number}.jsonl", b"%d\n" % number * 3)
    one, two = opened(tmp_path / "data" / "one"), opened(tmp_path / "data" / "two")
    assert one.fingerprint == two.fingerprint
    assert [shard.identity for shard in one.shards] == [shard.identity for shard in two.shards]
    for name in ("shard", "part", "start", "size", "rows"):
        assert np.array_equal(getattr(one.units, name), getattr(two.units, name))
    renamed = Dataset.from_path("another name", str(tmp_path / "data" / "one"), store=ArtifactStore(tmp_path / "other"))
    assert renamed.fingerprint == one.fingerprint


def test_any_change_of_content_has_another_fingerprint(write: Write, opened: Opener) -> None:
    first, second = write("a.jsonl", b"1\n"), write("b.jsonl", b"2\n")
    prints = {opened([first]).fingerprint, opened([second]).fingerprint, opened([first, second]).fingerprint}
    copy = write("c.jsonl", b"1\n")
    prints.add(opened([first, copy]).fingerprint)
    packed = write("d.jsonl.gz", gzip.compress(b"1\n"))
    prints.add(opened([packed]).fingerprint)
    assert len(prints) == 5


def test_equal_shards_are_all_kept(write: Write, opened: Opener) -> None:
    write("a.jsonl", b"1\n")
    dataset = opened(write("b.jsonl", b"1\n").parent)
    assert len(dataset.shards) == 2
    assert dataset.shards[0].identity == dataset.shards[1].identity
    assert dataset.ids().tolist() == [0, 1]


def test_shards_are_ordered_by_identity(write: Write, opened: Opener) -> None:
    for number in range(30):
        write(f"{number}.jsonl", b"%d\n" % number)
    identities = [shard.identity for shard in opened(write("x.jsonl", b"x\n").parent).shards]
    assert identities == sorted(identities)


def test_a_format_can_be_told(write: Write, opened: Opener) -> None:
    path = write("data.txt", b'{"a": 1}\n')
    assert [shard.format for shard in opened(path).shards] == ["jsonl"]
    assert [shard.format for shard in opened(path, format="jsonl").shards] == ["jsonl"]
    assert "can't be decoded" in opened(path, format="parquet").problems[0].reason
    with pytest.raises(SpecError, match="expected arrow, jsonl"):
        opened(path, format="csv")
    with pytest.raises(SpecError, match="is empty"):
        Dataset.from_path("", str(path))


def test_formats_of_named_files_are_told_by_content(write: Write, opened: Opener) -> None:
    dataset = opened([write("part-0", b"[1]\n"), write("part-1", gzip.compress(b"[1]\n")), write("part-2", b"\0\1\2\3" * 10)])
    assert sorted((shard.format, shard.compression) for shard in dataset.shards) == [("jsonl", "gzip"), ("jsonl", "none")]
    assert "is of no known format" in dataset.problems[0].reason


CORPORA = {
    "en_foldoc": {"parquet", "jsonl"},
    "logs": {"parquet", "jsonl"},
    "math_mm": {"parquet", "jsonl"},
    "po_multi": {"parquet"},
    "ja_manpages": {"parquet"},
    "heavy_mixed-chat": {"parquet"},
}


@pytest.mark.parametrize("name", CORPORA)
def test_corpora(name: str, shared_data: Path, opened: Opener) -> None:
    folder = shared_data / "corpora" / name
    if not folder.is_dir():
        pytest.skip("no corpora")
    dataset = opened(folder)
    assert dataset.problems == ()
    assert {shard.format for shard in dataset.shards} == CORPORA[name]
    with dataset.open(["text", "messages"]) as reader:
        for unit in range(len(dataset.units)):
            rows = reader.read(unit)
            count = len(rows.row_bytes)
            assert count == dataset.units.rows[unit]
            first, last = rows.payloads([0, count - 1])
            assert isinstance(first.get("text", ""), str)
            assert isinstance(last.get("messages", []), list)
            column = rows.texts(("text",))
            if column is not None:
                assert column.lengths.tolist() == rows.row_bytes.tolist()
                assert column.text(count - 1) == last["text"]
            if dataset.shards[dataset.units.shard[unit]].format == "jsonl":
                assert int(rows.row_bytes.sum()) == dataset.units.size[unit]


@pytest.mark.parametrize(
    "part", ["nasty/JSONTestSuite", "nasty/arrow-testing", "nasty/parquet-testing", "nasty/zstd", "nasty/utf8"]
)
def test_nasty_files_cost_themselves_only(part: str, shared_data: Path, opened: Opener, tmp_path: Path) -> None:
    """Every file is a shard or a problem, every unit can be read or says why not, every row is a value or a problem."""
    folder = shared_data / part
    if not folder.is_dir():
        pytest.skip("no nasty files")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    copies = []
    for number, path in enumerate(files):
        copy = tmp_path / "nasty" / str(number) / path.name
        copy.parent.mkdir(parents=True)
        shutil.copyfile(path, copy)
        copies.append(copy)
    dataset = opened(copies)
    assert len(dataset.shards) + len(dataset.problems) == len(files)
    assert all(problem.reason and not problem.transient for problem in dataset.problems)
    read = 0
    with dataset.open() as reader:
        for unit in range(len(dataset.units)):
            try:
                rows = reader.read(unit)
            except InputError as error:
                assert str(error)
                continue
            assert len(rows.payloads(range(len(rows.row_bytes)))) == len(rows.row_bytes)
            read += 1
    assert read or part == "nasty/zstd"


def test_a_store_can_be_named_and_settings_are_checked(write: Write, tmp_path: Path) -> None:
    write("a.jsonl", b"1\n")
    for store in (str(tmp_path / "named"), tmp_path / "named"):
        assert len(Dataset.from_path("set", tmp_path / "data", store=store).shards) == 1
    assert (tmp_path / "named" / "catalogs").is_dir()
    settings: list[tuple[dict[str, Any], str]] = [
        ({"name": 5, "path": "x"}, "name: is 5"),
        ({"name": "set", "path": 5}, "path: is 5"),
        ({"name": "set", "path": [5]}, r"path: is \[5\]"),
        ({"name": "set", "path": str(tmp_path / "data"), "workers": -1}, "workers: is -1"),
    ]
    for arguments, words in settings:
        with pytest.raises(SpecError, match=words):
            Dataset.from_path(**arguments, store=tmp_path / "named")


def test_what_can_not_be_read_has_its_share(write: Write, opened: Opener) -> None:
    write("a.jsonl", b"[1]\n" * 30)
    write("b.parquet", b"x" * 40)
    dataset = opened(write("c.jsonl", b"[1]\n" * 10).parent)
    assert dataset.readable_share == 160 / 200 and dataset.formats == {"jsonl": 2}
