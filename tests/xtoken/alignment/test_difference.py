"""What two byte strings have in common: found in order, never anything else, in time that grows with their length alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.xtoken.alignment.difference import matching_blocks

WORDS = [f"word{number}" if number % 7 else "the" for number in range(500)]


def array(content: bytes) -> np.ndarray:
    return np.frombuffer(content, dtype=np.uint8)


def blocks_of(a: bytes, b: bytes, marks: tuple[bytes, ...] = (), known: np.ndarray | None = None) -> list[bytes]:
    """The contents of the blocks, checked."""
    found = matching_blocks(array(a), array(b), known, places(a, marks), places(b, marks))
    floor = [0, 0]
    for i, j, length in found.tolist():
        assert length > 0 and i >= floor[0] and j >= floor[1]
        assert a[i : i + length] == b[j : j + length]
        floor = [i + length, j + length]
    assert floor[0] <= len(a) and floor[1] <= len(b)
    return [a[i : i + length] for i, _, length in found.tolist()]


def places(content: bytes, marks: tuple[bytes, ...]) -> np.ndarray:
    """Where the marks stand."""
    found = [(at, at + len(mark)) for mark in marks for at in range(len(content)) if content.startswith(mark, at)]
    return np.array(sorted(found), dtype=np.int64).reshape(-1, 2)


def speech(turns: int, framing: str, seed: int = 0) -> bytes:
    rng = random.Random(seed)
    return "".join(framing % " ".join(rng.choices(WORDS, k=rng.randint(3, 40))) for _ in range(turns)).encode()


@given(a=st.binary(max_size=60), b=st.binary(max_size=60))
def test_blocks_are_the_same_on_both_sides_and_in_order(a, b):
    blocks_of(a, b)


@given(st.data())
def test_edits_of_one_text(data):
    text = data.draw(st.lists(st.sampled_from(["ab", "abab", "Lorem ipsum", " dolor", "\n", "aaaa", "yes."]), max_size=30))
    edited = [piece for piece in text if data.draw(st.booleans()) or data.draw(st.booleans())]
    blocks_of("".join(text).encode(), "".join(edited).encode())


@pytest.mark.parametrize("text", [b"", b"a", b"abc" * 1000, bytes(range(256))])
def test_the_same_is_one_block(text):
    assert blocks_of(text, text) == [text] * bool(text)
    assert blocks_of(text, b"") == blocks_of(b"", text) == []


def test_what_only_one_side_says_is_left_out():
    long = speech(3, "%s\n", seed=5)
    a, b = speech(2, "[%s]"), speech(2, "<%s>")
    inner = b"".join(blocks_of(a + long + a, b + b))
    assert len(inner) > 0.9 * len(a) * 2 - 20
    one, other = ("".join(random.Random(seed).choices("abcdefghij ", k=5000)).encode() for seed in (1, 2))
    assert len(b"".join(blocks_of(one, other))) < 10


def test_reordered_parts_are_not_crossed():
    first, second = b"The longer part, which weighs more.", b"And a shorter one."
    assert max(blocks_of(first + b"|" + second, second + b"|" + first), key=len).strip(b"|") == first
    assert second not in b"".join(blocks_of(first + b"|" + second, second + b"|" + first))


def test_a_word_stands_before_the_same_mark():
    a = b"<A>assistant\nYes<E>\n<A>user\nReally, are you sure of it?<E>\n<A>assistant\nYes<E>\n"
    b = b"<s><M>Yes<Z><U>Really, are you sure of it?<Z><M>Yes<Z>"
    assert b"".join(blocks_of(a, b)).count(b"Yes") == 0
    assert b"".join(blocks_of(a, b, (b"<E>", b"<A>", b"<Z>", b"<M>", b"<U>", b"<s>"))).count(b"Yes") == 2


def test_what_is_said_more_often_on_one_side_is_left_open():
    a = b"<q>Yes, certainly.<e>" * 3
    b = b"[u]Yes, certainly.[z]" * 2
    assert b"Yes, certainly." not in blocks_of(a[3:], b[3:])[1:-1]


def test_known_blocks_stay_and_are_looked_around():
    a, b = b"xx hello there yy good morning zz", b"-- hello there - good morning -----"
    known = np.array([[a.index(b"good"), b.index(b"good"), 4]], dtype=np.int64)
    assert b" good morning " in blocks_of(a, b, known=known)


@pytest.mark.parametrize("turns", [4, 400])
def test_coverage_does_not_fall_with_length(turns):
    a, b = speech(turns, "<|im_start|>%s<|im_end|>\n"), speech(turns, "<start_of_turn>\n%s<end_of_turn>\n")
    said = len(speech(turns, "%s"))
    assert sum(map(len, blocks_of(a, b))) >= said


def test_long_runs_of_one_byte():
    a, b = b" " * 5000 + b"x" + b" " * 3000, b" " * 4000 + b"y" + b" " * 2500
    assert sum(map(len, blocks_of(a, b))) >= 6500
