"""Alarms when training delivers something else than was promised, and only then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from zephon_core.errors import SpecError
from zephon_core.ratios.drift import check_drift
from zephon_core.ratios.estimation import TokenRatio

PROMISE = TokenRatio(0.25, "measured", interval=(0.2475, 0.2525))


@pytest.mark.parametrize(("tokens", "alarm"), [(250_000, False), (254_900, False), (256_000, True), (244_000, True), (0, True)])
def test_totals_are_held_against_the_interval(tokens: int, alarm: bool) -> None:
    found = check_drift("web", tokens, 1_000_000, ratio=PROMISE)
    assert found.alarm is alarm
    assert found.observed == tokens / 1_000_000
    assert found.share_factor == pytest.approx(tokens / 250_000)


def test_a_ratio_without_interval_has_the_tolerance_alone() -> None:
    pinned = TokenRatio(0.25, "pinned")
    assert not check_drift("web", 252, 1000, ratio=pinned).alarm
    assert check_drift("web", 256, 1000, ratio=pinned).alarm
    assert not check_drift("web", 256, 1000, ratio=pinned, tolerance=0.05).alarm


def test_noise_of_an_honest_training_gives_no_alarm_and_a_shift_does() -> None:
    rng = np.random.default_rng(1)
    alarms = {1.0: 0, 1.4: 0}
    for factor in alarms:
        for _ in range(200):
            sizes = rng.gamma(0.5, 10_000, 200)
            tokens = sizes * 0.25 * factor * rng.gamma(4, 0.25, 200)  # a step is off by half of itself, say
            alarms[factor] += check_drift("web", list(tokens), list(sizes), ratio=PROMISE).alarm
    assert alarms[1.0] <= 2
    assert alarms[1.4] >= 100


@pytest.mark.parametrize(
    ("tokens", "sizes", "words"),
    [
        (1, 0, "no bytes"),
        (-1, 1, "numbers from zero"),
        (float("nan"), 1, "numbers"),
        ([1, 2], [1], "as many"),
        ([[1]], [[1]], "one number"),
    ],
)
def test_what_is_no_delivery_is_refused(tokens: Any, sizes: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        check_drift("web", tokens, sizes, ratio=PROMISE)


@pytest.mark.parametrize("tolerance", [float("nan"), -1, float("inf"), True, "x"])
def test_a_tolerance_is_a_share(tolerance: Any) -> None:
    with pytest.raises(SpecError, match="tolerance"):
        check_drift("web", 1, 1, ratio=PROMISE, tolerance=tolerance)


def test_rounding_is_no_drift() -> None:
    ratio = TokenRatio(np.nextafter(0.1, 1), "measured", interval=(np.nextafter(0.1, 1),) * 2)
    assert not check_drift("web", 1, 10, ratio=ratio, tolerance=0).alarm
