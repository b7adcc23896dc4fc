"""What scoring will take, before a model is loaded."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.blocks import RowLayout
from zephon_core.budget import BlockPlan
from zephon_core.ledger import BLOCK_RECORD
from zephon_core.models import ModelFolder, Precision, read_model_folder
from zephon_core.models.causal import slice_positions
from zephon_core.models.cost import forward_flops, reference_bytes, token_bytes, weight_bytes
from zephon_core.xtoken.score.spec import ScoreSpec

__all__ = ["ScorePlan", "predict_score", "worker_bytes"]

_RUNTIME_BYTES = 440 << 20  # an interpreter with torch, transformers and a causal model's code


@dataclass(frozen=True)
class ScorePlan:
    """A prediction.

    disk_bytes: logprobs and ledger. logits_bytes: of the slice of positions whose logits exist at once. peak_memory_bytes: of one
    worker process, of which weights, activations and logits are named; the rest is an interpreter with torch and, for one of the
    workers, the float32 model that the receipt is measured by.
    """

    sequences: int
    blocks: int
    tokens: int
    longest: int
    parameters: int
    flops: float
    disk_bytes: int
    weight_bytes: int
    activation_bytes: int
    logits_bytes: int
    peak_memory_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the prediction as plain values."""
        return asdict(self)


def predict_score(lengths: npt.NDArray[np.integer], plan: BlockPlan, spec: ScoreSpec, *, device: str = "cpu") -> ScorePlan:
    """Predict from the sequences' lengths, the plan, and the headers of the model's files; loads no model. Raises ModelError."""
    folder = read_model_folder(spec.model.path)
    counts = np.bincount(lengths) if len(lengths) else np.zeros(1, np.int64)
    tokens = int(lengths.sum(dtype=np.int64))
    weights, activations = _model_bytes(folder, spec), int(plan.padded_tokens.max(initial=0)) * token_bytes(folder, spec.model)
    logits = _logits_bytes(folder, spec, device)
    head = 2.0 * folder.hidden_size * folder.vocabulary_size * tokens
    return ScorePlan(
        sequences=len(lengths),
        blocks=len(plan),
        tokens=tokens,
        longest=int(lengths.max(initial=0)),
        parameters=folder.parameter_count,
        flops=forward_flops(folder, counts) + head,
        disk_bytes=RowLayout.ragged(lengths, np.dtype(np.float32)).file_bytes + len(plan) * BLOCK_RECORD.itemsize,
        weight_bytes=weights,
        activation_bytes=activations,
        logits_bytes=logits,
        peak_memory_bytes=_RUNTIME_BYTES + weights + activations + logits + reference_bytes(folder),
    )


def worker_bytes(spec: ScoreSpec) -> int:
    """Estimate the memory of one worker process with a model of its own."""
    folder = read_model_folder(spec.model.path)
    states = min(spec.token_budget, 1 << 15) * token_bytes(folder, spec.model)
    return _RUNTIME_BYTES + _model_bytes(folder, spec) + states + _logits_bytes(folder, spec, "cpu")


def _model_bytes(folder: ModelFolder, spec: ScoreSpec) -> int:
    """Return the bytes of the model, of its head laid out once more for the kernels, and of the files it is loaded from."""
    head = folder.hidden_size * folder.vocabulary_size * (4 if spec.model.dtype is Precision.FLOAT32 else 2)
    return weight_bytes(folder, spec.model) + head + folder.weight_bytes


def _logits_bytes(folder: ModelFolder, spec: ScoreSpec, device: str) -> int:
    each = 4 if spec.model.dtype is Precision.FLOAT32 else 2
    positions = slice_positions(folder.vocabulary_size, device=device, bytes_a_logit=each)
    return positions * folder.vocabulary_size * (each if each == 4 else each + 4)
