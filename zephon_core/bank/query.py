"""Encode a text of the moment as a bank's texts were encoded, to compare it with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.bank.encode import row_encoder
from zephon_core.bank.manifest import MANIFEST_NAME, manifest_spec
from zephon_core.bank.reader import FeatureBank
from zephon_core.tokenizers import load_tokenizer

__all__ = ["encode_text"]


def encode_text(bank: FeatureBank, text: str) -> npt.NDArray[np.floating[Any]]:
    """Return a text's feature vector [hidden_size]: the stored one if the bank holds the text, else encoded now.

    Raises TokenizerError or ModelError if the bank's tokenizer or model is no longer where it was.
    """
    row = bank.row(text) if text in bank else None
    if row is not None and bank.valid[row]:
        stored: npt.NDArray[np.floating[Any]] = np.asarray(bank.features[row])
        return stored
    spec = manifest_spec(bank.manifest, str(bank.path / MANIFEST_NAME))
    tokenizer = load_tokenizer(spec.tokenizer_path)
    ids = tokenizer.encode_batch([text.strip()], max_tokens=spec.tokenize.max_key_tokens).ids
    vector: npt.NDArray[np.float32] = row_encoder(spec.encode)([ids.astype(np.int64)])[0]
    return vector
