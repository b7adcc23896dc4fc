"""The byte matcher says exactly what `in` says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zephon_core.tokenizers.byte_matcher import ByteMatcher, utf8_prefixes

small_text = st.text(st.sampled_from("abé中\U0001f600\U00010000 "), max_size=12)


@given(st.lists(small_text.map(str.encode).filter(bool), max_size=6), st.lists(small_text, max_size=8))
def test_a_text_is_found_if_a_pattern_is_in_its_bytes(patterns: list[bytes], texts: list[str]) -> None:
    found = ByteMatcher(patterns).texts_with(texts)
    assert found.tolist() == [any(pattern in text.encode() for pattern in patterns) for text in texts]


def test_overlapping_and_nested_patterns() -> None:
    matcher = ByteMatcher([b"abcd", b"bc", b"cdx", b"\xa9"])
    assert matcher.texts_with(["abcx", "abd", "acdx", "ab", "é", "", "bbbbc"]).tolist() == [
        True,
        False,
        True,
        False,
        True,
        False,
        True,
    ]


@given(st.integers(0, 0x10FFFF), st.integers(0, 5000), st.integers(0, 0x10FFFF))
def test_prefixes_begin_the_code_points_of_a_range_and_no_others(first: int, more: int, other: int) -> None:
    surrogates = range(0xD800, 0xE000)
    last = min(first + more, 0x10FFFF)
    if any(code in surrogates for code in (first, last)) or first < 0xD800 <= last:
        return
    prefixes = tuple(utf8_prefixes(first, last))
    for code in {first, last, (first + last) // 2, first - 1, last + 1, other} - {-1, 0x110000}:
        if code not in surrogates:
            assert chr(code).encode().startswith(prefixes) == (first <= code <= last)
