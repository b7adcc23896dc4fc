"""What a model's spec refuses before anything is loaded."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from zephon_core.models import ModelSpec

SETTINGS = {"dtype": "bfloat16", "quantization": "4bit", "engine": "openvino", "backbone": "outer", "remote_code": "Mine"}


@pytest.mark.parametrize(("name", "value"), SETTINGS.items())
def test_what_a_plugin_would_not_heed_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ValidationError, match=f"is {value}, which does nothing: package.module:factory") as caught:
        ModelSpec.model_validate({"path": "package.module:factory", name: value})
    assert [error["loc"] for error in caught.value.errors()] == [(name,)]
    assert getattr(ModelSpec.model_validate({"path": "folder", name: value}), name) == value


def test_a_plugin_may_be_given_what_is_the_default_anyway() -> None:
    plain = ModelSpec.model_validate("package.module:factory")
    assert ModelSpec.model_validate(plain.model_dump(mode="json")) == plain
