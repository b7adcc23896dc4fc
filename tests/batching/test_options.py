"""The limits of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from zephon_core.batching import TokenBatchOptions
from zephon_core.errors import SpecError


def test_defaults() -> None:
    options = TokenBatchOptions(maximum_tokens=8192)
    assert (options.maximum_examples, options.layout) == (None, "packed")
    assert options == TokenBatchOptions.model_validate_json(options.model_dump_json())


@pytest.mark.parametrize(
    "wrong",
    [
        {"maximum_tokens": 0},
        {"maximum_tokens": -1},
        {"maximum_tokens": 2**63},
        {"maximum_tokens": 1.0},
        {"maximum_tokens": True},
        {"maximum_tokens": "8"},
        {"maximum_tokens": None},
        {"maximum_tokens": [8]},
        {"maximum_tokens": 8, "maximum_examples": 0},
        {"maximum_tokens": 8, "layout": "ragged"},
        {"maximum_tokens": 8, "layout": ["packed"]},
    ],
)
def test_other_limits_are_refused(wrong: dict[str, Any]) -> None:
    name, value = list(wrong.items())[-1]
    with pytest.raises(SpecError) as caught:
        TokenBatchOptions(**wrong)
    shown = f"of type {type(value).__name__}" if isinstance(value, list) else repr(value)
    wanted = "'packed' or 'padded'" if name == "layout" else f"a whole number from 1 to {2**63 - 1}"
    assert str(caught.value) == f"{name}: is {shown}, expected {wanted}."


def test_limits_are_named() -> None:
    with pytest.raises(TypeError, match="maximum_tokens"):
        TokenBatchOptions()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="maximum_token"):
        TokenBatchOptions(maximum_tokens=8, maximum_token=8)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="maximum_tokens: is 0, expected a whole number"):
        TokenBatchOptions.model_validate({"maximum_tokens": 0})


def test_numbers_may_be_numpys() -> None:
    options = TokenBatchOptions(maximum_tokens=np.int32(8), maximum_examples=np.int64(2))  # type: ignore[arg-type]
    assert options == TokenBatchOptions(maximum_tokens=8, maximum_examples=2)
    assert [type(number) for number in (options.maximum_tokens, options.maximum_examples)] == [int, int]


def test_it_is_frozen() -> None:
    with pytest.raises(ValidationError):
        TokenBatchOptions(maximum_tokens=8).maximum_tokens = 9  # type: ignore[misc]
