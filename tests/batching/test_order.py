"""The epoch's order: a permutation, the same everywhere, entered anywhere, and as good as random."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from zephon_core.batching.order import ORDER_VERSION, EpochOrder, epoch_order, index_dtype
from zephon_core.errors import SpecError

SEEDS = st.integers(0, 2**63 - 1)


@given(count=st.integers(0, 3000), seed=SEEDS, epoch=st.integers(0, 2**40))
def test_every_example_comes_once(count: int, seed: int, epoch: int) -> None:
    order = epoch_order(count, seed=seed, epoch=epoch)
    assert order.dtype == np.uint32
    assert np.array_equal(np.sort(order), np.arange(count))


@pytest.mark.parametrize("count", [65_535, 65_536, 65_537, 300_007])
def test_every_example_of_a_longer_epoch_comes_once(count: int) -> None:
    assert np.array_equal(np.sort(epoch_order(count, seed=5, epoch=1)), np.arange(count))


@given(data=st.data(), count=st.integers(1, 5000), seed=st.none() | SEEDS)
def test_any_stretch_is_a_piece_of_the_whole(data: st.DataObject, count: int, seed: int | None) -> None:
    order, whole = EpochOrder(count, seed=seed, epoch=3), epoch_order(count, seed=seed, epoch=3)
    start, stride = data.draw(st.integers(0, count - 1)), data.draw(st.integers(1, 9))
    length = data.draw(st.integers(0, len(whole[start::stride])))
    assert np.array_equal(order.stretch(start, length, stride=stride), whole[start::stride][:length])
    places = data.draw(st.lists(st.integers(0, count - 1), max_size=50))
    assert np.array_equal(order.at(np.array(places, np.int64)), whole[places])


def test_without_a_seed_it_is_the_order_of_the_source() -> None:
    assert np.array_equal(epoch_order(10, seed=None, epoch=4), np.arange(10))


def test_far_beyond_what_fits_memory() -> None:
    order = EpochOrder(2**40, seed=1, epoch=0)
    some = order.at(np.arange(2**40 - 5000, 2**40))
    assert some.dtype == np.int64
    assert len(set(some.tolist())) == 5000
    assert 0 <= some.min() < 2**39 < some.max() < 2**40
    assert np.array_equal(order.stretch(2**40 - 5000, 5000), some)
    largest = EpochOrder(2**63 - 1, seed=1, epoch=0).at(np.array([0, 1, 2**63 - 2]))
    assert len(set(largest.tolist())) == 3
    assert largest.min() >= 0


def test_numbers_stay_below_the_count_where_their_type_ends() -> None:
    assert index_dtype(2**31) == np.uint32
    assert index_dtype(2**31 + 1) == np.int64
    for count in (2**31, 2**31 + 1, 2**32 - 1, 2**32, 2**32 + 1):
        order = EpochOrder(count, seed=9, epoch=0)
        found = order.stretch(count - 100_000, 100_000)
        assert int(found.max()) < count
        assert len(np.unique(found)) == 100_000


def test_the_order_is_what_it_was() -> None:
    """Golden: a change here changes what every seed gives, and needs a new ORDER_VERSION."""
    assert ORDER_VERSION == 1
    assert epoch_order(12, seed=0, epoch=0).tolist() == GOLDEN_12
    for (count, seed, epoch), digest in GOLDEN.items():
        order = epoch_order(count, seed=seed, epoch=epoch)
        assert hashlib.sha256(order.astype("<i8").tobytes()).hexdigest() == digest, (count, seed, epoch)
    assert EpochOrder(1000, seed=7, epoch=2).digest == GOLDEN_PROBES
    assert EpochOrder(2**40, seed=7, epoch=2).at(np.array([0, 2**39])).tolist() == GOLDEN_FAR


GOLDEN_12 = [1, 6, 4, 9, 3, 5, 7, 11, 10, 8, 0, 2]
GOLDEN = {
    (1000, 7, 2): "2e311fd584bbff3d64682663ee34e6cdd5575540131522714398781b230e70a3",
    (65536, 0, 0): "134a3ca367ef01875f4fd34c5c08f41996d9e47f454170dc63fa2fe29634cd88",
    (200000, 4611686018427387904, 9): "494b6b473436d889ec2ce2288dc41e34d364582eb71fb0e1b4a40ea1cb085b9e",
}
GOLDEN_PROBES = "dd0ab0257ee3c1d1d76c7742bef4de84a644704ee328e62ebd362d418f21dcb0"
GOLDEN_FAR = [1083726764556, 33110831051]


def plain_order(count: int, seed: int, epoch: int) -> list[int]:
    """The order as its module describes it, in plain Python."""
    low_bits = (max(count - 1, 0).bit_length() + 1) // 2
    rows = -(-count // 2**low_bits)
    recipe = json.dumps(["zephon epoch order", 1, count, seed, epoch], separators=(",", ":")).encode()
    rounds = 24 if count < 65_536 else 12
    stream = hashlib.shake_256(recipe).digest(4 * rounds)
    keys = [int.from_bytes(stream[4 * k : 4 * k + 4], "little") for k in range(rounds)]

    def mixed(value: int, key: int) -> int:
        value = (value + key) * 0x9E3779B1 % 2**32
        value = (value ^ value >> 15) * 0x85EBCA77 % 2**32
        value = (value ^ value >> 13) * 0xC2B2AE3D % 2**32
        return value ^ value >> 16

    def sent(position: int) -> int:
        high, low = position >> low_bits, position % 2**low_bits
        for even, odd in zip(keys[::2], keys[1::2], strict=True):
            high = (high + (mixed(low, even) * rows >> 32)) % rows
            low = (low + mixed(high, odd)) % 2**low_bits
        there = high << low_bits | low
        return there if there < count else sent(there)

    return [sent(position) for position in range(count)]


@pytest.mark.parametrize(("count", "seed", "epoch"), [(1, 0, 0), (2, 3, 0), (97, 5, 1), (4096, 2**63 - 1, 2), (65_540, 1, 3)])
def test_the_compiled_order_is_the_described_one(count: int, seed: int, epoch: int) -> None:
    assert epoch_order(count, seed=seed, epoch=epoch).tolist() == plain_order(count, seed, epoch)


def test_seed_epoch_and_length_each_give_another_order() -> None:
    orders = [epoch_order(100, seed=seed, epoch=epoch).tolist() for seed in range(5) for epoch in range(5)]
    assert len({tuple(order) for order in orders}) == 25
    assert [x for x in epoch_order(101, seed=0, epoch=0).tolist() if x < 100] != orders[0]


def test_the_digest_tells_orders_apart() -> None:
    digests = {EpochOrder(50, seed=seed, epoch=epoch).digest for seed in (None, 1, 2) for epoch in (0, 1)}
    assert len(digests) == 5  # without a seed, epochs don't differ
    assert len({EpochOrder(count, seed=1, epoch=0).digest for count in (0, 1, 2, 63, 64, 65, 2**31, 2**40, 2**63 - 1)}) == 9


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_all_orders_of_a_few_examples_are_equally_likely(count: int) -> None:
    trials = 100 * math.factorial(count)
    found = Counter(tuple(epoch_order(count, seed=seed, epoch=0).tolist()) for seed in range(trials))
    expected = trials / math.factorial(count)
    statistic = sum((found[order] - expected) ** 2 / expected for order in itertools.permutations(range(count)))
    assert chi2.sf(statistic, math.factorial(count) - 1) > 1e-4


@pytest.mark.parametrize(("count", "seed"), [(60_000, 1), (1_000_000, 2)])
def test_neighbours_have_nothing_to_do_with_each_other(count: int, seed: int) -> None:
    order = epoch_order(count, seed=seed, epoch=0).astype(np.int64)
    cells = order * 32 // count
    for lag in (1, 2, 64, 1024):
        table = np.bincount(cells[:-lag] * 32 + cells[lag:], minlength=1024)
        expected = (count - lag) / 1024
        assert 1e-4 < chi2.sf(float(((table - expected) ** 2 / expected).sum()), 1023) < 1 - 1e-4
    descents = int((order[1:] < order[:-1]).sum())
    assert abs(descents - (count - 1) / 2) < 4 * math.sqrt((count + 1) / 12)
    assert abs(np.corrcoef(order, np.arange(count))[0, 1]) < 4 / math.sqrt(count)


def test_epochs_have_nothing_to_do_with_each_other() -> None:
    first, second = (epoch_order(200_000, seed=3, epoch=epoch).astype(float) for epoch in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / math.sqrt(200_000)


@pytest.mark.parametrize("wrong", [-1, True, 1.0, 2**63])
def test_numbers_out_of_bounds_are_refused(wrong: int) -> None:
    with pytest.raises(SpecError, match="count"):
        EpochOrder(wrong, seed=0, epoch=0)
    with pytest.raises(SpecError, match="seed"):
        EpochOrder(1, seed=wrong, epoch=0)
    with pytest.raises(SpecError, match="epoch"):
        EpochOrder(1, seed=0, epoch=wrong)


def test_positions_beyond_the_order_are_refused() -> None:
    order = EpochOrder(10, seed=1, epoch=0)
    for start, length, stride in ((9, 2, 1), (0, 6, 2), (-1, 1, 1), (0, 1, 0)):
        with pytest.raises(IndexError):
            order.stretch(start, length, stride=stride)
    for wrong in (-1, 10):
        with pytest.raises(IndexError):
            order.at(np.array([wrong]))


@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.parametrize("count", [1, 5000, 2**31 + 7])
def test_an_array_is_filled_with_a_stretch(count: int, seed: int | None) -> None:
    order = EpochOrder(count, seed=seed, epoch=2)
    for start, length in ((0, min(count, 3000)), (count - 1, 1), (count, 0)):
        out = np.empty(length, order.dtype)
        order.fill(start, out)
        assert np.array_equal(out, order.stretch(start, length))
    for start in (-1, count):
        with pytest.raises(IndexError, match="of an order of"):
            order.fill(start, np.empty(1, order.dtype))
