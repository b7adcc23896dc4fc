"""The one interface behind which all frozen encoders stand, and the choice of what runs a model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from zephon_core.errors import MissingExtraError, ModelError, SpecError
from zephon_core.models.folder import ModelFolder, read_model_folder
from zephon_core.models.plugins import is_plugin, load_plugin
from zephon_core.models.spec import Engine, ModelSpec, Quantization

__all__ = [
    "PACKED_BYTES",
    "Bounded",
    "Encoder",
    "EncoderOptions",
    "check_device",
    "check_ids",
    "forward_name",
    "import_torch",
    "load_encoder",
    "load_reference",
]

PACKED_BYTES = 1 << 30
"""Weights of up to this many bytes are laid out anew for the kernels."""


class Encoder(Protocol):
    """A frozen model that turns blocks of token ids into one float32 vector a row.

    name: what runs the forward pass; hidden_size: width of a feature vector; ragged: whether several blocks in one call
    share a forward pass; padded: whether rows of several lengths can be padded; vocabulary_size, longest_text: bounds on the
    ids and on a row's tokens, 0 where there is none.
    """

    name: str
    hidden_size: int
    ragged: bool
    padded: bool
    vocabulary_size: int
    longest_text: int

    def encode(self, groups: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.float32]:
        """Encode blocks, each int64 [rows, length]; return float32 [rows of all blocks, hidden_size], pooled but not normalised.

        Raises ModelError; torch.OutOfMemoryError or MemoryError where a block is too large for the device.
        """

    def encode_padded(self, ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Encode int64 [rows, longest], of whose rows only the first `lengths` ids count; return float32 [rows, hidden_size]."""

    def frozen(self) -> AbstractContextManager[None]:
        """Return a context in which a memory that the model carries is neither read nor updated."""

    def close(self) -> None:
        """Release what the encoder holds."""


@dataclass(frozen=True)
class EncoderOptions:
    """How an encoder is loaded.

    pooling: model, mean, last or cls. device: cpu, cuda or cuda:N. gpu_memory_gb: most memory of a GPU (10^9 bytes), 0 without
    limit. copies: how many processes of this machine load the same model; they then share its weights where they are large.
    """

    pooling: str = "model"
    device: str = "cpu"
    gpu_memory_gb: float = 0.0
    copies: int = 1


def forward_name(spec: ModelSpec, *, device: str) -> str:
    """Name what runs the forward pass of a model on a device: a pure function of the model's folder, the spec and the machine.

    Raises ModelError where the model can't be run at all.
    """
    if is_plugin(spec.path):
        return "plugin"
    if spec.engine is Engine.OPENVINO:
        return "openvino"
    if device != "cpu":
        return "transformers"
    torch = import_torch()
    from zephon_core.models.linear import onednn_runs

    fast = onednn_runs(getattr(torch, spec.dtype.value)) and spec.quantization is Quantization.NONE
    if fast and not spec.remote_code and spec.backbone == "inner" and _bert_names(read_model_folder(spec.path)):
        return "bert/onednn"
    return "transformers/onednn" if fast else "transformers"


def load_encoder(spec: ModelSpec, options: EncoderOptions | None = None) -> Encoder:
    """Load a frozen model. Raises ModelError, SpecError or MissingExtraError (a package that isn't installed)."""
    options = options or EncoderOptions()
    check_device(options.device)
    if is_plugin(spec.path):
        if options.pooling != "model":
            raise SpecError("pooling", f"is {options.pooling}", wanted=f"model: {spec.path} gives one vector a text by itself")
        return load_plugin(spec.path)
    folder = read_model_folder(spec.path)
    torch = import_torch()
    from zephon_core.models.pooling import pooling_modes

    modes = pooling_modes(folder, options.pooling)
    if spec.engine is Engine.OPENVINO:
        if options.device != "cpu":
            raise SpecError(
                "device",
                f"is {options.device}",
                wanted="cpu: openvino runs on the CPU only",
                remedy="Set device: cpu or engine: torch.",
            )
        from zephon_core.models.openvino_engine import OpenVinoEncoder

        return OpenVinoEncoder(folder, spec, modes)
    forward = forward_name(spec, device=options.device)
    pack = folder.weight_bytes * options.copies <= PACKED_BYTES
    if forward == "bert/onednn" and (names := _bert_names(folder)):
        from zephon_core.models.bert import BertEncoder

        return BertEncoder(folder, names, dtype=getattr(torch, spec.dtype.value), modes=modes, pack=pack)
    from zephon_core.models.transformer import TransformerEncoder

    return TransformerEncoder(folder, spec, modes, options, onednn=forward == "transformers/onednn", pack=pack)


def load_reference(spec: ModelSpec, options: EncoderOptions) -> Encoder:
    """Load the same weights for plain float32 arithmetic, run by transformers and PyTorch alone, whatever the spec says.

    It is what other precisions, engines and groupings are measured against. Raises as `load_encoder` does.
    """
    from zephon_core.models.pooling import pooling_modes
    from zephon_core.models.transformer import TransformerEncoder

    folder = read_model_folder(spec.path)
    plain = ModelSpec(path=spec.path, remote_code=spec.remote_code)
    return TransformerEncoder(folder, plain, pooling_modes(folder, options.pooling), options, onednn=False, pack=False)


def check_device(device: str) -> None:
    """Raise SpecError where a GPU is asked for that isn't there, before whatever would use it fails in its own words."""
    if device in ("auto", "cpu"):
        return
    cuda = import_torch().cuda
    index = int(device.partition(":")[2] or 0)
    if not cuda.is_available() or index >= cuda.device_count():
        raise SpecError("device", f"is {device}", wanted="a GPU of this machine", remedy="Set device: auto or cpu.")


class Bounded(Protocol):
    """What knows so many token ids, and texts of so many tokens; 0 where there is no bound."""

    @property
    def vocabulary_size(self) -> int:
        """How many token ids there are."""

    @property
    def longest_text(self) -> int:
        """The most tokens a text may have."""


def check_ids(model: Bounded, ids: npt.NDArray[np.int64], *, where: str) -> None:
    """Raise ModelError if ids or their number are more than the model knows, before it fails in its own words."""
    if model.vocabulary_size and int(ids.max()) >= model.vocabulary_size:
        raise ModelError(
            where,
            f"holds token id {int(ids.max())}",
            wanted=f"ids below the model's {model.vocabulary_size:,}",
            remedy="Use the tokenizer that belongs to the model.",
        )
    if model.longest_text and ids.shape[-1] > model.longest_text:
        raise ModelError(
            where,
            f"has texts of {ids.shape[-1]:,} tokens",
            wanted=f"at most the model's {model.longest_text:,}",
            remedy=f"Set max_key_tokens to {model.longest_text} or less.",
        )


def import_torch() -> ModuleType:
    """Import torch, or say which extra brings it."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError(
            "models", "need torch and transformers", remedy='Install them with `pip install "zephon-flows[encode]"`.'
        ) from error
    return torch


def _bert_names(folder: ModelFolder) -> dict[str, str] | None:
    from zephon_core.models.bert import bert_names

    return bert_names(folder)
