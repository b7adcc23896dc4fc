"""However an encode is cut up, interrupted, spread over parts and damaged, it ends in the same bytes."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zephon_core.bank.encode import encode_tokens, read_outcome, valid_rows
from zephon_core.bank.encode.run import make_plan
from zephon_core.bank.specs import EncodeSpec, RunOptions

FEATURES = 4


class Stop(Exception):
    """Stands for whatever ends a run early."""


class Encoder:
    """Gives features that depend on every id of a row, and stops when its patience is at an end."""

    hidden_size = FEATURES
    content_sha256 = "fixed"

    def __init__(self) -> None:
        self.patience: Iterator[int] = itertools.count()
        self.rows = 0

    def encode(self, ids: np.ndarray) -> np.ndarray:
        if next(self.patience, None) is None:
            raise Stop
        self.rows += len(ids)
        weights = np.arange(1, ids.shape[1] + 1)
        return np.cos((ids * weights).sum(1)[:, None] * np.arange(1, FEATURES + 1) * 0.7 + ids.shape[1]).astype(np.float32)


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> Encoder:
    encoder = Encoder()
    import sys

    monkeypatch.setitem(sys.modules, "property_encoder", SimpleNamespace(make=lambda: encoder))  # type: ignore[arg-type]
    monkeypatch.setattr("zephon_core.bank.encode.encode.model_content_sha256", lambda model: "fixed")
    monkeypatch.setattr("os.fsync", lambda handle: None)  # no power is cut here, and there are thousands of flushes
    return encoder


def write_tokens(directory: Path, lengths: list[int]) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    sizes = np.array(lengths, np.int32)
    np.save(directory / "token_ids.npy", np.random.default_rng(0).integers(0, 255, sizes.sum()).astype(np.uint8))
    np.save(directory / "token_offsets.npy", np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint64))
    np.save(directory / "lengths.npy", sizes)
    return directory


def fresh(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    return directory


RUNS = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"limit_texts": st.integers(1, 50)}),
    st.integers(1, 4).flatmap(lambda parts: st.fixed_dictionaries({"parts": st.just(parts), "part": st.integers(0, parts - 1)})),
    st.tuples(st.integers(0, 39), st.integers(1, 40)).map(lambda pair: {"rows": pair}),
)
STEPS = st.lists(st.tuples(RUNS, st.one_of(st.none(), st.integers(0, 12)), st.booleans()), max_size=5)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=40),
    steps=STEPS,
    max_batch=st.integers(1, 5),
    budget=st.integers(1, 30),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_interruption_is_invisible(
    encoder: Encoder,
    tmp_path: Path,
    lengths: list[int],
    steps: list[tuple[dict[str, Any], int | None, bool]],
    max_batch: int,
    budget: int,
) -> None:
    tokens = write_tokens(tmp_path / "tokens", lengths)
    spec = EncodeSpec.model_validate({"model": "property_encoder:make", "max_batch": max_batch, "token_budget": budget})
    plan = make_plan(np.array(lengths, np.int32), spec)
    encoder.patience = itertools.count()
    assert encode_tokens(tokens, spec, fresh(tmp_path / "whole")).complete

    work = fresh(tmp_path / "work")
    done: set[int] = set()
    harmed: set[int] = set()
    for run, patience, damage in steps:
        if "rows" in run:
            start, end = run["rows"][0] % len(lengths), 0
            end = start + 1 + run["rows"][1] % (len(lengths) - start)
            run = {"rows": f"{start}:{end}"}
        encoder.patience, encoder.rows = itertools.count() if patience is None else iter(range(patience)), 0
        try:
            outcome = encode_tokens(tokens, spec, work, run=RunOptions(**run))
        except Stop:
            outcome = read_outcome(work)
        there = set(np.flatnonzero(valid_rows(work, tokens)).tolist())
        assert done - harmed <= there, "rows that were encoded are no longer"
        assert len(there) == outcome.encoded_rows
        assert outcome.complete <= (len(there) == len(lengths))
        done = there
        if damage and done and not outcome.complete and not read_outcome(work).receipt:
            matrix = np.load(work / "features.f16.npy", mmap_mode="r+")
            row = min(done)
            matrix[row] = np.float16(0.123)
            matrix.flush()
            harmed |= set(plan.rows(next(block for block in range(len(plan)) if row in plan.rows(block))).tolist())
    encoder.patience = itertools.count()
    assert encode_tokens(tokens, spec, work).complete
    assert {path.name: path.read_bytes() for path in work.iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()
    }
