"""Added and special tokens as they stand in plain text: where they may match, and with which flags."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

__all__ = ["AddedTokens"]


@dataclass(frozen=True)
class AddedTokens:
    """The literals that a tokenizer cuts out of a text before anything else looks at it.

    contents: the literals. plain: none of them takes neighbouring white space along or asks for a word boundary.
    normalized: some of them are sought in the normalised text rather than in the text.
    """

    contents: tuple[str, ...]
    plain: bool
    normalized: bool

    @staticmethod
    def of(definition: dict[str, Any]) -> AddedTokens:
        """Those of a parsed tokenizer.json."""
        tokens = [token for token in definition.get("added_tokens") or [] if token["content"]]
        return AddedTokens(
            contents=tuple(token["content"] for token in tokens),
            plain=not any(token.get("lstrip") or token.get("rstrip") or token.get("single_word") for token in tokens),
            normalized=any(token.get("normalized") for token in tokens),
        )

    @property
    def longest(self) -> int:
        """Characters of the longest literal; 0 if there are none."""
        return max(map(len, self.contents), default=0)

    def pattern(self) -> re.Pattern[str] | None:
        """Compile a pattern that is found in a text exactly if one of the literals occurs in it; None if there are none."""
        return re.compile(_any_of(sorted(set(self.contents)))) if self.contents else None


def _any_of(literals: list[str]) -> str:
    """Write an alternation over sorted literals as a tree of their common beginnings, which `re` searches far faster.

    Where one literal begins another, the shorter decides: the pattern answers whether any occurs, not which.
    """
    shortest: list[str] = []
    for literal in literals:
        if not shortest or not literal.startswith(shortest[-1]):
            shortest.append(literal)
    return _tree(shortest)


def _tree(literals: list[str]) -> str:
    if len(literals) == 1:
        return re.escape(literals[0])
    shared = 0
    while all(len(literal) > shared and literal[shared] == literals[0][shared] for literal in literals):
        shared += 1
    groups: dict[str, list[str]] = {}
    for literal in literals:
        groups.setdefault(literal[shared], []).append(literal[shared:])
    branches = "|".join(_tree(group) for group in groups.values())
    return re.escape(literals[0][:shared]) + f"(?:{branches})"
