"""Long JSON strings as they are written: where they stand in a line, and where in the middle of one a character begins.

A line's quotes are found all at once, those after an odd number of backslashes passed over; the rest pair up to strings. What is
in a long one is left to the parser, a piece at a time.
"""

from __future__ import annotations

import re

import numpy as np
import orjson
from numpy.typing import NDArray

__all__ = ["LOOK_AHEAD_BYTES", "LOOK_BEHIND_BYTES", "character_boundary", "decoded", "long_strings"]

LOOK_BEHIND_BYTES = 256
"""How far before a byte it shows whether a character begins with it: a run of backslashes has to be seen from its beginning."""
LOOK_AHEAD_BYTES = 12
"""Bytes of the longest character: an escaped surrogate pair."""

_PIECE_BYTES = 1 << 20
_PARSED_BYTES = 64 << 10
_LONGEST_ESCAPE_BYTES = 6
_QUOTE, _BACKSLASH = b'"\\'
_ENDLESS_RUN = b"\\" * (LOOK_BEHIND_BYTES - _LONGEST_ESCAPE_BYTES)
_SECOND_OF_A_PAIR = re.compile(rb"\\u[dD][c-fC-F]")


def long_strings(line: bytes, least_bytes: int) -> list[tuple[int, int, int]] | None:
    """Return, of each string of `least_bytes` or more, where its content begins and ends, and how many characters it has.

    None where one of them is no sound JSON, half a surrogate pair included, where the quotes don't pair, and where a run of
    backslashes is too long to be seen from its end. What is between the long strings is not looked at.
    """
    if _ENDLESS_RUN in line:
        return None
    quotes = _quotes(line)
    if len(quotes) % 2:
        return None
    begins, ends = quotes[::2] + 1, quotes[1::2]
    long = np.flatnonzero(ends - begins >= least_bytes)
    places = zip(begins[long].tolist(), ends[long].tolist(), strict=True)
    try:
        return [(begin, end, _characters(line[begin:end])) for begin, end in places]
    except orjson.JSONDecodeError:
        return None


def _quotes(line: bytes) -> NDArray[np.int32]:
    """Return where a line has quotes that aren't escaped: int32 [quotes]."""
    numbers = np.frombuffer(line, np.uint8)
    pieces = [
        np.flatnonzero(numbers[begin : begin + _PIECE_BYTES] == _QUOTE).astype(np.int32) + begin
        for begin in range(0, len(line), _PIECE_BYTES)
    ]
    quotes = np.concatenate(pieces) if pieces else np.zeros(0, np.int32)
    escaped = np.zeros(len(quotes), np.bool_)
    behind = 1
    left = np.flatnonzero(quotes >= behind)
    while len(left := left[numbers[quotes[left] - behind] == _BACKSLASH]):
        escaped[left] ^= True
        behind += 1
        left = left[quotes[left] >= behind]
    return quotes[~escaped]


def _characters(content: bytes) -> int:
    """Count the characters of a string. Raises JSONDecodeError."""
    count = begin = 0
    while begin < len(content):
        end = character_boundary(content, min(begin + _PARSED_BYTES, len(content)))
        count += len(decoded(content[begin:end]))
        begin = end
    return count


def decoded(content: bytes) -> str:
    """Return what is written between the quotes of a JSON string. Raises JSONDecodeError."""
    return str(orjson.loads(b'"%b"' % content))


def character_boundary(content: bytes, at: int) -> int:
    """Return the first byte at or after `at` with which a character of a string begins, the end of the content being one.

    content: a stretch of a string that `long_strings` let pass. It has to hold LOOK_BEHIND_BYTES before `at`, unless it begins
    with the string, and LOOK_AHEAD_BYTES after it, unless it ends with the string. So the stretches between the boundaries that
    belong to any places of a string add up to its text.
    """
    last = content.rfind(b"\\", max(0, at - _LONGEST_ESCAPE_BYTES + 1), at)
    if last >= 0:
        first = last
        while first and content[first - 1] == _BACKSLASH:
            first -= 1
        if (last - first) % 2 == 0:  # they pair up but for the last one, which begins an escape
            at = max(at, last + (_LONGEST_ESCAPE_BYTES if content[last + 1 : last + 2] == b"u" else 2))
    if _SECOND_OF_A_PAIR.match(content, at):
        return at + _LONGEST_ESCAPE_BYTES
    while at < len(content) and content[at] & 0xC0 == 0x80:
        at += 1
    return at
