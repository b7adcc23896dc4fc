"""Positions at which a tokenizer's work on a text falls apart into two halves that don't know of each other.

What `zephon_core.tokenizers.early_cut` proves of the text before such a position holds for the text after it, too: a match of the
split regex ends there and the next begins afresh, none of them looks back, and words that the model sees end there. The one
exception is what some tokenizers put before a text (SentencePiece's word mark, a blank): a half that stands alone gets it, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zephon_core.tokenizers import Tokenizer

__all__ = ["SafeCuts"]


class SafeCuts:
    """Finds safe positions for a tokenizer.

    known: there are any that can be told. halves_add_up: the tokens of both halves, each tokenized alone, are those of the whole.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._cut = tokenizer.early_cut
        self.known = self._cut is not None
        self.halves_add_up = self.known and not _puts_something_before_texts(tokenizer.structure)

    def after(self, text: str, start: int) -> int | None:
        """Find the first one at or after `start`, at least 1; None if there is none within some thousand characters."""
        return None if self._cut is None else self._cut.find(text, max(start, 1))

    def before(self, text: str, first: int, last: int) -> int | None:
        """Find the last one from `first` to `last`; None if there is none."""
        if self._cut is None:
            return None
        positions = [match.start() for match in self._cut.boundary.finditer(text, max(first, 1), last + 1)]
        return next((position for position in reversed(positions) if self._cut.find(text, position) == position), None)

    def pieces(self, text: str, characters: int) -> Iterator[str]:
        """Yield a text in pieces of at least so many characters whose tokens add up; in one if that can't be."""
        begin = 0
        while self.halves_add_up and len(text) - begin > 2 * characters:
            end = self.after(text, begin + characters)
            if end is None:
                break
            yield text[begin:end]
            begin = end
        yield text[begin:]


def _puts_something_before_texts(structure: dict[str, Any]) -> bool:
    nodes = [structure.get("normalizer") or {}, structure.get("pre_tokenizer") or {}]
    while nodes:
        node = nodes.pop()
        nodes += [*(node.get("normalizers") or []), *(node.get("pretokenizers") or [])]
        if node.get("type") == "Prepend" or node.get("add_prefix_space") or node.get("prepend_scheme", "never") != "never":
            return True
    return False
