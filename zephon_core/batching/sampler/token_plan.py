"""What a batch is: its examples and what it costs; and what plans are made of when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Row", "TokenBatchPlan", "made", "rows_ahead"]

Int64 = npt.NDArray[np.int64]


class TokenBatchPlan(NamedTuple):
    """One batch.

    indices: its examples, int64 [n], in order; plans of one stretch share an array, so copy before changing it. real_tokens: sum
    of their lengths. maximum_sequence_length: their longest. token_slots: what the batch costs: packed, real_tokens; padded,
    n x maximum_sequence_length.
    """

    indices: Int64
    real_tokens: int
    maximum_sequence_length: int
    token_slots: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenBatchPlan) and self[1:] == other[1:] and np.array_equal(self.indices, other.indices)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[1:])


made = tuple.__new__
"""`made(TokenBatchPlan, (indices, …))` makes a plan in half the time that `TokenBatchPlan(indices, …)` takes."""

Row = tuple[int, int, int, int, int]


def rows_ahead(bounds: list[int], real_tokens: Int64, longest: Int64, slots: Int64) -> Iterator[Row]:
    """Yield where a batch's examples begin and end, and its three figures, of one neighbouring batch after the other.

    bounds: n + 1 of them; emptying it ends the rows. The others: int64 [n].
    """
    tokens = real_tokens.tolist()
    return zip(bounds, bounds[1:], tokens, longest.tolist(), tokens if slots is real_tokens else slots.tolist(), strict=False)
