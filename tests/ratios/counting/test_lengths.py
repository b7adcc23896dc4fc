"""Token numbers in bulk are those of the tokenizers library, with and without a limit."""

from __future__ import annotations

import importlib.util
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_core.errors import FatalCountError, TokenizerError
from zephon_core.ratios.counting.lengths import TokenLengths
from zephon_core.store import ArtifactStore
from zephon_core.tokenizers import RaggedIds, huggingface, load_tokenizer


def expected(tokenizer, texts):
    return [len(tokenizer.huggingface.encode(text, add_special_tokens=False)) for text in texts]


def mixed_texts(seed: int) -> list[str]:
    words = random.Random(seed)
    pool = ["the", "fox", "naïve", "Straße", "<|im_end|>", "日本語", "\n", "  ", "3.14", "isn't", "it", ""]
    return [" ".join(words.choices(pool, k=words.choice([0, 1, 5, 60, 900]))) for _ in range(60)]


def test_numbers(folder):
    tokenizer = load_tokenizer(folder)
    counts = TokenLengths(tokenizer).count(mixed_texts(0))
    assert counts.dtype == np.int64
    assert counts.tolist() == expected(tokenizer, mixed_texts(0))
    assert TokenLengths(tokenizer).count([]).tolist() == []


@pytest.mark.parametrize("most", [1, 2, 7, 50, 1000])
def test_with_a_limit(folder, most):
    tokenizer = load_tokenizer(folder)
    counts = TokenLengths(tokenizer).count(mixed_texts(1), most=most)
    assert counts.tolist() == np.minimum(expected(tokenizer, mixed_texts(1)), most).tolist()


@settings(max_examples=50)
@given(sizes=st.lists(st.integers(0, 300), max_size=40))
def test_batches_hold_every_text_in_order(sizes):
    texts = ["x" * size for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(huggingface, "_BATCH_CHARACTERS", 500)
        patch.setattr(huggingface, "_BATCH_TEXTS", 9)
        found = list(huggingface.small_batches(texts))
    assert [text for batch in found for text in batch] == texts
    assert all(len(batch) <= 9 and sum(map(len, batch[:-1])) < 500 for batch in found)


@pytest.mark.parametrize("most", [None, 3])
def test_a_lone_surrogate_is_fatal(folder, most):
    with pytest.raises(FatalCountError, match=r"U\+DC00 at character 2") as caught:
        TokenLengths(load_tokenizer(folder)).count(["a", "b", "c \udc00"], most=most)
    assert caught.value.position == 2


needs_quicktok = pytest.mark.skipif(importlib.util.find_spec("quicktok") is None, reason="pip install quicktok-v1")


@needs_quicktok
def test_a_faster_encoder_counts_the_same(byte_level, tmp_path):
    tokenizer = load_tokenizer(byte_level)
    fast = TokenLengths(tokenizer, text_bytes=1 << 40, store=ArtifactStore(tmp_path))
    assert fast.encoder == "quicktok"
    texts = [*mixed_texts(2), "x" * 3000, "\U0001e000 beyond", "a\u0301"]
    assert fast.count(texts).tolist() == expected(tokenizer, texts)
    assert fast.count(texts, most=5).tolist() == np.minimum(expected(tokenizer, texts), 5).tolist()
    with pytest.raises(FatalCountError, match="lone surrogate") as caught:
        fast.count(["a", "b \ud800"])
    assert caught.value.position == 1


class Forgetful:
    """An encoder that loses the last id of each text that has "fox" in it."""

    name = "forgetful"

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def encode(self, texts):
        counts = [len(self._tokenizer.huggingface.encode(text, add_special_tokens=False)) - ("fox" in text) for text in texts]
        return RaggedIds(np.zeros(sum(counts), np.uint32), np.array(counts, np.int32))


@pytest.mark.parametrize("texts", [["a fox"] * 1000, ["a fox " * 12_000] * 120])
def test_a_faster_encoder_that_counts_otherwise_is_found_out(byte_level, texts):
    tokenizer = load_tokenizer(byte_level)
    counter = TokenLengths(tokenizer)
    counter._fast = Forgetful(tokenizer)
    with pytest.raises(TokenizerError, match="forgetful counts"):
        counter.count(texts)
