"""The limits of a batch."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from zephon_core.batching import TokenBatchOptions


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
        {"maximum_tokens": 8, "maximum_examples": 0},
        {"maximum_tokens": 8, "layout": "ragged"},
        {"maximum_tokens": 8, "maximum_token": 8},
        {},
    ],
)
def test_other_limits_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TokenBatchOptions(**wrong)


def test_it_is_frozen() -> None:
    with pytest.raises(ValidationError):
        TokenBatchOptions(maximum_tokens=8).maximum_tokens = 9  # type: ignore[misc]
