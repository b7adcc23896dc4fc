"""Ranges of a row group's rows, read from their pages: always what the whole file says, whatever wrote it, or an error."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zephon_core.errors import InputError
from zephon_core.ratios.datasets import Dataset
from zephon_core.ratios.datasets import parquet as parquet_format
from zephon_core.store import ArtifactStore

Opener = Callable[..., Dataset]

ALL_CODECS = ("none", "snappy", "zstd", "gzip", "lz4", "brotli")
CODECS = [codec for codec in ALL_CODECS if codec == "none" or pa.Codec.is_available(codec)]
PATHS = (
    None,
    ("text",),
    ("messages[].content",),
    ("messages",),
    ("pair.a", "id"),
    ("tags", "text"),
    ("vector", "text", "pairs"),
    ("absent",),
)


@pytest.fixture(autouse=True, scope="module")
def every_page_is_a_unit() -> Iterator[None]:
    """Have small files cut as large ones are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_format, "_LARGE_GROUP_BYTES", 1)
        patch.setattr(parquet_format, "_UNIT_BYTES", 1)
        yield


def texts(rng: random.Random, count: int, longest: int) -> list[str | None]:
    return [None if rng.random() < 0.1 else "".join(rng.choices("abc é中😀", k=rng.randint(0, longest))) for _ in range(count)]


def make_table(rows: int, seed: int) -> pa.Table:
    """A table of flat and nested columns, with nulls and without."""
    rng = random.Random(seed)

    def messages() -> list[dict[str, Any]] | None:
        return rng.choice([None, [], [{"role": "u", "content": text} for text in texts(rng, rng.randint(1, 4), 40)]])

    columns = {
        "id": pa.array(range(rows), pa.int64()),
        "text": pa.array(texts(rng, rows, 80), pa.string()),
        "needed": pa.array([text or "" for text in texts(rng, rows, 10)], pa.string()),
        "large": pa.array(texts(rng, rows, 20), pa.large_string()),
        "kind": pa.array(rng.choices(["x", "yy", None], k=rows), pa.string()).dictionary_encode(),
        "flag": pa.array(rng.choices([True, False], k=rows), pa.bool_()),
        "score": pa.array(rng.choices([None, 0.5, 1.5], k=rows), pa.float32()),
        "code": pa.array([b"%04d" % (row % 10_000) for row in range(rows)], pa.binary(4)),
        "pair": pa.array([rng.choice([None, {"a": "s" * (row % 5), "b": row}]) for row in range(rows)], PAIR),
        "tags": pa.array([rng.choice([None, [], ["t", None, "uu"]]) for _ in range(rows)], pa.list_(pa.string())),
        "messages": pa.array([messages() for _ in range(rows)], MESSAGES),
        "deep": pa.array([[{"more": [{"x": n, "y": str(n)}] * (n % 3), "z": n}] * (n % 4) for n in range(rows)], DEEP),
    }
    vectors = [[row % 3, row % 5] for row in range(rows)]
    columns["vector"] = pa.array(vectors, pa.list_(pa.int8(), 2))
    columns["pairs"] = pa.array([[(str(row), row)] * (row % 3) for row in range(rows)], pa.map_(pa.string(), pa.int32()))
    fields = [pa.field(name, array.type, nullable=name not in REQUIRED) for name, array in columns.items()]
    return pa.table(list(columns.values()), schema=pa.schema(fields))


REQUIRED = ("id", "needed", "flag", "code")
PAIR = pa.struct([("a", pa.string()), ("b", pa.int32())])
MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.large_string())]))
DEEP = pa.list_(pa.struct([("more", pa.large_list(pa.struct([("x", pa.int64()), ("y", pa.string())]))), ("z", pa.int16())]))


def written(path: Path, table: pa.Table, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **{"write_batch_size": 16, "data_page_size": 400, "dictionary_pagesize_limit": 600, **options})
    return path


def rows_of(dataset: Dataset, units: list[int], paths: tuple[str, ...] | None) -> list[list[Any]]:
    with dataset.open(paths) as reader:
        return [reader.read(unit).payloads(range(int(dataset.units.rows[unit]))) for unit in units]


def all_rows(dataset: Dataset) -> list[Any]:
    return list(chain.from_iterable(rows_of(dataset, list(range(len(dataset.units))), None)))


def whole(path: Path, paths: tuple[str, ...] | None) -> list[Any]:
    """All rows as pyarrow reads them, with the columns that lie on the way of the paths."""
    names = {"messages[].content": "messages.list.element.content"}
    columns = None if paths is None else [names.get(each, each) for each in paths if each != "absent"]
    table = pq.ParquetFile(path).read(columns=columns)
    return table.to_pylist() if table.num_columns else [{}] * pq.read_metadata(path).num_rows


