"""A faster backend is used only where it is proved to give the Hugging Face encoder's ids, and gives them on every text."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_core.errors import MissingExtraError, SpecError, TokenizerError
from zephon_core.store import ArtifactStore
from zephon_core.tokenizers import (
    HuggingFaceBackend,
    QuicktokBackend,
    RaggedIds,
    Tokenizer,
    TokenizerBackend,
    choose_backend,
    load_tokenizer,
    serial_encoding,
)
from zephon_core.tokenizers.backends import _verify
from zephon_core.tokenizers.byte_alphabet import BYTE_OF_SYMBOL, SYMBOL_OF_BYTE
from zephon_core.tokenizers.quicktok_backend import _import, import_into

MUCH = 1 << 40


def loaded(definition: dict[str, Any]) -> Tokenizer:
    return Tokenizer(json.dumps(definition).encode(), origin="trained here")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ArtifactStore:
    return ArtifactStore(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def qwen_like(byte_level: Callable[..., dict[str, Any]]) -> Tokenizer:
    return loaded(byte_level("qwen2"))


@pytest.fixture(scope="module")
def llama_like(byte_level: Callable[..., dict[str, Any]]) -> Tokenizer:
    """One with tokens that its merges don't reach, or not in order of ids, as Llama 3 has them."""
    definition = byte_level("llama3", nfc=False)
    model = definition["model"]
    definition["added_tokens"] = []
    model["ignore_merges"] = True
    for left, right in (("Ġw", "or"), ("wor", "d"), ("ord", "e"), ("Ġthe", "Ġ")):
        for token in (left, right, left + right):
            model["vocab"].setdefault(token, len(model["vocab"]))
        if left + right != "word":
            model["merges"].append([left, right])
    model["merges"].sort(key=lambda merge: model["vocab"]["".join(merge)])
    return loaded(definition)


def quicktok(tokenizer: Tokenizer, folder: Path) -> QuicktokBackend:
    import_into(folder, tokenizer)
    return QuicktokBackend(tokenizer, HuggingFaceBackend(tokenizer.huggingface), folder)


def test_huggingface_is_taken_where_it_is_asked_for(qwen_like: Tokenizer) -> None:
    chosen = choose_backend(qwen_like, "huggingface", text_bytes=MUCH, threads=2)
    assert (chosen.backend.name, chosen.reason, chosen.fell_back) == ("huggingface", "as asked", False)


def test_a_proved_backend_is_taken_and_the_proof_kept(qwen_like: Tokenizer, store: ArtifactStore) -> None:
    pytest.importorskip("quicktok")
    before = choose_backend(qwen_like, "auto", text_bytes=8 << 20, threads=2, store=store)
    assert (before.backend.name, before.fell_back) == ("huggingface", False)
    chosen = choose_backend(qwen_like, "auto", text_bytes=MUCH, threads=2, store=store)
    assert (chosen.backend.name, chosen.fell_back) == ("quicktok", False)
    (proof,) = (path for path in (store.root / "encoder").iterdir() if path.is_dir())
    assert store.find("encoder", proof.name) is not None
    after = choose_backend(qwen_like, "auto", text_bytes=8 << 20, threads=2, store=store)
    assert after.backend.name == "quicktok"
    assert choose_backend(qwen_like, "auto", text_bytes=1000, threads=2, store=store).backend.name == "huggingface"


def test_without_a_store_the_proof_is_made_each_time(qwen_like: Tokenizer) -> None:
    pytest.importorskip("quicktok")
    assert choose_backend(qwen_like, TokenizerBackend.QUICKTOK, text_bytes=10, threads=1).backend.name == "quicktok"


def test_auto_falls_back_and_says_why(minilm_folder: Path, store: ArtifactStore) -> None:
    chosen = choose_backend(load_tokenizer(minilm_folder), "auto", text_bytes=MUCH, threads=2, store=store)
    assert (chosen.backend.name, chosen.fell_back) == ("huggingface", True)
    assert "no byte-level BPE" in chosen.reason


def test_a_backend_asked_for_by_name_is_refused_where_it_can_t_serve(minilm_folder: Path) -> None:
    with pytest.raises(TokenizerError, match="no byte-level BPE"):
        choose_backend(load_tokenizer(minilm_folder), "quicktok", text_bytes=MUCH, threads=2)


def test_an_unknown_backend_is_refused(qwen_like: Tokenizer) -> None:
    with pytest.raises(SpecError, match="auto or huggingface or quicktok"):
        choose_backend(qwen_like, "fastest", text_bytes=MUCH, threads=2)


def test_a_backend_that_is_not_installed(qwen_like: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "quicktok", None)
    chosen = choose_backend(qwen_like, "auto", text_bytes=MUCH, threads=2)
    assert (chosen.backend.name, chosen.fell_back) == ("huggingface", True)
    with pytest.raises(MissingExtraError, match=r"pip install 'zephon-flows\[quicktok\]'"):
        choose_backend(qwen_like, "quicktok", text_bytes=MUCH, threads=2)


