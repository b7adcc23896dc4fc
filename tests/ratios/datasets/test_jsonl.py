"""JSONL shards: units that add up, rows at any byte, and bad rows that cost themselves only."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zephon_core.errors import InputError
from zephon_core.ratios.datasets import BLANK_ROW, Dataset, jsonl
from zephon_core.ratios.datasets.files import FoundFile, Tally, local_stamp
from zephon_core.ratios.datasets.formats import ShardPlace
from zephon_core.ratios.datasets.json_lines import LineRows, line_bounds
from zephon_core.ratios.datasets.jsonl import JsonlReader
from zephon_core.readers.rows import RowProblem

Write = Callable[[str, bytes], Path]

LINES = b'{"text": "a"}\r\n\n{"text": "\xc3\xa9"}\n[1]\n  \t\n"x"\nnull'


def all_rows(dataset: Dataset) -> list[object]:
    with dataset.open() as reader:
        return [
            payload
            for unit in range(len(dataset.units))
            for rows in [reader.read(unit)]
            for payload in rows.payloads(range(len(rows.row_bytes)))
        ]


@pytest.mark.parametrize(
    ("name", "pack"), [("a.jsonl", bytes), ("a.jsonl.gz", gzip.compress), ("a.jsonl.zst", zstandard.ZstdCompressor().compress)]
)
def test_rows_and_sizes(name: str, pack: Callable[[bytes], bytes], write: Write, opened: Callable[..., Dataset]) -> None:
    path = write(name, pack(LINES))
    dataset = opened(path)
    assert (dataset.counts().tolist(), dataset.raw_bytes().tolist()) == ([7], [len(LINES)])
    assert dataset.shards[0].stored_bytes == path.stat().st_size
    assert dataset.units.size.tolist() == [len(LINES)]
    assert dataset.units.rows.tolist() == [7]
    assert dataset.units.addressable.tolist() == [name == "a.jsonl"]
    assert all_rows(dataset) == [{"text": "a"}, BLANK_ROW, {"text": "é"}, [1], BLANK_ROW, "x", None]
    with dataset.open() as reader:
        assert reader.read(0).row_bytes.tolist() == [15, 1, 15, 4, 4, 4, 4]
        assert reader.bytes_read == path.stat().st_size


def test_empty_files_are_shards_without_units(write: Write, opened: Callable[..., Dataset]) -> None:
    write("a.jsonl", b"")
    write("b.jsonl.gz", gzip.compress(b""))
    dataset = opened(write("c.jsonl", b"1\n").parent)
    assert sorted(dataset.counts().tolist()) == [0, 0, 1]
    assert len(dataset.units) == 1
    assert dataset.problems == ()


def test_long_files_are_cut_at_line_ends(write: Write, opened: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "RANGE_BYTES", 100)
    monkeypatch.setattr(jsonl, "_CHUNK_BYTES", 64)
    lines = [json.dumps("x" * length).encode() + b"\n" for length in (3, 30, 200, 0, 57, 40, 98, 99, 96, 95, 1)]
    content = b"".join(lines)
    dataset = opened(write("a.jsonl", content))
    units = dataset.units
    assert len(units) > 3
    assert units.start.tolist() == [0, *np.cumsum(units.size)[:-1].tolist()]
    assert int(units.size.sum()) == len(content) == dataset.raw_bytes()[0]
    assert all(content[start - 1 : start] in (b"", b"\n") for start in units.start.tolist())
    assert min(units.size[:-1].tolist()) >= 100
    assert all_rows(dataset) == [json.loads(line) for line in lines]
    assert int(units.rows.sum()) == len(lines)


def test_a_byte_order_mark_belongs_to_the_first_row(write: Write, opened: Callable[..., Dataset]) -> None:
    dataset = opened(write("a.jsonl", b"\xef\xbb\xbf[1]\n\xef\xbb\xbf[2]\n"))
    first, second = all_rows(dataset)
    assert first == [1]
    assert isinstance(second, RowProblem)
    with dataset.open() as reader:
        located = reader.read_at(0, 1)
        assert (located.start, located.length, located.payload) == (0, 7, [1])
        assert isinstance(reader.read_at(0, 8).payload, RowProblem)


def test_bad_rows_cost_themselves_only(write: Write, opened: Callable[..., Dataset]) -> None:
    content = (
        b'{"a": 1}\n{"a": \n"\xff"\n' + b"[" * 600 + b"]" * 600 + b'\n{"a": "\\ud800"}\n[NaN, 1e400]\n12345678901234567890123\n'
    )
    rows = all_rows(opened(write("a.jsonl", content)))
    assert rows[0] == {"a": 1}
    assert [row.reason for row in rows[1:4] if isinstance(row, RowProblem)] == ["broken JSON", "invalid UTF-8", "nested too deeply"]
    assert rows[4] == {"a": "\ud800"}
    assert rows[5][0] != rows[5][0]  # type: ignore[index]
    assert rows[5][1] == float("inf")  # type: ignore[index]
    assert rows[6] == float(12345678901234567890123)


def test_a_row_of_nothing_but_its_length(write: Write, opened: Callable[..., Dataset]) -> None:
    path = write("a.jsonl", b"1\n" + b'"' + b"x" * 100_000 + b'"\n2\n')
    place = ShardPlace(str(path), "jsonl", "none", (found(path),))
    reader = JsonlReader(place, Tally(), max_row_bytes=50_000)
    size = path.stat().st_size
    for offset in (2, 3, 30_000, 60_000, 100_003, 100_004):
        located = reader.read_at(0, size, offset)
        assert (located.start, located.length) == (2, 100_003)
        assert isinstance(located.payload, RowProblem)
        assert located.payload.reason == "too long"
    assert reader.read_at(0, size, 0).payload == 1
    assert reader.read_at(0, size, size - 1).payload == 2
    rows = reader.read(0, 0, size).payloads(range(3))
    assert (rows[0], rows[2], rows[1].reason) == (1, 2, "too long")
    reader.close()


def found(path: Path) -> FoundFile:
    status = path.stat()
    return FoundFile(str(path), status.st_size, local_stamp(status))


LINE = st.one_of(
    st.text(max_size=6).map(json.dumps),
    st.sampled_from(["", " ", "\r", "{", "null", json.dumps("x" * 40), json.dumps("é" * 30, ensure_ascii=False)]),
).map(str.encode)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(lines=st.lists(LINE, max_size=12), ended=st.booleans(), window=st.integers(2, 80))
def test_the_row_at_each_byte_is_the_one_that_reading_all_gives(
    lines: list[bytes], ended: bool, window: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = b"\n".join(lines) + (b"\n" if ended else b"")
    path = tmp_path_factory.mktemp("rows") / "a.jsonl"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "WINDOW_BYTES", window)
        reader = JsonlReader(ShardPlace(str(path), "jsonl", "none", (found(path),)), Tally())
        try:
            expected = LineRows(content, at_start=True)
            bounds = line_bounds(content)
            assert int(expected.row_bytes.sum()) == len(content)
            for offset in range(len(content)):
                row = int(np.searchsorted(bounds, offset, "right")) - 1
                located = reader.read_at(0, len(content), offset)
                assert (located.start, located.length) == (bounds[row], expected.row_bytes[row])
                same(located.payload, expected.payloads([row])[0])
        finally:
            reader.close()


def same(one: object, other: object) -> None:
    if isinstance(other, RowProblem):
        assert isinstance(one, RowProblem)
        assert one.reason == other.reason
    else:
        assert one == other


def test_reading_a_row_reads_little(write: Write, opened: Callable[..., Dataset]) -> None:
    content = b"".join(b'{"text": "%s"}\n' % (b"x" * 100) for _ in range(20_000))
    dataset = opened(write("a.jsonl", content))
    with dataset.open() as reader:
        for offset in range(0, len(content), len(content) // 50):
            reader.read_at(0, offset)
        assert reader.bytes_read <= 51 * jsonl.WINDOW_BYTES


def test_offsets_outside_and_units_without_addresses_are_refused(write: Write, opened: Callable[..., Dataset]) -> None:
    dataset = opened([write("a.jsonl", b"1\n"), write("b.jsonl.gz", gzip.compress(b"2\n"))])
    plain = int(np.flatnonzero(dataset.units.addressable)[0])
    with dataset.open() as reader:
        for offset in (-1, 2):
            with pytest.raises(InputError, match="has no byte"):
                reader.read_at(plain, offset)
        with pytest.raises(InputError, match="compression gzip"):
            reader.read_at(1 - plain, 0)


def test_a_large_file_is_not_counted_far_away(opened: Callable[..., Dataset]) -> None:
    import fsspec

    system = fsspec.filesystem("memory")
    system.pipe("/far/a.jsonl", b"[1]\n\n[2]")
    system.pipe("/far/b.jsonl.gz", gzip.compress(b"[3]\n"))
    try:
        dataset = opened("memory://far")
        rows = dict(zip((shard.compression for shard in dataset.shards), dataset.counts().tolist(), strict=True))
        assert rows == {"none": -1, "gzip": 1}
        assert sorted(dataset.raw_bytes().tolist()) == [4, 8]
        assert [row for row in all_rows(dataset) if row is not BLANK_ROW] in ([[1], [2], [3]], [[3], [1], [2]])
        with dataset.open() as reader:
            plain = int(np.flatnonzero(dataset.units.addressable)[0])
            assert reader.read_at(plain, 5).payload == [2]
    finally:
        system.rm("/far", recursive=True)
