from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from zephon_core.errors import BadRowError, InputError, SourceChangedError
from zephon_core.readers.arrow import cut_batch, iter_arrow, wanted_leaves
from zephon_core.readers.parquet import iter_parquet
from zephon_core.readers.rows import iter_rows
from zephon_core.readers.sources import Source, resolve_sources

ROWS = [
    {"query": "a", "candidates": [{"text": "b", "score": 1}, None, {"text": None, "score": 2}], "extra": {"deep": ["x"]}},
    {"query": None, "candidates": None, "extra": None},
    {"query": "", "candidates": [], "extra": {"deep": None}},
] * 700


def source_of(path: Path) -> Source:
    (source,) = resolve_sources([str(path)])
    return source


def write_file(table: pa.Table, path: Path, **options) -> Path:
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=500)
    return path


def write_stream(table: pa.Table, path: Path, **options) -> Path:
    with pa.ipc.new_stream(path, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=500)
    return path


def write_parquet(table: pa.Table, path: Path, **options) -> Path:
    pq.write_table(table, path, row_group_size=500, data_page_size=1000, **options)
    return path


WRITERS = {
    "parquet": (write_parquet, {}),
    "parquet gzip v2": (write_parquet, {"compression": "gzip", "data_page_version": "2.0"}),
    "file": (write_file, {}),
    "file zstd": (write_file, {"compression": "zstd"}),
    "stream": (write_stream, {}),
    "stream lz4": (write_stream, {"compression": "lz4"}),
    "feather": (lambda table, path: (pyarrow.feather.write_feather(table, str(path)), path)[1], {}),
}


@pytest.fixture(params=WRITERS)
def stored(request, tmp_path) -> Path:
    write, options = WRITERS[request.param]
    return write(pa.Table.from_pylist(ROWS), tmp_path / "rows", **options)


def test_rows_come_back(stored):
    rows = list(iter_rows(source_of(stored)))
    assert [row.payload for row in rows] == ROWS
    assert [row.origin.row for row in rows] == list(range(1, len(ROWS) + 1))
    assert rows[0].origin.byte_offset is None


def test_only_wanted_columns_are_read(stored):
    for row, expected in zip(iter_rows(source_of(stored), paths=["query", "extra.deep[]", "absent.column"]), ROWS, strict=True):
        assert row.payload == {"query": expected["query"], "extra": expected["extra"]}


def test_rows_are_counted_where_no_column_is_wanted(stored):
    source = source_of(stored)
    batches = iter_parquet(source, paths=["absent"]) if source.format == "parquet" else iter_arrow(source, paths=["absent"])
    assert sum(part.batch.num_rows for part in batches) == len(ROWS)


def test_a_change_is_noticed(stored):
    source = source_of(stored)
    rows = iter_rows(source)
    next(rows)
    stored.write_bytes(stored.read_bytes() + b"more")
    with pytest.raises(SourceChangedError):
        list(rows)


def test_every_cut_is_an_error(stored):
    whole = stored.read_bytes()
    is_stream = whole[:4] == b"\xff\xff\xff\xff"
    kept = 0
    for size in range(4, len(whole), 97):
        stored.write_bytes(whole[:size])
        try:
            kept = max(kept, sum(1 for _ in iter_rows(source_of(stored))))
        except InputError as error:
            assert "\n" not in str(error)
        else:
            # A stream may lack its end mark, so one that is cut between two batches is whole as far as anyone can tell.
            assert is_stream
            assert kept % 500 == 0


def test_leaves_on_the_way_of_paths():
    schema = pa.schema(
        {
            "query": pa.string(),
            "candidates": pa.list_(
                pa.struct({"text": pa.string(), "meta": pa.map_(pa.string(), pa.int8()), "score": pa.float32()})
            ),
            "other": pa.struct({"text": pa.list_(pa.int8(), 3)}),
        }
    )
    assert wanted_leaves(schema, ["query", "candidates[].text"]) == [True, True, False, False, False, False]
    assert wanted_leaves(schema, ["candidates"]) == [False, True, True, True, True, False]
    assert wanted_leaves(schema, ["query.deeper", "other.text[]"]) == [True, False, False, False, False, True]


def test_batches_are_cut_by_bytes():
    batch = pa.record_batch({"text": ["x" * 3_000_000] * 10 + [""] * 10})
    assert [part.num_rows for part in cut_batch(batch)] == [5, 5, 5, 5]
    assert [part.num_rows for part in cut_batch(pa.record_batch({"text": [""] * 10_000}))] == [4096, 4096, 1808]


def test_rows_too_long_on_average_are_refused_before_they_are_decoded(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["x" * 9_000_000]}), path, use_dictionary=False)
    with pytest.raises(InputError, match=r"row group 0 holds 9,000,\d+ bytes in 1 rows, expected at most 1,000,000 a row"):
        list(iter_parquet(source_of(path), max_row_bytes=1_000_000))


def test_two_gigabytes_in_one_value(shared_data):
    source = source_of(shared_data / "nasty" / "parquet-testing" / "data" / "large_string_map.brotli.parquet")
    with pytest.raises(InputError, match="expected at most 67,108,864 a row"):
        list(iter_rows(source))


def test_feather_of_the_first_version_is_named(tmp_path):
    path = tmp_path / "a.feather"
    path.write_bytes(b"FEA1" + bytes(40) + b"FEA1")
    with pytest.raises(InputError, match="is a Feather file of version 1"):
        list(iter_rows(source_of(path)))


def test_a_value_that_is_no_python_value_is_a_bad_row(tmp_path):
    path = tmp_path / "a.parquet"
    binary = pa.array([b"fine", b"\xff\xfe"], pa.binary())
    text = pa.StringArray.from_buffers(2, *binary.buffers()[1:])
    pq.write_table(pa.table({"text": text}), path)
    rows = iter_rows(source_of(path))
    assert next(rows).payload == {"text": "fine"}
    with pytest.raises(BadRowError, match=r"a\.parquet:2: can't be turned into Python values"):
        next(rows)


@pytest.mark.parametrize(
    ("folder", "readable"),
    [
        ("arrow-testing/data/arrow-ipc-file", 0),
        ("arrow-testing/data/arrow-ipc-stream", 4),
        ("arrow-testing/data/parquet", 4),
        ("parquet-testing", 25),
    ],
)
def test_nasty_files_are_read_or_refused_in_one_line(shared_data, folder, readable):
    read = refused = 0
    for path in sorted(path for path in (shared_data / "nasty" / folder).rglob("*") if path.is_file()):
        if path.suffix in (".md", ".txt", ".gz", ".proto"):
            continue
        kind = "parquet" if "parquet" in folder else "arrow"
        try:
            for row in iter_rows(Source("", str(path), kind, "none", path.stat().st_size, "")):
                json.dumps(row.payload, default=str)
            read += 1
        except InputError as error:
            assert "\n" not in str(error)
            refused += 1
    assert read >= readable
    assert refused >= 3
