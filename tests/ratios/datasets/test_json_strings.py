"""JSON strings as they are written: found by their quotes, and cut between characters."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_core.ratios.datasets.json_strings import (
    LOOK_AHEAD_BYTES,
    LOOK_BEHIND_BYTES,
    character_boundary,
    decoded,
    long_strings,
)


def test_long_strings_and_nothing_else() -> None:
    line = b'{"a": "\\\\", "\\"": ["' + b"x" * 20 + b'\\\\"], "b": "' + "é".encode() * 9 + b'\\n\\/"}'
    assert long_strings(line, 20) == [(line.index(b"xx"), line.index(b"xx") + 22, 21), (len(line) - 24, len(line) - 2, 11)]
    assert long_strings(line, 23) == []
    for bad in (b'"' + b"x" * 30, b'"\\q' + b"x" * 30 + b'"', b'"\\udc00' + b"x" * 30 + b'"', b'"\xff' + b"x" * 30 + b'"'):
        assert long_strings(bad, 20) is None
    for count in range(200, 300, 2):
        assert (long_strings(b'"' + b"\\" * count + b'"', 20) is None) == (count >= 250)


@settings(max_examples=60, deadline=None)
@given(
    text=st.lists(st.sampled_from(["\\", "\\" * 40, '"', "u", "d83d", "a", "\n", "é", "中", "😀", "\x00"]), min_size=1).map(
        "".join
    ),
    escaped=st.booleans(),
    repeated=st.integers(1, 20),
)
def test_boundaries_are_the_same_whatever_is_seen_around_them(text: str, escaped: bool, repeated: int) -> None:
    content = json.dumps(text * repeated, ensure_ascii=escaped)[1:-1].encode()[:3000]
    content = content[: character_boundary(content, max(0, len(content) - LOOK_AHEAD_BYTES))]
    if b"\\" * (LOOK_BEHIND_BYTES - 6) in content:
        return
    boundaries = [character_boundary(content, at) for at in range(len(content) + 1)]
    assert boundaries == sorted(boundaries)
    assert all(boundaries[boundary] == boundary for boundary in boundaries)
    for at in range(LOOK_BEHIND_BYTES, len(content) - LOOK_AHEAD_BYTES):
        begin = at - LOOK_BEHIND_BYTES
        assert begin + character_boundary(content[begin : at + LOOK_AHEAD_BYTES], LOOK_BEHIND_BYTES) == boundaries[at]
    cuts = sorted(set(boundaries))
    characters = [decoded(content[begin:end]) for begin, end in zip([0, *cuts], cuts, strict=False) if end > begin]
    assert all(len(character) == 1 for character in characters)
    assert "".join(characters) == decoded(content)
