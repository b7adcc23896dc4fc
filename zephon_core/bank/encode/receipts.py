"""How far a bank's features are from plain float32, and how much they depend on the batch: measured, not promised.

A fixed probe of rows, spread evenly over the lengths, is encoded anew by the same weights in plain float32 and compared with what
the matrix holds. A few of them are also encoded by the bank's own encoder, alone and among copies of themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.bank.encode.unit import ProbeJob
from zephon_core.bank.specs import EncodeSpec
from zephon_core.blocks import RowFile, TokenRows, probe_rows
from zephon_core.models import ModelFolder, Precision, Quantization, cost, read_model_folder
from zephon_core.models.plugins import is_plugin

__all__ = ["Prober", "agreement", "measure_receipt", "reference_bytes"]

PROBE_ROWS = 64
PROBE_TOKENS = 4096
SHAPE_ROWS = 8  # each costs two forward passes, which for a large model take their time
_COPIES = 2


Prober = Callable[[ProbeJob], npt.NDArray[np.float32]]
"""Whatever encodes rows for comparison: returns float32 [rows, hidden_size], not cast to the stored type."""


def measure_receipt(
    matrix: RowFile, tokens: TokenRows, spec: EncodeSpec, prober: Prober, poison: npt.NDArray[np.integer]
) -> dict[str, Any]:
    """Encode a probe of the rows in `matrix` again and compare.

    Returns `probe` (how many rows and tokens), `float32` (stored features against plain float32 ones) and `batch_shapes` (a row
    alone against the same row among copies of itself, and how many of the rows come out alone as the very bytes stored).
    """
    rows = probe_rows(tokens.lengths, poison, most_rows=PROBE_ROWS, most_tokens=PROBE_TOKENS)
    if not len(rows):
        return {"probe": {"rows": 0, "tokens": 0}}
    stored = matrix.read(rows)
    few = np.unique(np.linspace(0, len(rows) - 1, SHAPE_ROWS).round().astype(np.int64))
    alone = prober(ProbeJob(tuple(rows[few, None])))
    among = prober(ProbeJob(tuple(np.repeat(rows[few, None], _COPIES, 1))))[::_COPIES]
    same = (alone.astype(matrix.dtype) == stored[few]).all(1)
    return {
        "probe": {"rows": len(rows), "tokens": int(tokens.lengths[rows].sum(dtype=np.int64))},
        "float32": _against_float32(stored, rows, tokens.lengths[rows], spec, prober),
        "batch_shapes": {"rows": len(few), "rows_as_stored": int(same.sum()), **agreement(among, alone)},
    }


def reference_bytes(folder: ModelFolder, spec: EncodeSpec) -> int:
    """Return the bytes of the float32 model that features are compared with: 0 for float32 ones, or where it is too large."""
    plain = spec.model.dtype is Precision.FLOAT32 and spec.model.quantization is Quantization.NONE
    return 0 if plain else cost.reference_bytes(folder)


def agreement(first: npt.NDArray[np.floating], second: npt.NDArray[np.floating]) -> dict[str, float]:
    """Compare vectors [rows, width] row by row: `lowest_cosine`, `mean_cosine`, `largest_deviation`."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    norms = np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-300)
    cosines = np.minimum((a * b).sum(1) / norms, 1.0)
    return {
        "lowest_cosine": round(float(cosines.min()), 9),
        "mean_cosine": round(float(cosines.mean()), 9),
        "largest_deviation": float(f"{np.abs(a - b).max():.3g}"),
    }


def _against_float32(
    stored: npt.NDArray[np.floating],
    rows: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int32],
    spec: EncodeSpec,
    prober: Prober,
) -> dict[str, Any]:
    if is_plugin(spec.model.path):
        return {"skipped": "a plugin has no float32 counterpart"}
    folder = read_model_folder(spec.model.path)
    if not cost.reference_bytes(folder):
        return {"skipped": f"the model in float32 takes {4 * folder.parameter_count / 1e9:.0f} GB"}
    equally_long = np.split(rows, np.flatnonzero(np.diff(lengths)) + 1)
    return agreement(stored, prober(ProbeJob(tuple(equally_long), reference=True)))
