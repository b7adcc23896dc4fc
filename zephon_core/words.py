"""How messages word what they can't word themselves."""

from __future__ import annotations

__all__ = ["in_words"]


def in_words(error: BaseException) -> str:
    """Say on one line what somebody else's code raised."""
    words = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
