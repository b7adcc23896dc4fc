"""What an encode will take, before a model is loaded: blocks, tokens, operations, bytes and memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.bank.encode.receipts import reference_bytes
from zephon_core.bank.specs import EncodeSpec, Grouping
from zephon_core.blocks import RowLayout
from zephon_core.budget import BlockPlan
from zephon_core.errors import ModelError
from zephon_core.ledger import BLOCK_RECORD
from zephon_core.models import ModelFolder, read_model_folder
from zephon_core.models.cost import RUNTIME_BYTES, forward_flops, token_bytes, weight_bytes
from zephon_core.models.plugins import is_plugin, load_plugin
from zephon_core.models.pooling import pooling_modes

__all__ = ["EncodePlan", "feature_width", "predict_encode", "worker_bytes"]

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
    weights = 0 if folder is None else weight_bytes(folder, spec.model)
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
        flops=0.0 if folder is None else forward_flops(folder, counts) * padded / max(1, tokens),
        disk_bytes=RowLayout.matrix(len(lengths), width, dtype).file_bytes + len(plan) * BLOCK_RECORD.itemsize,
        weight_bytes=weights,
        activation_bytes=activations,
        peak_memory_bytes=RUNTIME_BYTES + weights + activations + (0 if folder is None else reference_bytes(folder, spec)),
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
    return RUNTIME_BYTES + weight_bytes(folder, spec.model) + budget * token_bytes(folder, spec.model)


def _activation_bytes(folder: ModelFolder, spec: EncodeSpec, plan: BlockPlan) -> int:
    """Return the largest block's activations, with the logits that the outer backbone makes for nothing."""
    largest = int(plan.padded_tokens.max(initial=0))
    outer = folder.vocabulary_size * 4 if spec.model.backbone == "outer" else 0
    return largest * token_bytes(folder, spec.model) + outer * int(plan.row_counts.max(initial=0))
