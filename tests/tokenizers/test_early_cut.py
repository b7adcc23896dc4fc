"""Cutting early changes no id: for every structure that is cut, on texts made to trip it up."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from zephon_core.tokenizers import RaggedIds, Tokenizer, encode_first, find_early_cut, load_tokenizer
from zephon_core.tokenizers.added_tokens import AddedTokens
from zephon_core.tokenizers.early_cut import WORD_SPLITS
from zephon_core.tokenizers.probe import probe_texts

LETTERS = (
    "a Z é e\u0301 ß \u017f Ω Я я א ب क \u0958 की ก "
    "か が か\u3099 カ 中 한 각 \u3131 \u1100 \u1161 \u11a8 \u212a \u212b \ufb01 \uf900"
)
MARKS = (
    "\u0301 \u0327 \u0334 \u200d \ufe0f \u00ad \u200b \ufeff "
    "\x00 \x1f \x7f \ufffd \U0001d15e \U0001f600 \U000113c2 \U00020000 \U0010ffff"
)
PUNCTUATION = ". , ! ? ' '' \u2019 \" ( ) / // - _ # < > | 、 。 \uff0c \uff01 ؟ । ・ ー \u037e \u1fef"
CONTRACTIONS = "'s 't 're 'VE 'm 'll 'd '\u017f 'S 1 12 1234 ² Ⅷ ٣ ½ 一二三"
LITERALS = "<|end|> <|end|  |end|> <think> <think think> [CLS] [MASK] [CLS CLS] [PAD][SEP] end <mask> <cut> Ende hello tokens"
SPACES = [" ", "  ", "\t", "\n", "\r", "\r\n", "\u00a0", "\u2003", "\u2028", "\u3000", "\x85", "\x0b", "\x1c"]
PHRASES = ["The quick brown fox", "ein Wort und noch eins", "слово за словом", "def f(x):\n    return x", "日本語の文字。次の文"]
FRAGMENTS = [*SPACES, *PHRASES, *" ".join([LETTERS, MARKS, PUNCTUATION, CONTRACTIONS, LITERALS]).split(" ")]

texts = st.lists(
    st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.characters(exclude_categories=("Cs",))), max_size=60).map("".join),
    min_size=1,
    max_size=4,
)

AWKWARD = (
    AddedToken("<mask>", lstrip=True, normalized=False),
    AddedToken("<cut>", rstrip=True, normalized=False),
    AddedToken("end", single_word=True, normalized=False),
)


def loaded(definition: dict[str, Any]) -> Tokenizer:
    return Tokenizer(json.dumps(definition).encode(), origin="trained here")


@pytest.fixture(scope="module")
def cut_tokenizers(
    byte_level: Callable[..., dict[str, Any]], sentencepiece_like: Callable[..., dict[str, Any]], minilm_folder: Path
) -> dict[str, Tokenizer]:
    """One tokenizer of each structure that is cut."""
    definitions = {name: byte_level(name, nfc=name in ("qwen2", "o200k")) for name in WORD_SPLITS}
    definitions["deepseek"]["pre_tokenizer"]["pretokenizers"][:0] = [
        split(r"\p{N}{1,3}"),
        split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
    ]
    definitions["digits"] = byte_level("gpt2", nfc=False)
    digits = {"type": "Digits", "individual_digits": True}
    definitions["digits"]["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, definitions["digits"]["pre_tokenizer"]]}
    definitions["prefixed"] = byte_level("gpt2", nfc=False)
    definitions["prefixed"]["pre_tokenizer"]["add_prefix_space"] = True
    definitions["removed"] = byte_level("llama3", nfc=False)
    definitions["removed"]["pre_tokenizer"]["pretokenizers"][0] |= {"behavior": "Removed", "invert": True}
    definitions["awkward"] = byte_level("qwen2", added=AWKWARD)
    definitions["normalized tokens"] = byte_level("llama3", nfc=False, added=(AddedToken("Ende", normalized=True),))
    definitions["gemma"] = sentencepiece_like()
    definitions["gemma"]["added_tokens"].append({**definitions["gemma"]["added_tokens"][0], "id": 5000, "content": "<|end|>"})
    definitions["mistral"] = sentencepiece_like()
    start = {"type": "Replace", "pattern": {"Regex": r"\A▁"}, "content": "▁▁"}
    definitions["mistral"]["normalizer"] = {"type": "Sequence", "normalizers": [definitions["gemma"]["normalizer"], start]}
    definitions["mistral"]["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False}
    definitions["llama"] = sentencepiece_like()
    prepended = {"type": "Prepend", "prepend": "▁"}
    definitions["llama"]["normalizer"] = {"type": "Sequence", "normalizers": [prepended, definitions["gemma"]["normalizer"]]}
    definitions["llama"]["pre_tokenizer"] = None
    definitions["metaspace"] = sentencepiece_like()
    definitions["metaspace"]["normalizer"] = None
    definitions["metaspace"]["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    cased = load_tokenizer(minilm_folder).definition()
    cased["normalizer"] |= {"lowercase": False, "handle_chinese_chars": False, "clean_text": False}
    return {name: loaded(definition) for name, definition in definitions.items()} | {
        "minilm": load_tokenizer(minilm_folder),
        "cased": loaded(cased),
    }


def split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


STRUCTURES = [*WORD_SPLITS, "digits", "prefixed", "removed", "awkward", "normalized tokens", "minilm", "cased"]
STRUCTURES += ["gemma", "mistral", "llama", "metaspace"]


def whole(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.huggingface.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_safe_position_splits_the_ids(structure: str, cut_tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = cut_tokenizers[structure]
    cut = tokenizer.early_cut
    assert cut is not None, tokenizer.describe()["early_cut"]

    @settings(max_examples=120)
    @given(texts)
    def check(batch: list[str]) -> None:
        for text in batch:
            ids = whole(tokenizer, text)
            position = cut.find(text, 1)
            while position is not None:
                head = whole(tokenizer, text[:position])
                assert head == ids[: len(head)], (text[:position], text[position:])
                position = cut.find(text, position + 1)

    check()


@pytest.mark.parametrize("structure", STRUCTURES)
def test_first_ids_are_those_of_the_whole_text(structure: str, cut_tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = cut_tokenizers[structure]
    cuts: list[int] = []

    def encode(prefixes: list[str]) -> RaggedIds:
        cuts.append(sum(map(len, prefixes)))
        return tokenizer.encode_batch(prefixes)

    @settings(max_examples=120)
    @given(texts, st.integers(1, 12))
    def check(batch: list[str], max_tokens: int) -> None:
        cuts.clear()
        first = encode_first(encode, batch, max_tokens, tokenizer.early_cut)
        expected = [whole(tokenizer, text) for text in batch]
        assert first.truncated.tolist() == [len(ids) > max_tokens for ids in expected]
        assert first.empty.tolist() == [not ids for ids in expected]
        kept = [ids[:max_tokens] or [0] for ids in expected]
        assert first.lengths.tolist() == list(map(len, kept))
        assert first.ids.tolist() == [token_id for ids in kept for token_id in ids]
        assert (first.ids.dtype, first.lengths.dtype) == (np.uint32, np.int32)

    check()


@pytest.mark.parametrize("structure", STRUCTURES)
def test_long_texts_are_really_cut(structure: str, cut_tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = cut_tokenizers[structure]
    rng = random.Random(5)
    words = ["word", "Größe", "слово,", "文字。次", "don't", "x=1;", "\n", "  ", "한국어", "1234", "<think>"]
    long = [" ".join(rng.choices(words, k=3000)) for _ in range(3)]
    seen: list[int] = []

    def encode(prefixes: list[str]) -> RaggedIds:
        seen.extend(map(len, prefixes))
        return tokenizer.encode_batch(prefixes)

    first = encode_first(encode, long, 100, tokenizer.early_cut)
    assert first.ids.tolist() == [token_id for text in long for token_id in whole(tokenizer, text)[:100]]
    assert max(seen) < 2000 < min(map(len, long))


def test_the_probe_s_texts_split_alike_at_every_safe_position(cut_tokenizers: dict[str, Tokenizer]) -> None:
    for structure in ("qwen2", "o200k", "minilm"):
        tokenizer = cut_tokenizers[structure]
        cut = tokenizer.early_cut
        assert cut is not None
        long = [text for text in probe_texts({"model": {"vocab": {}}}) if len(text) > 40][::17]
        positions = [[match.start() for match in cut.boundary.finditer(text)] for text in long]
        pairs = [(text, position) for text, found in zip(long, positions, strict=True) for position in found[::2]]
        heads = tokenizer.encode_batch([text[:position] for text, position in pairs])
        texts = tokenizer.encode_batch([text for text, _ in pairs])
        beginnings = [texts.ids[start : start + length] for start, length in zip(texts.starts(), heads.lengths, strict=True)]
        assert len(pairs) > 1000
        assert heads.first_difference(RaggedIds(np.concatenate(beginnings), np.minimum(texts.lengths, heads.lengths))) is None


def test_a_cut_never_falls_into_an_added_token(cut_tokenizers: dict[str, Tokenizer]) -> None:
    cut = cut_tokenizers["llama3"].early_cut
    assert cut is not None
    assert cut.find("word<|end|>", 1) == 4
    assert cut.find("word<|end|>", 5) is None
    assert cut.find("word<|end |>", 5) == 9
    assert cut.find("word <|end|><think>word<|end|>word ", 5) == 23


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d["model"].update(dropout=0.1), "dropout"),
        (lambda d: d["added_tokens"][0].update(normalized=True), "normalised text"),
        (
            lambda d: d.update(post_processor={"type": "TemplateProcessing", "single": [{"Sequence": {}}, {"Sequence": {}}]}),
            "post-processor",
        ),
        (lambda d: d.update(normalizer={"type": "NFKC"}), "no structure"),
        (
            lambda d: d.update(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}),
            "no structure",
        ),
        (lambda d: d.update(pre_tokenizer=None), "no structure"),
        (lambda d: d["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(Regex=r"\w+|\W+"), "no structure"),
        (lambda d: d["pre_tokenizer"]["pretokenizers"][0].update(behavior="MergedWithNext"), "no structure"),
        (lambda d: d["pre_tokenizer"]["pretokenizers"][0].update(invert=True), "no structure"),
        (lambda d: d["pre_tokenizer"]["pretokenizers"].pop(0), "no structure"),
        (lambda d: d["pre_tokenizer"]["pretokenizers"].pop(1), "no structure"),
        (lambda d: d["model"].update(type="Unigram"), "no structure"),
    ],
)
def test_other_structures_are_encoded_whole(
    change: Callable[[dict[str, Any]], object], reason: str, byte_level: Callable[..., dict[str, Any]]
) -> None:
    definition = byte_level("qwen2")
    assert find_early_cut(definition, AddedTokens.of(definition))[0] is not None
    change(definition)
    cut, words = find_early_cut(definition, AddedTokens.of(definition))
    assert cut is None
    assert reason in words


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["model"]["vocab"].update({"e▁t": 9000}),
        lambda d: d["model"]["vocab"].update({"<0xE4>▁": 9000}),
        lambda d: d["model"]["vocab"].update({"<unk>▁": 9000}),
        lambda d: d["model"].update(unk_token=None),
        lambda d: d["model"].update(ignore_merges=True),
        lambda d: d["model"].update(end_of_word_suffix="</w>"),
        lambda d: d["model"]["vocab"].pop("▁"),
        lambda d: d.update(normalizer=None),
        lambda d: d.update(normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "_"}),
        lambda d: d.update(normalizer={"type": "Sequence", "normalizers": [d["normalizer"], {"type": "NFKC"}]}),
        lambda d: d.update(pre_tokenizer={"type": "Split", "pattern": {"String": "e"}, "behavior": "Isolated", "invert": False}),
        lambda d: d.update(pre_tokenizer={"type": "Whitespace"}),
    ],
)
def test_texts_seen_as_one_word_are_cut_only_where_no_token_reaches(
    change: Callable[[dict[str, Any]], object], sentencepiece_like: Callable[..., dict[str, Any]]
) -> None:
    definition = sentencepiece_like()
    assert find_early_cut(definition, AddedTokens.of(definition))[1] == "between a letter and a blank"
    change(definition)
    assert find_early_cut(definition, AddedTokens.of(definition))[0] is None


def test_a_vocabulary_of_tokens_past_words_is_encoded_whole(sentencepiece_like: Callable[..., dict[str, Any]]) -> None:
    tokenizer = loaded(sentencepiece_like(within_words=False))
    assert tokenizer.early_cut is None
    text = "ein Wort und noch eins " * 200
    first = encode_first(tokenizer.encode_batch, [text, ""], 7, tokenizer.early_cut)
    assert first.ids.tolist() == [*whole(tokenizer, text)[:7], 0]
    assert first.truncated.tolist() == [True, False]


def test_no_texts_give_no_ids(cut_tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = cut_tokenizers["qwen2"]
    first = encode_first(tokenizer.encode_batch, [], 5, tokenizer.early_cut)
    assert (len(first.ids), len(first.lengths)) == (0, 0)
