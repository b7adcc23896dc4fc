"""Any transformer that the transformers library loads, on a CPU or a GPU, whole or quantised."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from zephon_core.errors import MissingExtraError, ModelError
from zephon_core.models.encoder import EncoderOptions, check_device
from zephon_core.models.folder import ModelFolder
from zephon_core.models.linear import swap_linears
from zephon_core.models.plugins import memory_switched_off
from zephon_core.models.pooling import pool
from zephon_core.models.spec import ModelSpec, Quantization

if TYPE_CHECKING:
    import torch

__all__ = ["TransformerEncoder", "load_transformer"]

_UNUSED_PARTS = ("pooler", "lm_head", "cls.", "predictions", "classifier", "score.")
"""Parts of a model that its last hidden states don't depend on."""
_NUMBER = re.compile(r"\.\d+\.")
_MOST_NAMED = 3
_PACKED_ROWS = 32
"""Rows that a layer of four bits has to be a multiple of, so that bitsandbytes can pack it on a CPU."""
_LONGEST_REASON = 400
_SPEAKING_ERRORS = (ValueError, OSError, RuntimeError, ImportError)
_LOADING_ERRORS = (*_SPEAKING_ERRORS, LookupError, TypeError, AttributeError, ArithmeticError)
_REMEDY = "Download the model again, or correct its config.json."
_NOISE = {
    "bitsandbytes.autograd._functions": "MatMul8bitLt: inputs will be cast",  # at every single product
    "bitsandbytes.backends.cpu.ops": "Failed to load CPU gemm_4bit_forward",  # a faster kernel from the network, if it were there
}


class TransformerEncoder:
    """A transformers model, without its LM head unless the spec says outer."""

    ragged = False
    padded = True

    def __init__(
        self,
        folder: ModelFolder,
        spec: ModelSpec,
        modes: Sequence[str],
        options: EncoderOptions,
        *,
        onednn: bool,
        pack: bool,
    ) -> None:
        import torch

        self.name = "transformers/onednn" if onednn else "transformers"
        self.hidden_size = folder.hidden_size * len(modes)
        self.vocabulary_size = folder.vocabulary_size
        self.longest_text = folder.longest_text
        self._modes = modes
        self._device = choose_device(options)
        self._outer = spec.backbone == "outer"
        self._model = load_transformer(folder, spec, self._device, outer=self._outer)
        self._path = spec.path
        if onednn:
            with torch.inference_mode():
                swap_linears(self._model, pack=pack)

    def encode(self, groups: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.float32]:
        """See `Encoder.encode`. Each block is a forward pass; on a GPU all are queued before the first result is awaited."""
        import torch

        with torch.inference_mode():
            results = [self._to_host(self._pooled(self._to_device(ids), None, None)) for ids in groups]
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            return torch.cat(results).numpy()

    def encode_padded(self, ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """See `Encoder.encode_padded`. Padding is masked in attention and left out of the pooling."""
        import torch

        with torch.inference_mode():
            counts = self._to_device(lengths)
            mask = torch.arange(ids.shape[1], device=self._device)[None, :] < counts[:, None]
            result = self._to_host(self._pooled(self._to_device(ids), mask.long(), counts))
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            return result.numpy()

    def frozen(self) -> AbstractContextManager[None]:
        """Switch a memory that the model carries off while the block lasts."""
        return memory_switched_off(self._model, self._path)

    def close(self) -> None:
        """Let go of the weights, and of the GPU's memory."""
        import torch

        del self._model
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _pooled(self, ids: torch.Tensor, mask: torch.Tensor | None, counts: torch.Tensor | None) -> torch.Tensor:
        if self._outer:
            states = self._model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states[-1]
        else:
            states = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
        return pool(states, self._modes, counts)

    def _to_device(self, values: npt.NDArray[np.int64]) -> torch.Tensor:
        import torch

        tensor = torch.from_numpy(values.copy())
        if self._device.type == "cuda":
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor

    def _to_host(self, pooled: torch.Tensor) -> torch.Tensor:
        import torch

        if self._device.type != "cuda":
            return pooled
        return torch.empty(pooled.shape, dtype=pooled.dtype, pin_memory=True).copy_(pooled, non_blocking=True)


def choose_device(options: EncoderOptions) -> torch.device:
    """Return the device asked for, its memory capped. Raises SpecError if there is none such here."""
    import torch

    if options.device == "cpu":
        return torch.device("cpu")
    check_device(options.device)
    device = torch.device(options.device)
    if options.gpu_memory_gb:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, options.gpu_memory_gb * 1e9 / total), device)
    return device