options = st.fixed_dictionaries(
    {
        "compression": st.sampled_from(CODECS),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "use_dictionary": st.sampled_from([True, False, ["text", "kind"]]),
        "write_page_index": st.booleans(),
        "write_page_checksum": st.booleans(),
        "data_page_size": st.sampled_from([200, 5000, 1 << 20]),
        "write_batch_size": st.sampled_from([7, 64, 1024]),
        "row_group_size": st.sampled_from([37, 128, 10_000]),
        "store_schema": st.booleans(),
    }
)


@given(rows=st.sampled_from([0, 1, 2, 90, 300]), seed=st.integers(0, 3), settings_=options, paths=st.sampled_from(PATHS))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ranges_hold_the_rows_that_the_whole_file_has(
    rows: int, seed: int, settings_: dict[str, Any], paths: tuple[str, ...] | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("set")
    path = written(folder / "a.parquet", make_table(rows, seed), **settings_)
    dataset = Dataset.from_path("set", str(path), store=ArtifactStore(folder / "store"))
    assert (dataset.problems, dataset.counts().tolist()) == ((), [rows])
    units = dataset.units
    assert int(units.rows.sum()) == rows
    assert units.start.tolist() == np.cumsum([0, *units.rows])[:-1].tolist()
    assert (units.size > 0).all() and (units.stored_bytes > 0).all()
    metadata = pq.read_metadata(path)
    assert units.size.sum() == sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups) if rows)
    order = random.Random(seed).sample(range(len(units)), min(len(units), 30))
    expected = whole(path, paths)
    for unit, found in zip(order, rows_of(dataset, order, paths), strict=True):
        start = int(units.start[unit])
        assert found == expected[start : start + int(units.rows[unit])]


@pytest.mark.parametrize("encoding", ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "PLAIN"])
@pytest.mark.parametrize("with_index", [True, False])
def test_encodings_of_texts(encoding: str, with_index: bool, tmp_path: Path, opened: Opener) -> None:
    table = make_table(300, 1).select(["text", "large", "score"])
    encodings = {"text": encoding, "large": encoding, "score": "BYTE_STREAM_SPLIT"}
    path = written(tmp_path / "a.parquet", table, use_dictionary=False, column_encoding=encodings, write_page_index=with_index)
    dataset = opened(path)
    assert len(dataset.units) > 10
    assert all_rows(dataset) == table.to_pylist()


def test_a_large_row_group_is_cut_and_a_part_is_cheap_to_read(tmp_path: Path, opened: Opener) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.bytes(500).hex() for _ in range(4000)]
    table = pa.table({"id": range(4000), "text": rows, "tags": [["a", "b"]] * 4000})
    path = written(tmp_path / "a.parquet", table, write_batch_size=64, data_page_size=100_000, dictionary_pagesize_limit=1 << 20)
    dataset = opened(path)
    assert len(dataset.units) > 20
    with dataset.open(["text"]) as reader:
        reader.read(0)
        before = reader.bytes_read
        assert reader.read(20).payload(0) == {"text": rows[int(dataset.units.start[20])]}
        # Neither the rest of the row group, nor the dictionary that other pages need.
        assert reader.bytes_read - before < 1.1 * dataset.units.stored_bytes[20]
        # Pages that a dictionary encodes hold next to nothing by themselves.
        content = [int(reader.read(unit).row_bytes.sum()) for unit in range(len(dataset.units))]
    shares = np.array(content) / dataset.units.size
    assert shares.max() < 1.1 * shares.min()


def test_columns_whose_pages_can_not_be_found_are_read_whole(tmp_path: Path, opened: Opener) -> None:
    table = make_table(300, 2)
    dataset = opened(written(tmp_path / "a.parquet", table))
    assert len(dataset.units) > 10  # cut by the pages of texts, though those of lists can't be found
    assert rows_of(dataset, [5, 3], ("messages", "text")) == [
        table.select(["text", "messages"]).slice(int(dataset.units.start[unit]), int(dataset.units.rows[unit])).to_pylist()
        for unit in (5, 3)
    ]


def test_lists_are_cut_where_there_is_a_page_index(tmp_path: Path, opened: Opener) -> None:
    table = make_table(300, 2).select(["messages"])
    assert len(opened(written(tmp_path / "plain.parquet", table)).units) == 1
    dataset = opened(written(tmp_path / "indexed.parquet", table, write_page_index=True))
    assert len(dataset.units) > 10
    assert all_rows(dataset) == table.to_pylist()


