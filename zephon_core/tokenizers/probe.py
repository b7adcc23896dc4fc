"""Texts on which a faster encoder must agree with the reference before it is trusted with others.

They hold what encoders get wrong: every part of Unicode with the neighbours that decide about pre-tokens and normalisation, each
text of the vocabulary alone and run together with others, literals of special tokens and near misses of them, and long runs.
They are the same at each call.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterator
from typing import Any

from zephon_core.tokenizers.byte_alphabet import text_of_symbols

__all__ = ["PROBE_VERSION", "probe_texts"]

PROBE_VERSION = 1

_SEED = 20_240_229
_RANDOM_TEXTS = 4000
_EACH = 8
"""Code points that share a text."""

# Blocks of characters that encoders treat alike: a sample of each is enough. (first, last, step)
_SAMPLED = (
    (0x3400, 0x4DBF, 37),
    (0x4E00, 0x9FFF, 37),
    (0xAC00, 0xD7A3, 37),
    (0xE000, 0xF8FF, 97),
    (0x10000, 0x1CFFF, 7),
    (0x1D800, 0x1EFFF, 7),
    (0x20000, 0x323AF, 97),
    (0x323B0, 0xDFFFF, 997),
    (0xE0000, 0x10FFFF, 997),
)
_SURROGATES = range(0xD800, 0xE000)

_WHITE_SPACE = "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2003\u2009\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
_CONTRACTIONS = (
    "'s",
    "'S",
    "'\u017f",
    "'t",
    "'T",
    "'re",
    "'RE",
    "'rE",
    "'ve",
    "'m",
    "'ll",
    "'lL",
    "'d",
    "\u2019s",
    "''s",
    "'",
    "'x",
)
_SEQUENCES = (
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "\U0001f3f3\ufe0f\u200d\U0001f308",
    "\U0001f44d\U0001f3fd",
    "1\ufe0f\u20e3",
    "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7",
    "\u2764\ufe0e\u2764\ufe0f",
    "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "\u0915\u094d\u0937\u093f\u0915\u094d\u200d\u0937",
    "\u0e01\u0e33\u0e19\u0e49\u0e33",
    "\u0633\u064e\u0644\u064e\u0627\u0645\u200c\u0647\u0627",
    "\u1100\u1161\u11a8\u1100\u1161\uac00\u11a8",
    "\u212b\u2126\u212a\u1fef\u037e\u0340\u0341\u0958\u2adc\ufb1d\U0001d15e",
    "\x00\x01\x7f\x80\x9f\xad\ufffd\ufffe\uffff\U0010ffff",
)
_RUNS = (
    "a",
    "A",
    " ",
    "\n",
    "\r\n",
    "\t",
    "1",
    "!",
    "-",
    "=",
    "\u4e2d",
    "\u0301",
    "e\u0301\u0327",
    "ab",
    "0f",
    " a",
    "\u00a0",
    "'s",
    "\U0001f600",
)


def probe_texts(definition: dict[str, Any]) -> Iterator[str]:
    """Yield the probe for a byte-level BPE tokenizer, given its parsed tokenizer.json: some 200,000 short texts."""
    rng = random.Random(_SEED)
    yield ""
    vocabulary = list(filter(None, map(text_of_symbols, definition["model"]["vocab"])))
    yield from vocabulary
    yield from _token_sequences(vocabulary, rng)
    yield from _code_points()
    yield from _normal_forms(rng)
    yield from _white_space()
    yield from _special_tokens([token["content"] for token in definition.get("added_tokens") or []])
    yield from (run * times for run in _RUNS for times in (2, 3, 4, 7, 16, 33, 250, 1999))
    yield from (context % sequence for sequence in _SEQUENCES for context in ("%s", "a%s", "%sa", " %s ", "1%s\n", "a %s's"))
    yield from _random_texts(rng)


def _token_sequences(vocabulary: list[str], rng: random.Random) -> Iterator[str]:
    """Tokens run together without the blanks before them: long pre-tokens, in which merges compete."""
    for first in vocabulary[::3]:
        yield first + "".join(token.lstrip(" ") for token in rng.choices(vocabulary, k=2))


def _code_points() -> Iterator[str]:
    """Every code point outside of uniform blocks, assigned or not: between letters, doubled, after blanks and digits, marked."""
    sampled = {code for first, last, step in _SAMPLED for code in range(first, last + 1, step)}
    left_out = [range(first, last + 1) for first, last, _ in _SAMPLED] + [_SURROGATES]
    codes = [code for code in range(0x110000) if code in sampled or not any(code in block for block in left_out)]
    for start in range(0, len(codes), _EACH):
        yield "".join(f"a{c}b {c}{c}1{c}.{c} A{c}\u0334\n" for c in map(chr, codes[start : start + _EACH]))


def _normal_forms(rng: random.Random) -> Iterator[str]:
    """Each canonical decomposition, alone and with marks around it, and marks in random order."""
    marks = [chr(code) for code in range(0x300, 0x1E94B) if unicodedata.combining(chr(code))]
    composed = [chr(code) for code in range(0xA0, 0x2FA1E) if code not in _SURROGATES and _decomposes(chr(code))]
    composed += [chr(code) for code in range(0xAC00, 0xD7A4, 29)]
    for character in composed:
        parts = unicodedata.normalize("NFD", character)
        mark = rng.choice(marks)
        yield f"{parts} {character}{mark}{parts}{mark}x {parts[:-1]}{mark}{parts[-1]} {mark}{parts}1{parts}"
    for _ in range(2000):
        yield "".join(
            rng.choice("aeAko \u0438\u3046\u05d0\u0631.1") + "".join(rng.choices(marks, k=rng.randint(0, 5))) for _ in range(8)
        )


def _decomposes(character: str) -> bool:
    decomposition = unicodedata.decomposition(character)
    return bool(decomposition) and not decomposition.startswith("<")


def _white_space() -> Iterator[str]:
    contexts = ("a%sb", "a %s", "%s a", ".%s\n", "\n%s.", "1%s1", "%s", "a%s'll", "\u4e2d%s\u4e2d")
    for first in _WHITE_SPACE:
        for second in _WHITE_SPACE:
            yield " ".join(context % (first + second) for context in contexts)
        yield "".join(context % (first * 3) for context in contexts)
    for contraction in _CONTRACTIONS:
        yield from (
            f"{before}{contraction}{after}"
            for before in ("", "a", "A ", " ", "1", ".", "\u4e2d")
            for after in ("", "x", " ", "1", "'s")
        )


def _special_tokens(literals: list[str]) -> Iterator[str]:
    for literal in literals[:64] + literals[64::37]:
        yield from (
            literal,
            f"a {literal} b",
            f"a{literal}b",
            f"{literal}{literal}\n",
            literal[:-1],
            literal[1:],
            f"x{literal[:-1]} {literal[-1]}",
        )
        yield from (
            literal.upper(),
            literal.swapcase(),
            f"{literal[:1]} {literal[1:]}",
            f"{literal}\u0338",
            literal.replace("|", "\uff5c"),
        )


def _random_texts(rng: random.Random) -> Iterator[str]:
    pools = (
        [chr(code) for code in range(0x20, 0x7F)],
        [chr(code) for code in range(0x20, 0x250)],
        [chr(code) for code in range(0x300, 0x600)],
        [chr(code) for code in range(0x900, 0x1200)],
        [chr(code) for code in range(0x1E00, 0x2C00)],
        [chr(code) for code in range(0x3000, 0x3400)],
        [chr(code) for code in range(0xF900, 0x10000)],
        [chr(code) for code in range(0x10000, 0x1FB00)],
        list(_WHITE_SPACE + "'\"-_/\\ \n"),
    )
    anything = [code for code in range(0x110000) if code not in _SURROGATES]
    for _ in range(_RANDOM_TEXTS):
        yield "".join("".join(rng.choices(rng.choice(pools), k=rng.randint(1, 9))) for _ in range(6))
        yield "".join(chr(code) for code in rng.choices(anything, k=12))
