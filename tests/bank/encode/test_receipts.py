"""A receipt states what was measured on a fixed probe of rows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.bank.encode.matrix import FeatureMatrix
from zephon_core.bank.encode.receipts import PROBE_ROWS, PROBE_TOKENS, agreement, measure_receipt, probe_rows
from zephon_core.bank.encode.unit import ProbeJob
from zephon_core.bank.specs import EncodeSpec


@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=200), left_out=st.sets(st.integers(0, 199)))
def test_a_probe_spreads_over_the_lengths_and_leaves_out_what_it_is_told_to(lengths: list[int], left_out: set[int]) -> None:
    left_out = {row for row in left_out if row < len(lengths)}
    rows = probe_rows(np.array(lengths, np.int32), np.array(sorted(left_out), np.int64)).tolist()
    allowed = sorted(set(range(len(lengths))) - left_out, key=lambda row: (lengths[row], row))
    assert len(rows) == len(set(rows)) <= PROBE_ROWS
    assert set(rows) <= set(allowed)
    assert bool(rows) == bool(allowed)
    if len(rows) > 1:
        assert lengths[rows[0]] == lengths[allowed[0]]
        assert lengths[rows[-1]] == lengths[allowed[-1]]


def test_a_probe_of_long_texts_has_fewer_of_them() -> None:
    rows = probe_rows(np.full(1000, 512, np.int32), np.zeros(0, np.int64))
    assert len(rows) == PROBE_TOKENS // 512


def test_agreement_is_the_worst_and_the_mean_of_all_rows() -> None:
    first = np.array([[1.0, 0.0], [0.6, 0.8]])
    second = np.array([[1.0, 0.0], [1.0, 0.0]])
    assert agreement(first, second) == {"lowest_cosine": 0.6, "mean_cosine": 0.8, "largest_deviation": 0.8}


def test_a_receipt_compares_what_is_stored_alone_and_in_company(tmp_path: Path) -> None:
    def features(rows: np.ndarray) -> np.ndarray:
        return np.stack([np.cos(rows + 1.0), np.sin(rows + 1.0)], 1).astype(np.float32)

    class Prober:
        """An encoder whose features depend on the batch, and whose float32 counterpart is a little elsewhere."""

        def probe(self, job: ProbeJob) -> np.ndarray:
            parts = [features(rows) + (0.25 if len(rows) > 1 else 0.0) for rows in job.batches]
            return np.concatenate(parts) + (0.125 if job.reference else 0)

    lengths = np.array([1, 2, 3, 4], np.int32)
    (tmp_path / "model").mkdir()
    with FeatureMatrix(tmp_path / "m.npy", 4, 2, np.dtype(np.float16)) as matrix:
        stored = features(np.arange(4)).astype(np.float16)
        stored[2] = 9
        matrix.write(np.arange(4), stored)
        spec = EncodeSpec.model_validate({"model": "some.module:plugin"})
        receipt = measure_receipt(matrix, SimpleNamespace(lengths=lengths), spec, Prober(), np.array([1]))
    assert receipt["probe"] == {"rows": 3, "tokens": 8}
    assert receipt["float32"] == {"skipped": "a plugin has no float32 counterpart"}
    assert receipt["batch_shapes"]["rows_as_stored"] == 2
    assert receipt["batch_shapes"]["largest_deviation"] == pytest.approx(0.25)
