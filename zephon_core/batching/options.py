"""What a batch may hold."""

from __future__ import annotations

from typing import Any, Literal, TypeGuard

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

__all__ = ["LARGEST", "TokenBatchOptions", "is_whole"]

LARGEST = 2**63 - 1
"""The largest number of tokens that is counted here: the largest int64."""


def is_whole(value: Any, least: int, most: int = LARGEST) -> TypeGuard[int]:
    """Say whether a value is a whole number, Python's or numpy's, from `least` to `most`."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(least <= value <= most)


class TokenBatchOptions(BaseModel):
    """Limits of one rank's batch, and what an example costs in it. Zero limits are refused.

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
