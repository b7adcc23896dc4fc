"""The stable sort and the shuffle that compiled loops use."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from zephon_core.batching.cutting.sorting import generator_state, shuffle, sort_pairs


def sorted_pairs(
    keys: np.ndarray, items: np.ndarray, count: int, largest: int, *, downwards: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    keys, items = keys.copy(), items.copy()
    spare_keys, spare_items = np.empty_like(keys), np.empty_like(items)
    if sort_pairs(keys, items, spare_keys, spare_items, count, largest, downwards):
        return spare_keys[:count], spare_items[:count]
    return keys[:count], items[:count]


@pytest.mark.parametrize("largest", [0, 1, 2047, 2048, 8192, 1 << 22, (1 << 31) - 1, (1 << 62) + 5])
def test_sorts_stably_by_key(largest):
    rng = np.random.default_rng(largest % 1000)
    keys = rng.integers(0, min(largest, 50) + 1, 500) * (largest // max(min(largest, 50), 1))
    keys[0] = largest
    found, items = sorted_pairs(keys, np.arange(500), 500, largest)
    order = np.argsort(keys, kind="stable")
    assert np.array_equal(items, order)
    assert np.array_equal(found, keys[order])
    found, items = sorted_pairs(keys, np.arange(500), 500, largest, downwards=True)
    assert np.array_equal(items, order[::-1])
    assert np.array_equal(found, keys[order[::-1]])


@given(st.lists(st.integers(0, 5000), max_size=40), st.integers(0, 40))
def test_sorts_the_first_ones_only(keys, count):
    count = min(count, len(keys))
    found, items = sorted_pairs(np.array(keys, np.int32), np.arange(len(keys), dtype=np.uint32), count, max(keys, default=0))
    assert found.tolist() == sorted(keys[:count])
    assert [keys[item] for item in items] == found.tolist()


def test_a_seed_always_shuffles_alike():
    """A golden value: with another shuffle a saved state would name another plan."""
    items, state = np.arange(12), generator_state(7)
    shuffle(items, 2, 11, state)
    assert items.tolist() == [0, 1, 4, 8, 7, 3, 9, 10, 2, 6, 5, 11]
    assert int(state[0]) == (7 + 8 * 0x9E3779B97F4A7C15) % 2**64


def test_shuffles_are_uniform():
    counts = np.zeros((5, 5))
    state = generator_state(123)
    for _ in range(4000):
        items = np.arange(5)
        shuffle(items, 0, 5, state)
        counts[np.arange(5), items] += 1
    expected = 4000 / 5
    assert chi2.sf(((counts - expected) ** 2 / expected).sum(), 16) > 1e-4


def test_nothing_to_shuffle_draws_nothing():
    state = generator_state(5)
    for items, first, end in ((np.arange(3), 1, 2), (np.arange(3), 2, 2), (np.arange(0), 0, 0)):
        shuffle(items, first, end, state)
    assert int(state[0]) == 5
