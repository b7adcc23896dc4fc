"""Loading: from folders, files and older formats; what is broken or contradicts itself is refused in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zephon_core.errors import TokenizerError
from zephon_core.tokenizers import load_tokenizer

TEXTS = ["Hello, world!", "", "naïve café", "[CLS] a [MASK] b", "中文 und more" * 60, "\x00\x01", "word " * 400]


def test_a_folder_and_its_file_are_the_same_tokenizer(minilm_folder: Path) -> None:
    folder, file = load_tokenizer(minilm_folder), load_tokenizer(str(minilm_folder / "tokenizer.json"))
    assert folder.content_sha256 == file.content_sha256
    assert folder.vocab_size == 30522
    assert folder.describe() == file.describe()
    assert json.loads(json.dumps(folder.describe()))["model"] == "WordPiece"


def test_ids_are_transformers_ids_whole_and_without_special_tokens(minilm_folder: Path) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(str(minilm_folder), local_files_only=True, model_max_length=10**6)
    expected = [reference(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    encoded = load_tokenizer(minilm_folder).encode_batch(TEXTS)
    assert encoded.lengths.tolist() == list(map(len, expected))
    assert encoded.ids.tolist() == [token_id for ids in expected for token_id in ids]
    assert max(encoded.lengths) > 256


def test_first_ids_only(minilm_folder: Path) -> None:
    tokenizer = load_tokenizer(minilm_folder)
    whole, (ids, lengths) = tokenizer.encode_batch(TEXTS), tokenizer.encode_batch(TEXTS, max_tokens=5)
    assert lengths.tolist() == [min(max(length, 1), 5) for length in whole.lengths]
    kept = [whole.row(row)[:5].tolist() or [0] for row in range(len(TEXTS))]
    assert ids.tolist() == [token_id for row in kept for token_id in row]


def test_no_texts(minilm_folder: Path) -> None:
    ids, lengths = load_tokenizer(minilm_folder).encode_batch([])
    assert (len(ids), len(lengths)) == (0, 0)


def test_added_tokens_count_for_the_vocabulary_s_size(byte_level: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    definition = byte_level("qwen2")
    definition["added_tokens"][-1]["id"] = 70_000
    tokenizer = write(tmp_path, definition)
    assert tokenizer.vocab_size == 70_001
    assert tokenizer.added_tokens.contents == ("<|end|>", "<think>")


def write(folder: Path, definition: dict[str, Any]) -> Any:
    (folder / "tokenizer.json").write_text(json.dumps(definition), encoding="utf-8")
    return load_tokenizer(folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "has no model"),
        ("{}", "has no model"),
        ('{"model": {"type": "BPE"}}', "has no model with a vocabulary"),
        ('{"model": {"type": "Nonsense", "vocab": {}}}', "can't be used"),
        ('{"version": "1.0", "added_tokens": [{"id": "x"}], "model": {"type": "WordLevel", "vocab": {}}}', "can't be used"),
        ("\udcff", "is not JSON"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(content, encoding="utf-8", errors="surrogateescape")
    for path in (file, tmp_path):
        with pytest.raises(TokenizerError, match=words) as caught:
            load_tokenizer(path)
        assert "\n" not in str(caught.value)
        assert caught.value.where == str(file)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="is not there"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(TokenizerError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)


def test_a_folder_with_vocab_txt_is_converted(minilm_folder: Path, tmp_path: Path) -> None:
    vocabulary = load_tokenizer(minilm_folder).definition()["model"]["vocab"]
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in sorted(vocabulary, key=vocabulary.get)), encoding="utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    converted, original = load_tokenizer(tmp_path), load_tokenizer(minilm_folder)
    assert converted.encode_batch(TEXTS).first_difference(original.encode_batch(TEXTS)) is None
    assert converted.vocab_size == original.vocab_size


def test_a_folder_that_can_t_be_converted_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "some.tiktoken").write_text("IQ== 0\n")
    with pytest.raises(TokenizerError, match="can't convert its files") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"added_tokens_decoder": {"30522": {"content": "<new>"}}}, "adds token '<new>' as id 30522, which tokenizer.json has not"),
        ({"added_tokens_decoder": {"7": {"content": "[CLS]"}}}, "which tokenizer.json has as 101"),
        ({"do_lower_case": False}, "do_lower_case: false"),
        ([], "is not a JSON object"),
    ],
)
def test_a_folder_at_odds_with_itself_is_refused(config: object, words: str, minilm_folder: Path, tmp_path: Path) -> None:
    shutil.copy(minilm_folder / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(TokenizerError, match=words):
        load_tokenizer(tmp_path)
    assert load_tokenizer(tmp_path / "tokenizer.json").vocab_size == 30522


def test_a_folder_in_harmony_with_itself_is_taken(minilm_folder: Path, tmp_path: Path) -> None:
    shutil.copy(minilm_folder / "tokenizer.json", tmp_path)
    config = {"added_tokens_decoder": {"101": {"content": "[CLS]"}}, "do_lower_case": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_tokenizer(tmp_path).content_sha256 == load_tokenizer(minilm_folder).content_sha256
