"""A small real encoder behind the plug-in interface: a table of vectors, one a token id, and their mean.

While the file named by $TINY_ENCODER_HOLD exists, an encode goes on; that is where tests stop it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

HIDDEN_SIZE = 16


class TinyEncoder:
    hidden_size = HIDDEN_SIZE

    def __init__(self, seed: int) -> None:
        self._table = np.random.default_rng(seed).standard_normal((4096, HIDDEN_SIZE)).astype(np.float32)
        self.content_sha256 = hashlib.sha256(self._table.tobytes()).hexdigest()
        logging.getLogger("zephon_core.tiny").info("tiny encoder %d is there", seed)

    def encode(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        if hold := os.environ.get("TINY_ENCODER_HOLD"):
            Path(hold).with_suffix(".reached").touch()
            while Path(hold).exists():
                time.sleep(0.02)
        vectors = self._table[ids % len(self._table)].mean(axis=1)
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


def one() -> TinyEncoder:
    return TinyEncoder(1)


def two() -> TinyEncoder:
    return TinyEncoder(2)
