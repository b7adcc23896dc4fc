"""Real tokenizers, shared with tests/properties, and scoring without other processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))
sys.path.insert(0, str(Path(__file__).parent / "programs"))

from real_tokenizers import tokenizer

__all__ = ["tokenizer"]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each row group be a part by itself: then files of a few rows come in several."""
    monkeypatch.setattr("zephon_core.xtoken.files.parquet_rows._PART_ROWS", 1)


@pytest.fixture
def scores_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Score in this process, by one thread: starting others takes longer than the rest of a test, and others test that."""
    import torch

    from zephon_core.blocks import Here
    from zephon_core.models import EncoderOptions
    from zephon_core.xtoken.score.unit import ScoreTask, open_unit_scorer

    @contextmanager
    def runner(tokens: Path, spec: Any, run: Any, most_workers: int) -> Iterator[Here]:
        with open_unit_scorer(ScoreTask(tokens, spec, EncoderOptions(device="cpu"))) as handle:
            yield Here(handle, "cpu", queued=False)

    monkeypatch.setattr("zephon_core.xtoken.score.product._open_runner", runner)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
