"""Source files: what several readers need of them is read once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zephon_core.errors import BudgetSpentError, TransientInputError
from zephon_core.ratios.datasets.files import Allowance, FoundFile, KeptBytes, OpenFile, Tally, local_stamp


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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 220), st.integers(0, 90), st.booleans()), max_size=12))
def test_what_is_kept_is_never_read_again(tmp_path: Path, reads: list[tuple[int, int, bool]]) -> None:
    path = tmp_path / "a"
    if not path.exists():
        path.write_bytes(bytes(range(200)))
    tally = Tally(KeptBytes(10_000))
    kept: set[int] = set()
    expected = 0
    with OpenFile(found(path), tally) as file:
        for start, count, once in reads:
            wanted = set(range(start, min(start + count, 200)))
            content = file.once(start, count) if once else file.range(start, count)
            assert content == bytes(range(200))[start : start + count]
            expected += len(wanted - kept)
            kept |= wanted if once else set()
            assert tally.bytes_read == expected


def test_what_may_not_be_read_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(range(200)))
    allowance = Allowance(100)
    one, other = Tally(KeptBytes(1000), allowance), Tally(None, allowance)
    with OpenFile(found(path), one) as file, OpenFile(found(path), other) as again:
        file.once(0, 60)
        file.once(0, 60)  # costs nothing
        with pytest.raises(BudgetSpentError, match=r"41 bytes more would be read, and 40 are left of the 100 that may be\. Raise"):
            again.range(50, 41)
        assert file.range(20, 80) == bytes(range(20, 100))  # of which 40 are read
        with pytest.raises(BudgetSpentError):
            again.range(0, 1)
    assert (one.bytes_read, other.bytes_read) == (100, 0)


def test_what_was_not_read_is_given_back(tmp_path: Path) -> None:
    """A file that is gone, or another by now, costs nothing, however often it is tried."""
    path = tmp_path / "a"
    path.write_bytes(bytes(range(200)))
    place = found(path)
    allowance = Allowance(100)
    for make_wrong in (lambda: path.write_bytes(bytes(300)), path.unlink):
        make_wrong()
        for _ in range(3):
            tally = Tally(KeptBytes(1000), allowance)
            with OpenFile(place, tally) as file:
                for _ in range(2):
                    with pytest.raises(TransientInputError):
                        file.range(0, 100)
            assert tally.bytes_read == 0
    allowance.take("a", 100)


def test_a_read_that_goes_beyond_what_was_read_ahead_is_whole() -> None:
    """Libraries take what they get for all there is: pyarrow decodes what a short read left in its buffer."""
    import fsspec

    content = bytes(number % 251 for number in range(1000))
    fsspec.filesystem("memory").pipe("/ahead", content)
    for keep, most in ((False, 2_000), (True, 1_000)):
        tally = Tally(KeptBytes(10_000))
        with OpenFile(FoundFile("memory://ahead", 1000, "x"), tally, readahead_bytes=100, keep=keep) as file:
            for start, count in ((0, 8), (90, 30), (95, 5), (700, 80), (790, 150), (900, 200), (995, 10)):
                file.seek(start)
                assert file.read(count) == content[start : start + count]
        assert tally.bytes_read <= most
