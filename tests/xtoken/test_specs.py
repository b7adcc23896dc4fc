"""Parameters of flows, forms and files: what can't be is refused in words, and only what decides advantages is in the spec."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from zephon_core.xtoken.specs import ChunkAdvantagesRun, ChunkAdvantagesSpec, PairSpec, ScoreSequencesSpec

SIDES = {"datums": ["d.parquet"], "student": "s", "teacher": "t"}


def test_one_path_is_a_list_of_one_and_a_models_path_a_model() -> None:
    spec = ChunkAdvantagesSpec.model_validate({**SIDES, "datums": "d.parquet", "score": {"model": "m"}})
    assert spec.datums == ("d.parquet",) and spec.score is not None and spec.score.model.path == "m"
    assert (spec.clip, spec.center, spec.teacher_logprobs) == (None, False, "")
    assert ScoreSequencesSpec.model_validate({"sequences": "s.parquet", "score": {"model": "m"}}).sequences == ("s.parquet",)


def test_no_template_is_the_tokenizers_own() -> None:
    for model, more in ((PairSpec, {}), (ChunkAdvantagesSpec, {"datums": ["d"], "teacher_logprobs": "l"})):
        spec = model.model_validate(
            {"student": "s", "teacher": "t", "student_template": None, "teacher_template": "x.jinja", **more}
        )
        assert (spec.student_template, spec.teacher_template) == ("", "x.jinja")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "names neither teacher_logprobs nor score; name one"),
        ({"teacher_logprobs": "l", "score": {"model": "m"}}, "names both teacher_logprobs and score; name one"),
        ({"teacher_logprobs": "l", "datums": []}, "at least 1 item"),
        ({"teacher_logprobs": "l", "student": ""}, "at least 1 character"),
        ({"teacher_logprobs": "l", "clip": 0}, "is 0; write a positive number, or leave it out"),
        ({"teacher_logprobs": "l", "clip": float("inf")}, "is inf; write a positive number"),
        ({"teacher_logprobs": "l", "clip": float("nan")}, "greater than 0|is nan"),
        ({"teacher_logprobs": "l", "name": "a/b"}, "should match pattern"),
        ({"teacher_logprobs": "l", "centre": True}, "Extra inputs"),
        ({"score": {"model": "package.module:factory"}}, "plugins encode, and don't score"),
    ],
)
def test_what_can_not_be_is_refused_in_words(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ChunkAdvantagesSpec.model_validate({**SIDES, **values})


def test_specs_are_frozen_and_each_field_says_what_it_is() -> None:
    for model in (ChunkAdvantagesSpec, ChunkAdvantagesRun, ScoreSequencesSpec, PairSpec):
        assert model.model_config["frozen"] and model.model_config["extra"] == "forbid"
        for name, field in model.model_fields.items():
            assert field.title and (field.description or name == "score"), f"{model.__name__}.{name}"


def test_run_options_reach_scoring() -> None:
    scoring = ChunkAdvantagesRun(workers=3, device="cpu", gpu_memory_gb=2).scoring()
    assert (scoring.workers, scoring.device, scoring.gpu_memory_gb, scoring.part) == (3, "cpu", 2, None)
    with pytest.raises(ValidationError, match="should match pattern"):
        ChunkAdvantagesRun(device="tpu")
