"""Which field of a data set is counted: decided by several rows, not by one."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.errors import SpecError
from zephon_core.ratios.counting.fields import MISSING, Vote, as_text, look_up, parse_path, token_array_length, vote


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"body": "a", "text": "b", "content": "c"}], Vote(False, ("text",))),
        ([{"body": "long " * 9, "content": "c"}], Vote(False, ("content",))),
        ([{"raw_content": "a", "markdown": "b", "title": "c" * 99}], Vote(False, ("markdown",))),
        ([{"title": "short", "story": "much longer"}], Vote(False, ("story",))),
        ([{"title": "same size", "story": "same-size"}], Vote(False, ("story",))),
        ([{"id": 3, "story": b"bytes that are UTF-8"}], Vote(False, ("story",))),
        ([{"text": b"\xff\xfe", "story": "text"}], Vote(False, ("story",))),
        (["a text", "another"], Vote(False, ())),
        ([[1, 2, 3]], Vote(True, ())),
        ([{"input_ids": [1, 2], "text": "a"}], Vote(True, ("input_ids",))),
        ([{"tokens": np.arange(3)}], Vote(True, ("tokens",))),
        ([{"token_ids": [1]}, {"text": "a"}], Vote(True, ("token_ids",))),
        ([{"token_ids": [1]}, {"text": "a"}, {"text": "b"}], Vote(False, ("text",))),
        ([{"tokens": ["a", "b"], "text": "a"}], Vote(False, ("text",))),
        ([{"input_ids": [], "text": "a"}], Vote(False, ("text",))),
        ([{"text": None, "id": 1}, {"text": None}], Vote(False, ("text",))),
        ([{"id": 1}, {"messages": []}], Vote(False, None)),
        ([], Vote(False, None)),
    ],
)
def test_a_vote(rows, expected):
    assert vote(rows, None) == expected


def test_one_odd_row_does_not_steer():
    usual = [{"content": "some text", "title": "a title"} for _ in range(7)]
    for odd in ({"text": "odd"}, {"title": "t"}, {"input_ids": [1, 2, 3]}, "plain", None, 7):
        for place in range(8):
            rows = [*usual[:place], odd, *usual[place:]]
            assert vote(rows, None) == Vote(False, ("content",))


def test_only_the_first_eight_vote():
    assert vote([{"text": "a"}] * 5 + [{"body": "b"}] * 3 + [{"body": "b"}] * 90, None).path == ("text",)


@given(
    rows=st.lists(st.dictionaries(st.sampled_from(["a", "b", "text", "body", "n"]), st.text(max_size=5)), max_size=8),
    seed=st.integers(),
)
def test_neither_the_order_of_rows_nor_of_keys_matters(rows, seed):
    shuffled = random.Random(seed).sample(rows, len(rows))
    assert vote(rows, None) == vote([dict(reversed(row.items())) for row in shuffled], None)


def test_a_configured_field_only_leaves_open_what_it_holds():
    assert vote([{"a": {"b": "text"}, "text": "no"}], ("a", "b")) == Vote(False, ("a", "b"))
    assert vote([{"a": {"b": [1, 2]}}], ("a", "b")) == Vote(True, ("a", "b"))
    assert vote([{"text": "no"}], ("a", "b")) == Vote(False, ("a", "b"))


def test_paths():
    assert parse_path("meta.body") == ("meta", "body")
    for wrong in ("", ".", "a.", "a..b"):
        with pytest.raises(SpecError, match="names joined by dots"):
            parse_path(wrong)
    row = {"a": {"b": 1, "c": None}, "n": None}
    assert look_up(row, ("a", "b")) == 1
    assert look_up(row, ()) is row
    assert look_up(row, ("a", "c", "d")) is None
    assert look_up(row, ("n",)) is None
    for nowhere in (("x",), ("a", "x"), ("a", "b", "x")):
        assert look_up(row, nowhere) is MISSING


@pytest.mark.parametrize(
    ("value", "length"),
    [
        ([1, 2], 2),
        ((1,), 1),
        ([np.int32(4)], 1),
        ([], None),
        ([True], None),
        ([1.0], None),
        (["a"], None),
        ("123", None),
        (np.arange(4, dtype=np.uint16), 4),
        (np.zeros((2, 3), np.int64), 6),
        (np.zeros(3), None),
        (np.int64(3), None),
        (np.empty(0, np.int32), 0),
        (7, None),
    ],
)
def test_token_arrays(value, length):
    assert token_array_length(value) == length


def test_tensors_are_token_arrays():
    torch = pytest.importorskip("torch")
    assert token_array_length(torch.arange(5)) == 5
    assert token_array_length(torch.zeros(5)) is None


def test_texts():
    assert as_text("a") == "a"
    assert as_text(b"\xc3\xa4") == as_text(bytearray(b"\xc3\xa4")) == as_text(memoryview(b"\xc3\xa4")) == "ä"
    assert as_text(b"\xc3") is None
    assert as_text(5) is as_text(None) is as_text(["a"]) is None
