from __future__ import annotations

import hashlib

import numpy as np
import pytest

from zephon_core.bank.scan.distinct import Distinct
from zephon_core.bank.scan.table import SLOT_BYTES, DigestTable


def digests(numbers) -> np.ndarray:
    joined = b"".join(hashlib.sha1(str(number).encode()).digest() for number in numbers)
    return np.frombuffer(joined, np.uint8).reshape(-1, 20).copy()


def first_places(numbers) -> list[int]:
    return sorted({number: place for place, number in reversed(list(enumerate(numbers)))}.values())


def test_a_table_grows_and_comes_out_sorted():
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 400_000, 600_000).tolist()
    table = DigestTable(64 << 20)
    new = np.empty(len(numbers), np.int64)
    at, found = table.insert(digests(numbers), 0, new)
    assert at == len(numbers)
    assert new[:found].tolist() == first_places(numbers)
    pieces = list(table.sorted_chunks(1 << 12))
    expected = digests(np.array(numbers)[new[:found]])
    order = sorted(range(found), key=lambda number: expected[number].tobytes())
    assert np.array_equal(np.concatenate([piece for piece, _ in pieces]), expected[order])
    assert np.concatenate([number for _, number in pieces]).tolist() == order


def test_a_full_table_says_where_it_stopped():
    table = DigestTable(5000 * SLOT_BYTES)
    many = digests(range(5000))
    new = np.empty(5000, np.int64)
    at, found = table.insert(many, 0, new)
    assert 500 < at == found < 1024
    assert table.insert(many[:at], 0, new) == (at, 0)
    table.clear()
    assert table.insert(many[:10], 0, new) == (10, 10)


def test_every_byte_of_a_digest_counts():
    many = np.zeros((21, 20), np.uint8)
    many[np.arange(20), np.arange(20)] = 1
    table = DigestTable(1 << 20)
    new = np.empty(21, np.int64)
    assert table.insert(many, 0, new) == (21, 21)
    assert table.insert(many, 0, new) == (21, 0)


def test_digests_that_crowd_into_one_place():
    """Equal leading bits all but the last bytes: probing must still tell them apart, and stop at the table's end."""
    crowd = np.full((6000, 20), 255, np.uint8)
    crowd[:, 18:] = np.arange(6000, dtype=">u2").view(np.uint8).reshape(-1, 2)
    table = DigestTable(64 << 20)
    new = np.empty(6000, np.int64)
    at, found = table.insert(crowd[::-1].copy(), 0, new)
    assert at == found
    assert found > 4000
    assert np.array_equal(np.concatenate([piece for piece, _ in table.sorted_chunks()]), crowd[6000 - found :])


@pytest.mark.parametrize("memory_bytes", [1 << 10, 200_000, 64 << 20])
def test_spilling_changes_nothing(tmp_path, memory_bytes):
    rng = np.random.default_rng(1)
    numbers = rng.integers(0, 20_000, 50_000).tolist()
    (tmp_path / "scratch").mkdir()
    distinct = Distinct(tmp_path, tmp_path / "scratch", memory_bytes)
    candidates: list[int] = []
    for start in range(0, len(numbers), 3000):
        block = digests(numbers[start : start + 3000])
        candidates.extend((start + distinct.admit(block)).tolist())
    assert distinct.candidates == len(candidates)
    assert (distinct.spilled_runs > 0) == (memory_bytes < 1 << 20)
    dropped = distinct.finish()
    kept = np.concatenate([dropped.kept(start, min(start + 640, len(candidates))) for start in range(0, len(candidates), 640)])
    expected = first_places(numbers)
    assert np.array(candidates)[kept].tolist() == expected
    in_order = digests([numbers[place] for place in expected])
    order = sorted(range(len(expected)), key=lambda row: in_order[row].tobytes())
    assert np.array_equal(np.load(tmp_path / "digests.npy"), in_order[order])
    rows = np.load(tmp_path / "rows.npy")
    assert rows.dtype == np.uint32
    assert rows.tolist() == order


def test_a_merge_by_ranges_of_digests(tmp_path, monkeypatch):
    """As many ranges as a scan of a hundred million texts has, on a few thousand."""
    monkeypatch.setattr("zephon_core.bank.scan.distinct._CHUNK", 64)
    monkeypatch.setattr("zephon_core.bank.scan.distinct._MERGE_BYTES_EACH", 1 << 10)
    test_spilling_changes_nothing(tmp_path, 200_000)


def test_a_million_digests_spill_and_merge(tmp_path):
    """Sorted runs go into the merge's tables as they come: no digest may have to search far for its place."""
    rng = np.random.default_rng(2)
    many = rng.integers(0, 256, (1_000_000, 20), np.uint8)
    many[700_000:] = many[:300_000]
    (tmp_path / "scratch").mkdir()
    distinct = Distinct(tmp_path, tmp_path / "scratch", 4 << 20)
    candidates = np.concatenate([start + distinct.admit(many[start : start + 10_000]) for start in range(0, len(many), 10_000)])
    dropped = distinct.finish()
    assert distinct.spilled_runs > 5
    kept = candidates[dropped.kept(0, len(candidates))]
    assert np.array_equal(kept, np.arange(700_000))
    rows = np.load(tmp_path / "rows.npy")
    assert np.array_equal(np.load(tmp_path / "digests.npy"), many[rows])
    assert np.array_equal(np.sort(rows), np.arange(700_000))
    leading = many[rows, :8].copy().view(">u8").ravel()
    assert (leading[1:] >= leading[:-1]).all()
