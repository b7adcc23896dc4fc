"""Tokenizers: loading, identity, bulk encoding with verified fast backends, and encoding only as much of a text as is kept.

`load_tokenizer` gives a `Tokenizer`. `choose_backend` picks what encodes its texts in bulk. `encode_first` encodes no more of
a long text than its first ids need. Token bytes (for alignment) and loaders for other file formats belong here as modules of
their own; they all make a tokenizer.json, which `Tokenizer` takes.
"""

from __future__ import annotations

from zephon_core.tokenizers.backends import ChosenBackend, TokenizerBackend, choose_backend
from zephon_core.tokenizers.early_cut import EarlyCut, FirstIds, encode_first, find_early_cut
from zephon_core.tokenizers.huggingface import Backend, HuggingFaceBackend, serial_encoding
from zephon_core.tokenizers.identity import content_sha256
from zephon_core.tokenizers.load import Tokenizer, identify_tokenizer, load_identified, load_tokenizer
from zephon_core.tokenizers.quicktok_backend import QuicktokBackend
from zephon_core.tokenizers.ragged import RaggedIds

__all__ = [
    "Backend",
    "ChosenBackend",
    "EarlyCut",
    "FirstIds",
    "HuggingFaceBackend",
    "QuicktokBackend",
    "RaggedIds",
    "Tokenizer",
    "TokenizerBackend",
    "choose_backend",
    "content_sha256",
    "encode_first",
    "find_early_cut",
    "identify_tokenizer",
    "load_identified",
    "load_tokenizer",
    "serial_encoding",
]
