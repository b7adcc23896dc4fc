"""WebDataset shards: members grouped into rows, read when they are asked for."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from zephon_core.errors import InputError
from zephon_core.ratios.datasets import Dataset
from zephon_core.readers.rows import RowProblem

Opener = Callable[..., Dataset]
Write = Callable[[str, bytes], Path]

LONG_NAME = "deep/" * 30 + "0003"
MEMBERS = [
    ("a/0001.txt", "héllo".encode()),
    ("a/0001.json", json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()),
    ("a/0001.seg.png", b"\x89PNG" + bytes(5000)),
    ("__meta__.txt", b"not a row"),
    ("a/0002.txt", b"\xff"),
    ("README", b"no extension"),
    ("a/0003.txt", b""),
    (f"{LONG_NAME}.txt", b"long"),
]


def tar_bytes(members: list[tuple[str, bytes]], format: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_rows_are_members_with_one_name(format: int, write: Write, opened: Opener) -> None:
    content = tar_bytes(MEMBERS, format)
    dataset = opened(write("a.tar", content))
    assert dataset.counts().tolist() == [4]
    assert dataset.raw_bytes().tolist() == [len(content)] == dataset.units.size.tolist()
    with dataset.open() as reader:
        rows = reader.read(0)
        assert rows.row_bytes.tolist() == [sum(len(value) for _, value in MEMBERS[:3]), 1, 0, 4]
        first, bad, empty, last = rows.payloads(range(4))
    assert first == {
        "txt": "héllo",
        "json": {"messages": [{"role": "user", "content": "hi"}]},
        "seg.png": MEMBERS[2][1],
    }
    assert isinstance(bad, RowProblem)
    assert bad.reason == "invalid UTF-8"
    assert (empty, last) == ({"txt": ""}, {"txt": "long"})


def test_only_wanted_members_are_read(write: Write, opened: Opener) -> None:
    dataset = opened(
        write("a.tar", tar_bytes([(f"{number}.{kind}", b"1" * 40_000) for number in range(20) for kind in ("txt", "bin")]))
    )
    with dataset.open(["txt"]) as reader:
        rows = reader.read(0)
        assert rows.row_bytes.tolist() == [40_000] * 20
        assert set(rows.payload(3)) == {"txt"}
        assert reader.bytes_read < 200_000


def test_cut_and_broken_files_are_problems(write: Write, opened: Opener) -> None:
    content = tar_bytes([(f"{number}.txt", bytes([65 + number]) * 700) for number in range(5)])
    write("cut.tar", content[:2000])
    broken = bytearray(content)
    broken[2 * 1536 : 2 * 1536 + 512] = b"?" * 512
    write("broken.tar", bytes(broken))
    write("garbage.tar", b"?" * 3000)
    dataset = opened(write("good.tar", content).parent)
    assert dataset.counts().tolist() == [5]
    reasons = {Path(problem.url).name: problem.reason for problem in dataset.problems}
    assert "is cut short" in reasons["cut.tar"]
    assert "is no tar header" in reasons["broken.tar"]
    assert "is no intact tar file" in reasons["garbage.tar"]


def test_a_compressed_tar_is_refused_by_name(write: Write, opened: Opener) -> None:
    dataset = opened([write("a.tar.gz", b"\x1f\x8b"), write("b.tar", tar_bytes(MEMBERS))])
    assert "compressed as a whole" in dataset.problems[0].reason


def test_far_away_rows_are_counted_when_they_are_read(opened: Opener) -> None:
    import fsspec

    system = fsspec.filesystem("memory")
    system.pipe("/tars/a.tar", tar_bytes(MEMBERS))
    try:
        dataset = opened("memory://tars")
        assert dataset.counts().tolist() == [-1]
        with dataset.open() as reader:
            rows = reader.read(0)
            assert len(rows.row_bytes) == 4
            assert rows.payload(0)["txt"] == "héllo"
            with pytest.raises(InputError):
                reader.read_at(0, 0)
    finally:
        system.rm("/tars", recursive=True)
