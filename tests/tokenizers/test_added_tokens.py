"""The pattern of added tokens is found in a text exactly if one of them occurs in it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zephon_core.tokenizers.added_tokens import AddedTokens

literal = st.text(st.sampled_from("<|ab.*\n "), min_size=1, max_size=4)


@given(st.lists(literal, min_size=1, max_size=6), st.text(st.sampled_from("<|ab.*\n c"), max_size=12))
def test_the_pattern_is_found_if_a_literal_occurs(literals: list[str], text: str) -> None:
    pattern = AddedTokens(tuple(literals), plain=True, normalized=False).pattern()
    assert pattern is not None
    assert (pattern.search(text) is not None) == any(literal in text for literal in literals)


def test_flags_and_lengths_are_read_from_the_definition() -> None:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    plain = AddedTokens.of({"added_tokens": [{"content": "<a>", **flags}, {"content": "", **flags}]})
    assert plain == AddedTokens(("<a>",), plain=True, normalized=False)
    assert plain.longest == 3
    for flag in ("single_word", "lstrip", "rstrip"):
        assert not AddedTokens.of({"added_tokens": [{"content": "<a>", **flags, flag: True}]}).plain
    assert AddedTokens.of({"added_tokens": [{"content": "<a>", **flags, "normalized": True}]}).normalized
    nothing = AddedTokens.of({})
    assert (nothing.pattern(), nothing.longest) == (None, 0)
