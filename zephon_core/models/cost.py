"""What a model takes, worked out from its folder's headers: memory and operations."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zephon_core.models.folder import ModelFolder
from zephon_core.models.spec import ModelSpec, Precision, Quantization

__all__ = ["RUNTIME_BYTES", "forward_flops", "reference_bytes", "token_bytes", "weight_bytes"]

RUNTIME_BYTES = 350 << 20
"""An interpreter with torch."""
_LARGEST_REFERENCE_BYTES = 8 << 30


def weight_bytes(folder: ModelFolder, spec: ModelSpec) -> int:
    """Return the bytes of the weights: matrices in the type they are held in, the rest in the type of the arithmetic."""
    matrices = folder.matrix_parameters
    other = (folder.parameter_count - matrices) * (4 if spec.dtype is Precision.FLOAT32 else 2)
    return int(matrices * _bytes_a_weight(spec) + other)


def reference_bytes(folder: ModelFolder) -> int:
    """Return the bytes of the float32 model that results are compared with; 0 for one too large to be loaded for that."""
    needed = 4 * folder.parameter_count
    return 0 if needed > _LARGEST_REFERENCE_BYTES else needed


def token_bytes(folder: ModelFolder, spec: ModelSpec) -> int:
    """Return the bytes of one token's states in one layer: stream, projections and the widened middle, with attention in tiles."""
    hidden = folder.hidden_size
    middle = int(folder.text_config.get("intermediate_size") or 4 * hidden)
    bytes_each = 4 if spec.dtype is Precision.FLOAT32 else 2
    return (6 * hidden + 2 * middle) * bytes_each + 4 * hidden


def forward_flops(folder: ModelFolder, counts: npt.NDArray[np.int64]) -> float:
    """Operations for all texts, of which `counts[n]` have n tokens: two for each weight and token, and attention's two products."""
    lengths = np.arange(len(counts), dtype=np.float64)
    tokens = float((counts * lengths).sum())
    squares = float((counts * lengths * lengths).sum())
    return 2.0 * folder.matrix_parameters * tokens + 4.0 * folder.hidden_size * folder.layer_count * squares


def _bytes_a_weight(spec: ModelSpec) -> float:
    if spec.quantization is Quantization.NF4:
        return 0.5
    if spec.quantization is Quantization.INT8:
        return 1.0
    return 4.0 if spec.dtype is Precision.FLOAT32 else 2.0
