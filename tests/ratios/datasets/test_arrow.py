"""Arrow IPC shards: batches of files and streams, found without reading them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from zephon_core.errors import InputError
from zephon_core.ratios.datasets import Dataset
from zephon_core.ratios.datasets.files import KeptBytes

Opener = Callable[..., Dataset]

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("kind", pa.dictionary(pa.int32(), pa.string())),
        ("turns", pa.list_(pa.struct([("content", pa.string())]))),
    ]
)


def batches() -> Iterator[pa.RecordBatch]:
    for number in range(3):
        kinds = pa.array([f"kind {number}", "shared"] * 2 + [None]).dictionary_encode()
        turns = [[{"content": "ab"}] * row for row in range(5)]
        yield pa.record_batch({"text": ["x" * number] * 5, "kind": kinds, "turns": turns}, schema=SCHEMA)


def write_arrow(path: Path, compression: str | None = None) -> Path:
    """Write a stream if the name says so, else a file, whose dictionaries must be the same for all batches."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    if path.suffix == ".arrows":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, SCHEMA, options=options) as writer:
            for batch in batches():
                writer.write_batch(batch)
    else:
        table = pa.Table.from_batches(list(batches())).unify_dictionaries()
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA, options=options) as writer:
            writer.write_table(table)
    return path


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("name", ["a.arrow", "a.arrows"])
def test_units_are_record_batches(name: str, compression: str | None, tmp_path: Path, opened: Opener) -> None:
    path = write_arrow(tmp_path / name, compression)
    dataset = opened(path)
    assert dataset.counts().tolist() == [15]
    assert dataset.raw_bytes().tolist() == [path.stat().st_size]
    assert dataset.units.rows.tolist() == [5, 5, 5]
    assert (dataset.units.size > 0).all()
    assert int(dataset.units.stored_bytes.sum()) <= path.stat().st_size
    expected = [row for batch in batches() for row in batch.to_pylist()]
    with dataset.open() as reader:
        assert [row for unit in (0, 1, 2) for row in reader.read(unit).payloads(range(5))] == expected
        assert reader.read(1).payload(3) == expected[8]
    with dataset.open(["kind"]) as reader:
        assert reader.read(2).payloads(range(5)) == [{"kind": row["kind"]} for row in expected[10:]]
        assert reader.read(2).row_bytes.tolist() == [6, 6, 6, 6, 0]


def test_few_bytes_are_read_to_find_batches(tmp_path: Path, opened: Opener) -> None:
    table = pa.table({"text": [np.random.default_rng(0).bytes(50_000).hex() for _ in range(40)]})
    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=10)
    dataset = opened(path)
    assert dataset.units.rows.tolist() == [10] * 4
    with dataset.open() as reader:
        reader.read(3)
        assert reader.bytes_read < 1.5 * path.stat().st_size / 4


def test_a_small_file_is_read_in_one_go_only_where_it_is_kept(tmp_path: Path, opened: Opener) -> None:
    table = pa.table({"text": [np.random.default_rng(0).bytes(1000).hex() for _ in range(40)]})
    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=10)
    size = path.stat().st_size
    dataset = opened(path)
    for kept, most in ((None, size / 2), (KeptBytes(1 << 20), size)):
        with dataset.open(kept=kept) as reader:
            reader.read(3)
            assert reader.bytes_read <= most
            assert kept is None or reader.bytes_read == size


@pytest.mark.parametrize("name", ["a.arrow", "a.arrows"])
@pytest.mark.parametrize("part", [0.0, 0.4, 0.9])
def test_a_cut_file_is_a_problem_with_a_reason(name: str, part: float, tmp_path: Path, opened: Opener) -> None:
    path = write_arrow(tmp_path / name)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    good = write_arrow(tmp_path / "good.arrow")
    dataset = opened(tmp_path)
    if name == "a.arrow" and part == 0.9:  # all batches are there, the footer isn't
        with dataset.open() as reader:
            for unit in np.flatnonzero([dataset.shards[shard].url != str(good) for shard in dataset.units.shard]).tolist():
                with pytest.raises(InputError):
                    reader.read(unit)
    elif part:
        assert [Path(problem.url).name for problem in dataset.problems] == [name]
        assert "is cut short" in dataset.problems[0].reason
    assert str(good) in [shard.url for shard in dataset.shards]


def test_garbage_is_a_problem_with_a_reason(tmp_path: Path, opened: Opener) -> None:
    rng = np.random.default_rng(1)
    write_arrow(tmp_path / "good.arrow")
    for number in range(30):
        (tmp_path / f"{number:02d}.arrow").write_bytes((b"ARROW1\0\0" if number % 2 else b"\xff\xff\xff\xff") + rng.bytes(300))
    (tmp_path / "old.feather").write_bytes(b"FEA1" + bytes(50))
    dataset = opened(tmp_path)
    assert len(dataset.shards) + len(dataset.problems) == 32
    assert any("version 1" in problem.reason for problem in dataset.problems)
    assert not any(problem.transient for problem in dataset.problems)
