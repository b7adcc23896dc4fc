# ruff: noqa: RUF001
"""Bytes to read: nothing is invisible, and nothing that is no UTF-8 is lost."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.xtoken import tabulate
from zephon_core.xtoken.pictures.legible import excerpt, legible, token_words
from zephon_core.xtoken.vocabulary import ADDED, TEXT, UNKNOWN, ByteSpans


def spans(*tokens: bytes, kinds: list[int] | None = None) -> ByteSpans:
    starts = np.cumsum([0, *map(len, tokens)])
    return ByteSpans(np.frombuffer(b"".join(tokens), np.uint8), starts, np.array(kinds or [TEXT] * len(tokens), np.uint8))


def test_what_can_not_be_seen_is_a_symbol():
    assert legible(b"a b\n\t\r\x00\x7f") == "a·b⏎⇥␍␀␡"
    assert legible("é\u200b\u00a0\ufe0f\u3000\U000e0fff中".encode()) == "é⟨U+200B⟩⍽⟨U+FE0F⟩⟨U+3000⟩⟨U+E0FFF⟩中"
    assert legible(b"\xe4\xb8x\xff") == "⟨E4⟩⟨B8⟩x⟨FF⟩"
    assert legible(b"a b\n", blanks=False) == "a b⏎"


@given(st.binary(max_size=20))
def test_everything_is_seen(content):
    seen = legible(content)
    assert len(seen) >= len(content.decode("utf-8", "ignore"))
    assert not any(character.isspace() or not character.isprintable() for character in seen)


def test_words_of_tokens():
    found = token_words(spans(b"e", "\u0301".encode(), b"", b"", b"<s>", kinds=[TEXT, TEXT, TEXT, UNKNOWN, ADDED]))
    assert found == ["e", "◌\u0301", "∅", "⍰", "<s>"]
    assert token_words(spans(b"a", b"b", b"c"), 1, 2) == ["b"]


def test_words_of_a_real_tokenizer(tokenizer):
    qwen = tokenizer("qwen")
    ids = qwen.encode_batch(["Hi 𝔘<|im_end|>\n"]).ids
    words = token_words(tabulate(qwen).spans(ids.astype(np.int64)))
    assert words[0] == "Hi"
    assert "".join(words[1:-2]) == "·⟨F0⟩⟨9D⟩⟨94⟩⟨98⟩"
    assert words[-2:] == ["<|im_end|>", "⏎"]


def test_excerpts_end_between_characters():
    tokens = spans(b"ab", "éé".encode(), "中文".encode(), b"yz")
    assert excerpt(tokens, 0, 4, most_bytes=14) == "abéé中文yz"
    assert excerpt(tokens, 0, 4, most_bytes=7) == "abéé中…"
    assert excerpt(tokens, 0, 4, most_bytes=4, at_end=True) == "…yz"
    assert excerpt(tokens, 1, 2, most_bytes=9) == "éé"
    assert excerpt(tokens, 2, 2, most_bytes=9) == ""
