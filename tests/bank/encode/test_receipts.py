"""A receipt states what was measured on a fixed probe of rows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from zephon_core.bank.encode.receipts import agreement, measure_receipt
from zephon_core.bank.encode.unit import ProbeJob
from zephon_core.bank.specs import EncodeSpec
from zephon_core.blocks import RowFile, RowLayout


def test_agreement_is_the_worst_and_the_mean_of_all_rows() -> None:
    first = np.array([[1.0, 0.0], [0.6, 0.8]])
    second = np.array([[1.0, 0.0], [1.0, 0.0]])
    assert agreement(first, second) == {"lowest_cosine": 0.6, "mean_cosine": 0.8, "largest_deviation": 0.8}


def test_a_receipt_compares_what_is_stored_alone_and_in_company(tmp_path: Path) -> None:
    def features(rows: np.ndarray) -> np.ndarray:
        return np.stack([np.cos(rows + 1.0), np.sin(rows + 1.0)], 1).astype(np.float32)

    def prober(job: ProbeJob) -> np.ndarray:
        """Features that depend on the batch, and whose float32 counterpart is a little elsewhere."""
        parts = [features(rows) + (0.25 if len(rows) > 1 else 0.0) for rows in job.batches]
        return np.concatenate(parts) + (0.125 if job.reference else 0)

    lengths = np.array([1, 2, 3, 4], np.int32)
    (tmp_path / "model").mkdir()
    with RowFile(tmp_path / "m.npy", RowLayout.matrix(4, 2, np.dtype(np.float16))) as matrix:
        stored = features(np.arange(4)).astype(np.float16)
        stored[2] = 9
        matrix.write(np.arange(4), stored)
        spec = EncodeSpec.model_validate({"model": "some.module:plugin"})
        receipt = measure_receipt(matrix, SimpleNamespace(lengths=lengths), spec, prober, np.array([1]))
    assert receipt["probe"] == {"rows": 3, "tokens": 8}
    assert receipt["float32"] == {"skipped": "a plugin has no float32 counterpart"}
    assert receipt["batch_shapes"]["rows_as_stored"] == 2
    assert receipt["batch_shapes"]["largest_deviation"] == pytest.approx(0.25)
