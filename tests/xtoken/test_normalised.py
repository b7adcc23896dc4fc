# ruff: noqa: RUF001
"""Folding: what is made equal, and the exact way back."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.xtoken.normalised import Fold, fold_of, folded

NFC, NFKC = Fold(compose=True), Fold(compose=True, compatible=True)
BERT = Fold(lower=True, no_accents=True, clean=True, no_blanks=True)
LETTERS = st.sampled_from([*"aAeé \n\u0301\u0327\u030aÅÅßİſ中\u1100\u1161\u11a8가\u0958क\u0915\u094d😀\u200d\u2581ﬁＡｶ\uff9e\x00"])
TEXTS = st.text(LETTERS | st.characters(exclude_categories=["Cs"]), max_size=30)


def fold_text(text: str, fold: Fold) -> str:
    return folded(text.encode(), fold, side=1).content.tobytes().decode()


@given(text=TEXTS)
def test_normal_forms_are_unicodes(text):
    assert fold_text(text, NFC) == unicodedata.normalize("NFC", text)
    assert fold_text(text, NFKC) == unicodedata.normalize("NFKC", text)


@given(text=TEXTS, fold=st.sampled_from([NFC, NFKC, BERT, Fold(mark=True), Fold(one_blank=True), Fold(no_prefix=True, lower=True)]))
def test_places_lead_back_exactly(text, fold):
    content = text.encode()
    result = folded(content, fold, side=1)
    assert len(result.places) == len(content) + 1
    assert (np.diff(result.places) >= 0).all()
    assert result.places[-1] == 4 * len(result.content)
    # Between two places that have counterparts lies what folding that stretch alone would give, blanks at ends apart.
    exact = np.flatnonzero(result.places % 4 == 0)
    for start, end in zip(exact[:-1].tolist(), exact[1:].tolist(), strict=True):
        try:
            content[start:end].decode()
        except UnicodeDecodeError:  # a part of a character
            continue
        own = result.content[result.places[start] // 4 : result.places[end] // 4].tobytes()
        alone = folded(content[start:end], fold, side=1).content.tobytes()
        assert own.strip() == alone.strip()
    assert folded(result.content.tobytes(), fold, side=1).content.tobytes() == result.content.tobytes() or fold not in (NFC, NFKC)


@given(content=st.binary(max_size=40), fold=st.sampled_from([NFC, BERT, Fold(mark=True)]))
def test_bytes_that_are_no_text_pass(content, fold):
    result = folded(content, fold, side=2)
    assert result.places[-1] == 4 * len(result.content)
    assert (np.diff(result.places) >= 0).all()


def test_a_place_inside_of_a_changed_character_equals_nothing_of_the_other_side():
    decomposed, composed = folded("xe\u0301y".encode(), NFC, side=1), folded("xéy".encode(), NFC, side=2)
    assert decomposed.content.tobytes() == composed.content.tobytes() == "xéy".encode()
    assert decomposed.places.tolist() == [0, 4, 5, 5, 12, 16]
    assert composed.places.tolist() == [0, 4, 8, 12, 16]
    assert {*decomposed.places.tolist()} & {*composed.places.tolist()} == {0, 4, 12, 16}
    kept = folded("xéy".encode(), NFC, side=1)
    assert kept.places.tolist() == composed.places.tolist()


@pytest.mark.parametrize(
    ("fold", "text", "expected"),
    [
        (BERT, "The CAFÉ, No.\t1\x00", "thecafe,no.1"),
        (Fold(mark=True), "a▁b", "a b"),
        (Fold(one_blank=True), "  a   b ", "a b"),
        (Fold(no_prefix=True), "  a", " a"),
        (Fold(lower=True), "ÀSSİ", "àssi̇"),
        (Fold(), "▁ A\u0301", "▁ A\u0301"),
    ],
)
def test_folds(fold, text, expected):
    assert fold_text(text, fold) == expected


def test_sections_lose_their_own_first_blank():
    content = b"<s> a b<s> c<s>d"
    result = folded(content, Fold(no_prefix=True), side=1, sections=[0, 3, 10, 15])
    assert result.content.tobytes() == b"<s>a b<s>c<s>d"


def test_union():
    assert (NFC | Fold(lower=True)) == Fold(compose=True, lower=True)
    assert not Fold()
    assert NFC


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ({"normalizer": None}, Fold()),
        ({"normalizer": {"type": "NFC"}}, NFC),
        ({"normalizer": {"type": "NFKD"}}, NFKC),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]}},
         Fold(compose=True, no_accents=True, lower=True)),
        ({"normalizer": {"type": "BertNormalizer", "clean_text": True, "lowercase": True, "strip_accents": None}}, BERT),
        ({"normalizer": {"type": "BertNormalizer", "clean_text": False, "lowercase": False}}, Fold(no_blanks=True)),
        ({"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}}, Fold(mark=True)),
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}}, Fold(one_blank=True)),
        ({"normalizer": {"type": "Prepend", "prepend": "▁"}}, Fold(no_prefix=True)),
        ({"normalizer": {"type": "Precompiled"}}, Fold(compose=True, compatible=True, clean=True, one_blank=True)),
        ({"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}}, Fold(mark=True)),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, Fold(no_prefix=True)),
        ({"pre_tokenizer": {"type": "Whitespace"}}, Fold(no_blanks=True)),
    ],
)  # fmt: skip
def test_what_tokenizers_change(definition, expected):
    assert fold_of({"model": {"type": "BPE"}, **definition}) == expected


def test_wordpiece_has_no_blanks():
    assert fold_of({"model": {"type": "WordPiece"}}) == Fold(no_blanks=True)
