"""A ratio and the settings behind it, checked where they are made."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.errors import SpecError
from zephon_core.ratios.estimation import TokenEstimation, TokenRatio

NO_RATIOS = [True, False, 0, -0.5, math.nan, math.inf, -math.inf, 10**400, "0.25", None]


@pytest.mark.parametrize("value", NO_RATIOS)
def test_a_ratio_is_finite_and_positive(value: Any) -> None:
    with pytest.raises(SpecError, match="tokens_per_byte"):
        TokenRatio(value, "measured")


def test_what_a_ratio_refuses_otherwise() -> None:
    with pytest.raises(SpecError, match="measured, pinned or fallback"):
        TokenRatio(0.25, "guessed")  # type: ignore[arg-type]
    for interval in ((0.3, 0.2), (math.nan, 0.3), (0.1, math.inf), (0.1,)):
        with pytest.raises(SpecError, match="interval"):
            TokenRatio(0.25, "measured", interval=interval)  # type: ignore[arg-type]


@given(st.floats(1e-9, 1e9), st.sampled_from(["measured", "pinned", "fallback"]))
def test_a_state_brings_the_ratio_back(ratio: float, source: Any) -> None:
    state = TokenRatio(ratio, source).to_state()
    assert state == [ratio, source]
    assert TokenRatio.from_state(state) == TokenRatio(ratio, source)


@pytest.mark.parametrize("state", [None, [], [0.25], [0.25, "pinned", 1], ["x", "pinned"], [0.25, "other"], 0.25, [0, "pinned"]])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(SpecError):
        TokenRatio.from_state(state)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("primer", value) for value in [*NO_RATIOS, "guess", ["a"]]),
        *(("primer", {"a": value}) for value in NO_RATIOS),
        ("primer", {1: 0.25}),
        ("measure", "not a name"),
        ("measure", 3),
        *((name, value) for name in ("calibration_samples", "calibration_shards_min") for value in (0, -1, True, 2.0)),
        ("calibration_shards_max", 3),
        *(("fallback_tokens_per_byte", value) for value in NO_RATIOS),
        *((name, value) for name in ("target_rel_error", "confidence") for value in (0, 1, -0.1, math.nan, True, "0.1")),
        *(("byte_budget", value) for value in (0, -1, True, 1.5)),
        *(("exact_below_bytes", value) for value in (-1, True, 1.5)),
    ],
)
def test_settings_are_checked_when_made(field: str, value: Any) -> None:
    with pytest.raises(SpecError, match=field.split("_")[0]):
        TokenEstimation(**{field: value})


def test_primers() -> None:
    assert TokenEstimation().pins == {} and TokenEstimation().global_ratio is None
    assert TokenEstimation(primer={"a": 1}).pins == {"a": 1.0}
    assert TokenEstimation(primer=0.25).global_ratio == 0.25


def test_the_identity_covers_what_decides_and_nothing_else() -> None:
    plain = TokenEstimation().identity()
    assert TokenEstimation(primer={"a": 0.25}, calibration_shards_min=5, calibration_shards_max=17).identity() == plain
    changed = {
        "calibration_samples": 4096,
        "fallback_tokens_per_byte": 0.3,
        "target_rel_error": 0.02,
        "confidence": 0.9,
        "byte_budget": 1000,
        "exact_below_bytes": 1,
        "measure": "ratio_inputs:count_words",
    }
    assert changed.keys() == plain.keys()
    assert all(TokenEstimation(**{name: value}).identity() != plain for name, value in changed.items())  # type: ignore[arg-type]


def test_measure_by_name_and_as_a_function_are_the_same() -> None:
    import ratio_inputs

    named, given_function = TokenEstimation(measure="ratio_inputs:count_words"), TokenEstimation(measure=ratio_inputs.count_words)
    assert named.load_measure() is ratio_inputs.count_words
    assert named.identity() == given_function.identity()
    with pytest.raises(SpecError, match="measure"):
        TokenEstimation(measure="ratio_inputs:nothing").identity()
