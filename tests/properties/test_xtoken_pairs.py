# ruff: noqa: RUF001
"""Any two tokenizers, any text: chunks are the same bytes on both sides, and no finer cut there is."""

from __future__ import annotations

import itertools
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "xtoken" / "programs"))

from real_tokenizers import Named, tokenizer

from zephon_core.tokenizers import Tokenizer
from zephon_core.xtoken import tabulate, token_bytes
from zephon_core.xtoken.alignment.align import align_pairs

__all__ = ["tokenizer"]

NAMES = ("minilm", "qwen", "qwen_nfc", "deepseek", "r50k", "cl100k", "mistral", "unigram_ja")
PIECES = st.sampled_from(
    [
        *("the ", "Hello", " world", "'s", "1234", " naïve", "_x_", "CamelCase", "\u2581", "a\u2581b", "."),
        *(
            "\U0001f468\u200d\U0001f469\u200d\U0001f467",
            "\U0001f3f3\ufe0f\u200d\U0001f308",
            "\U0001f44d\U0001f3fd",
            "1\ufe0f\u20e3",
        ),
        *(
            "e\u0301",
            "e\u0327\u0301",
            "A\u030a",
            "\u212b",
            "\u1100\u1161\u11a8",
            "\u0958",
            "\u0915\u094d\u0937",
            "\ufb01",
            "\uff21",
        ),
        *("中文", "分词。", "日本語の", "トークン", "한국어", "مرحبا", " بالعالم", "שלום", "हिन्दी"),
        *(" ", "  ", "\t", "\n", "\r\n", "\n\n\n", "   \n", "\u00a0", "\u3000", "\x0b", "\x85", "\u2028"),
        *("\x00", "\x01", "\x7f", "\ufffd", "\ufeff", "\u0378", "\U000e0fff", "\U0010ffff", "\ue000"),
        *("<s>", "</s>", "<unk>", "[UNK]", "[SEP]", "<|endoftext|>", "<|im_end|>", "<0x0A>", "<｜end▁of▁sentence｜>"),
    ]
)
TEXTS = st.lists(PIECES | st.text(st.characters(exclude_categories=["Cs"]), max_size=3), max_size=14).map("".join)
SETTINGS = settings(max_examples=25)


@pytest.fixture(scope="module")
def tokenizers(tokenizer: Named) -> dict[str, Tokenizer]:
    """All that are there: six at least, else there is nothing to show."""
    found = {}
    for name in NAMES:
        try:
            found[name] = tokenizer(name)
        except pytest.skip.Exception:
            continue
    if len(found) < 6:
        pytest.skip(f"only {', '.join(found)} are there")
    return found


def partition(student: list[bytes], teacher: list[bytes], loss: list[bool]) -> list[tuple[int, int, int, int]]:
    """The chunks of two sequences of the same bytes, worked out by hand."""
    ours, theirs = spans(student), spans(teacher)
    cuts = sorted({end for _, end in ours.values()} & {end for _, end in theirs.values()})
    chunks = []
    for start, end in itertools.pairwise([0, *cuts]):
        s = [token for token, (a, b) in ours.items() if start <= a and b <= end]
        t = [token for token, (a, b) in theirs.items() if start <= a and b <= end]
        ranges = (s[0], s[-1] + 1, t[0], t[-1] + 1)
        if s[0] > 0 and t[0] > 0 and all(loss[s[0] : s[-1] + 1]):
            chunks.append(ranges)
    return chunks


def spans(parts: list[bytes]) -> dict[int, tuple[int, int]]:
    """Where the tokens that have bytes begin and end."""
    ends = np.cumsum([0, *map(len, parts)]).tolist()
    return {token: (ends[token], ends[token + 1]) for token, part in enumerate(parts) if part}


def essence(content: bytes) -> str:
    """What every normaliser here leaves of bytes. A part of a character that one of them drops is nothing, as the whole is."""
    text = unicodedata.normalize("NFKD", content.decode("utf-8", "ignore").replace("\u2581", " "))
    text = unicodedata.normalize("NFKD", text.lower())
    kept = (c for c in text if unicodedata.category(c) not in ("Mn", "Cc", "Cf", "Cn", "Co", "Zs", "Zl", "Zp") and c != "\ufffd")
    return "".join(kept)


@SETTINGS
@given(text=TEXTS, mask=st.lists(st.booleans(), min_size=1, max_size=9))
def test_every_pair(tokenizers, text, mask):
    encoded = {}
    for name, loaded in tokenizers.items():
        ids = loaded.encode_batch([text]).ids.astype(np.int64)
        encoded[name] = ids, token_bytes(loaded, ids)
    for first, second in itertools.product(encoded, repeat=2):
        (student_ids, student), (teacher_ids, teacher) = encoded[first], encoded[second]
        loss = (mask * (len(student) + 1))[: len(student)]
        chunks = align_pairs(
            *(tabulate(tokenizers[first]), student_ids, np.array([0, len(student)])),
            *(tabulate(tokenizers[second]), teacher_ids, np.array([0, len(teacher)])),
            loss=np.array(loss, dtype=np.bool_),
        )
        ranges = [tuple(row) for row in chunks.ranges.tolist()]
        for (a, b, c, d), exact in zip(ranges, chunks.exact.tolist(), strict=True):
            ours, theirs = b"".join(student[a:b]), b"".join(teacher[c:d])
            assert 1 <= a < b and 1 <= c < d
            assert all(loss[a:b])
            assert exact == (ours == theirs)
            assert exact or essence(ours) == essence(theirs), (first, second, ours, theirs)
        for before, after in itertools.pairwise(ranges):
            assert before[1] <= after[0] and before[3] <= after[2]
        if b"".join(student) == b"".join(teacher) == text.encode():
            assert ranges == partition(student, teacher, loss)
            assert chunks.exact.all()


@SETTINGS
@given(text=TEXTS)
def test_bytes_are_the_texts_where_nothing_normalises(tokenizers, text):
    for name in {"qwen", "deepseek", "r50k", "cl100k"} & set(tokenizers):
        ids = tokenizers[name].encode_batch([text]).ids
        assert b"".join(token_bytes(tokenizers[name], ids)) == text.encode()
    if "mistral" in tokenizers and "\u2581" not in text:
        ids = tokenizers["mistral"].encode_batch([text]).ids
        assert b"".join(token_bytes(tokenizers["mistral"], ids)) == text.encode()


@SETTINGS
@given(data=st.data())
def test_any_tokens_at_all(tokenizers, data):
    """Sampled ids are no text's canonical tokens, and needn't be valid UTF-8."""
    student = tokenizers[data.draw(st.sampled_from(["qwen", "deepseek"]))]
    vocabulary = tabulate(student)
    ids = data.draw(st.lists(st.integers(0, len(vocabulary) - 1).filter(lambda number: vocabulary.kinds[number] == 0), max_size=12))
    parts = token_bytes(student, ids)
    single = {part[0]: number for number, part in enumerate(token_bytes(tokenizers["r50k"], np.arange(256)))}
    teacher_ids = [single[byte] for byte in b"".join(parts)]
    chunks = align_pairs(
        *(vocabulary, np.array(ids, dtype=np.int64), np.array([0, len(ids)])),
        *(tabulate(tokenizers["r50k"]), np.array(teacher_ids, dtype=np.int64), np.array([0, len(teacher_ids)])),
    )
    assert [tuple(row) for row in chunks.ranges.tolist()] == partition(
        parts, [bytes([b]) for b in b"".join(parts)], [True] * len(ids)
    )
