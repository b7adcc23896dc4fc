"""Saved integers, and what a reader of states says of a field."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.batching.state_fields import StateFields, decode_integers, encode_integers, sealed
from zephon_core.errors import StateError

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(values=st.lists(INT64) | st.lists(st.integers(0, 300)) | st.lists(st.integers(10**12, 10**12 + 70_000)))
def test_integers_come_back(values: list[int]) -> None:
    written = json.loads(json.dumps(encode_integers(np.array(values, np.int64))))
    assert decode_integers(written, "x").tolist() == values
    assert decode_integers(values, "x").tolist() == values  # as a plain list, too


@pytest.mark.parametrize(("spread", "width"), [(0, 1), (255, 1), (256, 2), (65_535, 2), (65_536, 4), (2**32 - 1, 4), (2**32, 8)])
def test_they_take_no_more_bytes_than_their_spread(spread: int, width: int) -> None:
    assert encode_integers(np.array([10**15, 10**15 + spread]))["bytes"] == width


def test_the_written_form() -> None:
    assert encode_integers(np.array([7, 5, 261])) == {"least": 5, "bytes": 2, "count": 3, "data": "AgAAAAAB"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"data": "AgAAAAA"}, r"x\.data: isn't base64"),
        ({"data": "AgAAAA=="}, r"x\.data: holds 4 bytes, expected 6"),
        ({"data": "\u00e9"}, r"x\.data: isn't base64"),
        ({"data": None}, r"x\.data: holds no text"),
        ({"count": 2}, r"x\.data: holds 6 bytes, expected 4"),
        ({"count": -1}, r"x\.count: is -1"),
        ({"count": True}, r"x\.count: is True, expected a whole number"),
        ({"bytes": 3}, r"x\.bytes: is 3, expected 1, 2, 4 or 8"),
        ({"least": 2**63 - 2}, r"x\.data: reaches"),
        ({"least": 1.5}, r"x\.least: is 1\.5"),
        ({"more": 1}, r"x: holds more"),
    ],
)
def test_damage_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(StateError, match=named):
        decode_integers(encode_integers(np.array([7, 5, 261])) | change, "x")


@pytest.mark.parametrize("wrong", [None, "abc", 5, [1, "2"], [1, True], [2**63], {"least": 5}])
def test_what_are_no_integers_is_refused(wrong: Any) -> None:
    with pytest.raises(StateError, match="x"):
        decode_integers(wrong, "x")


DOCUMENT = sealed({"format": "thing", "version": 2, "a": 1})


def test_a_document_is_read_as_it_is_or_as_text() -> None:
    for value in (DOCUMENT, json.dumps(DOCUMENT), json.dumps(DOCUMENT).encode()):
        assert StateFields.of_document(value, "thing", 2, ["a"]).integer("a") == 1


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (json.dumps(DOCUMENT)[:-1], "thing: isn't whole JSON"),
        ("", "thing: isn't whole JSON"),
        ("[1]", "thing: is a list, expected an object"),
        (None, r"thing: is nothing \(null\)"),
        ({}, "thing: has format None, expected 'thing'"),
        (DOCUMENT | {"format": "other"}, "thing: has format 'other'"),
        (DOCUMENT | {"version": 3}, "thing: has version 3, expected 2 or below. A later release wrote it"),
        (DOCUMENT | {"version": 0}, "thing: has version 0"),
        (DOCUMENT | {"version": "2"}, "thing: has version '2'"),
        ({"format": "thing", "version": 2}, "thing: lacks a, sha256"),
        (DOCUMENT | {"b": 1, "c": 2}, "thing: holds b, c, which this version doesn't know"),
    ],
)
def test_what_is_no_such_document_is_refused(value: Any, named: str) -> None:
    with pytest.raises(StateError, match=named):
        StateFields.of_document(value, "thing", 2, ["a"])


@pytest.mark.parametrize(
    "changed", [DOCUMENT | {"a": 2}, DOCUMENT | {"sha256": "0" * 64}, DOCUMENT | {"sha256": None}, DOCUMENT | {"a": b"1"}]
)
def test_a_document_that_was_changed_says_so(changed: Any) -> None:
    StateFields.of_document(json.dumps(DOCUMENT), "thing", 2, ["a"]).check_seal()
    with pytest.raises(StateError, match=r"thing: (has another SHA-256 than it says itself|holds what no state holds)"):
        StateFields.of_document(changed, "thing", 2, ["a"]).check_seal()


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000, '{"format": "thing", "version": 2, "a": 1e999, "sha256": "0"}'])
def test_what_no_json_should_be_is_a_state_error(text: str) -> None:
    with pytest.raises(StateError, match="thing"):
        StateFields.of_document(text, "thing", 2, ["a"]).check_seal()


def test_fields_are_checked_and_named() -> None:
    read = StateFields({"number": 5, "text": "", "none": None, "flag": True}, "here", ["number", "text", "none", "flag"])
    assert read.integer("number") == 5
    assert read.optional_integer("none") is None
    assert read.optional_integer("number") == 5
    for attempt, named in (
        (lambda: read.integer("number", high=4), r"here\.number: is 5, expected 0 to 4"),
        (lambda: read.integer("number", low=7, high=7), r"here\.number: is 5, expected 7"),
        (lambda: read.integer("flag"), r"here\.flag: is True"),
        (lambda: read.integer("none"), r"here\.none: is nothing"),
        (lambda: read.text("text"), r"here\.text: is ''"),
        (lambda: read.text("number"), r"here\.text|here\.number: is 5"),
        (lambda: read.choice("text", ["a", "b"]), r"here\.text"),
    ):
        with pytest.raises(StateError, match=named):
            attempt()
