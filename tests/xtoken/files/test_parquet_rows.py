"""Rows of Parquet files in parts: their places, their columns, and what can't be read as numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.errors import BadRowError, InputError, SourceChangedError
from zephon_core.readers.sources import resolve_sources
from zephon_core.xtoken.files import parquet_rows
from zephon_core.xtoken.files.parquet_rows import ParquetRows, RowStream, logprob_rows, parquet_writer, stored_tables


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def write_file(name: str, row_group: int = 3, **columns: Any) -> str:
        pq.write_table(pa.table(columns), tmp_path / name, row_group_size=row_group)
        return str(tmp_path / name)

    return write_file


def opened(*urls: str) -> ParquetRows:
    return ParquetRows.open(resolve_sources(urls))


def test_files_come_one_after_the_other_and_each_row_has_its_place(write: Callable[..., str]) -> None:
    first, second = write("a.parquet", n=list(range(8)), other=["x"] * 8), write("b.parquet", n=[8, 9], other=["y"] * 2)
    rows = opened(first, second)
    assert rows.count == 10
    parts = list(rows.parts(["n"]))
    assert len(parts) > 2 and all(part.table.column_names == ["n"] for part in parts)
    assert [value for part in parts for value in part.table.column("n").to_pylist()] == list(range(10))
    places = [(part.place(row), part.first + row) for part in parts for row in range(part.table.num_rows)]
    assert places == [(f"{first}:{row + 1}", row) for row in range(8)] + [(f"{second}:1", 8), (f"{second}:2", 9)]


@pytest.mark.parametrize(
    ("most_rows", "most_bytes", "wanted"),
    [(1, 1 << 20, [2] * 5 + [3]), (3, 1 << 20, [4, 4, 2, 3]), (9, 33, [4, 4, 2, 3]), (99, 99, [10, 3])],
)
def test_small_row_groups_of_a_file_come_together(
    write: Callable[..., str], monkeypatch: pytest.MonkeyPatch, most_rows: int, most_bytes: int, wanted: list[int]
) -> None:
    monkeypatch.setattr(parquet_rows, "_PART_ROWS", most_rows)
    monkeypatch.setattr(parquet_rows, "_PART_BYTES", most_bytes)
    files = [write("a.parquet", row_group=2, n=list(range(10))), write("b.parquet", row_group=99, n=[10, 11, 12])]
    parts = list(opened(*files).parts())
    assert [part.table.num_rows for part in parts] == wanted
    assert all(part.table.column("n").num_chunks == 1 for part in parts)
    places = [(part.place(row), part.first + row, value) for part in parts for row, value in enumerate(part.table["n"].to_pylist())]
    assert places == [(f"{files[value >= 10]}:{value % 10 + 1}", value, value) for value in range(13)]


def test_files_must_be_parquet_alike_and_hold_something(write: Callable[..., str], tmp_path: Path) -> None:
    a = write("a.parquet", n=[1], extra=["x"])
    (tmp_path / "rows.jsonl").write_text('{"n": 1}\n')
    with pytest.raises(InputError, match=r"rows\.jsonl: is jsonl, expected Parquet"):
        opened(str(tmp_path / "rows.jsonl"))
    with pytest.raises(
        InputError, match=r"b\.parquet: has columns n \(double\), expected n \(int64\), extra \(string\), as .*a\.parq"
    ):
        opened(a, write("b.parquet", n=[1.0]))
    with pytest.raises(InputError, match=r"has columns in another order, extra, n, expected n, extra, as .*a\.parquet has"):
        opened(a, write("b.parquet", extra=["x"], n=[1]))
    with pytest.raises(InputError, match=r"b\.parquet: has more columns: more \(bool\), expected n, extra alone, as .*a\.parquet"):
        opened(a, write("b.parquet", n=[1], extra=["x"], more=[True]))
    with pytest.raises(InputError, match=r"b\.parquet: has no columns extra \(string\), expected n, extra, as .*a\.parquet"):
        opened(a, write("b.parquet", n=[1]))
    empty = write("c.parquet", n=pa.array([], pa.int64()))
    with pytest.raises(InputError, match=r"c\.parquet: holds no rows, expected at least one"):
        opened(empty)
    with pytest.raises(InputError, match=r"c\.parquet, .*c\.parquet: hold no rows, expected at least one"):
        opened(empty, empty)
    (tmp_path / "cut.parquet").write_bytes(Path(a).read_bytes()[:-6])
    with pytest.raises(InputError, match=r"cut\.parquet: can't be decoded"):
        opened(str(tmp_path / "cut.parquet"))


def test_a_name_that_two_columns_share_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["n", "m", "n"]), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet: has 2 columns named n, expected one of each name\. Rename them"):
        opened(str(tmp_path / "a.parquet"))


def test_rows_of_all_files_have_their_place(write: Callable[..., str]) -> None:
    none = pa.array([], pa.int64())
    first, empty, last = write("a.parquet", n=[1, 2]), write("b.parquet", n=none), write("c.parquet", n=[3])
    rows = opened(empty, first, empty, last, empty)
    assert [rows.place(row) for row in range(3)] == [f"{first}:1", f"{first}:2", f"{last}:1"]


def test_a_column_in_the_way_is_refused_unless_it_is_empty(write: Callable[..., str]) -> None:
    rows = opened(write("a.parquet", n=[1, 2], late=pa.array([None] * 5 + [[]], pa.list_(pa.int8()))[4:], never=[None, None]))
    rows.check_free("never")
    rows.check_free("other")
    for name in ("n", "late"):
        with pytest.raises(
            InputError, match=rf"a\.parquet: has a column {name}, which would be overwritten\. Rename it or drop it"
        ):
            rows.check_free(name)


def test_lists_of_a_fixed_size_are_lists(write: Callable[..., str]) -> None:
    column = pa.array([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.int32(), 2))
    parts = list(opened(write("a.parquet", ids=column)).parts())
    assert np.concatenate([part.ids("ids")[1] for part in parts]).tolist() == list(range(1, 9))
    offsets, values = logprob_rows(pa.table({"l": pa.array([[-1.0, None], None, [-2.0, -3.0]], pa.list_(pa.float64(), 2))}), "l")
    np.testing.assert_array_equal(offsets, [0, 2, 2, 4])
    np.testing.assert_array_equal(values, [-1.0, np.nan, -2.0, -3.0])
    kept = parts[0].with_column(
        "n", pa.array([1]), pa.schema([("ids", column.type), ("n", pa.int64())]), np.arange(parts[0].table.num_rows) == 1
    )
    assert kept.to_pylist() == [{"ids": [3, 4], "n": 1}]


def test_ids_past_int64_are_named_as_they_are(write: Callable[..., str]) -> None:
    (part,) = opened(write("a.parquet", ids=pa.array([[1], [2, 2**64 - 1]], pa.list_(pa.uint64())))).parts()
    with pytest.raises(
        BadRowError, match=r"a\.parquet:2: has 18446744073709551615 in ids at position 1, expected numbers below 2\^63"
    ):
        part.ids("ids")


def test_a_file_that_changes_is_noticed(write: Callable[..., str]) -> None:
    rows = opened(write("a.parquet", n=[1, 2]))
    write("a.parquet", n=[1, 2, 3])
    with pytest.raises(SourceChangedError):
        list(rows.parts())


def test_a_column_is_added_at_the_end_or_takes_the_place_of_its_namesake(write: Callable[..., str], tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("new", pa.string()), ("last", pa.bool_())])
    table = pa.table({"n": [1], "new": ["a"], "last": [True]}, schema=schema).replace_schema_metadata(
        {"huggingface": '{"info": {"features": {"n": {}}}}', "mine": "kept"}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    rows = opened(str(tmp_path / "a.parquet"))
    replaced, added = rows.schema_with("new", pa.float64()), rows.schema_with("other", pa.float64())
    assert (replaced.names, added.names) == (["n", "new", "last"], ["n", "new", "last", "other"])
    assert replaced.field("new").type == pa.float64()
    assert replaced.metadata == added.metadata == {b"mine": b"kept"}  # a data set's list of features would be wrong now
    (part,) = rows.parts()
    assert part.with_column("new", pa.array([0.5]), replaced).to_pylist() == [{"n": 1, "new": 0.5, "last": True}]
    assert part.with_column("other", pa.array([], pa.float64()), added, np.array([False])).num_rows == 0


@given(sizes=st.lists(st.integers(0, 5), max_size=8), taken=st.lists(st.integers(0, 7), max_size=12))
def test_rows_are_taken_in_any_size(sizes: list[int], taken: list[int]) -> None:
    every = list(range(sum(sizes)))
    begins = np.cumsum([0, *sizes])
    stream = RowStream(
        pa.table({"n": pa.array(every[start : start + size], pa.int64())}) for start, size in zip(begins, sizes, strict=False)
    )
    done = 0
    for count in taken if sizes else []:
        assert stream.take(count).column("n").to_pylist() == every[done : done + count]
        done += count


def test_logprobs_may_be_null_and_of_any_type_of_number() -> None:
    for kind in (pa.float64(), pa.float32(), pa.float16(), pa.int32()):
        column = pa.array([[None, -1, -2], None, [], [-3]], pa.list_(kind))
        offsets, values = logprob_rows(pa.table({"l": column}), "l")
        np.testing.assert_array_equal(offsets, [0, 3, 3, 3, 4])
        np.testing.assert_array_equal(values, [np.nan, -1.0, -2.0, -3.0])
        offsets, values = logprob_rows(pa.table({"l": column}).slice(2), "l")
        np.testing.assert_array_equal(offsets, [0, 0, 1])
        np.testing.assert_array_equal(values, [-3.0])
    offsets, values = logprob_rows(pa.table({"l": pa.array([[None], []])}), "l")  # of which no type is known
    np.testing.assert_array_equal(values, [np.nan])


def test_a_null_among_ids_is_named(write: Callable[..., str]) -> None:
    (part,) = opened(write("a.parquet", ids=[[1, 2], [3, None]])).parts()
    with pytest.raises(
        BadRowError, match=r"a\.parquet:2: has a null in ids at position 1, expected a number\. Fix or drop the row"
    ):
        part.ids("ids")
    (part,) = opened(write("b.parquet", ids=[[1], None])).parts()
    with pytest.raises(BadRowError, match=r"b\.parquet:2: has no ids"):
        part.ids("ids")


def test_what_is_stored_comes_back_as_it_was_written(tmp_path: Path) -> None:
    tables = [pa.table({"n": [1, 2], "m": ["a", "b"]}), pa.table({"n": [3], "m": ["c"]})]
    with parquet_writer(tmp_path / "t.parquet", tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    assert list(stored_tables(tmp_path / "t.parquet")) == tables
    assert [table.column_names for table in stored_tables(tmp_path / "t.parquet", ["m"])] == [["m"], ["m"]]
    with parquet_writer(tmp_path / "empty.parquet", tables[0].schema):
        pass
    assert list(stored_tables(tmp_path / "empty.parquet")) == []
    assert pq.read_table(tmp_path / "empty.parquet").schema == tables[0].schema


def test_files_elsewhere_are_read_by_their_url(write: Callable[..., str]) -> None:
    import fsspec

    url = "memory://datums/a.parquet"
    fsspec.filesystem("memory").pipe_file("datums/a.parquet", Path(write("a.parquet", n=list(range(5)))).read_bytes())
    rows = opened(url)
    assert rows.count == 5
    assert [value for part in rows.parts() for value in part.table.column("n").to_pylist()] == list(range(5))
    assert next(rows.parts()).place(2) == f"{url}:3"