def load_transformer(folder: ModelFolder, spec: ModelSpec, device: torch.device, *, outer: bool, speaks: bool = False) -> Any:
    """Load a folder with transformers: safetensors only, nothing from the network, no code from the folder unless it is named.

    Returns the inner transformer, or with `outer` the model with its head. speaks: whether what the head says is wanted, not the
    hidden states alone. Raises ModelError or MissingExtraError.
    """
    import torch

    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError(
            spec.path, "needs transformers", remedy='Install it with `pip install "zephon-flows[encode]"`.'
        ) from error
    from huggingface_hub.errors import StrictDataclassError

    settings: dict[str, Any] = {
        "dtype": getattr(torch, spec.dtype.value),
        "use_safetensors": True,
        "local_files_only": True,
        "trust_remote_code": _remote_code_allowed(folder, spec),
        "ignore_mismatched_sizes": True,  # they are named below
        "output_loading_info": True,
    }
    if spec.quantization is not Quantization.NONE:
        settings |= {"quantization_config": _quantization(spec, settings["dtype"]), "device_map": {"": str(device)}}
    with _quiet_loading():
        try:
            model, info = _model_class(folder, outer=outer).from_pretrained(folder.path, **settings)
        except StrictDataclassError as error:
            raise ModelError(
                str(folder.path / "config.json"),
                f"contradicts itself ({' '.join(str(error).split())[:_LONGEST_REASON]})",
                remedy=_REMEDY,
            ) from error
        except _LOADING_ERRORS as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise ModelError(
                str(folder.path), f"can't be loaded by transformers {transformers.__version__} ({_one_line(error)})", remedy=_REMEDY
            ) from error
    _check_weights(folder, info, () if speaks else _UNUSED_PARTS)
    _check_layers(folder, info["unexpected_keys"], model)
    model.config.use_cache = False
    if spec.quantization is Quantization.NF4 and device.type == "cpu":
        _keep_narrow_unpacked(model)
    if spec.quantization is Quantization.NONE:
        model.to(device)
    return model.eval().requires_grad_(False)


def _check_weights(folder: ModelFolder, info: Mapping[str, Any], unused_parts: Sequence[str]) -> None:
    """Raise ModelError where config.json asks for tensors that the weights lack, or have in another shape.

    transformers would put random numbers in their place. unused_parts: in the names of tensors that nothing wanted depends on.
    """

    def is_unused(name: str) -> bool:
        return any(part in name for part in unused_parts)

    wrong = sorted(
        f"{name} ({list(there)} there, {list(asked)} asked for)"
        for name, there, asked in info["mismatched_keys"]
        if not is_unused(name)
    )
    if wrong:
        raise ModelError(
            str(folder.path / "config.json"), f"asks for other shapes than the weights have: {_some(wrong)}", remedy=_REMEDY
        )
    if missing := sorted(name for name in info["missing_keys"] if not is_unused(name)):
        raise ModelError(
            str(folder.path / "config.json"), f"asks for tensors that the weights lack: {_some(missing)}", remedy=_REMEDY
        )


