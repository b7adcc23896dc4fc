# ruff: noqa: RUF001
"""Token bytes: the text's own bytes, or said to be otherwise."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HuggingFace

from zephon_core.errors import TokenizerError
from zephon_core.tokenizers import Tokenizer
from zephon_core.xtoken import spans_in_text, tabulate, token_bytes

TEXTS = [
    "Hello world",
    "  two  spaces ",
    " one",
    "_under_score_",
    "👨‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🎉",
    "cafe\u0301 e\u0301\u0327 Å",
    "中文分词没有空格。日本語 한국어",
    "مرحبا بالعالم שלום",
    "a\r\nb\r\n\r\n\tc   \n",
    "\x00nul\x00\x01",
    "\u0378 \U000e0fff",
    "<|endoftext|> [SEP] <s> </s> <0x41> <|im_end|> <｜end▁of▁sentence｜>",
    "\ufeffbom ﬁne Ａ１ ½",
    "",
    " ",
    "\n",
]


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode_batch([text]).ids.tolist()


@pytest.mark.parametrize("name", ["qwen", "deepseek", "r50k", "cl100k", "mistral"])
def test_the_bytes_are_the_texts(name, tokenizer):
    for text in TEXTS:
        if name == "mistral" and "▁" in text:
            continue
        ids = ids_of(tokenizer(name), text)
        parts = token_bytes(tokenizer(name), ids)
        assert len(parts) == len(ids)
        assert b"".join(parts) == text.encode()
        spans = spans_in_text(tokenizer(name), ids, text)
        assert spans.exact
        assert spans.known.all()
        assert spans.starts.tolist() == np.cumsum([0, *map(len, parts)]).tolist()


def test_a_character_may_be_split_between_tokens(tokenizer):
    for name in ("qwen", "mistral"):
        parts = token_bytes(tokenizer(name), ids_of(tokenizer(name), "\U000e0fff"))
        assert len([part for part in parts if part]) > 1
        assert b"".join(parts) == "\U000e0fff".encode()


def test_what_a_normaliser_changes_is_mapped_back(tokenizer):
    text = "Ein CAFÉ,  und  e\u0301 so"
    ids = ids_of(tokenizer("minilm"), text)
    parts = token_bytes(tokenizer("minilm"), ids)
    assert b"".join(parts) == b"eincafe,undeso"
    spans = spans_in_text(tokenizer("minilm"), ids, text)
    assert not spans.exact
    raw, bounds = text.encode(), spans.starts.tolist()
    found = [raw[start:end].decode() for start, end in itertools.pairwise(bounds)]
    assert "".join(found) == text
    assert [piece.strip().lower() for piece in found][-3:] == ["und", "e\u0301", "so"]


def test_nfc_on_decomposed_text(tokenizer):
    text = "le cafe\u0301 noir"
    ids = ids_of(tokenizer("qwen_nfc"), text)
    assert b"".join(token_bytes(tokenizer("qwen_nfc"), ids)) == "le café noir".encode()
    spans = spans_in_text(tokenizer("qwen_nfc"), ids, text)
    assert not spans.exact
    assert spans.starts[-1] == len(text.encode())
    with pytest.raises(
        TokenizerError, match=r"byte 6 of the text, token 1: .* b'\\xc3\\xa9 noir', expected b'e\\xcc\\x81 noir', as the text"
    ):
        spans_in_text(tokenizer("qwen"), ids_of(tokenizer("qwen"), "le café noir"), text)


def test_other_tokens_than_the_texts_are_refused_where_they_differ(tokenizer):
    ids = ids_of(tokenizer("qwen"), "one two three")
    with pytest.raises(
        TokenizerError, match=r"byte 5 of the text, token 1: the tokens go on with b'wo three', expected b'oo three'"
    ):
        spans_in_text(tokenizer("qwen"), ids, "one too three")
    with pytest.raises(TokenizerError, match="byte 13 of the text, token 3"):
        spans_in_text(tokenizer("qwen"), ids, "one two three four")
    with pytest.raises(TokenizerError, match="byte 7 of the text, token 2"):
        spans_in_text(tokenizer("qwen"), ids, "one two")


def test_a_word_mark_in_the_text_is_a_blank_only_where_the_vocabulary_has_no_other(tokenizer):
    text = "a▁b _c_"
    assert b"".join(token_bytes(tokenizer("deepseek"), ids_of(tokenizer("deepseek"), text))) == text.encode()
    ids = ids_of(tokenizer("mistral"), text)
    assert b"".join(token_bytes(tokenizer("mistral"), ids)) == b"a b _c_"
    spans = spans_in_text(tokenizer("mistral"), ids, text)
    assert not spans.exact
    assert spans.starts[-1] == len(text.encode())


def test_ids_that_are_none_of_the_vocabularys(tokenizer):
    for bad in (len(tabulate(tokenizer("qwen"))), -1):
        with pytest.raises(TokenizerError, match=rf"has no token {bad}, which stands at position 1"):
            token_bytes(tokenizer("qwen"), [5, bad])
    with pytest.raises(TokenizerError, match="ids of type float64"):
        token_bytes(tokenizer("qwen"), [0.5])


def test_the_unknown_token_has_no_bytes(tokenizer):
    ids = ids_of(tokenizer("minilm"), "so 🎉 it")
    assert token_bytes(tokenizer("minilm"), ids) == [b"so", b"", b"it"]
    with pytest.raises(TokenizerError, match="has no token for what stands at position 1"):
        spans_in_text(tokenizer("minilm"), ids, "so 🎉 it")


def test_a_table_is_made_once(tokenizer):
    assert tabulate(tokenizer("minilm")) is tabulate(tokenizer("minilm"))
    vocabulary = tabulate(tokenizer("minilm"))
    assert tabulate(vocabulary) is vocabulary
    assert vocabulary.content_sha256 == tokenizer("minilm").content_sha256


def gemma_like(prepend: str | None) -> Tokenizer:
    """A vocabulary of single characters with word marks and bytes to fall back to; runs of marks are listed as added tokens too."""
    pieces = ["<unk>", "<bos>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁▁", "a", "b", "▁a", "\n\n"]
    model = models.BPE(
        {piece: number for number, piece in enumerate(pieces)}, [("▁", "▁"), ("▁", "a")], unk_token="<unk>", byte_fallback=True
    )
    made = HuggingFace(model)
    steps = [normalizers.Replace(" ", "▁")]
    made.normalizer = normalizers.Sequence([*([normalizers.Prepend(prepend)] if prepend else []), *steps])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(["<unk>", "<bos>"])
    made.add_tokens(
        [AddedToken("▁▁", normalized=False), AddedToken("\n\n", normalized=False), AddedToken("<tag▁>", normalized=False)]
    )
    return Tokenizer(made.to_str().encode(), origin="gemma-like")


def test_added_tokens_are_literal_and_runs_of_marks_are_blanks():
    made = gemma_like(None)
    for text in ("a  b", "<bos>a\n\nb", "<bos> a é<unk>", "<tag▁>a"):
        assert b"".join(token_bytes(made, ids_of(made, text))) == text.encode()


def test_the_tokenizers_own_blank_is_left_out_before_each_text():
    made = gemma_like("▁")
    for text in ("a b", " a", "<bos>a b", "<bos> ab<bos>b", "éa"):
        assert b"".join(token_bytes(made, ids_of(made, text))) == text.encode()


def test_metaspace_that_puts_its_blank_only_first():
    made = HuggingFace(models.Unigram([("<unk>", 0.0), ("▁", -1.0), ("a", -1.0), ("b", -1.0), ("▁a", -1.0)], unk_id=0))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.decoder = decoders.Metaspace(prepend_scheme="first")
    made.add_special_tokens(["<s>"])
    loaded = Tokenizer(made.to_str().encode(), origin="first")
    for text in ("a b", "a<s>b a", "b"):
        assert b"".join(token_bytes(loaded, ids_of(loaded, text))) == text.encode()


REPRODUCED = [
    ("llamacpp_vocab_tests", "gpt-2", "r50k"),
    ("llamacpp_vocab_tests", "qwen2", "qwen_nfc"),
    ("llamacpp_vocab_tests", "bert-bge", "minilm"),
    ("gpt_tokenizer_testplans", "r50k_base", "r50k"),
    ("gpt_tokenizer_testplans", "cl100k_base", "cl100k"),
    ("transformersjs_tests", "Xenova/gpt2", "r50k"),
    ("transformersjs_tests", "Xenova/gpt-4", "cl100k"),
    ("transformersjs_tests", "Xenova/Qwen1.5-0.5B-Chat", "qwen_nfc"),
]


@pytest.mark.parametrize(("file", "their_name", "name"), REPRODUCED)
def test_ids_that_others_publish_are_reproduced_and_are_the_texts_bytes(file, their_name, name, tokenizer, shared_data: Path):
    path = shared_data / "xtok" / f"{file}.jsonl"
    if not path.is_file():
        pytest.skip("no published ids")
    rows = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]
    rows = [(row["text"], row["ids"][their_name]) for row in rows if their_name in row["ids"]]
    assert rows
    for text, ids in rows:
        assert ids_of(tokenizer(name), text) == ids
        if name == "minilm":
            if 100 not in ids:
                spans_in_text(tokenizer(name), ids, text)
        else:
            assert spans_in_text(tokenizer(name), ids, text).exact or name == "qwen_nfc"


@pytest.mark.parametrize("first", [b"", b"abcdefgh"])
def test_bytes_are_laid_out_whatever_their_lengths(first):
    """Eight are copied at once: tokens shorter and longer than that, and the last of a table, must come out as they are."""
    from zephon_core.xtoken.kernels import SLACK, lay_out, token_bytes_in_all

    rng = np.random.default_rng(0)
    table = [first, b"", *(bytes(rng.integers(33, 127, length).tolist()) for length in [*range(40), 1, 2, 7, 8, 9, 200, 3])]
    offsets = np.cumsum([0, *map(len, table)]).astype(np.int64)
    blob, kinds = np.frombuffer(b"".join(table), dtype=np.uint8), np.zeros(len(table), dtype=np.uint8)
    for ids in (rng.integers(0, len(table), 500), np.arange(len(table)), np.full(3, len(table) - 1), np.empty(0, dtype=np.int64)):
        wanted = b"".join(table[number] for number in ids)
        assert token_bytes_in_all(ids, offsets) == len(wanted)
        out, starts = np.full(len(wanted) + SLACK, 0xFF, dtype=np.uint8), np.empty(len(ids) + 1, dtype=np.int64)
        lay_out(ids, np.array([0, len(ids)]), blob, offsets, kinds, 0, out, starts)
        assert out[: starts[-1]].tobytes() == wanted
        assert starts.tolist() == np.cumsum([0, *(len(table[number]) for number in ids)]).tolist()
