"""The table of lengths: read once, identified by content, wrong lengths named."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zephon_core.batching.lengths import LengthTable
from zephon_core.batching.options import TokenBatchOptions
from zephon_core.errors import InputError, LengthError, StateError

OPTIONS = TokenBatchOptions(maximum_tokens=100)


def saved(path: Path, values: Any, *, age_s: float = 60) -> Path:
    np.save(path, values)
    then = path.stat().st_mtime - age_s
    os.utime(path, (then, then))
    return path


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, ">i4", ">i8"])
def test_the_identity_is_of_the_numbers_and_not_of_their_type(dtype: Any) -> None:
    values = np.array([3, 1, 4, 1, 5], dtype)
    table = LengthTable.of(values)
    assert table.values.dtype in (np.int32, np.int64)
    assert table.values.tolist() == [3, 1, 4, 1, 5]
    assert not table.values.flags.writeable
    assert table.sha256 == hashlib.sha256(b"zephon lengths 1 <i4 5\n" + np.array([3, 1, 4, 1, 5], "<i4").tobytes()).hexdigest()


def test_the_identity_of_lengths_beyond_32_bits() -> None:
    content = np.array([1, 2**31], "<i8")
    assert LengthTable.of([1, 2**31]).sha256 == hashlib.sha256(b"zephon lengths 1 <i8 2\n" + content.tobytes()).hexdigest()


def test_an_array_that_fits_is_not_copied() -> None:
    values = np.arange(1, 5, dtype=np.int32)
    assert np.shares_memory(LengthTable.of(values).values, values)
    assert values.flags.writeable  # the caller's own array is left as it was


def test_a_strided_array_is_copied() -> None:
    table = LengthTable.of(np.arange(20, dtype=np.int64)[::2])
    assert table.values.flags.c_contiguous
    assert table.values.tolist() == list(range(0, 20, 2))


def test_a_file_is_mapped(tmp_path: Path) -> None:
    path = saved(tmp_path / "lengths.npy", np.arange(1, 1001, dtype=np.int32))
    table = LengthTable.of(path, source_id="data")
    assert (table.path, table.count, table.source_id) == (path, 1000, "data")
    assert isinstance(table.values.base, np.memmap) or isinstance(table.values.base.base, np.memmap)  # type: ignore[union-attr]
    assert table.sha256 == LengthTable.of(list(range(1, 1001))).sha256
    assert LengthTable.of(str(path)).sha256 == table.sha256


def test_a_table_is_taken_as_it_is_or_renamed() -> None:
    table = LengthTable.of([1, 2], source_id="a")
    assert LengthTable.of(table) is table
    renamed = LengthTable.of(table, source_id="b")
    assert (renamed.source_id, renamed.values is table.values) == ("b", True)


def test_bounds_and_total_are_exact_beyond_int64() -> None:
    table = LengthTable.of([2**62, 2**62, 2**62, 7])
    assert (table.shortest, table.longest, table.total_tokens) == (7, 2**62, 3 * 2**62 + 7)
    assert LengthTable.of([]).total_tokens == 0
    assert LengthTable.of(np.array([2**31 - 1] * 5, np.int32)).total_tokens == 5 * (2**31 - 1)


@pytest.mark.parametrize(
    ("lengths", "named"),
    [
        ([5, 0, 0], "example 1: has length 0, expected at least 1"),
        ([5, 6, -3], "example 2: has length -3, expected at least 1"),
        ([5, 100, 101, 102], "example 2: has length 101, which alone exceeds the budget, expected at most maximum_tokens = 100"),
        ([2**40], f"example 0: has length {2**40}, which alone exceeds the budget"),
    ],
)
def test_lengths_that_cant_be_batched_are_named(lengths: list[int], named: str) -> None:
    with pytest.raises(LengthError, match=named):
        LengthTable.of(lengths).check(OPTIONS)


def test_lengths_at_the_limits_pass() -> None:
    LengthTable.of([1, 100]).check(OPTIONS)
    LengthTable.of([]).check(OPTIONS)
    LengthTable.of([2**63 - 1]).check(TokenBatchOptions(maximum_tokens=2**63 - 1))


@pytest.mark.parametrize("wrong", [[1.5], [[1, 2]], ["a"], 7, [True, False], [None]])
def test_what_is_no_row_of_whole_numbers_is_refused(wrong: Any) -> None:
    with pytest.raises(LengthError, match="one row of whole numbers"):
        LengthTable.of(wrong)


def test_a_length_beyond_int64_is_named() -> None:
    with pytest.raises(LengthError, match=f"example 1: has length {2**63}"):
        LengthTable.of(np.array([1, 2**63], np.uint64))


def test_files_that_cant_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not there"):
        LengthTable.of(tmp_path / "none.npy")
    whole = saved(tmp_path / "a.npy", np.arange(100)).read_bytes()
    for name, content in (("cut.npy", whole[:-8]), ("head.npy", whole[:20]), ("empty.npy", b""), ("text.npy", b"1\n2\n3\n")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=name):
            LengthTable.of(tmp_path / name)
    np.savez(tmp_path / "several.npz", a=np.arange(3))
    with pytest.raises(InputError, match="several"):
        LengthTable.of(tmp_path / "several.npz")


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (9223372036854775808,), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (4611686018427387904,), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (",
        "{'descr': '<i8', 'fortran_order': False, 'shape': 5, }",
        "{'descr': 'Q9', 'fortran_order': False, 'shape': (5,), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (5,), 'x':'''",
        "(" * 3000,
        "5",
    ],
)
def test_whatever_a_header_holds_is_an_error_of_ours(tmp_path: Path, header: str) -> None:
    text = (header + " " * (63 - (len(header) + 10) % 64) + "\n").encode()
    (tmp_path / "odd.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\x01" * 80)
    with pytest.raises(InputError, match=r"odd\.npy"):
        LengthTable.of(tmp_path / "odd.npy")
    (tmp_path / "odd.npy").write_bytes(b"PK\x03\x04junk")
    with pytest.raises(InputError, match=r"odd\.npy"):
        LengthTable.of(tmp_path / "odd.npy")


@pytest.mark.parametrize("wrong", [[[1, 2], [3]], [2**64], np.ma.array([5, 6], mask=[False, True]), None, 5, {3, 4}])
def test_what_is_no_row_of_lengths_is_refused(wrong: Any) -> None:
    with pytest.raises(LengthError, match=r"^lengths: are "):
        LengthTable.of(wrong)


def test_values_that_were_rewritten_are_noticed(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npy", np.arange(1, 100))
    table = LengthTable.of(path)
    table.check(OPTIONS)
    (tmp_path / "link.npy").hardlink_to(path)
    table.check_unchanged()
    saved(path, np.arange(99, 0, -1), age_s=50)  # the same bounds
    with pytest.raises(StateError, match=r"a\.npy: was written to while it was in use"):
        table.check_unchanged()
    values = np.arange(1, 100)
    table = LengthTable.of(values)
    table.check(OPTIONS)
    values[7] = 0
    with pytest.raises(StateError, match="lengths: go from 0 to 99 now, expected 1 to 99"):
        table.check_unchanged()
    path.unlink()


def test_an_identity_is_vouched_for_only_by_the_same_unchanged_file(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npy", np.arange(1, 100))
    stamp = LengthTable.of(path).stamp
    assert stamp is not None
    same = LengthTable.of(path)
    same.vouch("f" * 64, stamp, shortest=-1, longest=-2)
    assert (same.sha256, same.shortest, same.longest) == ("f" * 64, -1, -2)  # taken over, not computed
    copied = LengthTable.of(saved(tmp_path / "b.npy", np.arange(1, 100)))
    copied.vouch("f" * 64, stamp, shortest=-1, longest=-2)
    assert copied.sha256 == LengthTable.of(np.arange(1, 100)).sha256
    saved(path, np.arange(2, 101), age_s=50)
    changed = LengthTable.of(path)
    changed.vouch("f" * 64, stamp, shortest=-1, longest=-2)
    assert changed.sha256 == LengthTable.of(np.arange(2, 101)).sha256
    inline = LengthTable.of([1, 2])
    inline.vouch("f" * 64, stamp, shortest=-1, longest=-2)
    assert inline.sha256 == LengthTable.of([1, 2]).sha256


def test_a_file_written_just_now_has_no_stamp(tmp_path: Path) -> None:
    """Its times couldn't tell the next change."""
    assert LengthTable.of(saved(tmp_path / "a.npy", np.arange(1, 100), age_s=0)).stamp is None


def test_lengths_looked_up_later_are_within_those_that_were_checked() -> None:
    table, examples = LengthTable.of([5, 60, 7]), np.array([2, 0])
    table.check_still(np.array([7, 5]), examples, OPTIONS)
    table.check_still(np.array([], np.int64), examples[:0], OPTIONS)
    for wrong, named in ((0, "example 0: has length 0"), (101, "example 0: has length 101, which alone exceeds the budget")):
        with pytest.raises(LengthError, match=named):
            table.check_still(np.array([7, wrong]), examples, OPTIONS)
    with pytest.raises(StateError, match="were written to while they were in use"):
        table.check_still(np.array([7, 61]), examples, OPTIONS)
