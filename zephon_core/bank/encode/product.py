"""What an encode makes of its blocks: a matrix of features, and a receipt of how good they are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.bank.encode.receipts import measure_receipt
from zephon_core.bank.encode.run import open_runner
from zephon_core.bank.specs import EncodeSpec, RunOptions, StoreDtype
from zephon_core.blocks import BlockRunner, RowFile, RowLayout, TokenRows
from zephon_core.errors import SourceChangedError
from zephon_core.models import model_content_sha256
from zephon_core.models.plugins import is_plugin

__all__ = ["FeatureProduct", "features_file"]


def features_file(spec: EncodeSpec) -> str:
    """Return the matrix's file name."""
    return "features.f16.npy" if spec.store_dtype is StoreDtype.FLOAT16 else "features.f32.npy"


class FeatureProduct:
    """The features of a bank's texts. model_sha256: the content that the encode is named after."""

    verb = "encode"

    def __init__(
        self, tokens: TokenRows, spec: EncodeSpec, run: RunOptions, model_sha256: str, hash_file: Callable[[Path], str]
    ) -> None:
        self.file_name = features_file(spec)
        self._tokens = tokens
        self._spec = spec
        self._run = run
        self._model_sha256 = model_sha256
        self._hash_file = hash_file

    def open_runner(self, most_workers: int) -> AbstractContextManager[BlockRunner]:
        """See `Product.open_runner`."""
        return open_runner(self._tokens.directory, self._spec, self._run, most_workers=most_workers)

    def layout(self, settled: dict[str, Any]) -> RowLayout:
        """See `Product.layout`."""
        return RowLayout.matrix(len(self._tokens), int(settled["hidden_size"]), np.dtype(self._spec.store_dtype.value))

    def check_inputs(self) -> None:
        """See `Product.check_inputs`."""
        if is_plugin(self._spec.model.path):
            return
        if model_content_sha256(self._spec.model, hash_file=self._hash_file) != self._model_sha256:
            raise SourceChangedError(self._spec.model.path)

    def receipt(self, file: RowFile, runner: BlockRunner, poison: npt.NDArray[np.integer]) -> dict[str, Any]:
        """See `Product.receipt`."""
        return measure_receipt(file, self._tokens, self._spec, runner.ask, poison)
