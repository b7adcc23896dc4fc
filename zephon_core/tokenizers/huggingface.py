"""Bulk encoding with the tokenizers library, which is also what every other encoder is measured by."""

from __future__ import annotations

import array
import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from zephon_core.tokenizers.ragged import RaggedIds

if TYPE_CHECKING:
    import tokenizers

__all__ = ["Backend", "HuggingFaceBackend", "encode_with_huggingface", "serial_encoding", "small_batches"]

_BATCH_CHARACTERS = 1 << 17
_BATCH_TEXTS = 4096


class Backend(Protocol):
    """Encodes texts in bulk, without special tokens and uncut. Called from several threads at once."""

    @property
    def name(self) -> str:
        """Its name among `TokenizerBackend`."""

    def encode(self, texts: Sequence[str]) -> RaggedIds:
        """Encode each text whole."""


_serial_lock = threading.Lock()
_serial_users = 0
_parallelism_before: str | None = None


@contextlib.contextmanager
def serial_encoding() -> Iterator[None]:
    """Keep each call into the tokenizers library on the thread that makes it, for callers with threads of their own.

    The library reads TOKENIZERS_PARALLELISM at each call and has no other switch. The last one to leave puts the variable back.
    """
    global _serial_users, _parallelism_before
    with _serial_lock:
        if _serial_users == 0:
            _parallelism_before = os.environ.get("TOKENIZERS_PARALLELISM")
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
        _serial_users += 1
    try:
        yield
    finally:
        with _serial_lock:
            _serial_users -= 1
            if _serial_users == 0:
                if _parallelism_before is None:
                    os.environ.pop("TOKENIZERS_PARALLELISM", None)
                else:
                    os.environ["TOKENIZERS_PARALLELISM"] = _parallelism_before


def encode_with_huggingface(tokenizer: tokenizers.Tokenizer, texts: Sequence[str]) -> RaggedIds:
    """Encode each text whole, no special tokens added."""
    ids = array.array("I")
    lengths = np.empty(len(texts), dtype=np.int32)
    row = 0
    for batch in small_batches(texts):
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            text_ids = encoding.ids
            ids.fromlist(text_ids)
            lengths[row] = len(text_ids)
            row += 1
    return RaggedIds(np.frombuffer(ids, dtype=np.uint32) if ids else np.empty(0, dtype=np.uint32), lengths)


def small_batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield texts in batches that are small, because the library's result takes some hundred bytes a token."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_TEXTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


class HuggingFaceBackend:
    """The tokenizers library itself: works for every tokenizer, and is what the others are measured by."""

    name = "huggingface"

    def __init__(self, huggingface: tokenizers.Tokenizer) -> None:
        self._huggingface = huggingface

    def encode(self, texts: Sequence[str]) -> RaggedIds:
        """See `Backend.encode`."""
        return encode_with_huggingface(self._huggingface, texts)
