"""From a vector a token to a vector a text, in float32 whatever the model computes in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from zephon_core.errors import ModelError
from zephon_core.models.folder import ModelFolder

if TYPE_CHECKING:
    import torch

__all__ = ["pool", "pooling_modes"]

_NAMES = {"mean": "mean", "last": "lasttoken", "cls": "cls"}


def pooling_modes(folder: ModelFolder, pooling: str) -> tuple[str, ...]:
    """Return the modes, in sentence-transformers' names, that `pooling` (model, mean, last or cls) stands for.

    Raises ModelError if the folder's own modules are asked for and there is one that this library doesn't run.
    """
    if pooling != "model":
        return (_NAMES[pooling],)
    if folder.modules.unknown:
        raise ModelError(
            str(folder.root / "modules.json"),
            f"asks for {', '.join(folder.modules.unknown)} after the transformer",
            wanted="Transformer, Pooling and Normalize only",
            remedy="Set pooling: mean, last or cls to take the transformer's own vectors, or plug in an encoder.",
        )
    return folder.modules.pooling or ("mean",)


def pool(states: torch.Tensor, modes: Sequence[str], lengths: torch.Tensor | None = None) -> torch.Tensor:
    """Pool token vectors [rows, length, width] to float32 [rows, width * modes].

    lengths: int64 [rows], the tokens of each row where the rest is padding on the right; None: all rows are full.
    The modes are those of sentence-transformers (Reimers & Gurevych 2019), concatenated.
    """
    import torch

    states = states.float()
    if lengths is None:
        pooled = [_pool_full(states, mode) for mode in modes]
    else:
        pooled = [_pool_masked(states, mode, lengths) for mode in modes]
    return pooled[0] if len(pooled) == 1 else torch.cat(pooled, 1)


def _pool_full(states: torch.Tensor, mode: str) -> torch.Tensor:
    import torch

    length = states.shape[1]
    if mode == "mean":
        return states.mean(1)
    if mode == "cls":
        return states[:, 0]
    if mode == "lasttoken":
        return states[:, -1]
    if mode == "max":
        return states.amax(1)
    if mode == "mean_sqrt_len_tokens":
        return states.sum(1) / math.sqrt(length)
    weights = torch.arange(1, length + 1, dtype=torch.float32, device=states.device)
    return (states * weights[:, None]).sum(1) / weights.sum()


def _pool_masked(states: torch.Tensor, mode: str, lengths: torch.Tensor) -> torch.Tensor:
    import torch

    places = torch.arange(states.shape[1], device=states.device)
    mask = (places[None, :] < lengths[:, None])[:, :, None]
    counts = lengths[:, None].to(torch.float32)
    if mode == "cls":
        return states[:, 0]
    if mode == "lasttoken":
        return states[torch.arange(len(lengths), device=states.device), lengths - 1]
    if mode == "max":
        return states.masked_fill(~mask, -torch.inf).amax(1)
    kept = states.masked_fill(~mask, 0.0)
    if mode == "mean":
        return kept.sum(1) / counts
    if mode == "mean_sqrt_len_tokens":
        return kept.sum(1) / counts.sqrt()
    weights = (places + 1).to(torch.float32)[None, :, None] * mask
    weighted: torch.Tensor = (kept * weights).sum(1) / weights.sum(1)
    return weighted
