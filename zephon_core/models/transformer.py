"""Any transformer that the transformers library loads, on a CPU or a GPU, whole or quantised."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from zephon_core.errors import MissingExtraError, ModelError, SpecError
from zephon_core.models.encoder import EncoderOptions
from zephon_core.models.folder import ModelFolder
from zephon_core.models.linear import swap_linears
from zephon_core.models.plugins import memory_switched_off
from zephon_core.models.pooling import pool
from zephon_core.models.spec import ModelSpec, Quantization

if TYPE_CHECKING:
    import torch

__all__ = ["TransformerEncoder", "load_transformer"]


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
        self._eight_bits = spec.quantization is Quantization.INT8
        self._model = load_transformer(folder, spec, self._device, outer=self._outer)
        self._path = spec.path
        if onednn:
            with torch.inference_mode():
                swap_linears(self._model, pack=pack)

    def encode(self, groups: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.float32]:
        """See `Encoder.encode`. Each block is a forward pass; on a GPU all are queued before the first result is awaited."""
        import torch

        with torch.inference_mode(), self._quiet():
            results = [self._to_host(self._pooled(self._to_device(ids), None, None)) for ids in groups]
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            return torch.cat(results).numpy()

    def encode_padded(self, ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """See `Encoder.encode_padded`. Padding is masked in attention and left out of the pooling."""
        import torch

        with torch.inference_mode(), self._quiet():
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

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Keep bitsandbytes from announcing the cast of its inputs at every single product."""
        if not self._eight_bits:
            yield
            return
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="MatMul8bitLt")
            yield


def choose_device(options: EncoderOptions) -> torch.device:
    """Return the device asked for, its memory capped. Raises SpecError if there is none such here."""
    import torch

    device = torch.device(options.device)
    if device.type == "cuda":
        if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
            raise SpecError("device", f"is {options.device}", wanted="a GPU of this machine", remedy="Set device: auto or cpu.")
        if options.gpu_memory_gb:
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, options.gpu_memory_gb * 1e9 / total), device)
    return device


def load_transformer(folder: ModelFolder, spec: ModelSpec, device: torch.device, *, outer: bool) -> Any:
    """Load a folder with transformers: safetensors only, nothing from the network, no code from the folder unless it is named.

    Returns the inner transformer, or with `outer` the model with its head. Raises ModelError or MissingExtraError.
    """
    import torch

    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError(
            spec.path, "needs transformers", remedy='Install it with `pip install "zephon-flows[encode]"`.'
        ) from error
    settings: dict[str, Any] = {
        "dtype": getattr(torch, spec.dtype.value),
        "use_safetensors": True,
        "local_files_only": True,
        "trust_remote_code": _remote_code_allowed(folder, spec),
    }
    if spec.quantization is not Quantization.NONE:
        settings |= {"quantization_config": _quantization(spec, settings["dtype"]), "device_map": {"": str(device)}}
    with _quiet_loading():
        try:
            model = _model_class(folder, outer=outer).from_pretrained(folder.path, **settings)
        except (ValueError, OSError, KeyError, RuntimeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise ModelError(
                str(folder.path), f"can't be loaded by transformers {transformers.__version__} ({_first_line(error)})"
            ) from error
    model.config.use_cache = False
    if spec.quantization is Quantization.NONE:
        model.to(device)
    return model.eval().requires_grad_(False)


def _model_class(folder: ModelFolder, *, outer: bool) -> Any:
    import transformers

    if folder.config.get("is_encoder_decoder") or folder.architecture.endswith("EncoderModel"):
        return transformers.AutoModelForTextEncoding
    if outer and folder.architecture.endswith("ForCausalLM"):
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


@contextmanager
def _quiet_loading() -> Iterator[None]:
    """Keep transformers' bars and reports off the terminal while it loads, and put its settings back."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
