"""Loops over stretches of arrays."""

from __future__ import annotations

import numpy as np
import pytest

from zephon_core.batching.cutting.loops import collect_items, copy_items, sum_items


@pytest.mark.parametrize("count", [0, 1, 15, 16, 100])
def test_a_stretch_is_copied(count):
    source, target = np.arange(200, dtype=np.uint32), np.full(200, 7, np.uint32)
    copy_items(source, 3, target, 5, count)
    assert target.tolist() == [7] * 5 + list(range(3, 3 + count)) + [7] * (195 - count)


@pytest.mark.parametrize("back", [0, 1, 7, 40])
def test_a_stretch_is_moved_towards_the_beginning(back):
    items = np.arange(200)
    copy_items(items, 50, items, 50 - back, 150)
    assert items[50 - back : 200 - back].tolist() == list(range(50, 200))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_stretch_is_summed_in_64_bits(dtype):
    items = np.full(100, 2**31 - 1, dtype)
    assert sum_items(items, 10, 97) == 87 * (2**31 - 1)
    assert sum_items(items, 10, 10) == 0


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_pieces_are_collected_one_after_the_other(dtype):
    source, target = np.arange(50, dtype=dtype), np.full(12, -1)
    collect_items(source, np.array([30, 4, 4, 49]), np.array([0, 5, 5, 9, 10]), target)
    assert target.tolist() == [30, 31, 32, 33, 34, 4, 5, 6, 7, 49, -1, -1]
