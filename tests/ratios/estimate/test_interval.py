import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.errors import SpecError
from zephon_core.ratios.estimate import combine_rounds, draw_positions, draws_needed, generator

values = st.floats(0, 10, allow_nan=False, width=32)
rounds_of_values = st.lists(st.lists(st.tuples(values, values), min_size=1, max_size=20), min_size=1, max_size=4).map(
    lambda rounds: [np.array(pairs, np.float64).ravel() for pairs in rounds]
)


def test_four_draws_by_hand():
    """Strata (1, 3) and (2, 2): mean 2, variance ((1 - 3)² + 0) / 4² = 1/4, one degree of freedom, t = 12.7062."""
    estimate = combine_rounds([np.array([1.0, 3.0, 2.0, 2.0])], 0.95)
    assert estimate.mean == 2
    assert estimate.standard_error == pytest.approx(0.5)
    assert estimate.degrees_of_freedom == pytest.approx(1)
    assert estimate.high - estimate.mean == pytest.approx(12.7062047 / 2)
    assert estimate.low == 0  # a ratio is never negative
    assert estimate.design_effect == pytest.approx(0.25 / (2 / 3 / 4))


@given(rounds_of_values)
def test_rounds_count_in_proportion_to_their_draws(rounds):
    together = combine_rounds(rounds, 0.9)
    assert together.mean == pytest.approx(np.concatenate(rounds).mean())
    assert together.draws == sum(map(len, rounds))
    parts = [combine_rounds([values], 0.9) for values in rounds]
    variance = sum((len(values) / together.draws * part.standard_error) ** 2 for values, part in zip(rounds, parts, strict=True))
    assert together.standard_error**2 == pytest.approx(variance, abs=1e-12)


@given(rounds_of_values, st.floats(0.1, 100))
def test_units_don_t_matter(rounds, factor):
    plain, scaled = combine_rounds(rounds, 0.95), combine_rounds([values * factor for values in rounds], 0.95)
    assert scaled.mean == pytest.approx(factor * plain.mean)
    assert scaled.high == pytest.approx(factor * plain.high)


@given(rounds_of_values, st.randoms(use_true_random=False))
def test_what_failed_is_left_out_and_counted(rounds, random):
    lost = [values.copy() for values in rounds]
    for values_of_round in lost:
        for place in range(2, len(values_of_round)):
            if random.random() < 0.3:
                values_of_round[place] = np.nan
    estimate = combine_rounds(lost, 0.95)
    left = np.concatenate(lost)
    left = left[~np.isnan(left)]
    assert estimate.mean == pytest.approx(left.mean())
    assert (estimate.draws, estimate.failed) == (len(left), sum(map(len, rounds)) - len(left))
    assert math.isfinite(estimate.high)


def test_partners_of_failed_draws_are_paired_with_one_another():
    estimate = combine_rounds([np.array([1.0, np.nan, np.nan, 3.0, 2.0, 2.0])], 0.95)
    assert estimate.standard_error == pytest.approx(0.5)  # as (1, 3), (2, 2)


def test_equal_draws_leave_room_for_what_they_did_not_meet():
    """Of 512 equal draws, 3.69 / 512 of the axis may hold up to one token a byte; of ten looks each, a tenth of that."""
    values = np.full(512, 0.25)
    estimate = combine_rounds([values], 0.95, most=1.0)
    assert estimate.high - 0.25 == pytest.approx(-math.log(0.025) / 512 * 0.75)
    assert combine_rounds([values], 0.95, most=1.0, looks=10).high - 0.25 == pytest.approx(-math.log(0.025) / 5120 * 0.75)
    assert combine_rounds([values], 0.95).high == 0.25


def test_draws_that_vary_by_themselves_are_widened_by_next_to_nothing():
    values = np.random.default_rng(0).gamma(20, 0.25 / 20, 1024)
    plain, widened = combine_rounds([values], 0.95), combine_rounds([values], 0.95, most=1.0)
    assert 1 < widened.relative_half_width / plain.relative_half_width < 1.01


