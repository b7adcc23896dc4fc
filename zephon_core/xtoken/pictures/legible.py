"""Bytes of tokens as something to read: white space and controls as symbols, what is no UTF-8 by itself as hexadecimal."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from zephon_core.xtoken.vocabulary import ADDED, UNKNOWN, ByteSpans

__all__ = ["excerpt", "legible", "token_words"]

NO_BYTES = "\u2205"
"""Stands for a token that covers no byte of the text."""
UNKNOWN_WORD = "\u2370"
"""Stands for the unknown token, whose bytes nobody knows: a question mark in a box."""
LINE_END = "\u23ce"
"""Stands for a line feed."""

_SYMBOLS = {"\n": LINE_END, "\r": "\u240d", "\t": "\u21e5", "\x7f": "\u2421", " ": "\u00b7", "\u00a0": "\u237d"}
_UNSEEN = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs")
_SELECTORS = re.compile("[\u034f\u115f\u1160\u180b-\u180d\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_PLAIN = re.compile(r"[!-~]*")


def legible(content: bytes, *, blanks: bool = True) -> str:
    """Return bytes as a text in which everything is seen: the byte E4 without the rest of its character is ⟨E4⟩.

    blanks: blanks as dots.
    """
    text = content.decode("utf-8", "surrogateescape")
    return "".join(character if character == " " and not blanks else _seen(character) for character in text)


@lru_cache(maxsize=1 << 14)
def _seen(character: str) -> str:
    if _PLAIN.fullmatch(character):
        return character
    if character in _SYMBOLS:
        return _SYMBOLS[character]
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that decoding let through
        return f"\u27e8{code - 0xDC00:02X}\u27e9"
    if code < 0x20:
        return chr(0x2400 + code)
    if unicodedata.category(character) in _UNSEEN or _SELECTORS.fullmatch(character):
        return f"\u27e8U+{code:04X}\u27e9"
    return character


def token_words(spans: ByteSpans, first: int = 0, last: int | None = None) -> list[str]:
    """Write tokens first to last of a sequence legibly; a mark that would join the token before it stands on a dotted circle."""
    last = len(spans.kinds) if last is None else last
    words = []
    for token in range(first, last):
        word = legible(spans.content[spans.starts[token] : spans.starts[token + 1]].tobytes())
        if spans.kinds[token] == UNKNOWN:
            word = UNKNOWN_WORD
        elif not word:
            word = NO_BYTES
        elif spans.kinds[token] != ADDED and unicodedata.category(word[0])[0] == "M":
            word = f"\u25cc{word}"
        words.append(word)
    return words


def excerpt(spans: ByteSpans, first: int, last: int, *, most_bytes: int, at_end: bool = False) -> str:
    """Write tokens first to last as one text, cut to about so many bytes at its end, or at its beginning with `at_end`."""
    begin, end = int(spans.starts[first]), int(spans.starts[last])
    if end - begin <= most_bytes:
        return legible(spans.content[begin:end].tobytes(), blanks=False)
    if at_end:
        begin = _whole(spans.content, end - most_bytes)
        return "\u2026" + legible(spans.content[begin:end].tobytes(), blanks=False)
    end = _whole(spans.content, begin + most_bytes)
    return legible(spans.content[begin:end].tobytes(), blanks=False) + "\u2026"


def _whole(content: npt.NDArray[np.uint8], place: int) -> int:
    """Go on to where a character begins."""
    while place < len(content) and content[place] & 0xC0 == 0x80:
        place += 1
    return place
