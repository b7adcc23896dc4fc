"""The service that these tests share with those of the flows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "flows" / "programs"), str(TESTS / "deployments" / "programs")]

from shared_service import prefect_service  # noqa: E402, F401 - the fixture
from tiny_inputs import make_inputs  # noqa: E402


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small inputs of a bank."""
    folder = tmp_path_factory.mktemp("inputs")
    make_inputs(folder)
    return folder
