"""Safe positions cut a text into halves whose tokens are those of the whole."""

from __future__ import annotations

import random

import pytest

from zephon_core.ratios.counting import lengths
from zephon_core.ratios.counting.cuts import SafeCuts
from zephon_core.ratios.counting.lengths import TokenLengths
from zephon_core.tokenizers import load_tokenizer


def mixed_text(seed: int) -> str:
    words = random.Random(seed)
    pool = ["the", "Fox", "isn't", "naïve", "日本語の", "。", "<|im_end|>", "3.14", "--", "\n\n", "हिन्दी", "é", "(x)"]
    return " ".join(words.choices(pool, k=900))


def ids(tokenizer, text):
    return tokenizer.huggingface.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", ["byte_level", "wordpiece"])
def test_halves_add_up(folders, name):
    tokenizer = load_tokenizer(folders[name])
    cuts = SafeCuts(tokenizer)
    assert cuts.known
    assert cuts.halves_add_up
    text = mixed_text(1)
    for start in range(0, len(text), 37):
        position = cuts.after(text, start)
        if position is not None:
            assert ids(tokenizer, text[:position]) + ids(tokenizer, text[position:]) == ids(tokenizer, text)


def test_the_last_position_of_a_stretch(byte_level):
    cuts = SafeCuts(load_tokenizer(byte_level))
    text = mixed_text(2)
    every = [position for position in range(1, len(text)) if cuts.after(text, position) == position]
    for first, last in ((0, 40), (100, 300), (300, 300), (len(text) - 30, len(text))):
        expected = [position for position in every if first <= position <= last]
        assert cuts.before(text, first, last) == (expected[-1] if expected else None)
    assert cuts.before("a" * 500, 0, 500) is None
    assert cuts.after("a" * 500, 0) is None


def test_what_is_put_before_a_text_is_put_before_its_halves_too(folders):
    cuts = SafeCuts(load_tokenizer(folders["sentencepiece"]))
    assert cuts.known
    assert not cuts.halves_add_up
    unknown = SafeCuts(load_tokenizer(folders["unigram"]))
    assert not unknown.known
    assert (unknown.after("a b", 0), unknown.before("a b", 0, 2)) == (None, None)


def test_pieces(folder):
    cuts = SafeCuts(load_tokenizer(folder))
    text = mixed_text(3)
    pieces = list(cuts.pieces(text, 100))
    assert "".join(pieces) == text
    assert (len(pieces) > 20) == cuts.halves_add_up
    assert list(cuts.pieces("", 10)) == [""]
    assert list(cuts.pieces("a" * 5000, 10)) == ["a" * 5000]


def test_long_texts_are_counted_in_pieces(folder, monkeypatch):
    tokenizer = load_tokenizer(folder)
    monkeypatch.setattr(lengths, "_LONG_CHARACTERS", 800)
    texts = ["short", mixed_text(4), "", "x" * 3000, mixed_text(5)]
    assert TokenLengths(tokenizer).count(texts).tolist() == [len(ids(tokenizer, text)) for text in texts]
