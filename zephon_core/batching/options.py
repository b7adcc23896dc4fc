"""What a batch may hold."""

from __future__ import annotations

from typing import Any, Literal, TypeGuard

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from zephon_core.errors import SpecError

__all__ = ["FOLDER_WANTED", "LARGEST", "LAYOUTS", "OPTIONS_WANTED", "TokenBatchOptions", "is_whole", "refuse_other_type", "shown"]

LARGEST = 2**63 - 1
"""The largest number of tokens that is counted here: the largest int64."""

LAYOUTS = ("packed", "padded")
FOLDER_WANTED = "the path of a folder"
OPTIONS_WANTED = "TokenBatchOptions(maximum_tokens=…)"

_SHORT = 64


def is_whole(value: Any, least: int, most: int = LARGEST) -> TypeGuard[int]:
    """Say whether a value is a whole number, Python's or numpy's, from `least` to `most`."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(least <= value <= most)


class TokenBatchOptions(BaseModel):
    """Limits of one rank's batch, and what an example costs in it. Zero limits are refused, with SpecError.

    No sum of tokens in a batch passes `maximum_tokens`, so none passes 2**63 - 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    maximum_tokens: int = Field(
        ge=1, le=LARGEST, title="Tokens per batch", description="Token slots that a batch of one rank may cost at most."
    )
    maximum_examples: int | None = Field(
        default=None,
        ge=1,
        le=LARGEST,
        title="Examples per batch",
        description="Examples that a batch may hold at most; empty: no limit.",
    )
    layout: Literal["packed", "padded"] = Field(
        default="packed",
        title="Layout",
        description="What a batch costs. packed: the sum of its lengths; padded: its number of examples times the longest length.",
    )

    def __init__(
        self, *, maximum_tokens: int, maximum_examples: int | None = None, layout: Literal["packed", "padded"] = "packed"
    ) -> None:
        maximum_tokens = _limit("maximum_tokens", maximum_tokens)
        maximum_examples = None if maximum_examples is None else _limit("maximum_examples", maximum_examples)
        if not isinstance(layout, str) or layout not in LAYOUTS:
            raise SpecError("layout", f"is {shown(layout)}", wanted=" or ".join(map(repr, LAYOUTS)))
        super().__init__(maximum_tokens=maximum_tokens, maximum_examples=maximum_examples, layout=layout)


def _limit(name: str, value: object) -> int:
    if not is_whole(value, 1):
        raise SpecError(name, f"is {shown(value)}", wanted=f"a whole number from 1 to {LARGEST}")
    return int(value)


def refuse_other_type(name: str, value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """Raise SpecError unless an argument is of a type; `wanted` says how one is made."""
    if not isinstance(value, kind):
        raise SpecError(name, f"is {shown(value)}", wanted=wanted)


def shown(value: object) -> str:
    """Say in a message what a value is: itself where that is short, else its type."""
    if value is None or isinstance(value, bool | int | float | np.number) or (isinstance(value, str) and len(value) <= _SHORT):
        return repr(value)
    return f"of type {type(value).__name__}"