def _check_layers(folder: ModelFolder, left_over: Iterable[str], model: torch.nn.Module) -> None:
    """Raise ModelError where the weights have layers, or experts, beyond those that config.json asks for.

    transformers would cut the model short without a word. left_over: names of tensors that it didn't load.
    """
    own = list(model.state_dict())
    used = {*own, *(f"{model.base_model_prefix}.{name}" for name in own)}  # a checkpoint may name the inner model, or not
    heads = {name[: number.end()] for name in used for number in _NUMBER.finditer(name)}
    cut_off = sorted(
        name
        for name in left_over
        for number in _NUMBER.finditer(name)
        if name[: number.end()] not in heads and f"{name[: number.start()]}.0.{name[number.end() :]}" in used
    )
    if cut_off:
        raise ModelError(
            str(folder.path / "config.json"),
            f"asks for fewer layers than the weights have: {_some(cut_off)} would be left out",
            remedy=_REMEDY,
        )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _model_class(folder: ModelFolder, *, outer: bool) -> Any:
    import transformers

    if folder.config.get("is_encoder_decoder") or folder.architecture.endswith("EncoderModel"):
        return transformers.AutoModelForTextEncoding
    if outer and folder.architecture.endswith(("ForCausalLM", "LMHeadModel")):
        return transformers.AutoModelForCausalLM
    if outer and folder.architecture.endswith("ForMaskedLM"):
        return transformers.AutoModelForMaskedLM
    if outer and folder.architecture.endswith("Model"):
        return transformers.AutoModel  # there is no head to put on
    if outer:
        raise ModelError(str(folder.path), f"is a {folder.architecture}, no language model", remedy="Set backbone: inner.")
    return transformers.AutoModel


def _remote_code_allowed(folder: ModelFolder, spec: ModelSpec) -> bool:
    """Allow the folder's own code if the spec names the very class that it would run."""
    if not spec.remote_code:
        return False
    classes = {str(reference).rsplit(".", 1)[-1] for reference in (folder.config.get("auto_map") or {}).values()}
    if spec.remote_code not in classes:
        raise ModelError(
            str(folder.path / "config.json"),
            f"names no class {spec.remote_code} of its own",
            wanted=", ".join(sorted(classes)) or "no remote code",
            remedy="Set remote_code to the class that you have read and trust, or leave it empty.",
        )
    return True


def _quantization(spec: ModelSpec, dtype: torch.dtype) -> Any:
    for name, noise in _NOISE.items():
        logging.getLogger(name).addFilter(_Without(noise))  # it is left in place: all of it comes while the model runs
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "quantization", "needs bitsandbytes", remedy='Install it with `pip install "zephon-flows[encode]"`.'
        ) from error
    from transformers import BitsAndBytesConfig

    if spec.quantization is Quantization.INT8:
        return BitsAndBytesConfig(load_in_8bit=True)  # type: ignore[no-untyped-call]
    return BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
    )


def _keep_narrow_unpacked(model: torch.nn.Module) -> None:
    """Have bitsandbytes run layers unpacked that its packed form on a CPU doesn't fit; it would fail with them."""
    from bitsandbytes.nn.modules import Linear4bit

    for layer in model.modules():
        if isinstance(layer, Linear4bit):
            state: Any = layer.weight.quant_state  # type: ignore[attr-defined]
            rows, columns = state.shape
            if rows % _PACKED_ROWS or columns % state.blocksize:
                layer.support_avx512bf16_for_cpu = False


@contextmanager
def _quiet_loading() -> Iterator[None]:
    """Keep transformers' bars and reports off the terminal while it loads, and put its settings back."""
    from transformers.utils import logging as transformers_logging

    reports: Any = transformers_logging
    level, bars = reports.get_verbosity(), reports.is_progress_bar_enabled()
    reports.set_verbosity_error()
    reports.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        reports.set_verbosity(level)
        if bars:
            reports.enable_progress_bar()


@dataclass(frozen=True)
class _Without:
    """A filter of log records that keeps out those that begin with a text; equal ones count as one to a logger."""

    beginning: str

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(self.beginning)


def _one_line(error: BaseException) -> str:
    words = " ".join(str(error).split())[:_LONGEST_REASON]
    return words if words and isinstance(error, _SPEAKING_ERRORS) else f"{type(error).__name__}: {words}".removesuffix(": ")
