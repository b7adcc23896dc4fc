"""Token shares wanted → how often to draw, and how far off it may come out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ratio_inputs import Sizes

from zephon_core.errors import SpecError
from zephon_core.ratios.estimation import TokenRatio
from zephon_core.ratios.mixture import mixture_weights


def measured(ratio: float, rel_error: float) -> TokenRatio:
    return TokenRatio(ratio, "measured", interval=(ratio * (1 - rel_error), ratio * (1 + rel_error)))


@st.composite
def mixtures(draw: st.DrawFn) -> Any:
    names = [f"d{number}" for number in range(draw(st.integers(1, 6)))]
    shares = {name: draw(st.floats(0.01, 100)) for name in names}
    ratios = {name: measured(draw(st.floats(0.05, 2)), draw(st.floats(0, 0.3))) for name in names}
    sizes = {name: Sizes(draw(st.integers(1, 10**6)), draw(st.integers(1, 10**9))) for name in names}
    return shares, ratios, sizes


@given(mixtures())
def test_drawing_so_delivers_the_shares(mixture: Any) -> None:
    shares, ratios, sizes = mixture
    found = mixture_weights(shares, ratios, sizes)
    assert sum(found.probabilities.values()) == pytest.approx(1)
    drawn = {name: p * sizes[name].size / sizes[name].rows for name, p in found.probabilities.items()}
    delivered = {name: size * ratios[name].tokens_per_byte for name, size in drawn.items()}
    for name, share in shares.items():
        assert delivered[name] / sum(delivered.values()) == pytest.approx(share / sum(shares.values()))
        low, high = found.datasets[name].share_interval
        assert 0 <= low <= found.shares[name] * (1 + 1e-9) and found.shares[name] * (1 - 1e-9) <= high <= 1
    assert sum(weight.blame for weight in found.datasets.values()) == pytest.approx(1 if found.calibrate_next else 0)


def test_the_interval_of_a_share_holds_as_often_as_those_of_the_ratios() -> None:
    """Ratios estimated with noise, each with its 95 % interval: the true shares lie in theirs as often, or nearly."""
    rng = np.random.default_rng(5)
    wanted = {"a": 0.5, "b": 0.3, "c": 0.15, "d": 0.05}
    truth = {"a": 0.25, "b": 0.4, "c": 0.22, "d": 0.6}
    error = {"a": 0.02, "b": 0.05, "c": 0.01, "d": 0.15}
    sizes = dict.fromkeys(wanted, Sizes(1000, 10**6))
    held = dict.fromkeys(wanted, 0)
    for _ in range(1000):
        ratios = {}
        for name, ratio in truth.items():
            estimate = ratio * (1 + error[name] * rng.standard_normal())
            half = 1.96 * error[name] * ratio
            ratios[name] = TokenRatio(estimate, "measured", interval=(max(0.0, estimate - half), estimate + half))
        found = mixture_weights(wanted, ratios, sizes)
        delivered = {name: found.probabilities[name] * truth[name] for name in wanted}
        for name, weight in found.datasets.items():
            low, high = weight.share_interval
            held[name] += low <= delivered[name] / sum(delivered.values()) <= high
    assert all(925 <= count <= 980 for count in held.values()), held


def test_epochs_of_a_token_budget() -> None:
    ratios = {"code": TokenRatio(0.5, "pinned"), "web": TokenRatio(0.25, "pinned")}
    sizes = {"code": Sizes(100, 10**9), "web": Sizes(100, 10**12)}
    found = mixture_weights({"code": 0.25, "web": 0.75}, ratios, sizes, budget_tokens=100e9)
    assert found.datasets["code"].tokens == 0.5e9
    assert found.datasets["code"].epochs == pytest.approx(50)
    assert found.datasets["web"].epochs == pytest.approx(0.3)
    assert found.calibrate_next == ""  # pinned ratios count as exact
    assert found.datasets["code"].share_interval == pytest.approx((0.25, 0.25))


def test_what_to_calibrate_next_is_what_tightens_the_shares_most() -> None:
    sizes = dict.fromkeys("abc", Sizes(10, 1000))
    ratios = {"a": measured(0.25, 0.01), "b": measured(0.25, 0.03), "c": measured(0.25, 0.0)}
    equal = mixture_weights(dict.fromkeys("abc", 1.0), ratios, sizes)
    assert equal.calibrate_next == "b" and equal.datasets["c"].blame == 0
    assert mixture_weights({"a": 1.0, "b": 0.001, "c": 1.0}, ratios, sizes).calibrate_next == "a"
    guess = {**ratios, "c": TokenRatio(0.25, "fallback")}
    found = mixture_weights(dict.fromkeys("abc", 1.0), guess, sizes)
    assert found.calibrate_next == "c"
    low, high = found.datasets["c"].share_interval
    assert low < 0.2 and high > 0.5


def test_an_interval_down_to_zero_leaves_a_share_open_to_zero() -> None:
    ratios = {"a": TokenRatio(0.25, "measured", interval=(0.0, 0.6)), "b": measured(0.25, 0.01)}
    low, high = mixture_weights({"a": 1, "b": 1}, ratios, dict.fromkeys("ab", Sizes(10, 1000))).datasets["a"].share_interval
    assert low == 0 and 0.5 < high < 1


def test_a_mixture_of_one_is_certain() -> None:
    found = mixture_weights({"a": 7}, {"a": measured(0.25, 0.2)}, {"a": Sizes(10, 1000)})
    assert (found.datasets["a"].share_interval, found.datasets["a"].probability) == ((1.0, 1.0), 1.0)
    assert found.calibrate_next == ""


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({}, "are empty"),
        ({"a": 0}, "positive"),
        ({"a": math.inf}, "positive"),
        ({"a": True}, "positive"),
        ({"x": 1}, "no ratio"),
        ({"b": 1}, "no data set"),
        ({"c": 1}, "how many rows"),
    ],
)
def test_what_can_not_be_mixed_is_refused(shares: dict[str, Any], words: str) -> None:
    ratios = dict.fromkeys("abc", TokenRatio(0.25, "pinned"))
    with pytest.raises(SpecError, match=words):
        mixture_weights(shares, ratios, {"a": Sizes(1, 1), "c": Sizes(-1, 1)})


def test_unknown_rows_can_be_made_up_for() -> None:
    found = mixture_weights({"c": 1}, {"c": TokenRatio(0.5, "pinned")}, {"c": Sizes(-1, 100)}, sample_bytes={"c": 20.0})
    assert found.datasets["c"].tokens_per_sample == 10.0


@pytest.mark.parametrize("value", [0, -5, math.nan, math.inf, True, "x"])
def test_bytes_a_sample_are_positive_numbers(value: Any) -> None:
    ratios = {"a": TokenRatio(0.25, "pinned")}
    with pytest.raises(SpecError, match=r"sample_bytes\['a'\]"):
        mixture_weights({"a": 1}, ratios, {"a": Sizes(1, 1)}, sample_bytes={"a": value})
    with pytest.raises(SpecError, match="budget_tokens"):
        mixture_weights({"a": 1}, ratios, {"a": Sizes(1, 1)}, budget_tokens=value)


def test_bytes_a_sample_are_of_known_data_sets_and_stand_in_for_one() -> None:
    ratios = {"a": TokenRatio(0.25, "pinned"), "b": TokenRatio(0.5, "pinned")}
    with pytest.raises(SpecError, match="sample_bytes: name c, of which there is no ratio"):
        mixture_weights({"a": 1}, ratios, {"a": Sizes(1, 1)}, sample_bytes={"c": 5})
    found = mixture_weights({"a": 1, "b": 1}, ratios, {"a": Sizes(10, 1000)}, sample_bytes={"b": 200}, budget_tokens=1e6)
    assert found.datasets["b"].tokens_per_sample == 100 and found.datasets["b"].epochs is None
    with pytest.raises(SpecError, match=r"data set b: doesn't say how many rows.*--sample-bytes b=2000"):
        mixture_weights({"a": 1, "b": 1}, ratios, {"a": Sizes(10, 1000), "b": Sizes(-1, 1000)})
    with pytest.raises(SpecError, match=r"data set b: has no rows\. Leave it out"):
        mixture_weights({"a": 1, "b": 1}, ratios, {"a": Sizes(10, 1000), "b": Sizes(0, 0)})
