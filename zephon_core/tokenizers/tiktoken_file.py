"""Files of tiktoken ranks, turned into a tokenizer.json.

A line is a token's bytes in base64 and its rank, which is its id. How texts are split and what the special tokens are does not
stand in the file: the encodings that OpenAI published are known by their content, for others a JSON document beside the file
tells (NAME.tiktoken.json: {"pat_str": "...", "special_tokens": {"<|end|>": 100257}}).

tiktoken looks a whole piece up first, and else merges the neighbours that together have the lowest rank, the leftmost of equals.
Both is what byte-level BPE does with `ignore_merges` and with every way to make a token listed as a merge, in the order of ranks.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zephon_core.errors import TokenizerError
from zephon_core.tokenizers.byte_alphabet import SYMBOL_OF_BYTE
from zephon_core.tokenizers.early_cut import WORD_SPLITS

__all__ = ["is_ranks", "ranks_to_definition"]


@dataclass(frozen=True)
class _Encoding:
    """What a published encoding adds to its ranks. split: a key of WORD_SPLITS."""

    name: str
    split: str
    special_tokens: dict[str, int]


_ENCODINGS = {
    "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930": _Encoding("r50k_base", "gpt2", {"<|endoftext|>": 50256}),
    "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069": _Encoding("p50k_base", "gpt2", {"<|endoftext|>": 50256}),
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": _Encoding(
        "cl100k_base",
        "cl100k",
        {
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": _Encoding(
        "o200k_base", "o200k", {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}
    ),
}


def is_ranks(content: bytes) -> bool:
    """Tell whether a file's content looks like tiktoken ranks."""
    parts = content[:4096].lstrip().split(b"\n", 1)[0].split()
    try:
        return len(parts) == 2 and parts[1].isdigit() and bool(base64.b64decode(parts[0], validate=True))
    except binascii.Error:
        return False


def ranks_to_definition(content: bytes, path: Path) -> bytes:
    """Return the tokenizer.json of a file of ranks. path: where the file is, for hints beside it and for messages.

    Raises TokenizerError for a broken file, and for ranks of an unknown encoding without hints.
    """
    ranks = _parse(content, path)
    pattern, special_tokens = _settings(ranks, path)
    symbols = {token: "".join(SYMBOL_OF_BYTE[byte] for byte in token) for token in ranks}
    vocabulary = {symbols[token]: rank for token, rank in ranks.items()} | special_tokens
    merges = [[symbols[left], symbols[right]] for left, right in _merges(ranks)]
    definition = {
        "version": "1.0",
        "added_tokens": [
            _added_token(token, special_tokens[token]) for token in sorted(special_tokens, key=special_tokens.__getitem__)
        ],
        "normalizer": None,
        "pre_tokenizer": _pre_tokenizer(pattern),
        "post_processor": None,
        "decoder": _byte_level(use_regex=False),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": vocabulary,
            "merges": merges,
        },
    }
    return json.dumps(definition, ensure_ascii=False, separators=(",", ":")).encode()


def _added_token(token: str, number: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": token, **flags, "special": True}


def _pre_tokenizer(pattern: str) -> dict[str, Any]:
    if pattern == WORD_SPLITS["gpt2"]:
        return _byte_level(use_regex=True)
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, _byte_level(use_regex=False)]}


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _parse(content: bytes, path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError as error:  # binascii.Error is one
            raise TokenizerError(f"{path}:{number}", "is no line of tiktoken ranks", wanted="base64, a blank, a number") from error
    if len(set(ranks.values())) != len(ranks):
        raise TokenizerError(str(path), "gives two tokens the same rank")
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise TokenizerError(str(path), f"lacks the single byte {missing[0]:#04x}", wanted="ranks for all 256 bytes")
    return ranks


def _settings(ranks: dict[bytes, int], path: Path) -> tuple[str, dict[str, int]]:
    """Return the split regex and the special tokens."""
    hints = path.with_name(f"{path.name}.json")
    if hints.is_file():
        return _hinted(hints)
    ordered = sorted(ranks.items(), key=lambda item: item[1])
    content = b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ordered)
    encoding = _ENCODINGS.get(hashlib.sha256(content).hexdigest())
    if encoding is None:
        names = ", ".join(known.name for known in _ENCODINGS.values())
        raise TokenizerError(
            str(path),
            f"holds {len(ranks):,} ranks of an unknown encoding, which don't say how texts are split",
            wanted=f"one of {names}",
            remedy=f'Write {hints.name} beside it: {{"pat_str": "...", "special_tokens": {{...}}}}, or name a tokenizer.json.',
        )
    return WORD_SPLITS[encoding.split], encoding.special_tokens


def _hinted(hints: Path) -> tuple[str, dict[str, int]]:
    try:
        document = json.loads(hints.read_bytes())
        pattern, special_tokens = document["pat_str"], document.get("special_tokens", {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TokenizerError(
            str(hints), f"can't be used ({type(error).__name__}: {error})", wanted="pat_str, special_tokens"
        ) from error
    if not isinstance(pattern, str) or not all(isinstance(number, int) for number in special_tokens.values()):
        raise TokenizerError(str(hints), "has settings of the wrong kind", wanted="a text pat_str and numbered special_tokens")
    return _as_oniguruma(pattern, hints), {str(token): number for token, number in special_tokens.items()}


def _as_oniguruma(pattern: str, hints: Path) -> str:
    """Take a regex over where it means the same to the tokenizers library's engine."""
    if "$" in pattern or "^" in pattern.replace("[^", ""):
        # There, these match at every line.
        raise TokenizerError(
            str(hints), "has a pat_str with ^ or $", wanted=r"\A or \z", remedy=r"Of GPT-2's kind, write \s+(?!\S) for \s++$."
        )
    return pattern


def _merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """List every way to make a token of two others, in the order of what is made."""
    merges = []
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ranks and right in ranks:
                merges.append((rank, ranks[left], ranks[right], left, right))
    merges.sort()
    return [(left, right) for *_, left, right in merges]
