"""The parameters of flows, forms and files."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from zephon_core.ratios.specs import RatioRun, RatioSpec, TokenEstimation


def test_defaults_are_those_of_programs() -> None:
    assert RatioSpec(datasets=("a=x",)).estimation() == TokenEstimation()


def test_pairs_come_as_texts_or_as_mappings() -> None:
    spec = RatioSpec.model_validate(
        {"datasets": {"a": "x/", "b": ["y/*.jsonl", "s3://z/"]}, "pins": {"a": 0.25}, "shares": {"a": 3, "b": 1}}
    )
    assert spec.datasets == ("a=x/", "b=y/*.jsonl", "b=s3://z/")
    assert spec.dataset_urls == {"a": ["x/"], "b": ["y/*.jsonl", "s3://z/"]}
    assert spec.estimation().pins == {"a": 0.25}
    assert spec.wanted_shares == {"a": 3.0, "b": 1.0}
    assert RatioSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"datasets": []}, "at least 1"),
        ({"datasets": ["x/"]}, "NAME=URL"),
        ({"datasets": ["=x/"]}, "no name"),
        ({"datasets": ["a b=x/"]}, "no name"),
        ({"datasets": ["a="]}, "NAME=URL"),
        ({"pins": ["b=0.25"]}, "no data set b"),
        ({"pins": ["a=x"]}, "write a number"),
        ({"pins": ["a=0"]}, "positive"),
        ({"pins": ["a=nan"]}, "positive"),
        ({"pins": ["a=1", "a=2"]}, "twice"),
        ({"pins": ["a=1"], "ratio_for_all": 0.2}, "exclude"),
        ({"shares": ["b=1"]}, "no data set b"),
        ({"datasets": ["a=x", "b=y"], "shares": ["a=1"]}, "no share is given for b"),
        ({"measure": "count it"}, "package.module:function"),
        ({"target_rel_error": 0}, "greater than 0"),
        ({"special_tokens": "both"}, "bos_eos"),
        ({"unknown": 1}, "Extra inputs"),
    ],
)
def test_what_can_not_be_is_refused_in_words(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        RatioSpec.model_validate({"datasets": ["a=x"], **values})


@pytest.mark.parametrize("model", [RatioSpec, RatioRun])
def test_every_field_says_what_it_is(model: Any) -> None:
    for name, field in model.model_fields.items():
        assert field.title and field.description, name
        assert field.description.endswith("."), name
