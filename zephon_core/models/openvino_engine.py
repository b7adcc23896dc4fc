"""Transformers run by OpenVINO on a CPU: fast kernels for architectures that have no forward pass of their own here."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from zephon_core.errors import MissingExtraError, ModelError, SpecError
from zephon_core.models.folder import ModelFolder
from zephon_core.models.pooling import pool
from zephon_core.models.spec import ModelSpec, Quantization

if TYPE_CHECKING:
    import torch

__all__ = ["OpenVinoEncoder"]

_PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


class OpenVinoEncoder:
    """A transformer's last hidden states from OpenVINO, one thread, pooled here."""

    name = "openvino"
    ragged = False
    padded = True

    def __init__(self, folder: ModelFolder, spec: ModelSpec, modes: Sequence[str]) -> None:
        if spec.quantization is not Quantization.NONE or spec.backbone == "outer":
            raise SpecError("engine", "is openvino", wanted="torch for quantised models and for backbone: outer")
        self.hidden_size = folder.hidden_size * len(modes)
        self.vocabulary_size = folder.vocabulary_size
        self.longest_text = folder.longest_text
        self._modes = modes
        openvino = _import_openvino()
        model = _convert(openvino, folder, spec)
        settings = {
            "INFERENCE_PRECISION_HINT": _PRECISIONS[spec.dtype.value],
            "INFERENCE_NUM_THREADS": 1,
            "NUM_STREAMS": 1,
        }
        self._request: Any = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()

    def encode(self, groups: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.float32]:
        """See `Encoder.encode`. Each block is a forward pass."""
        return np.concatenate([self._pooled(ids, np.ones_like(ids), None) for ids in groups])

    def encode_padded(self, ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """See `Encoder.encode_padded`."""
        mask = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
        return self._pooled(ids, mask, lengths)

    def frozen(self) -> AbstractContextManager[None]:
        """Nothing to switch off."""
        return nullcontext()

    def close(self) -> None:
        """Let go of the compiled model."""
        del self._request

    def _pooled(
        self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64] | None
    ) -> npt.NDArray[np.float32]:
        import torch

        states = torch.from_numpy(self._request.infer([ids, mask])[0])
        pooled: npt.NDArray[np.float32] = pool(states, self._modes, None if lengths is None else torch.from_numpy(lengths)).numpy()
        return pooled


def _import_openvino() -> Any:
    """Import OpenVINO without the package with which it reports its use over the network."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        import openvino
    except ImportError as error:
        raise MissingExtraError(
            "engine openvino", "needs OpenVINO", remedy='Install it with `pip install "zephon-flows[openvino]"`.'
        ) from error
    return openvino


def _convert(openvino: Any, folder: ModelFolder, spec: ModelSpec) -> Any:
    """Trace the inner transformer and hand it over, for any number of rows and tokens."""
    import torch

    from zephon_core.models.transformer import load_transformer

    class LastStates(torch.nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            states: torch.Tensor = self.inner(input_ids=ids, attention_mask=mask).last_hidden_state
            return states

    plain = ModelSpec(path=spec.path, remote_code=spec.remote_code)
    module = LastStates(load_transformer(folder, plain, torch.device("cpu"), outer=False))
    example = torch.ones(2, 7, dtype=torch.int64)
    anything = openvino.PartialShape([-1, -1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what tracing finds odd about transformers' code
        try:
            return openvino.convert_model(module, example_input=(example, example), input=[anything, anything])
        except (RuntimeError, TypeError, ValueError) as error:
            raise ModelError(
                str(folder.path), f"can't be converted for OpenVINO ({str(error).splitlines()[0]})", remedy="Set engine: torch."
            ) from error
