"""Which of many texts hold one of some byte strings: one pass over the bytes, however many strings there are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ByteMatcher", "utf8_prefixes"]

_FOUND = -1


class ByteMatcher:
    """The automaton of Aho and Corasick (1975) as a dense table: state and byte give the next state. Patterns must not be empty."""

    def __init__(self, patterns: Iterable[bytes]) -> None:
        children, ends = _trie(patterns)
        self._next = np.zeros((len(children), 256), dtype=np.int32)
        fallback = [0] * len(children)
        queue = deque([0])
        while queue:
            state = queue.popleft()
            if state:
                self._next[state] = self._next[fallback[state]]
                ends[state] |= ends[fallback[state]]
            for byte, child in children[state].items():
                fallback[child] = int(self._next[state, byte])
                self._next[state, byte] = child
                queue.append(child)
        self._next[np.isin(self._next, np.flatnonzero(ends))] = _FOUND

    def texts_with(self, texts: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Tell for each text whether one of the patterns is in its UTF-8 bytes: bool [texts]."""
        encoded = [text.encode() for text in texts]
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        found = np.zeros(len(encoded), dtype=np.bool_)
        _scan()(np.frombuffer(b"".join(encoded), dtype=np.uint8), np.cumsum(lengths), self._next, found)
        return found


def utf8_prefixes(first: int, last: int) -> Iterator[bytes]:
    """Give the shortest byte strings that begin the UTF-8 of every code point from `first` to `last`, and of no other."""
    code = first
    while code <= last:
        encoded = chr(code).encode()
        free_bytes = max(n for n in range(len(encoded)) if code % 64**n == 0 and code + 64**n - 1 <= last)
        yield encoded[: len(encoded) - free_bytes]
        code += 64**free_bytes


def _trie(patterns: Iterable[bytes]) -> tuple[list[dict[int, int]], list[bool]]:
    children: list[dict[int, int]] = [{}]
    ends = [False]
    for pattern in patterns:
        state = 0
        for byte in pattern:
            if byte not in children[state]:
                children[state][byte] = len(children)
                children.append({})
                ends.append(False)
            state = children[state][byte]
        ends[state] = True
    return children, ends


@cache
def _scan() -> Callable[..., None]:
    """Compile the loop over the bytes, free of the interpreter lock; numba keeps the machine code for later processes."""
    import numba

    def scan(content: Any, text_ends: Any, following: Any, found: Any) -> None:
        starts = following[0] != 0
        position = 0
        for text in range(len(text_ends)):
            state = 0
            while position < text_ends[text]:
                byte = content[position]
                position += 1
                if state == 0 and not starts[byte]:  # without looking the next state up, which would wait for the one before
                    continue
                state = following[state, byte]
                if state == _FOUND:
                    found[text] = True
                    break
            position = text_ends[text]

    try:
        return numba.njit(nogil=True, cache=True)(scan)
    except RuntimeError:  # no folder that numba could write to
        return numba.njit(nogil=True)(scan)
