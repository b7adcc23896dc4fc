"""What an encode will take, before a model is loaded: blocks, tokens, operations, bytes and memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.bank.encode.matrix import matrix_bytes
from zephon_core.bank.encode.receipts import reference_bytes
from zephon_core.bank.specs import EncodeSpec, Grouping
from zephon_core.budget import BlockPlan
from zephon_core.errors import ModelError
from zephon_core.ledger import BLOCK_RECORD
from zephon_core.models import ModelFolder, read_model_folder
from zephon_core.models.encoder import bytes_a_weight
from zephon_core.models.plugins import is_plugin, load_plugin
from zephon_core.models.pooling import pooling_modes

__all__ = ["EncodePlan", "feature_width", "predict_encode", "worker_bytes"]

_RUNTIME_BYTES = 350 << 20  # an interpreter with torch
_LENGTHS_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class EncodePlan:
    """A prediction.

    disk_bytes: matrix and ledger. peak_memory_bytes: of one worker process, of which the weights and activations of its model are
    named; the rest is an interpreter with torch and, for one of the workers, the float32 model that the receipt is measured by.
    """

    rows: int
    blocks: int
    tokens: int
    padded_tokens: int
    longest: int
    distinct_lengths: int
    hidden_size: int
    parameters: int
    flops: float
    disk_bytes: int
    weight_bytes: int
    activation_bytes: int
    peak_memory_bytes: int
    expected_s: float | None

    def to_json(self) -> dict[str, Any]:
        """Return the prediction as plain values."""
        return asdict(self)


def predict_encode(
    lengths: npt.NDArray[np.int32], plan: BlockPlan, spec: EncodeSpec, *, tokens_per_s: float | None = None
) -> EncodePlan:
    """Predict an encode from the texts' lengths, the plan, and the headers of the model's files; loads nothing.

    lengths: int32 [rows]. tokens_per_s: a rate known from an earlier run, for the expected time.
    Raises ModelError for a folder that can't be encoded with, or texts longer than the model takes.
    """
    plugin = is_plugin(spec.model.path)
    folder = None if plugin else read_model_folder(spec.model.path)
    longest = int(plan.lengths.max(initial=0))
    if folder is not None:
        check_longest(folder, longest)
    counts = np.zeros(longest + 1, np.int64)
    for first in range(0, len(lengths), _LENGTHS_AT_ONCE):
        counts += np.bincount(lengths[first : first + _LENGTHS_AT_ONCE], minlength=longest + 1)
    tokens = int((counts * np.arange(longest + 1)).sum())
    padded = int(plan.padded_tokens.sum()) if spec.grouping is Grouping.PADDED else tokens
    width = feature_width(spec)
    dtype = np.dtype(spec.store_dtype.value)
    weights = 0 if folder is None else _weight_bytes(folder, spec)
    activations = 0 if folder is None else _activation_bytes(folder, spec, plan)
    return EncodePlan(
        rows=len(lengths),
        blocks=len(plan),
        tokens=tokens,
        padded_tokens=padded,
        longest=longest,
        distinct_lengths=int(np.count_nonzero(counts)),
        hidden_size=width,
        parameters=0 if folder is None else folder.parameter_count,
        flops=0.0 if folder is None else _flops(folder, counts) * padded / max(1, tokens),
        disk_bytes=matrix_bytes(len(lengths), width, dtype) + len(plan) * BLOCK_RECORD.itemsize,
        weight_bytes=weights,
        activation_bytes=activations,
        peak_memory_bytes=_RUNTIME_BYTES + weights + activations + (0 if folder is None else reference_bytes(folder, spec)),
        expected_s=padded / tokens_per_s if tokens_per_s else None,
    )


def check_longest(folder: ModelFolder, longest: int) -> None:
    """Raise ModelError if a text has more tokens than the model has learnt positions for."""
    if folder.longest_text and longest > folder.longest_text:
        raise ModelError(
            str(folder.root),
            f"takes texts of up to {folder.longest_text:,} tokens, and the longest has {longest:,}",
            remedy=f"Set max_key_tokens to {folder.longest_text} or less.",
        )


def feature_width(spec: EncodeSpec) -> int:
    """Return the width of a feature vector. Only a plugin is loaded for that."""
    if is_plugin(spec.model.path):
        return load_plugin(spec.model.path).hidden_size
    folder = read_model_folder(spec.model.path)
    return folder.hidden_size * len(pooling_modes(folder, spec.pooling.value))


def worker_bytes(spec: EncodeSpec) -> int:
    """Estimate the memory of one worker process with a model of its own."""
    folder = read_model_folder(spec.model.path)
    budget = min(spec.token_budget, 1 << 15)
    return _RUNTIME_BYTES + _weight_bytes(folder, spec) + budget * _token_bytes(folder, spec)


def _weight_bytes(folder: ModelFolder, spec: EncodeSpec) -> int:
    """Matrices in the type they are held in, the rest in the type of the arithmetic."""
    matrices = folder.matrix_parameters
    other = (folder.parameter_count - matrices) * (4 if spec.model.dtype.value == "float32" else 2)
    return int(matrices * bytes_a_weight(spec.model) + other)


def _activation_bytes(folder: ModelFolder, spec: EncodeSpec, plan: BlockPlan) -> int:
    """Add up the largest block's states of one layer: stream, projections and the widened middle, with attention in tiles."""
    largest = int(plan.padded_tokens.max(initial=0))
    outer = folder.vocabulary_size * 4 if spec.model.backbone == "outer" else 0
    return largest * _token_bytes(folder, spec) + outer * int(plan.row_counts.max(initial=0))


def _token_bytes(folder: ModelFolder, spec: EncodeSpec) -> int:
    hidden = folder.hidden_size
    middle = int(folder.text_config.get("intermediate_size") or 4 * hidden)
    bytes_each = 4 if spec.model.dtype.value == "float32" else 2
    return (6 * hidden + 2 * middle) * bytes_each + 4 * hidden


def _flops(folder: ModelFolder, counts: npt.NDArray[np.int64]) -> float:
    """Operations for all texts: two for each weight and token, and attention's two products."""
    lengths = np.arange(len(counts), dtype=np.float64)
    tokens = float((counts * lengths).sum())
    squares = float((counts * lengths * lengths).sum())
    return 2.0 * folder.matrix_parameters * tokens + 4.0 * folder.hidden_size * folder.layer_count * squares
