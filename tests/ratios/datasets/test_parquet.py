"""Parquet shards: row groups, wanted columns, and pages that are broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zephon_core.errors import InputError
from zephon_core.ratios.datasets import Dataset

Opener = Callable[..., Dataset]


def write_table(path: Path, table: pa.Table, **settings: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **settings)
    return path


def test_units_are_row_groups(tmp_path: Path, opened: Opener) -> None:
    table = pa.table({"text": [f"row {number}" for number in range(25)], "id": range(25)})
    path = write_table(tmp_path / "a.parquet", table, row_group_size=10)
    dataset = opened(path)
    assert dataset.counts().tolist() == [25]
    assert dataset.raw_bytes().tolist() == [path.stat().st_size]
    assert dataset.units.rows.tolist() == [10, 10, 5]
    assert dataset.units.part.tolist() == [0, 1, 2]
    metadata = pq.read_metadata(path)
    assert dataset.units.size.tolist() == [metadata.row_group(group).total_byte_size for group in range(3)]
    assert not dataset.units.addressable.any()
    with dataset.open(["text"]) as reader:
        rows = reader.read(2)
        assert rows.payload(0) == {"text": "row 20"}
        assert rows.row_bytes.tolist() == [6] * 5
        with pytest.raises(InputError, match="can't be read at a byte"):
            reader.read_at(0, 0)


def test_only_wanted_columns_are_read(tmp_path: Path, opened: Opener) -> None:
    rng = np.random.default_rng(0)
    ballast = [rng.bytes(10_000) for _ in range(100)]
    messages = [[{"role": "user", "content": "hi", "extra": "x" * 50}]] * 100
    path = write_table(tmp_path / "a.parquet", pa.table({"ballast": ballast, "text": ["short"] * 100, "messages": messages}))
    dataset = opened(path)
    with dataset.open(["text", "messages[].content"]) as reader:
        rows = reader.read(0)
        assert rows.payload(7) == {"text": "short", "messages": [{"content": "hi"}]}
        assert reader.bytes_read < 200_000
    with dataset.open() as reader:
        assert set(reader.read(0).payload(0)) == {"ballast", "text", "messages"}
    with dataset.open(["absent"]) as reader:
        rows = reader.read(0)
        assert (rows.row_bytes.tolist(), rows.payload(99), rows.texts(("absent",))) == ([0] * 100, {}, None)


@pytest.mark.parametrize("arrow_type", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_kinds_of_text_columns(arrow_type: pa.DataType, tmp_path: Path, opened: Opener) -> None:
    texts = ["a", None, "", "é" * 20, "a"]
    array = pa.array(texts, pa.string())
    table = pa.table({"text": array.dictionary_encode() if pa.types.is_dictionary(arrow_type) else array.cast(arrow_type)})
    dataset = opened(write_table(tmp_path / "a.parquet", table))
    with dataset.open(["text"]) as reader:
        column = reader.read(0).texts(("text",))
    assert column is not None
    assert column.lengths.tolist() == [1, 0, 0, 40, 1]
    assert column.is_null.tolist() == [False, True, False, False, False]
    assert [column.text(row) for row in range(5)] == ["a", "", "", "é" * 20, "a"]


def test_files_without_rows_and_row_groups_without_rows_have_no_units(tmp_path: Path, opened: Opener) -> None:
    schema = pa.schema([("text", pa.string())])
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, schema) as writer:
        for texts in ([], ["a"], []):
            writer.write_table(pa.table({"text": pa.array(texts, pa.string())}))
    write_table(tmp_path / "b.parquet", schema.empty_table())
    dataset = opened(tmp_path)
    assert sorted(dataset.counts().tolist()) == [0, 1]
    assert dataset.units.rows.tolist() == [1]
    with dataset.open() as reader:
        assert reader.read(0).payloads([0]) == [{"text": "a"}]


@pytest.mark.parametrize("with_checksum", [True, False])
def test_a_broken_page_costs_its_row_group(with_checksum: bool, tmp_path: Path, opened: Opener) -> None:
    table = pa.table({"text": [f"{number:08d}" * 20 for number in range(300)]})
    path = write_table(
        tmp_path / "a.parquet",
        table,
        row_group_size=100,
        use_dictionary=False,
        write_page_checksum=with_checksum,
    )
    chunk = pq.read_metadata(path).row_group(1).column(0)
    content = bytearray(path.read_bytes())
    # Without checksums only a page that can't be decoded gives itself away.
    at = chunk.data_page_offset + (chunk.total_compressed_size // 2 if with_checksum else 0)
    content[at : at + 10] = b"\xff" * 10
    path.write_bytes(content)
    dataset = opened(path)
    assert dataset.problems == ()
    with dataset.open(["text"]) as reader:
        assert reader.read(0).payload(0) == {"text": "0" * 160}
        with pytest.raises(InputError, match="can't be decoded"):
            reader.read(1)
        assert reader.read(2).payload(0) == {"text": "00000200" * 20}


def test_a_broken_footer_costs_its_shard(tmp_path: Path, opened: Opener) -> None:
    write_table(tmp_path / "good.parquet", pa.table({"text": ["a"]}))
    content = (tmp_path / "good.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(content[: len(content) // 2])
    (tmp_path / "empty.parquet").write_bytes(b"")
    dataset = opened(tmp_path)
    assert [Path(shard.url).name for shard in dataset.shards] == ["good.parquet"]
    assert [(Path(problem.url).name, problem.transient) for problem in dataset.problems] == [
        ("cut.parquet", False),
        ("empty.parquet", False),
    ]
    assert all("can't be decoded" in problem.reason for problem in dataset.problems)
    assert dataset.problems[0].stored_bytes == len(content) // 2
