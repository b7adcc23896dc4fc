from __future__ import annotations

import itertools

import numpy as np
import pytest

from zephon_core.bank.scan.simd import PADDING
from zephon_core.bank.scan.text import bad_texts, strip_texts, valid_utf8


def spans(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lay texts end to end, without anything between them: data, starts, lengths."""
    lengths = np.array([len(text) for text in texts], np.int64)
    data = np.frombuffer(b"".join(texts) + b"\x80" * PADDING, np.uint8).copy()
    return data, np.cumsum(lengths) - lengths, lengths


def stripped(texts: list[bytes]) -> list[bytes]:
    data, starts, lengths = spans(texts)
    fields = np.arange(len(texts), dtype=np.uint8)
    count = strip_texts(data, starts, lengths, fields, len(texts))
    return [data[start : start + length].tobytes() for start, length in zip(starts[:count], lengths[:count], strict=True)]


def test_every_code_point_is_stripped_as_str_strip_does():
    letters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    for texts in ([f"{letter}x{letter}" for letter in letters], [f"é{letter}\u00a0" for letter in letters]):
        assert stripped([text.encode() for text in texts]) == [text.strip().encode() for text in texts]


@pytest.mark.parametrize(
    "text", ["", " ", "\u3000\u2028 \x1c", "\u00a0", "x", " x", "\u2003\u2003x y\u3000", "\u0085a", "\u00c2", "\u00e2\u0080"]
)
def test_ends_meet(text):
    assert stripped([text.encode()]) == [text.strip().encode()] * bool(text.strip())


def test_empty_texts_leave_no_gap():
    data, starts, lengths = spans([b"a", b" ", b"", b" b "])
    fields = np.array([3, 4, 5, 6], np.uint8)
    assert strip_texts(data, starts, lengths, fields, 4) == 2
    assert fields[:2].tolist() == [3, 6]
    assert lengths[:2].tolist() == [1, 1]


def decodes(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


EDGES = [
    0x00,
    0x22,
    0x7F,
    0x80,
    0x8F,
    0x90,
    0x9F,
    0xA0,
    0xBF,
    0xC0,
    0xC1,
    0xC2,
    0xDF,
    0xE0,
    0xE1,
    0xEC,
    0xED,
    0xEE,
    0xEF,
    0xF0,
    0xF1,
    0xF3,
]
EDGES += [0xF4, 0xF5, 0xF7, 0xF8, 0xFF]


def test_utf8_is_what_python_decodes():
    texts = [bytes(pair) for pair in itertools.product(range(256), repeat=2)]
    texts += [bytes(four[:size]) for size in (3, 4) for four in itertools.product(EDGES, repeat=size)]
    texts += [b"a" * 70 + text for text in texts[:: len(texts) // 999]]
    data, starts, lengths = spans(texts)
    found = np.empty(len(texts), np.int64)
    count = bad_texts(data, starts, lengths, found)
    assert found[:count].tolist() == [number for number, text in enumerate(texts) if not decodes(text)]


def test_a_character_that_the_end_cuts_is_invalid():
    data = np.frombuffer("é中😀".encode() + bytes(PADDING), np.uint8).copy()
    assert [end for end in range(10) if valid_utf8(data, 0, end)] == [0, 2, 5, 9]