def test_nothing_is_printed(qwen_like: Tokenizer, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("quicktok")
    import_into(tmp_path, qwen_like)
    assert capfd.readouterr().out == ""


class _OneWrongId:
    """A backend that gets one text in many wrong."""

    name = "wrong"

    def __init__(self, reference: HuggingFaceBackend) -> None:
        self._reference = reference

    def encode(self, texts: Sequence[str]) -> RaggedIds:
        ids, lengths = self._reference.encode(texts)
        for row, text in enumerate(texts):
            if text == "a's":
                ids = ids.copy()
                ids[int(lengths[:row].sum())] += 1
        return RaggedIds(ids, lengths)


def test_one_wrong_text_fails_the_proof(qwen_like: Tokenizer) -> None:
    reference = HuggingFaceBackend(qwen_like.huggingface)
    assert _verify(reference, reference, qwen_like, 2) > 15_000
    with pytest.raises(TokenizerError, match='wrong gives other ids than huggingface for "a\'s", first at token 0'):
        _verify(_OneWrongId(reference), reference, qwen_like, 2)


ANY_TEXT = st.lists(
    st.one_of(
        st.sampled_from(
            ["<|end|>", "<think>", "<|end", " worder", "worde", " word", "word", "the ", " the ", "e\u0301", "\u07fd\u0334"]
        ),
        st.text(st.characters(exclude_categories=("Cs",)), max_size=12),
        st.text(st.sampled_from("aewordth .'1\n\u0301\u0327が한"), max_size=20),
        st.text(st.sampled_from("\U000113c2\U00011de0\u0897\u1acf\U0001f600\u200d\U0001d15e"), max_size=6),
    ),
    max_size=8,
).map("".join)


@pytest.mark.parametrize("split", ["qwen2", "llama3", "o200k", "cl100k", "tekken"])
@pytest.mark.parametrize("nfc", [True, False])
def test_quicktok_gives_the_reference_s_ids(
    split: str, nfc: bool, byte_level: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    pytest.importorskip("quicktok")
    tokenizer = loaded(byte_level(split, nfc=nfc))
    backend, reference = quicktok(tokenizer, tmp_path), HuggingFaceBackend(tokenizer.huggingface)

    @settings(max_examples=150)
    @given(st.lists(ANY_TEXT, max_size=6))
    def check(texts: list[str]) -> None:
        assert backend.encode(texts).first_difference(reference.encode(texts)) is None

    check()


def test_tokens_that_merges_do_not_reach_in_order_are_left_to_the_reference(llama_like: Tokenizer, tmp_path: Path) -> None:
    pytest.importorskip("quicktok")
    (tmp_path / "as it is").mkdir()
    backend, reference = quicktok(llama_like, tmp_path), HuggingFaceBackend(llama_like.huggingface)
    disorderly = json.loads((tmp_path / "disorderly.json").read_bytes())
    assert "word" in disorderly
    with pytest.raises(TokenizerError, match="inputs diverged"):
        _import(llama_like.definition(), tmp_path / "as it is", llama_like.origin)
    assert _verify(backend, reference, llama_like, 2) > 15_000

    @settings(max_examples=300)
    @given(st.lists(ANY_TEXT, max_size=6))
    def check(texts: list[str]) -> None:
        assert backend.encode(texts).first_difference(reference.encode(texts)) is None

    check()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["model"].update(merges=d["model"]["merges"][::-1]), "not in the order"),
        (lambda d: d["model"].update(merges=[["a", "zzz"]]), "not in the order"),
        (lambda d: d["model"].update(dropout=0.1), "dropout"),
        (lambda d: d["model"].update(end_of_word_suffix="</w>"), "affixes"),
        (lambda d: d["model"]["vocab"].pop("Ġ"), "no byte-level BPE"),
        (lambda d: d["added_tokens"][0].update(normalized=True), "normalised text"),
        (lambda d: d["model"]["vocab"].update({"Ġwxyzq": len(d["model"]["vocab"])}), "not made by merges of rising ids"),
        (lambda d: d.update(normalizer={"type": "NFKC"}), "unsupported normalizer"),
        (lambda d: d["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(Regex=r"\w+|\W+"), "unrecognized pretokenizer"),
    ],
)
def test_what_quicktok_does_not_serve_is_refused_in_one_line(
    change: Callable[[dict[str, Any]], object], words: str, byte_level: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    pytest.importorskip("quicktok")
    definition = byte_level("qwen2")
    if "Ġ" in words:
        definition["normalizer"] = None
    change(definition)
    tokenizer = loaded(byte_level("qwen2"))
    tokenizer.definition_json = json.dumps(definition).encode()
    with pytest.raises(TokenizerError, match=words) as caught:
        import_into(tmp_path, tokenizer)
    assert "\n" not in str(caught.value)


def test_serial_encoding_puts_the_environment_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (None, "true"):
        if before is None:
            monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
        else:
            monkeypatch.setenv("TOKENIZERS_PARALLELISM", before)
        with serial_encoding():
            with serial_encoding():
                assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
            assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
        assert os.environ.get("TOKENIZERS_PARALLELISM") == before


def test_the_byte_alphabet_is_gpt2_s() -> None:
    from tokenizers import pre_tokenizers

    assert set(BYTE_OF_SYMBOL) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(BYTE_OF_SYMBOL.values()) == list(range(256))
    for text in ("a b\n", "é中\U0001f600\x00\xad"):
        ((symbols, _),) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
        assert symbols == "".join(SYMBOL_OF_BYTE[byte] for byte in text.encode())
