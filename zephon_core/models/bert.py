"""BERT-like encoders on a CPU: a forward pass without padding, masks or framework layers.

Rows of different lengths are laid end to end, so that every matrix product runs over all their tokens at once; attention runs
for each length by itself. Tokens go through all layers in slices that stay in the processor's cache. The features of a row
don't depend on the rows beside it, bit by bit, so it doesn't matter to them how blocks are put together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from zephon_core.models.folder import OFFSET_POSITIONS, ModelFolder
from zephon_core.models.linear import FastLinear
from zephon_core.models.pooling import pool

if TYPE_CHECKING:
    import torch

__all__ = ["BertEncoder", "bert_names"]

_SLICE_TOKENS = 2048
_TILE_TOKENS = 32  # a slice is rounded up to a multiple: kernels are compiled for each number of rows, at a millisecond each
_SCORES_AT_ONCE = 1 << 18
_LONGEST_FOR_SCORES = 512
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
_LAYER = re.compile(r"(?:^|\.)encoder\.layer\.(\d+)\.")
_LAYER_PARTS = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)
_TABLES = ("embeddings.word_embeddings.weight", "embeddings.position_embeddings.weight", "embeddings.token_type_embeddings.weight")


def bert_names(folder: ModelFolder) -> dict[str, str] | None:
    """Map the names of a BERT-like encoder's tensors to those in the checkpoint; None if the folder holds another architecture."""
    config = folder.config
    if (
        folder.model_type not in ("bert", *OFFSET_POSITIONS)
        or config.get("position_embedding_type", "absolute") != "absolute"
        or config.get("is_decoder")
        or config.get("hidden_act") not in _ACTIVATIONS
        or config.get("quantization_config")
    ):
        return None
    wanted = [*_TABLES, "embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias"]
    for layer in range(folder.layer_count):
        wanted += [f"encoder.layer.{layer}.{part}.{kind}" for part in _LAYER_PARTS for kind in ("weight", "bias")]
    names = {}
    for name in wanted:
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        candidates = [prefix + stem for prefix in ("", "bert.", "roberta.") for stem in (name, old)]
        found = next((candidate for candidate in candidates if candidate in folder.tensors), None)
        if found is None:
            return None
        names[name] = found
    return names if _fits(folder, names) else None


def _fits(folder: ModelFolder, names: Mapping[str, str]) -> bool:
    """Tell whether config.json and the tensors' shapes agree; where they don't, transformers says what is wrong."""
    config = folder.config
    if any(int(found[1]) >= folder.layer_count for name in folder.tensors if (found := _LAYER.search(name))):
        return False
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if not isinstance(width, int) or not isinstance(heads, int) or heads < 1 or width % heads:
        return False
    if not isinstance(config.get("layer_norm_eps", 1e-12), float | int) or not isinstance(config.get("pad_token_id") or 0, int):
        return False
    rows = (config.get("vocab_size"), config.get("max_position_embeddings"), config.get("type_vocab_size"))
    shapes = {table: (count, width) for table, count in zip(_TABLES, rows, strict=True)}
    for layer in range(folder.layer_count):
        place = f"encoder.layer.{layer}"
        shapes |= {f"{place}.attention.self.{part}.weight": (width, width) for part in ("query", "key", "value")}
        shapes[f"{place}.intermediate.dense.weight"] = (config.get("intermediate_size"), width)
    return all(
        found == asked or asked is None  # a setting that is left out
        for name, wanted in shapes.items()
        for found, asked in zip(folder.tensors[names[name]].shape, wanted, strict=True)
    )


@dataclass(frozen=True)
class _Layer:
    attention_in: FastLinear
    attention_out: FastLinear
    attention_norm: tuple[torch.Tensor, torch.Tensor]
    widen: FastLinear
    narrow: FastLinear
    output_norm: tuple[torch.Tensor, torch.Tensor]


