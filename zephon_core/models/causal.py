"""How probable a causal language model finds each token of a text, after the ones before it.

The transformer runs once over a block; the head then runs over slices of its positions, so that the logits of a large vocabulary
never exist for a whole block at once. Log-softmax is in float32, whatever the model computes in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from zephon_core.errors import ModelError, SpecError
from zephon_core.models.encoder import PACKED_BYTES, EncoderOptions, check_device, check_ids, import_torch
from zephon_core.models.folder import ModelFolder, read_model_folder
from zephon_core.models.linear import onednn_runs, swap_linears
from zephon_core.models.plugins import is_plugin
from zephon_core.models.spec import Engine, ModelSpec, Precision, Quantization
from zephon_core.models.transformer import choose_device, load_transformer

if TYPE_CHECKING:
    import torch

__all__ = ["CausalScorer", "load_reference_scorer", "load_scorer", "scorer_name", "slice_positions"]

_SLICE_BYTES = {"cpu": 64 << 20, "cuda": 512 << 20}
_PROBE_TOKENS = 9
_MOST_DEVIATION = {Precision.FLOAT32: 1e-3, Precision.FLOAT16: 0.05, Precision.BFLOAT16: 0.25}


def load_scorer(spec: ModelSpec, options: EncoderOptions | None = None) -> CausalScorer:
    """Load a causal language model with its head. Raises ModelError for a folder that holds none, SpecError, MissingExtraError."""
    options = options or EncoderOptions()
    check_device(options.device)
    folder = _causal_folder(spec)
    name = scorer_name(spec, device=options.device)
    pack = folder.weight_bytes * options.copies <= PACKED_BYTES
    return CausalScorer(folder, spec, options, onednn=name == "causal/onednn", pack=pack)


def load_reference_scorer(spec: ModelSpec, options: EncoderOptions) -> CausalScorer:
    """Load the same weights for plain float32 arithmetic by PyTorch alone, whatever the spec says. Raises as `load_scorer` does."""
    plain = ModelSpec(path=spec.path, remote_code=spec.remote_code)
    return CausalScorer(_causal_folder(plain), plain, options, onednn=False, pack=False)


def scorer_name(spec: ModelSpec, *, device: str) -> str:
    """Name what runs the forward pass on a device: a pure function of the spec and the machine."""
    torch = import_torch()
    plain = device == "cpu" and spec.quantization is Quantization.NONE and not spec.remote_code
    return "causal/onednn" if plain and onednn_runs(getattr(torch, spec.dtype.value)) else "causal"


def slice_positions(vocabulary_size: int, *, device: str, bytes_a_logit: int) -> int:
    """Return how many positions' logits are held at once: they and their float32 copy stay within some tens of megabytes."""
    each = vocabulary_size * (bytes_a_logit + (4 if bytes_a_logit < 4 else 0))
    return max(1, _SLICE_BYTES["cuda" if device.startswith("cuda") else "cpu"] // max(1, each))


class CausalScorer:
    """A causal language model that scores blocks of equally long texts.

    name: what runs the forward pass; vocabulary_size, longest_text: bounds on ids and on a text's tokens, 0 where there is none.
    """

    def __init__(self, folder: ModelFolder, spec: ModelSpec, options: EncoderOptions, *, onednn: bool, pack: bool) -> None:
        import torch

        self.name = "causal/onednn" if onednn else "causal"
        self.vocabulary_size = folder.vocabulary_size
        self.longest_text = folder.longest_text
        self._path = spec.path
        self._device = choose_device(options)
        self._model = load_transformer(folder, spec, self._device, outer=True, speaks=True)
        self._body_name: str = self._model.base_model_prefix
        self._body: Any = getattr(self._model, self._body_name, None)
        if self._body is None:
            raise ModelError(spec.path, f"is a {folder.architecture}, whose transformer can't be run without its head")
        with torch.inference_mode():
            if onednn:
                swap_linears(self._model, pack=pack)
            self._slice = slice_positions(
                self.vocabulary_size, device=options.device, bytes_a_logit=4 if spec.dtype is Precision.FLOAT32 else 2
            )
            self._check_head(spec.dtype)

    def score(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Score texts of equal length, int64 [texts, length].

        Returns float32 [texts, length]: the natural logarithm of each token's probability given the ones before it; NaN for
        the first, which has none before it. Raises ModelError for ids the model doesn't know; torch.OutOfMemoryError or
        MemoryError where the block is too large.
        """
        import torch

        check_ids(self, ids, where=self._path)
        scores = np.full(ids.shape, np.nan, np.float32)
        if ids.shape[1] > 1:
            with torch.inference_mode():
                tokens = torch.from_numpy(np.ascontiguousarray(ids)).to(self._device)
                scores[:, 1:] = self._score(tokens).view(len(ids), -1).cpu().numpy()
        return scores

    def close(self) -> None:
        """Let go of the weights, and of the GPU's memory."""
        import torch

        del self._model, self._body
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _score(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return float32 [texts * (length - 1)]."""
        import torch

        outputs = self._body(input_ids=tokens)
        states = outputs.last_hidden_state[:, :-1].reshape(-1, outputs.last_hidden_state.shape[-1])
        targets = tokens[:, 1:].reshape(-1)
        # The same number of positions in every slice: kernels are compiled for each number of rows.
        return torch.cat(
            [
                _log_probabilities(self._logits(type(outputs), part), wanted)
                for part, wanted in zip(torch.split(states, self._slice), torch.split(targets, self._slice), strict=True)
            ]
        )

    def _logits(self, outputs_type: Any, states: torch.Tensor) -> torch.Tensor:
        """Run what comes after the transformer in the model's own way (head, scaling, capping): [positions, vocabulary]."""
        import torch

        class Given(torch.nn.Module):
            def forward(self, *_: Any, **__: Any) -> Any:
                return outputs_type(last_hidden_state=states[None])

        setattr(self._model, self._body_name, Given())
        try:
            placeholder = torch.zeros(1, len(states), dtype=torch.int64, device=states.device)
            logits: torch.Tensor = self._model(input_ids=placeholder).logits[0]
        finally:
            setattr(self._model, self._body_name, self._body)
        return logits

    def _check_head(self, dtype: Precision) -> None:
        """Raise ModelError where the sliced head gives other probabilities than the model in one piece."""
        import torch

        count = min(_PROBE_TOKENS, self.longest_text or _PROBE_TOKENS)
        tokens = torch.arange(count, device=self._device)[None] * 7 % max(1, self.vocabulary_size)
        whole = _log_probabilities(self._model(input_ids=tokens).logits[0, :-1], tokens[0, 1:])
        known = whole.isfinite()  # weights that give none are found where they do
        deviation = float((whole - self._score(tokens))[known].abs().sum())
        if not deviation <= _MOST_DEVIATION[dtype]:
            raise ModelError(
                self._path, f"scores otherwise when its head runs by itself (off by {deviation:.3g})", remedy="Use another model."
            )


def _log_probabilities(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return float32 [positions] for [positions, vocabulary]; the logits are overwritten where they are float32."""
    logits = logits.float()
    chosen = logits.gather(1, targets[:, None])[:, 0]
    largest = logits.amax(1, keepdim=True)
    total = logits.sub_(largest).exp_().sum(1).log_()
    return chosen - largest[:, 0] - total


def _causal_folder(spec: ModelSpec) -> ModelFolder:
    if is_plugin(spec.path):
        raise SpecError("model", f"is {spec.path}", wanted="a local folder: plugins encode, and don't score")
    if spec.engine is not Engine.TORCH:
        raise SpecError("engine", f"is {spec.engine.value}", wanted="torch, which alone scores")
    folder = read_model_folder(spec.path)
    if not folder.architecture.endswith(("ForCausalLM", "LMHeadModel")):
        raise ModelError(spec.path, f"is a {folder.architecture or 'model of no named class'}", wanted="a causal language model")
    return folder
