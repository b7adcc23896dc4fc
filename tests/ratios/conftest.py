"""Small data sets on disk, and the tokenizer that knows their words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
sys.path.insert(0, str(PROGRAMS))

from ratio_inputs import make_tokenizer  # noqa: E402


@pytest.fixture(scope="session")
def word_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json to which each of `ratio_inputs.WORDS` is a token."""
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))