@pytest.mark.parametrize("share", [0.0005, 0.002, 0.01])
def test_a_rare_part_that_holds_nearly_all_is_not_missed(share):
    """Nearly everything holds next to nothing; what holds the tokens is met by few of the draws, or by none."""
    field = np.full(1_000_000, 0.00002)
    field[400_000 : 400_000 + int(share * len(field))] = 0.25
    truth, held = field.mean(), 0
    for seed in range(300):
        values = field[draw_positions(len(field), 512, generator(seed, "rare"))]
        estimate = combine_rounds([values], 0.95, most=1.0)
        held += estimate.low <= truth <= estimate.high
    assert held >= 0.93 * 300


def test_in_few_strata_a_jump_between_two_of_them_counts():
    """By pairs, nothing varies; by successive draws, (0.38 - 0.25)² times n / 2 (n - 1), over n²."""
    few, many = np.repeat([0.25, 0.38], [2, 14]), np.repeat([0.25, 0.38], [16, 112])
    assert combine_rounds([few], 0.95).standard_error ** 2 == pytest.approx(0.13**2 * 16 / 30 / 16**2)
    assert combine_rounds([many], 0.95).standard_error == 0


@pytest.mark.parametrize("draws", [32, 64, 100])
def test_few_draws_of_a_field_with_a_border_hold_the_truth(draws):
    rng = np.random.default_rng(1)
    field = np.where(np.arange(100_000) < 8_800, 0.25, 0.38) + rng.normal(0, 0.003, 100_000)
    truth, seeds = field.mean(), 400
    estimates = [
        combine_rounds([field[draw_positions(len(field), draws, generator(seed, "border"))]], 0.95) for seed in range(seeds)
    ]
    assert np.mean([estimate.low <= truth <= estimate.high for estimate in estimates]) >= 0.93


def test_one_draw_is_no_estimate():
    with pytest.raises(SpecError, match="1 measured draws, expected at least 2"):
        combine_rounds([np.array([1.0, np.nan])], 0.95)


def test_draws_needed_go_with_the_square_of_the_precision():
    estimate = combine_rounds([np.arange(100.0) % 7 + 1], 0.95)
    assert draws_needed(estimate, estimate.relative_half_width) == pytest.approx(100)
    assert draws_needed(estimate, estimate.relative_half_width / 3) == pytest.approx(900)


FIELDS = {
    "noise": lambda rng: np.repeat(rng.gamma(20, 1 / 20, 2000), 500),
    "one language a shard": lambda rng: (
        np.repeat(rng.choice([0.15, 0.3, 0.6], 200), 5000) * np.repeat(rng.gamma(30, 1 / 30, 2000), 500)
    ),
    "a tail in a tenth": lambda rng: (
        np.repeat(rng.gamma(20, 1 / 20, 2000), 500) * np.where(np.arange(1_000_000) // 100_000 == 3, 3, 1)
    ),
    "trend": lambda rng: 0.2 + np.arange(1_000_000) / 1e6,
}


@pytest.mark.parametrize("name", FIELDS)
def test_the_interval_holds_the_truth_as_often_as_it_says(name):
    field = FIELDS[name](np.random.default_rng(5))
    truth, seeds = field.mean(), 1000
    estimates = [combine_rounds([field[draw_positions(len(field), 512, generator(seed, name))]], 0.95) for seed in range(seeds)]
    held = np.mean([estimate.low <= truth <= estimate.high for estimate in estimates])
    assert 0.93 <= held <= 0.97
    errors = np.array([estimate.mean / truth - 1 for estimate in estimates])
    assert abs(errors.mean()) < 4 * errors.std() / math.sqrt(seeds)
    told = np.sqrt(np.mean([estimate.standard_error**2 for estimate in estimates])) / truth
    assert told == pytest.approx(errors.std(), rel=0.1)
