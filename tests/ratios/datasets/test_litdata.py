"""LitData chunks that litdata 0.2.76 wrote (golden/write.py), and broken ones."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zephon_core.errors import InputError
from zephon_core.ratios.datasets import Dataset
from zephon_core.ratios.datasets.litdata_leaves import decode_leaf
from zephon_core.readers.rows import RowProblem

GOLDEN = Path(__file__).parent / "golden"
sys.path.insert(0, str(GOLDEN))

from write import chat_row, litdata_item  # noqa: E402

Opener = Callable[..., Dataset]
LEVELS = ("plain", "batch", "sample", "chunk")


def all_rows(dataset: Dataset, paths: list[str] | None = None) -> list[Any]:
    with dataset.open(paths) as reader:
        return [
            payload
            for unit in range(len(dataset.units))
            for rows in [reader.read(unit)]
            for payload in rows.payloads(range(len(rows.row_bytes)))
        ]


def plain(value: Any) -> Any:
    """Arrays as (dtype, lists), tuples as lists."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tolist()
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("level", LEVELS)
def test_items_that_the_package_wrote(level: str, opened: Opener) -> None:
    folder = GOLDEN / "litdata" / f"dict-{level}"
    index = json.loads((folder / "index.json").read_text())
    dataset = opened(folder)
    assert dataset.problems == ()
    assert sorted(dataset.raw_bytes().tolist()) == sorted(chunk["chunk_bytes"] for chunk in index["chunks"])
    assert int(dataset.counts().sum()) == 7
    found = {row["id"]: plain(row) for row in all_rows(dataset)}
    assert found == {number: plain(litdata_item(number)) for number in range(7)}


@pytest.mark.parametrize("kind", ["plain", "zstd"])
def test_items_that_are_kept_as_arrow(kind: str, opened: Opener) -> None:
    dataset = opened(GOLDEN / "litdata" / f"chat-{kind}")
    assert sorted(all_rows(dataset), key=lambda row: row["id"]) == [chat_row(number) for number in range(7)]
    with dataset.open(["text"]) as reader:
        rows = reader.read(0)
        column = rows.texts(("text",))
    assert column is not None
    assert set(rows.payload(0)) == {"text"}
    assert column.lengths.tolist() == rows.row_bytes.tolist()


@pytest.mark.parametrize("level", LEVELS)
def test_items_that_are_texts(level: str, opened: Opener) -> None:
    assert sorted(all_rows(opened(GOLDEN / "litdata" / f"str-{level}"))) == ["wörd " * number for number in range(7)]


@pytest.mark.parametrize("level", ["plain", "chunk"])
def test_items_that_are_tokens(level: str, opened: Opener) -> None:
    rows = all_rows(opened(GOLDEN / "litdata" / f"tokens-{level}"))
    assert sorted(row.tolist() for row in rows) == [list(range(number + 1)) for number in range(7)]


def test_only_wanted_fields_are_decoded(opened: Opener) -> None:
    rows = all_rows(opened(GOLDEN / "litdata" / "dict-plain"), ["text", "nested.turns[].content"])
    assert all(set(row) == {"text", "nested"} for row in rows)


@pytest.mark.parametrize("level", LEVELS)
def test_broken_chunks_cost_themselves_only(level: str, tmp_path: Path, opened: Opener) -> None:
    folder = tmp_path / "set"
    shutil.copytree(GOLDEN / "litdata" / f"dict-{level}", folder)
    broken, gone, _ = sorted(folder.glob("*.bin"))
    broken.write_bytes(b"\xff" * 30)
    gone.unlink()
    dataset = opened(folder)
    assert [problem.url for problem in dataset.problems if problem.transient] == [str(gone)]
    readable = 0
    with dataset.open() as reader:
        for unit in range(len(dataset.units)):
            try:
                rows = reader.read(unit)
            except InputError:
                continue
            readable += all(not isinstance(row, RowProblem) for row in rows.payloads(range(len(rows.row_bytes))))
    assert readable == 1


def test_nested_values_of_every_kind() -> None:
    """Layouts as litdata 0.2.76 reads them."""

    def text(value: str) -> bytes:
        return len(value).to_bytes(4, "little") + value.encode()

    def count(number: int) -> bytes:
        return number.to_bytes(4, "little")

    assert decode_leaf("json", b'[1, "x"]') == [1, "x"]
    assert decode_leaf("json", b"\x00" + text('{"a": 1}')) == {"a": 1}
    assert decode_leaf("json", b"\x01" + count(2) + text("a") + text("bc")) == ["a", "bc"]
    assert decode_leaf("json", b"\x02" + count(1) + (5).to_bytes(8, "little")) == [5]
    assert decode_leaf("json", b"\x03" + count(1) + np.float64(0.5).tobytes()) == [0.5]
    assert decode_leaf("json", b"\x04" + count(2) + b"\x01\x00") == [True, False]
    nested = b"\x05" + count(2) + text("k") + b"\x0b" + text("l") + b"\x0a\x01"
    assert decode_leaf("json", nested) == {"k": None, "l": True}
    cells = b"\x10" + b"\x11" + text("s") + b"\x12" + (7).to_bytes(8, "little") + b"\x13" + np.float64(1).tobytes() + b"\x14\x01"
    assert decode_leaf("json", b"\x06" + count(1) + count(5) + b"".join(map(text, "abcde")) + cells) == [
        {"a": None, "b": "s", "c": 7, "d": 1.0, "e": True}
    ]
    assert decode_leaf("pickle", b"\x80\x04.") == b"\x80\x04."
    for broken in (b"\x01" + count(9), b"\x1f", b"\x05" + count(1), b"{"):
        with pytest.raises(RowProblem):
            decode_leaf("json", broken)
