"""A ledger holds what was appended before the kill, whatever the kill or the disk did to its last bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.errors import CorruptArtifactError, LeaseHeldError, MismatchError
from zephon_core.ledger import BLOCK_RECORD, FLAW_RECORD, Ledger, read_records, read_union

WORK = hashlib.sha256(b"work").hexdigest()


def records(*blocks: int, finished_ms: int = 0, rows: int = 1) -> np.ndarray:
    made = np.zeros(len(blocks), BLOCK_RECORD)
    made["block"] = blocks
    made["rows"] = rows
    made["finished_ms"] = finished_ms
    return made


def write(path: Path, *batches: np.ndarray) -> Path:
    with Ledger(path, WORK) as ledger:
        for batch in batches:
            ledger.append(batch)
    return path


def test_records_come_back_in_order_and_further_ones_are_added(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ledger", records(3, 1), records(2))
    write(path, records(9))
    assert read_records(path, WORK).records["block"].tolist() == [3, 1, 2, 9]


@given(cut=st.integers(0, 64 + 5 * BLOCK_RECORD.itemsize))
def test_a_cut_file_holds_its_whole_records_and_can_be_continued(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = write(tmp_path_factory.mktemp("ledger") / "a.ledger", records(1, 2, 3, 4, 5))
    with path.open("r+b") as handle:
        handle.truncate(cut)
    whole = max(0, cut - 64) // BLOCK_RECORD.itemsize
    assert read_records(path, WORK).records["block"].tolist() == [1, 2, 3, 4, 5][:whole]
    write(path, records(7))
    assert read_records(path, WORK).records["block"].tolist() == [*[1, 2, 3, 4, 5][:whole], 7]


@given(place=st.integers(64, 64 + 3 * BLOCK_RECORD.itemsize - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_costs_one_record(tmp_path_factory: pytest.TempPathFactory, place: int, bit: int) -> None:
    path = write(tmp_path_factory.mktemp("ledger") / "a.ledger", records(1, 2, 3))
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)
    lost = (place - 64) // BLOCK_RECORD.itemsize
    assert read_records(path, WORK).records["block"].tolist() == [block for number, block in enumerate([1, 2, 3]) if number != lost]


@given(place=st.integers(0, 63), bit=st.integers(0, 7))
def test_a_damaged_header_is_not_taken_for_an_empty_ledger(tmp_path_factory: pytest.TempPathFactory, place: int, bit: int) -> None:
    path = write(tmp_path_factory.mktemp("ledger") / "a.ledger", records(1))
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)
    with pytest.raises(CorruptArtifactError, match="damaged"):
        read_records(path, WORK)


def test_other_work_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ledger", records(1))
    other = hashlib.sha256(b"other").hexdigest()
    with pytest.raises(MismatchError, match="other work"):
        read_records(path, other)
    with pytest.raises(MismatchError, match="other work"):
        Ledger(path, other)
    with pytest.raises(MismatchError, match="records of 56 bytes"):
        read_records(path, WORK, FLAW_RECORD)


def test_a_second_writer_is_refused_while_the_first_is_at_work(tmp_path: Path) -> None:
    with Ledger(tmp_path / "a.ledger", WORK), pytest.raises(LeaseHeldError, match="another process"):
        Ledger(tmp_path / "a.ledger", WORK)
    Ledger(tmp_path / "a.ledger", WORK).close()


def test_the_union_takes_the_latest_record_of_each_block(tmp_path: Path) -> None:
    first = write(tmp_path / "a.ledger", records(1, 2, 5, finished_ms=10), records(1, finished_ms=30, rows=7))
    second = write(tmp_path / "b.ledger", records(2, 3, finished_ms=20, rows=4))
    union, flushed = read_union([first, second], WORK)
    assert not flushed.any()
    assert union["block"].tolist() == [1, 2, 3, 5]
    assert union["rows"].tolist() == [7, 4, 4, 1]
    assert len(read_union([], WORK).records) == 0


def test_records_are_provisional_until_they_are_flushed(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with Ledger(path, WORK) as ledger:
        ledger.append(records(1, 2))
        assert read_records(path, WORK).flushed.tolist() == [False, False]
        ledger.flush()
        ledger.append(records(3))
    found = read_records(path, WORK)
    assert found.records["block"].tolist() == [1, 2, 3]
    assert found.flushed.tolist() == [True, True, False]
    with Ledger(path, WORK) as ledger:
        ledger.append(records(4))
        ledger.flush()
    assert read_union([path], WORK).flushed.tolist() == [True] * 4


def test_a_damaged_mark_vouches_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with Ledger(path, WORK) as ledger:
        ledger.append(records(1))
        ledger.flush()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert read_records(path, WORK).flushed.tolist() == [False]


def test_the_format_is_pinned(tmp_path: Path) -> None:
    one = records(258, finished_ms=1_700_000_000_000, rows=128)
    values = {"checksum": 2**63 + 5, "length": 17, "flaws": 1, "took_us": 99, "largest": 0.5, "worker": 3, "halvings": 2}
    for name, value in values.items():
        one[name] = value
    content = write(tmp_path / "a.ledger", one).read_bytes()
    assert content[:8] == b"ZPHLEDG\0"
    assert content[8:16] == bytes.fromhex("0100000038000000")
    assert content[16:48].hex() == WORK
    assert hashlib.sha256(content).hexdigest() == "dc1ab742fa28e660565aa9ea0d1ae9eb84efcecded9d1f89cbe1c75048e92bb4"