def test_far_away_pages_are_found_by_the_index_alone(opened: Opener) -> None:
    table = make_table(300, 2).select(["text", "messages"])
    system = fsspec.filesystem("memory")
    for name, with_index in (("plain", False), ("indexed", True)):
        file = pa.BufferOutputStream()
        pq.write_table(table, file, write_batch_size=16, data_page_size=400, write_page_index=with_index)
        system.pipe(f"/pages/{name}.parquet", bytes(file.getvalue()))
    try:
        assert len(opened("memory://pages/plain.parquet").units) == 1
        dataset = opened("memory://pages/indexed.parquet")
        assert len(dataset.units) > 10
        assert all_rows(dataset) == table.to_pylist()
    finally:
        system.rm("/pages", recursive=True)


def test_names_that_are_not_one_columns_alone(tmp_path: Path, opened: Opener) -> None:
    text = pa.array([f"{number:0100}" for number in range(300)])
    for number, names in enumerate((["a", "a"], ["a", "a.b"], ["", "text"], ["a.b", "a.c"])):
        table = pa.Table.from_arrays([text, text], names=names)
        dataset = opened(written(tmp_path / f"{number}.parquet", table, use_dictionary=False))
        assert len(dataset.units) > 10
        with dataset.open(None) as reader:
            rows = reader.read(7)
            assert rows.row_bytes.tolist() == [200] * int(dataset.units.rows[7])


def test_a_broken_page_costs_its_own_unit(tmp_path: Path, opened: Opener) -> None:
    table = make_table(300, 3).select(["text"])
    options = {"use_dictionary": False, "compression": "zstd", "write_page_checksum": True, "write_statistics": False}
    path = written(tmp_path / "a.parquet", table, **options)
    dataset = opened(path)
    units = dataset.units
    content = bytearray(path.read_bytes())
    at = int(units.stored_bytes[:5].sum()) + int(units.stored_bytes[5]) // 2  # headers are short without statistics
    content[at] ^= 0xFF
    path.write_bytes(content)
    dataset = opened(path)
    assert len(dataset.units) == len(units)
    broken = []
    with dataset.open(["text"]) as reader:
        for unit in range(len(units)):
            try:
                rows = reader.read(unit).payloads(range(int(units.rows[unit])))
            except InputError as error:
                assert "can't be decoded" in str(error)
                broken.append(unit)
            else:
                assert rows == table.slice(int(units.start[unit]), int(units.rows[unit])).to_pylist()
    assert broken in ([4], [5])  # stored bytes hold a share of the footer


def outcomes_of_damage(folder: Path, table: pa.Table, opened: Opener, with_index: bool, footer: bool) -> set[str]:
    """Change a few bytes of the footer or before it, forty times, and say what comes of reading the units."""
    path = written(folder / "a.parquet", table, compression="zstd", write_page_checksum=True, write_page_index=with_index)
    good, rng = path.read_bytes(), random.Random(7)
    footer_start = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    region = range(footer_start, len(good) - 8) if footer else range(4, footer_start)
    outcomes = set()
    for trial in range(40):
        content = bytearray(good)
        for at in rng.choices(region, k=rng.randint(1, 3)):
            content[at] = rng.randrange(256)
        (folder / f"{trial}.parquet").write_bytes(content)
        dataset = opened(folder / f"{trial}.parquet")
        outcomes |= {"refused"} if dataset.problems else set()
        for unit in range(len(dataset.units)):
            start, count = int(dataset.units.start[unit]), int(dataset.units.rows[unit])
            try:
                (rows,) = rows_of(dataset, [unit], None)
            except InputError:
                outcomes.add("refused")
                continue
            assert len(rows) == count
            outcomes.add("as written" if rows == table.slice(start, count).to_pylist() else "other rows")
    return outcomes


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("name", ["text", "messages"])
def test_damaged_pages_and_indexes_give_no_other_rows(name: str, with_index: bool, tmp_path: Path, opened: Opener) -> None:
    table = make_table(200, 4).select([name])
    assert outcomes_of_damage(tmp_path, table, opened, with_index, footer=False) == {"refused", "as written"}


@pytest.mark.parametrize("with_index", [True, False])
def test_a_damaged_footer_is_an_error_or_another_schema(with_index: bool, tmp_path: Path, opened: Opener) -> None:
    table = make_table(200, 4).select(["text", "messages"])
    assert {"refused", "as written"} <= outcomes_of_damage(tmp_path, table, opened, with_index, footer=True)
