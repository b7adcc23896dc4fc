"""Encode a text of the moment as a bank's texts were encoded, to compare it with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.bank.encode import row_encoder
from zephon_core.bank.manifest import MANIFEST_NAME, manifest_spec
from zephon_core.bank.reader import FeatureBank
from zephon_core.errors import MismatchError
from zephon_core.models import model_content_sha256
from zephon_core.tokenizers import load_tokenizer

__all__ = ["check_model", "encode_text"]


def check_model(bank: FeatureBank) -> None:
    """Raise MismatchError if what lies at the place of a bank's model is no longer the model that it was made with."""
    spec = manifest_spec(bank.manifest, str(bank.path / MANIFEST_NAME))
    found, made_with = model_content_sha256(spec.encode.model), bank.manifest["model"]["sha256"]
    if found != made_with:
        raise MismatchError(
            spec.encode.model.path,
            f"holds model {found[:16]}, and the bank was made with {made_with[:16]}",
            remedy="Put the bank's model back, or build the bank anew.",
        )


def encode_text(bank: FeatureBank, text: str) -> npt.NDArray[np.floating[Any]]:
    """Return a text's feature vector [hidden_size]: the stored one if the bank holds the text, else encoded now.

    Raises TokenizerError or ModelError if the bank's tokenizer or model is no longer where it was, MismatchError if it is another.
    """
    row = bank.row(text) if text in bank else None
    if row is not None and bank.valid[row]:
        stored: npt.NDArray[np.floating[Any]] = np.asarray(bank.features[row])
        return stored
    spec = manifest_spec(bank.manifest, str(bank.path / MANIFEST_NAME))
    tokenizer = load_tokenizer(spec.tokenizer_path)
    if tokenizer.content_sha256 != bank.manifest["tokenizer"]["sha256"]:
        raise MismatchError(
            spec.tokenizer_path, "is not the tokenizer that the bank was made with", remedy="Put it back, or build the bank anew."
        )
    check_model(bank)
    ids = tokenizer.encode_batch([text.strip()], max_tokens=spec.tokenize.max_key_tokens).ids
    vector: npt.NDArray[np.float32] = row_encoder(spec.encode)([ids.astype(np.int64)])[0]
    return vector
