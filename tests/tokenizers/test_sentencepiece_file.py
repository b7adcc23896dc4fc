# ruff: noqa: RUF001
"""SentencePiece models: the same ids as SentencePiece gives."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zephon_core.errors import TokenizerError
from zephon_core.tokenizers import Tokenizer, load_tokenizer

sentencepiece = pytest.importorskip("sentencepiece")

TEXTS = [
    "The quick brown fox jumps over the lazy dog, and it's what they'd say again and again.",
    "Zürich, café, naïve: Größe und Straße. 1234567890 und 3.14159, noch einmal Größe.",
    "日本語のトークナイザーは、文字の境界を見つけます。中文分词没有空格。",
    "def tokenize(texts):\n    for text in texts:\n        print(text)",
]
TRICKY = [
    *(
        "",
        " ",
        "   ",
        "\n",
        "\t \r\n",
        "a",
        " a",
        "a ",
        "  a  b  ",
        "▁",
        "▁▁a",
        "a▁b",
        "<s>",
        "</s> <unk>",
        "<0x41>",
        "é",
        "e\u0301",
    ),
    *(
        "ﾃﾞｽｸ",
        "ﬁne",
        "Ａ１",
        "１２３",
        "\u3000x\u3000",
        "\xa0y",
        "x\u200dy",
        "👨‍👩‍👧 🎉",
        "한국어",
        "\x00\x01z",
        "\ufeffb",
        "ｱ\uff9e",
        "½",
        "Ⅷ",
    ),
]


def ids_of(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    encoded = tokenizer.encode_batch(texts)
    ids = iter(encoded.ids.tolist())
    return [[next(ids) for _ in range(length)] for length in encoded.lengths.tolist()]


def random_texts(count: int) -> list[str]:
    rng = random.Random(0)
    pool = "".join(TEXTS) + "".join(TRICKY)
    # Combining marks in an order of their own are a known difference.
    return [text for text in ("".join(rng.choices(pool, k=rng.randint(0, 40))) for _ in range(count)) if "\u0301" not in text]


@pytest.fixture(scope="session")
def xtok_texts(shared_data: Path) -> list[str]:
    folder = shared_data / "xtok"
    if not folder.is_dir():
        pytest.skip("no texts for tokenizers")
    rows = [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text("utf-8").split("\n") if line]
    return [row["text"] if "text" in row else json.dumps(row, ensure_ascii=False) for row in rows]


def assert_same(tokenizer: Tokenizer, processor: Any, texts: list[str]) -> None:
    """The same ids; of segmentations with equal scores either may be taken, which are permutations of one another in practice."""
    ties = 0
    for text, found in zip(texts, ids_of(tokenizer, texts), strict=True):
        expected = processor.encode(text)
        if found != expected:
            assert Counter(found) == Counter(expected), text
            assert not is_bpe(tokenizer), text
            ties += 1
    assert ties <= len(texts) // 100


def is_bpe(tokenizer: Tokenizer) -> bool:
    return bool(tokenizer.structure["model"]["type"] == "BPE")


@pytest.mark.parametrize("name", ["tokenizer.model.v1", "test_model.model", "test_ja_model.model"])
def test_models_of_others(name: str, shared_data: Path, xtok_texts: list[str]) -> None:
    path = shared_data / "xtok" / "tokenizers" / name
    if not path.is_file():
        pytest.skip("no model")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokenizer = load_tokenizer(path)
    assert tokenizer.vocab_size == processor.vocab_size()
    assert is_bpe(tokenizer) == (name == "tokenizer.model.v1")
    assert_same(tokenizer, processor, [*xtok_texts, *TRICKY, *random_texts(1000)])


Train = Callable[..., tuple[Path, Any]]


@pytest.fixture(scope="session")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """A function (settings) -> model file and processor, trained on the texts here."""

    def train_model(**settings: Any) -> tuple[Path, Any]:
        model = io.BytesIO()
        defaults = {"vocab_size": 420, "hard_vocab_limit": False, "minloglevel": 5, "model_type": "bpe", "byte_fallback": True}
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([line for text in TEXTS for line in text.split("\n")] * 5),
            model_writer=model,
            **defaults | settings,
        )
        path = tmp_path_factory.mktemp("sentencepiece") / "a.model"
        path.write_bytes(model.getvalue())
        return path, sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())

    return train_model


@pytest.mark.parametrize("rule", ["identity", "nfkc", "nmt_nfkc"])
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("fallback", [True, False])
def test_trained_models(rule: str, kind: str, fallback: bool, train: Train) -> None:
    size = 420 if fallback else 160
    path, processor = train(normalization_rule_name=rule, model_type=kind, byte_fallback=fallback, vocab_size=size)
    # A byte's token spelt out is a known difference.
    tricky = [text for text in TRICKY if text != "<0x41>" or kind == "bpe"]
    assert_same(load_tokenizer(path), processor, [*TEXTS, *tricky, *random_texts(400)])


@pytest.mark.parametrize("settings", [{"add_dummy_prefix": False}, {"remove_extra_whitespaces": False}])
def test_rules_for_blanks(settings: dict[str, Any], train: Train) -> None:
    path, processor = train(**settings)
    assert_same(load_tokenizer(path), processor, [*TEXTS, *TRICKY, *random_texts(400)])


def test_decoding(train: Train) -> None:
    path, processor = train()
    tokenizer = load_tokenizer(path)
    for text in TEXTS:
        assert tokenizer.huggingface.decode(processor.encode(text)) == processor.decode(processor.encode(text))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"user_defined_symbols": ["<sep>"]}, "symbols defined by the user"),
        ({"model_type": "char", "byte_fallback": False, "vocab_size": 80}, "whole words or characters"),
        ({"treat_whitespace_as_suffix": True}, "marks words in another way"),
        ({"normalization_rule_name": "nmt_nfkc_cf"}, "a map called 'nmt_nfkc_cf'"),
    ],
)
def test_what_has_no_exact_counterpart_is_refused(settings: dict[str, Any], message: str, train: Train) -> None:
    path, _ = train(**settings)
    with pytest.raises(TokenizerError, match=f"{message}.*can't be turned"):
        load_tokenizer(path)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x0a\x05ab", bytes(100)])
def test_files_that_are_no_tokenizer(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.model"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=str(path)):
        load_tokenizer(path)
