import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.errors import SpecError
from zephon_core.ratios.estimate import draw_positions, generator, locate


@given(length=st.integers(1, 10**15), draws=st.integers(1, 300), seed=st.integers(0, 5))
def test_each_stratum_gets_two_positions_of_its_own(length, draws, seed):
    positions = draw_positions(length, draws, generator(seed, "x"))
    strata = -(-draws // 2)
    assert positions.dtype == np.int64
    assert len(positions) == 2 * strata
    assert positions.min() >= 0
    assert positions.max() < length
    for number in range(strata):
        low, high = number * length // strata, -(-(number + 1) * length // strata)
        assert ((positions[2 * number : 2 * number + 2] >= low - 1) & (positions[2 * number : 2 * number + 2] <= high)).all()


def test_every_byte_is_as_likely_as_any_other():
    """A length that no number of strata divides: bytes on borders included."""
    length, draws, rounds = 7, 6, 20_000
    counts = np.zeros(length)
    rng = generator(1, "every byte")
    for _ in range(rounds):
        counts += np.bincount(draw_positions(length, draws, rng), minlength=length)
    expected = draws * rounds / length
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)


@given(sizes=st.lists(st.integers(0, 5), min_size=1).filter(any))
def test_a_position_is_located_as_counting_would(sizes):
    owners = [unit for unit, size in enumerate(sizes) for _ in range(size)]
    places = [place for size in sizes for place in range(size)]
    units, offsets = locate(np.arange(len(owners)), np.array(sizes, np.int64))
    assert units.tolist() == owners
    assert offsets.tolist() == places


def test_streams_of_random_numbers_belong_to_their_names():
    first = generator(3, "round", 0, "data").random(4)
    assert (generator(3, "round", 0, "data").random(4) == first).all()
    assert len(set(first)) == 4
    for other in (generator(4, "round", 0, "data"), generator(3, "round", 1, "data"), generator(3, "round", 0, "other")):
        assert not (other.random(4) == first).any()


@pytest.mark.parametrize(("length", "draws"), [(0, 4), (5, 0)])
def test_nothing_to_draw_from_is_refused(length, draws):
    with pytest.raises(SpecError, match="at least one of each"):
        draw_positions(length, draws, generator(0))
