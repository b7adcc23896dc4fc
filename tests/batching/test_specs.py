"""The parameters of a plan: what they make, and what is refused, with what was found."""

from __future__ import annotations

import re
from typing import Any

import pytest

from zephon_core.batching import TokenBatchOptions
from zephon_core.batching.specs import BatchesSpec, PlanSpec


def test_options_are_those_of_programs() -> None:
    spec = PlanSpec(maximum_tokens=64, layout="padded", maximum_examples=3)
    assert spec.options() == TokenBatchOptions(maximum_tokens=64, layout="padded", maximum_examples=3)
    assert PlanSpec(maximum_tokens=64).options() == TokenBatchOptions(maximum_tokens=64)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ({}, "names neither a table nor texts"),
        ({"table": "a.npy", "texts": ["b.jsonl"]}, "names both a table and texts"),
        ({"texts": ["b.jsonl"]}, "names texts and no tokenizer"),
        ({"table": "a.npy", "tokenizer": "t"}, "names a tokenizer, and a table"),
        ({"table": "a.npy", "field": "a..b"}, "String should match"),
        ({"table": "a.npy", "extra_tokens": -1}, "is -1, expected at least 0"),
    ],
)
def test_lengths_come_from_one_place(lengths: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BatchesSpec.model_validate({"lengths": lengths, "plan": {"maximum_tokens": 200}})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"maximum_tokens": 0}, "is 0, expected at least 1"),
        ({"maximum_tokens": (1 << 40) + 1}, f"is {(1 << 40) + 1}, expected at most {1 << 40}"),
        ({"layout": "ragged"}, "is 'ragged', expected 'packed' or 'padded'"),
        ({"world_size": 0}, "is 0, expected at least 1"),
        ({"seed": -1}, "is -1, expected at least 0"),
        ({"bucket_width": -3}, "is -3, expected at least 0"),
        ({"window_steps": 1 << 21}, f"is {1 << 21}, expected at most {1 << 20}"),
    ],
)
def test_a_setting_out_of_range_is_named_with_what_it_is(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        PlanSpec(**({"maximum_tokens": 100} | settings))
