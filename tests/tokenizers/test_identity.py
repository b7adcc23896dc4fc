"""The content identity: equal for equal ids whatever the file looks like, another one for anything that decides ids."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from zephon_core.tokenizers import content_sha256
from zephon_core.tokenizers.identity import largest_id

TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {
            "id": 4,
            "content": "<é>",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
    ],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "post_processor": None,
    "decoder": {"type": "ByteLevel"},
    "model": {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "ignore_merges": False,
        "vocab": {"a": 0, "b": 1, "ab": 2, "aba": 3},
        "merges": [["a", "b"], ["ab", "a"]],
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The tokenizer with one setting changed; path: keys joined by dots."""
    result = copy.deepcopy(TOKENIZER)
    *folders, last = path.split(".")
    node = result
    for key in folders:
        node = node[int(key)] if key.isdigit() else node[key]
    node[last] = value
    return result


def test_the_digest_is_a_format() -> None:
    assert content_sha256(TOKENIZER) == "b4de28965a785dafb0e1f266278db298ea145f19649c14b14cff31db4e4a6dfd"


@pytest.mark.parametrize(
    "same",
    [
        changed("version", "2.0"),
        changed("truncation", {"max_length": 128, "strategy": "LongestFirst", "stride": 0}),
        changed("padding", {"strategy": {"Fixed": 128}}),
        changed("decoder", None),
        changed("model.merges", ["a b", "ab a"]),
        changed("model.vocab", {"aba": 3, "ab": 2, "b": 1, "a": 0}),
        changed("model.end_of_word_suffix", None),
        changed("normalizer", {"type": "NFC", "extra": None}),
        {key: value for key, value in TOKENIZER.items() if key != "post_processor"},
        json.loads(json.dumps(TOKENIZER, ensure_ascii=True, indent=4, sort_keys=True)),
    ],
)
def test_layout_and_what_decides_no_ids_is_left_out(same: dict[str, Any]) -> None:
    assert content_sha256(same) == content_sha256(TOKENIZER)


@pytest.mark.parametrize(
    "other",
    [
        changed("model.vocab", {"a": 1, "b": 0, "ab": 2, "aba": 3}),
        changed("model.merges", [["ab", "a"], ["a", "b"]]),
        changed("model.ignore_merges", True),
        changed("model.unk_token", "a"),
        changed("model.dropout", 0.1),
        changed("normalizer", None),
        changed("normalizer.type", "NFD"),
        changed("pre_tokenizer.add_prefix_space", True),
        changed("pre_tokenizer.use_regex", False),
        changed("post_processor", {"type": "BertProcessing", "sep": ["b", 1], "cls": ["a", 0]}),
        changed("added_tokens", []),
        changed("added_tokens.0.content", "<e>"),
        changed("added_tokens.0.id", 5),
        *(changed(f"added_tokens.0.{flag}", True) for flag in ("single_word", "lstrip", "rstrip", "normalized")),
        changed("added_tokens.0.special", False),
    ],
)
def test_whatever_decides_ids_counts(other: dict[str, Any]) -> None:
    assert content_sha256(other) != content_sha256(TOKENIZER)


def test_the_order_of_added_tokens_in_the_file_does_not_count() -> None:
    second = {**TOKENIZER["added_tokens"][0], "id": 5, "content": "<f>"}
    first = TOKENIZER["added_tokens"][0]
    assert content_sha256(changed("added_tokens", [first, second])) == content_sha256(changed("added_tokens", [second, first]))


def test_the_largest_id_counts_gaps_and_added_tokens() -> None:
    assert largest_id(TOKENIZER) == 4
    assert largest_id(changed("added_tokens", [])) == 3
    assert largest_id(changed("model.vocab", {"a": 70_000})) == 70_000
    assert largest_id({"model": {"vocab": [["<unk>", 0.0], ["a", -1.5]]}}) == 1
    assert largest_id({"model": {"vocab": {}}}) == -1