class BertEncoder:
    """A BERT, RoBERTa or XLM-RoBERTa on a CPU, in float32 or bfloat16.

    In bfloat16 the matrix products take and give bfloat16; the stream between the layers and its norms stay float32.
    """

    name = "bert/onednn"
    ragged = True
    padded = True

    def __init__(self, folder: ModelFolder, names: dict[str, str], *, dtype: torch.dtype, modes: Sequence[str], pack: bool) -> None:
        config = folder.config
        self._modes = modes
        self._width = folder.hidden_size
        self._heads = int(config["num_attention_heads"])
        self._epsilon = float(config.get("layer_norm_eps", 1e-12))
        self._first_position = int(config.get("pad_token_id") or 0) + 1 if folder.model_type in OFFSET_POSITIONS else 0
        self._padding = int(config.get("pad_token_id") or 0) if self._first_position else -1
        self.hidden_size = self._width * len(modes)
        self.vocabulary_size = folder.vocabulary_size
        self.longest_text = folder.longest_text
        self._dtype = dtype
        weights = _read_tensors(folder, names)
        self._words, self._positions, kinds = (weights[name] for name in _TABLES)
        self._kind = kinds[0].float()
        self._norm = (weights["embeddings.LayerNorm.weight"].float(), weights["embeddings.LayerNorm.bias"].float())
        activation = _ACTIVATIONS[config["hidden_act"]]
        self._layers = [_layer(weights, number, activation, dtype, pack) for number in range(folder.layer_count)]

    def encode(self, groups: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.float32]:
        """See `Encoder.encode`."""
        import torch

        with torch.inference_mode():
            parts = [self._forward(part) for part in _slices(groups)]
            return torch.cat(parts).numpy()

    def encode_padded(self, ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Encode rows of several lengths; their padding is dropped, not masked. The longest row comes first."""
        groups = [
            ids[[row for row, _ in same], :length]
            for length, same in groupby(enumerate(lengths.tolist()), key=lambda item: item[1])
        ]
        return self.encode(groups)

    def frozen(self) -> AbstractContextManager[None]:
        """Nothing to switch off."""
        return nullcontext()

    def close(self) -> None:
        """Nothing to release."""

    def _forward(self, groups: list[torch.Tensor]) -> torch.Tensor:
        import torch
        from torch.nn.functional import layer_norm

        norm = (self._width,)
        tokens = sum(ids.numel() for ids in groups)
        states = self._embed(groups, -tokens % _TILE_TOKENS)
        for layer in self._layers:
            projected = layer.attention_in(states.to(self._dtype))
            mixed = projected.new_empty(states.shape)
            mixed[tokens:] = 0
            start = 0
            for ids in groups:
                end = start + ids.numel()
                self._attend(projected[start:end], mixed[start:end], len(ids))
                start = end
            states = layer_norm(states.add_(layer.attention_out(mixed)), norm, *layer.attention_norm, self._epsilon)
            states.add_(layer.narrow(layer.widen(states.to(self._dtype))))
            states = layer_norm(states, norm, *layer.output_norm, self._epsilon)
        pooled, start = [], 0
        for ids in groups:
            end = start + ids.numel()
            pooled.append(pool(states[start:end].view(*ids.shape, self._width), self._modes))
            start = end
        return torch.cat(pooled)

    def _embed(self, groups: list[torch.Tensor], idle: int) -> torch.Tensor:
        """Look up the first states of all tokens, followed by `idle` rows that stand for no token."""
        import torch
        from torch.nn.functional import embedding, layer_norm

        filling = groups[0].new_zeros(idle)
        places = torch.cat([*(self._places(ids).reshape(-1) for ids in groups), filling])
        words = embedding(torch.cat([*(ids.reshape(-1) for ids in groups), filling]), self._words).float()
        states = words.add_(self._kind).add_(embedding(places, self._positions))
        return layer_norm(states, (self._width,), *self._norm, self._epsilon)

    def _places(self, ids: torch.Tensor) -> torch.Tensor:
        import torch

        if not self._first_position:
            return torch.arange(ids.shape[1]).expand(ids.shape)
        real = ids != self._padding  # RoBERTa counts positions over the ids that aren't its padding id
        return real.cumsum(1) * real + self._padding

    def _attend(self, projected: torch.Tensor, mixed: torch.Tensor, rows: int) -> None:
        """Write the attention of equally long rows into `mixed` [tokens, width].

        projected: queries, keys and values side by side, [tokens, 3 width].
        """
        import torch
        from torch.nn.functional import scaled_dot_product_attention

        length, size = len(projected) // rows, self._width // self._heads
        query, key, value = projected.view(rows, length, 3, self._heads, size).permute(2, 0, 3, 1, 4)
        target = mixed.view(rows, length, self._heads, size).transpose(1, 2)
        if projected.dtype == torch.float32 or length > _LONGEST_FOR_SCORES:
            target.copy_(scaled_dot_product_attention(query, key, value))
            return
        query, key, value = (part.reshape(rows * self._heads, length, size) for part in (query, key, value))
        step = self._heads * max(1, _SCORES_AT_ONCE // (self._heads * length**2))
        parts = []
        for first in range(0, len(query), step):
            scores = torch.bmm(query[first : first + step], key[first : first + step].transpose(1, 2))
            shares = scores.float().mul_(size**-0.5).softmax(-1).to(projected.dtype)
            parts.append(torch.bmm(shares, value[first : first + step]))
        target.copy_(torch.cat(parts).view(rows, self._heads, length, size))


def _slices(groups: Sequence[npt.NDArray[np.int64]]) -> Iterator[list[torch.Tensor]]:
    """Cut blocks into slices of whole rows, of about `_SLICE_TOKENS` tokens each."""
    import torch

    part: list[torch.Tensor] = []
    room = _SLICE_TOKENS
    for ids in groups:
        first, length = 0, ids.shape[1]
        while first < len(ids):
            taken = min(len(ids) - first, room // length)
            if taken:
                part.append(torch.from_numpy(ids[first : first + taken].copy()))
                first, room = first + taken, room - taken * length
            elif part:
                yield part
                part, room = [], _SLICE_TOKENS
            else:
                room = length  # one row over the bound
    if part:
        yield part


def _layer(weights: dict[str, torch.Tensor], number: int, activation: str, dtype: torch.dtype, pack: bool) -> _Layer:
    import torch

    def pair(part: str, kind: torch.dtype = dtype) -> tuple[torch.Tensor, torch.Tensor]:
        name = f"encoder.layer.{number}.{part}"
        return weights[f"{name}.weight"].to(kind), weights[f"{name}.bias"].to(kind)

    projections = [pair(f"attention.self.{part}") for part in ("query", "key", "value")]
    weight, bias = (torch.cat(tensors) for tensors in zip(*projections, strict=True))
    return _Layer(
        attention_in=FastLinear(weight, bias, pack=pack),
        attention_out=FastLinear(*pair("attention.output.dense"), pack=pack),
        attention_norm=pair("attention.output.LayerNorm", torch.float32),
        widen=FastLinear(*pair("intermediate.dense"), activation=activation, pack=pack),
        narrow=FastLinear(*pair("output.dense"), pack=pack),
        output_norm=pair("output.LayerNorm", torch.float32),
    )


def _read_tensors(folder: ModelFolder, names: dict[str, str]) -> dict[str, torch.Tensor]:
    """Map tensors from the checkpoint's files: processes that read the same model share its pages."""
    from safetensors import safe_open

    tensors: dict[str, torch.Tensor] = {}
    for file in folder.weight_files:
        with safe_open(folder.path / file, framework="pt", device="cpu") as handle:
            for name, stored in names.items():
                if folder.tensors[stored].file == file:
                    tensors[name] = handle.get_tensor(stored)
    return tensors
