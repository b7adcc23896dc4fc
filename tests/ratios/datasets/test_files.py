"""Source files: what several readers need of them is read once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from zephon_core.errors import TransientInputError
from zephon_core.ratios.datasets.files import FoundFile, KeptBytes, OpenFile, Tally, local_stamp


def found(path: Path) -> FoundFile:
    status = path.stat()
    return FoundFile(str(path), status.st_size, local_stamp(status))


def test_readers_that_share_what_they_keep_read_it_once(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(range(200)))
    kept = KeptBytes(1000)
    together = Barrier(8)

    def read(number: int) -> tuple[bytes, int]:
        tally = Tally(kept)
        with OpenFile(found(path), tally) as file:
            together.wait()
            return file.once(10, 50) + file.once(10, 50), tally.bytes_read

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(read, range(8)))
    assert all(content == 2 * bytes(range(10, 60)) for content, _ in outcomes)
    assert sum(count for _, count in outcomes) == 50


def test_what_there_is_no_room_for_is_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(range(200)))
    tally = Tally(KeptBytes(100))
    with OpenFile(found(path), tally) as file:
        for start, read in ((0, 60), (60, 120), (60, 180), (0, 180), (120, 220), (120, 220)):
            assert file.once(start, 60 if start < 120 else 40)[:1] == bytes([start])
            assert tally.bytes_read == read
    alone = Tally()
    with OpenFile(found(path), alone) as file:
        assert file.once(0, 60) == file.once(0, 60) == bytes(range(60))
    assert alone.bytes_read == 120


def test_a_failure_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    file = OpenFile(found(path), Tally(KeptBytes(100)))
    content = path.rename(tmp_path / "b")
    with file:
        with pytest.raises(TransientInputError):
            file.once(0, 3)
        content.rename(path)
        assert file.once(0, 3) == b"abc"
