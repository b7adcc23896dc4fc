"""What a tokenizer is, apart from where it lies and how its file is laid out."""

from __future__ import annotations

import hashlib
import json
from typing import Any

__all__ = ["IDENTITY_VERSION", "content_sha256", "largest_id"]

IDENTITY_VERSION = 1

_ADDED_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def content_sha256(definition: dict[str, Any]) -> str:
    """Digest everything in a parsed tokenizer.json that decides which ids a text gets, as 64 hexadecimal digits of SHA-256.

    Covered: `model` (vocabulary, merges, unknown token, and every other setting of it), `normalizer`, `pre_tokenizer`,
    `post_processor` (it decides the special tokens), and `added_tokens` with all flags, in order of id.
    Not covered: `truncation`, `padding`, `decoder`, `version`, and the path; nor the file's white space and order of keys,
    settings that are null rather than absent, or whether merges are written as "a b" or ["a", "b"].

    The digest is taken over JSON with sorted keys, no blanks and ASCII escapes, headed by `IDENTITY_VERSION`.
    """
    covered = {
        "identity_version": IDENTITY_VERSION,
        "model": _canonical_model(definition["model"]),
        "normalizer": _without_nulls(definition.get("normalizer")),
        "pre_tokenizer": _without_nulls(definition.get("pre_tokenizer")),
        "post_processor": _without_nulls(definition.get("post_processor")),
        "added_tokens": _canonical_added_tokens(definition.get("added_tokens") or []),
    }
    encoded = json.dumps(covered, sort_keys=True, separators=(",", ":")).encode("ascii")
    return hashlib.sha256(encoded).hexdigest()


def largest_id(definition: dict[str, Any]) -> int:
    """Find the largest id that the tokenizer can give, added tokens included; -1 for an empty vocabulary."""
    vocabulary = definition["model"]["vocab"]
    largest: int = max(vocabulary.values(), default=-1) if isinstance(vocabulary, dict) else len(vocabulary) - 1
    added: list[int] = [token["id"] for token in definition.get("added_tokens") or []]
    return max([largest, *added])


def _canonical_model(model: dict[str, Any]) -> dict[str, Any]:
    canonical: dict[str, Any] = {key: value for key, value in model.items() if value is not None}
    if "merges" in canonical:
        canonical["merges"] = [merge.split(" ") if isinstance(merge, str) else merge for merge in canonical["merges"]]
    return canonical


def _canonical_added_tokens(added_tokens: list[dict[str, Any]]) -> list[list[Any]]:
    rows = [[token["id"], token["content"], *(bool(token.get(flag)) for flag in _ADDED_TOKEN_FLAGS)] for token in added_tokens]
    return sorted(rows, key=lambda row: (row[0], row[1]))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
