"""MDS shards that mosaicml-streaming 0.13.0 wrote (golden/write.py), and broken ones."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zephon_core.ratios.datasets import Dataset
from zephon_core.readers.rows import RowProblem

GOLDEN = Path(__file__).parent / "golden"
sys.path.insert(0, str(GOLDEN))

from write import mds_sample  # noqa: E402

Opener = Callable[..., Dataset]
KINDS = ("plain", "zstd", "gz", "bz2", "br", "snappy")


def same(one: Any, other: Any) -> bool:
    if isinstance(other, np.ndarray):
        return isinstance(one, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other) and type(one) is type(other)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_that_the_package_wrote(kind: str, opened: Opener) -> None:
    folder = GOLDEN / "mds" / kind
    index = json.loads((folder / "index.json").read_text())
    dataset = opened(folder)
    assert dataset.problems == ()
    assert sorted(dataset.raw_bytes().tolist()) == sorted(shard["raw_data"]["bytes"] for shard in index["shards"])
    assert {shard.format for shard in dataset.shards} == {"mds"}
    found = {}
    with dataset.open() as reader:
        for unit in range(len(dataset.units)):
            rows = reader.read(unit)
            assert len(rows.row_bytes) == dataset.units.rows[unit]
            for payload in rows.payloads(range(len(rows.row_bytes))):
                found[payload["id"]] = payload
    assert sorted(found) == list(range(6))
    for number, payload in found.items():
        expected = mds_sample(number)
        assert isinstance(payload.pop("pickled"), bytes)
        assert list(payload) == sorted(expected.keys() - {"pickled"})
        assert all(same(payload[name], expected[name]) for name in payload)


def test_content_is_the_same_in_every_folder_and_differs_between_compressions(tmp_path: Path, opened: Opener) -> None:
    shutil.copytree(GOLDEN / "mds" / "plain", tmp_path / "elsewhere")
    prints = [opened(folder).fingerprint for folder in (GOLDEN / "mds" / "plain", tmp_path / "elsewhere", GOLDEN / "mds" / "gz")]
    assert prints[0] == prints[1] != prints[2]


def test_only_wanted_columns_are_decoded(opened: Opener) -> None:
    dataset = opened(GOLDEN / "mds" / "plain")
    with dataset.open(["text", "meta.a"]) as reader:
        assert set(reader.read(0).payload(0)) == {"text", "meta"}


def test_broken_shards_cost_themselves_only(tmp_path: Path, opened: Opener) -> None:
    folder = tmp_path / "set"
    shutil.copytree(GOLDEN / "mds" / "plain", folder)
    first, second, _ = sorted(folder.glob("*.mds"))
    first.write_bytes(first.read_bytes()[:-10])
    dataset = opened(folder)
    assert len(dataset.shards) == 2
    assert "by index.json" in dataset.problems[0].reason
    second.unlink()
    gone = opened(folder)
    assert len(gone.shards) == 1
    assert {problem.transient for problem in gone.problems} == {True, False}


def test_a_broken_sample_costs_itself_only(tmp_path: Path, opened: Opener) -> None:
    folder = tmp_path / "set"
    shutil.copytree(GOLDEN / "mds" / "plain", folder)
    first = min(folder.glob("*.mds"))
    content = bytearray(first.read_bytes())
    begin = int(np.frombuffer(content, "<u4", 1, 4)[0])
    content[begin : begin + 4] = b"\xff\xff\xff\xff"
    first.write_bytes(content)
    dataset = opened(folder)
    unit = [dataset.shards[shard].url for shard in dataset.units.shard].index(str(first))
    with dataset.open() as reader:
        bad, good = reader.read(unit).payloads([0, 1])
    assert isinstance(bad, RowProblem)
    assert good["id"] == 1


@pytest.mark.parametrize("index", [b"", b"[]", b'{"shards": [{}]}', b'{"shards": [{"format": "json", "version": 2}]}', b"{}"])
def test_a_broken_index_costs_its_folder(index: bytes, tmp_path: Path, opened: Opener) -> None:
    folder = tmp_path / "set"
    shutil.copytree(GOLDEN / "mds" / "plain", folder / "broken")
    shutil.copytree(GOLDEN / "mds" / "zstd", folder / "whole")
    (folder / "broken" / "index.json").write_bytes(index)
    dataset = opened(folder)
    assert len(dataset.shards) == 3
    assert len(dataset.problems) == 1
    assert dataset.problems[0].url == f"{folder}/broken"


@pytest.mark.parametrize("value", [None, "x", [], ["x"], [[5]], {"a": 1}, True, -1, 10**30])
@pytest.mark.parametrize("key", ["column_names", "column_encodings", "column_sizes", "samples", "raw_data", "bytes"])
def test_an_index_of_another_shape_costs_its_folder(key: str, value: Any, tmp_path: Path, opened: Opener) -> None:
    folder = tmp_path / "set"
    shutil.copytree(GOLDEN / "mds" / "plain", folder / "broken")
    shutil.copytree(GOLDEN / "mds" / "zstd", folder / "whole")
    index = json.loads((folder / "broken" / "index.json").read_text())
    (index["shards"][0]["raw_data"] if key == "bytes" else index["shards"][0])[key] = value
    (folder / "broken" / "index.json").write_text(json.dumps(index))
    dataset = opened(folder)
    assert len(dataset.shards) == 3
    assert [problem.url for problem in dataset.problems] == [f"{folder}/broken"]
