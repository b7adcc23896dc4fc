"""tiktoken ranks: the same ids as tiktoken gives."""

from __future__ import annotations

import base64
import json
import random
import string
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from zephon_core.errors import TokenizerError
from zephon_core.tokenizers import HuggingFaceBackend, QuicktokBackend, Tokenizer, load_tokenizer
from zephon_core.tokenizers.quicktok_backend import import_into

tiktoken = pytest.importorskip("tiktoken")


def ids_of(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    encoded = tokenizer.encode_batch(texts)
    lengths = encoded.lengths.tolist()
    ids = iter(encoded.ids.tolist())
    return [[next(ids) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="session")
def cases(shared_data: Path) -> list[str]:
    """Texts of the test data for tokenizers, and random ones of characters that make trouble."""
    folder = shared_data / "xtok"
    if not folder.is_dir():
        pytest.skip("no texts for tokenizers")
    texts = []
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text("utf-8").split("\n"):
            row = json.loads(line) if line else {}
            texts.append(row["text"] if "text" in row else json.dumps(row, ensure_ascii=False))
    rng = random.Random(0)
    pool = string.printable + "'s'LL \u017f\n\r\t\u3000\xa0éß中字日本語한글🎉👨‍👩‍👧🇩🇪\u0301\u200d٣Ⅷ\x85\ufeffĀ𝔘İıﾃﾞ"  # noqa: RUF001
    texts += ["".join(rng.choices(pool, k=rng.randint(0, 40))) for _ in range(1000)]
    texts += [
        "".join(chr(rng.choice([rng.randrange(0x80, 0x3000), rng.randrange(0x1F300, 0x1F700)])) for _ in range(12))
        for _ in range(300)
    ]
    return texts


def published(name: str, ranks: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The encoding as tiktoken itself makes it, of ranks that lie here."""
    from tiktoken.load import load_tiktoken_bpe
    from tiktoken_ext import openai_public

    assert isinstance(openai_public, ModuleType)
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda _, expected_hash: load_tiktoken_bpe(str(ranks), expected_hash))
    return tiktoken.Encoding(**getattr(openai_public, name)())


@pytest.mark.parametrize("name", ["r50k_base", "cl100k_base"])
def test_published_encodings(name: str, shared_data: Path, cases: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = shared_data / "xtok" / "tokenizers" / f"{name}.tiktoken"
    if not ranks.is_file():
        pytest.skip("no ranks")
    encoding = published(name, ranks, monkeypatch)
    tokenizer = load_tokenizer(ranks)
    texts = [*cases, "a<|endoftext|>b", "<|endofprompt|> <|fim_prefix|>x"]
    assert ids_of(tokenizer, texts) == [encoding.encode(text, allowed_special="all") for text in texts]
    assert tokenizer.vocab_size == encoding.max_token_value + 1
    assert tokenizer.early_cut is not None
    decoded = tokenizer.huggingface.decode(encoding.encode_ordinary("Größe, 日本語 🎉"), skip_special_tokens=False)
    assert decoded == "Größe, 日本語 🎉"


def small_ranks(*merged: bytes) -> dict[bytes, int]:
    return {token: rank for rank, token in enumerate([*(bytes([byte]) for byte in range(256)), *merged])}


def write_ranks(path: Path, ranks: dict[bytes, int]) -> Path:
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()))
    return path


def test_hints_beside_the_file(tmp_path: Path) -> None:
    ranks = small_ranks(b"ab", b"bc", b"abc", b"aab", b"  ")
    path = write_ranks(tmp_path / "own.tiktoken", ranks)
    hints = {"pat_str": r"\p{L}+|\s+|[^\s\p{L}]+", "special_tokens": {"<end>": 300}}
    (tmp_path / "own.tiktoken.json").write_text(json.dumps(hints))
    tokenizer = load_tokenizer(path)
    encoding = tiktoken.Encoding("own", pat_str=hints["pat_str"], mergeable_ranks=ranks, special_tokens=hints["special_tokens"])
    rng = random.Random(1)
    texts = ["".join(rng.choices("abc <end>é", k=20)) for _ in range(300)]
    assert ids_of(tokenizer, texts) == [encoding.encode(text, allowed_special="all") for text in texts]
    assert tokenizer.vocab_size == 301


def test_unknown_ranks_are_refused_with_what_is_wanted(tmp_path: Path) -> None:
    path = write_ranks(tmp_path / "own.tiktoken", small_ranks(b"ab"))
    with pytest.raises(TokenizerError, match=r"257 ranks of an unknown encoding.*cl100k_base.*own\.tiktoken\.json beside it"):
        load_tokenizer(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"YQ== 0\nnonsense\n", "is no line of tiktoken ranks"),
        (b"YQ== 0\nYg== 0\n", "the same rank"),
        (b"YQ== 0\nYg== 1\n", "lacks the single byte"),
    ],
)
def test_broken_ranks(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.tiktoken").write_bytes(content)
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(tmp_path / "a.tiktoken")


@pytest.mark.parametrize(
    ("hints", "message"),
    [("[]", "can't be used"), ("{", "can't be used"), ('{"pat_str": 1}', "wrong kind"), ('{"pat_str": "a$"}', r"with \^ or \$")],
)
def test_broken_hints(hints: str, message: str, tmp_path: Path) -> None:
    path = write_ranks(tmp_path / "own.tiktoken", small_ranks())
    (tmp_path / "own.tiktoken.json").write_text(hints)
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(path)


def test_line_ends_and_order_make_no_difference(shared_data: Path, tmp_path: Path) -> None:
    ranks = shared_data / "xtok" / "tokenizers" / "r50k_base.tiktoken"
    if not ranks.is_file():
        pytest.skip("no ranks")
    lines = ranks.read_bytes().split(b"\n")
    (tmp_path / "copy.ranks").write_bytes(b"\r\n".join([*reversed(lines), b""]))
    assert load_tokenizer(tmp_path / "copy.ranks").content_sha256 == load_tokenizer(ranks).content_sha256


def test_quicktok_serves_a_vocabulary_with_gaps(
    shared_data: Path, cases: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("quicktok")
    ranks = shared_data / "xtok" / "tokenizers" / "cl100k_base.tiktoken"
    if not ranks.is_file():
        pytest.skip("no ranks")
    tokenizer = load_tokenizer(ranks)
    import_into(tmp_path, tokenizer)
    encoded = QuicktokBackend(tokenizer, HuggingFaceBackend(tokenizer.huggingface), tmp_path).encode(cases)
    encoding = published("cl100k_base", ranks, monkeypatch)
    ids = iter(encoded.ids.tolist())
    assert [[next(ids) for _ in range(length)] for length in encoded.lengths.tolist()] == [
        encoding.encode(text, allowed_special="all") for text in cases
    ]
