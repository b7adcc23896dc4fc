"""Rows with one text deliver what the training's tokenize step gives: the tokenizers library itself is asked."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from tokenizers import Tokenizer

from zephon_core.errors import FatalCountError, SpecError, TokenizerError
from zephon_core.fingerprint import canonical_json
from zephon_core.ratios.counting import TextTokenCountingSpec
from zephon_core.ratios.datasets.model import BLANK_ROW

TEXTS = ["The quick brown fox.", "", " ", "naïve <|im_end|> Straße\n\n", "अ" * 40, "x" * 3000, "中文 and English " * 300]


def plan_of(folder, prefix=({"text": "a"},), **settings):
    return TextTokenCountingSpec(folder, **settings).build_counter().plan(list(prefix))


def lengths(folder, *, specials=False):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [len(tokenizer.encode(text, add_special_tokens=specials).ids) for text in TEXTS]


@pytest.mark.parametrize(("special_tokens", "added"), [("bos_eos", 2), ("bos", 1), ("eos", 1), ("none", 0)])
def test_brackets(folder, special_tokens, added):
    plan = plan_of(folder, special_tokens=special_tokens)
    expected = [length + added for length in lengths(folder)]
    assert plan.count_texts(TEXTS).tolist() == expected
    assert plan.count([{"text": text} for text in TEXTS]) == [(length,) for length in expected]
    assert plan.specials == added
    assert plan.outputs == ("tokens",)


def test_the_tokenizers_own_special_tokens(folder):
    plan = plan_of(folder, special_tokens="tokenizer_default")
    assert plan.count_texts(TEXTS).tolist() == lengths(folder, specials=True)
    assert plan.specials == 1


@pytest.mark.parametrize("special_tokens", ["bos_eos", "bos", "none", "tokenizer_default"])
@pytest.mark.parametrize("max_length", [3, 17, 400, 100_000])
def test_truncation_keeps_the_special_tokens(folder, special_tokens, max_length):
    plan = plan_of(folder, special_tokens=special_tokens, max_length=max_length, truncation=True)
    whole = plan_of(folder, special_tokens=special_tokens).count_texts(TEXTS)
    assert plan.count_texts(TEXTS).tolist() == np.minimum(whole, max_length).tolist()
    assert plan.text_path is None
    assert plan.column == ("text",)


def test_splitting_loses_no_token_and_max_length_alone_does_nothing(byte_level):
    whole = plan_of(byte_level).count_texts(TEXTS).tolist()
    assert plan_of(byte_level, max_length=16, split_long_samples=True).count_texts(TEXTS).tolist() == whole
    assert plan_of(byte_level, max_length=16).count_texts(TEXTS).tolist() == whole


def test_what_transformers_truncates_to(byte_level):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(byte_level), local_files_only=True)
    for max_length in (2, 5, 50):
        plan = plan_of(byte_level, special_tokens="tokenizer_default", max_length=max_length, truncation=True)
        expected = [len(tokenizer(text, truncation=True, max_length=max_length)["input_ids"]) for text in TEXTS]
        assert plan.count_texts(TEXTS).tolist() == expected


def test_odd_rows(byte_level):
    plan = plan_of(byte_level, special_tokens="eos")
    rows = [{"text": None}, None, BLANK_ROW, {"text": ""}, "the row itself", b"bytes", {"text": b"\xff"}, 7, [1.5]]
    counted = plan.count(rows)
    assert counted[:4] == [(0,), (0,), (0,), (1,)]
    assert counted[4:6] == plan.count([{"text": "the row itself"}, {"text": "bytes"}])
    assert counted[6:] == [None, None, None]
    assert plan.count([]) == []


def test_a_row_without_the_field_is_fatal_or_empty(byte_level):
    rows = [{"text": "a"}, {"text": "b"}, {"title": "c", "id": 1}]
    with pytest.raises(FatalCountError, match=r"has no 'text', but id, title.*missing_field.* to empty") as caught:
        plan_of(byte_level).count(rows)
    assert caught.value.position == 2
    assert str(caught.value.at("part.jsonl:9")).startswith("part.jsonl:9: has no 'text'")
    assert plan_of(byte_level, missing_field="empty").count(rows)[2] == (2,)
    nested = plan_of(byte_level, [{"a": {"b": "c"}}], field="a.b", special_tokens="none", missing_field="empty")
    assert nested.paths == ("a.b",)
    assert nested.count([{"a": {"b": ""}}, {"a": {}}, {"a": None}, {"a": "c"}]) == [(0,)] * 4


@pytest.mark.parametrize("value", [5, True, ["a"], {"b": "c"}, 1.5])
def test_a_field_that_is_no_text_is_fatal(byte_level, value):
    with pytest.raises(FatalCountError, match="expected text") as caught:
        plan_of(byte_level).count([{"text": "fine"}, {"text": value}])
    assert caught.value.position == 1


@pytest.mark.parametrize("settings", [{}, {"max_length": 9, "truncation": True}])
def test_a_lone_surrogate_is_fatal(folder, settings):
    rows = [{"text": None}, {"text": "fine"}, {"text": "not \ud800"}]
    with pytest.raises(FatalCountError, match=r"lone surrogate \(U\+D800 at character 4\)") as caught:
        plan_of(folder, **settings).count(rows)
    assert caught.value.position == 2


def test_token_ids_are_counted_as_they_are(byte_level):
    plan = plan_of(byte_level, [{"input_ids": [1, 2, 3]}])
    assert plan.description == "token ids, field: input_ids"
    assert (plan.paths, plan.text_path, plan.column, plan.specials) == (("input_ids",), None, None, 0)
    rows = [{"input_ids": [1, 2, 3]}, {"input_ids": []}, {"input_ids": None}, {"input_ids": np.arange(5)}, {"x": 1}, BLANK_ROW]
    assert plan.count(rows) == [(3,), None, (0,), (5,), None, (0,)]
    with pytest.raises(SpecError, match="counts rows, not texts"):
        plan.count_texts(["a"])


def test_without_any_text_nothing_can_be_measured(byte_level):
    plan = plan_of(byte_level, [{"id": 1}])
    assert plan.description == "text, none found in the first rows, which have id; name the field (--field)"
    assert plan.count([{"id": 1}, {"text": "a"}]) == [None, None]


def test_the_plan_says_what_it_needs(byte_level):
    plan = plan_of(byte_level, [{"body": "a text", "title": "b"}])
    assert (plan.description, plan.paths, plan.text_path) == ("text, field: body", ("body",), ("body",))
    plan = plan_of(byte_level, ["a text"])
    assert (plan.description, plan.paths, plan.text_path) == ("text, the row itself", None, ())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"special_tokens": "both"}, "bos_eos or bos or eos or none or tokenizer_default"),
        ({"missing_field": "skip"}, "error or empty"),
        ({"field": "a..b"}, "names joined by dots"),
        ({"max_length": 0}, "at least 1 tokens"),
        ({"max_length": True}, "at least 1 tokens"),
        ({"max_length": "9"}, "at least 1 tokens"),
        ({"max_length": 9.5}, "at least 1 tokens"),
        ({"truncation": True}, "to truncate or split at"),
        ({"truncation": "no", "max_length": 9}, "truncation: is 'no', expected True or False"),
        ({"split_long_samples": 1, "max_length": 9}, "split_long_samples: is 1, expected True or False"),
        ({"split_long_samples": True}, "to truncate or split at"),
        ({"truncation": True, "split_long_samples": True, "max_length": 9}, "one of them"),
        ({"truncation": True, "max_length": 2}, "room for more than the 2 special tokens"),
        ({"truncation": True, "max_length": 1, "special_tokens": "eos"}, "room"),
    ],
)
def test_settings_that_do_not_fit_are_refused_when_made(byte_level, settings, message):
    with pytest.raises(SpecError, match=message):
        TextTokenCountingSpec(byte_level, **settings)


def test_a_missing_tokenizer_is_an_error(byte_level, tmp_path):
    for nothing in ("", None):
        with pytest.raises(SpecError, match="tokenizer"):
            TextTokenCountingSpec(nothing)
    with pytest.raises(TokenizerError, match="is not there"):
        TextTokenCountingSpec(tmp_path / "nowhere").build_counter()
    spec = TextTokenCountingSpec(byte_level, special_tokens="tokenizer_default", max_length=1, truncation=True)
    with pytest.raises(SpecError, match="room for more than the 1 special"):
        spec.build_counter()


def test_the_identity_is_what_decides_and_no_path(byte_level, tmp_path):
    identity = TextTokenCountingSpec(byte_level).identity()
    assert str(byte_level) not in canonical_json(identity).decode()
    copied = shutil.copytree(byte_level, tmp_path / "elsewhere")
    assert TextTokenCountingSpec(copied).identity() == identity
    assert TextTokenCountingSpec(byte_level, max_length=9).identity() == identity
    assert TextTokenCountingSpec(byte_level, max_length=9, split_long_samples=True).identity() == identity
    others = [
        {"field": "text"},
        {"special_tokens": "none"},
        {"max_length": 9, "truncation": True},
        {"max_length": 8, "truncation": True},
        {"missing_field": "empty"},
    ]
    identities = [canonical_json(TextTokenCountingSpec(byte_level, **other).identity()) for other in others]
    assert len({canonical_json(identity), *identities}) == 6


def test_a_changed_tokenizer_is_noticed(byte_level, tmp_path):
    folder = shutil.copytree(byte_level, tmp_path / "tokenizer")
    spec = TextTokenCountingSpec(folder)
    before = spec.identity()
    definition = json.loads((folder / "tokenizer.json").read_text())
    definition["normalizer"] = None
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    assert spec.identity() != before


def test_messages_name_what_there_is(byte_level):
    counter = TextTokenCountingSpec(byte_level).build_counter()
    plan = counter.plan([{"text": "x"}])
    with pytest.raises(FatalCountError, match=r"^row: has no 'text'\. Fix the row"):
        plan.count([{}])
    for value, kind in ((5, "a number"), (True, "true or false"), (["a"], "a list"), ({"a": "b"}, "an object")):
        with pytest.raises(FatalCountError, match=f"'text' is {kind}, expected text"):
            plan.count([{"text": value}])
    assert "none found in the first rows, which have f, n; name the field" in counter.plan([{"n": 1, "f": 2.0}]).description
    assert "which have doc.body.text; name" in counter.plan([{"doc": {"body": {"text": "x"}}}]).description
    with pytest.raises(SpecError, match="field: is 5"):
        TextTokenCountingSpec(byte_level, field=5)
