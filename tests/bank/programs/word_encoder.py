"""A small encoder behind the plug-in interface, and slow enough to be killed in the middle: a vector a token id, and their mean.

$WORD_ENCODER_SEED chooses the vectors, $WORD_ENCODER_WIDTH how many features they have, $WORD_ENCODER_DELAY_S how long a block
takes. The log named by $WORD_ENCODER_LOG gets one line a block with a digest of its ids. Ids from 1000 on give NaN.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import numpy as np


class WordEncoder:
    def __init__(self) -> None:
        self.hidden_size = int(os.environ.get("WORD_ENCODER_WIDTH", "8"))
        seed = int(os.environ.get("WORD_ENCODER_SEED", "1"))
        self._table = np.random.default_rng(seed).standard_normal((1000, self.hidden_size)).astype(np.float32)
        self.content_sha256 = hashlib.sha256(self._table.tobytes()).hexdigest()

    def encode(self, ids):
        time.sleep(float(os.environ.get("WORD_ENCODER_DELAY_S", "0")))
        if log := os.environ.get("WORD_ENCODER_LOG"):
            with Path(log).open("a") as file:
                file.write(hashlib.sha256(ids.tobytes()).hexdigest() + "\n")
        vectors = self._table[np.minimum(ids, 999)].mean(axis=1)
        vectors[(ids >= 1000).any(axis=1)] = np.nan
        return vectors.astype(np.float32)


def words():
    return WordEncoder()
