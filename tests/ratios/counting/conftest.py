"""Tokenizers of every structure that counting knows, trained here on a few lines, each in a Hugging Face folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from zephon_core.tokenizers.early_cut import WORD_SPLITS

for _programs in (Path(__file__).parent, Path(__file__).parents[2] / "tokenizers"):
    sys.path.insert(0, str(_programs / "programs"))

STRUCTURES = ("byte_level", "wordpiece", "sentencepiece", "unigram")

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's what they'd've said; we're sure you'll agree, isn't it?",
    "def tokenize(texts: list[str]) -> None:\n    for text in texts:\n        print(text, len(text) // 4)\n\n\n",
    "Zürich, café, naïve, coöperate: Größe, Straße, ÜBERMUT, œuvre, Ångström. 1234567890 3.14159 0xDEADBEEF",
    "Вот эта страница руководства была переведена в прошлом году, и она включает в себя много примеров.",
    "日本語のトークナイザーは、文字の境界を見つけます。正しくないことを知っていると、サーバは止まる。",
    "हिन्दी में लिखा हुआ एक वाक्य है। यह दूसरा वाक्य है।",
    '{"key": [1, 2, 3], "nested": {"a": null, "b": true}}  \t\r\n<div class=\'x\'>&nbsp;</div>',
]
SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(WORD_SPLITS["qwen2"]), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=800, min_frequency=1, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 2, trainer)
    return tokenizer


def _wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=600, min_frequency=1, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 2, trainer)
    return tokenizer


def _sentencepiece() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=800, special_tokens=special, show_progress=False, limit_alphabet=150, max_token_length=9
    )
    tokenizer.train_from_iterator(CORPUS * 2, trainer)
    definition = json.loads(tokenizer.to_str())
    definition["added_tokens"] = [token for token in definition["added_tokens"] if token["content"] == "<unk>"]
    definition["pre_tokenizer"] = None
    mark = {"type": "Prepend", "prepend": "▁"}
    blanks = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    definition["normalizer"] = {"type": "Sequence", "normalizers": [mark, blanks]}
    return Tokenizer.from_str(json.dumps(definition))


def _unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=400, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 2, trainer)
    return tokenizer


_MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": _byte_level,
    "wordpiece": _wordpiece,
    "sentencepiece": _sentencepiece,
    "unigram": _unigram,
}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tokenizer's folder by its structure. Each puts <s> before a text, if asked for special tokens."""
    folders = {}
    for name, make in _MAKERS.items():
        tokenizer = make()
        tokenizer.add_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
        start = tokenizer.token_to_id("<s>")
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", start)])
        folders[name] = tmp_path_factory.mktemp(name)
        tokenizer.save(str(folders[name] / "tokenizer.json"))
        config = {"bos_token": "<s>", "eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
        (folders[name] / "tokenizer_config.json").write_text(json.dumps(config))
    return folders


@pytest.fixture(params=STRUCTURES)
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    """The folder of each tokenizer in turn."""
    return folders[request.param]


@pytest.fixture
def byte_level(folders: dict[str, Path]) -> Path:
    """The folder of a byte-level BPE."""
    return folders["byte_level"]
