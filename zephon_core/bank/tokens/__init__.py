"""Tokenize: the token ids of the distinct texts.

tokenize     texts.jsonl in, a token store out, resumably
store        the files: lengths, ids in the narrowest type, offsets
statistics   what is counted by the way
"""

from __future__ import annotations

from zephon_core.bank.tokens.tokenize import TOKENS_VERSION, tokenize_texts

__all__ = ["TOKENS_VERSION", "tokenize_texts"]
