"""What a batch is: its examples and what it costs; and plans of many batches, each made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["TokenBatchPlan", "plans_ahead"]

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


_plan_of: Callable[[tuple[Int64, int, int, int]], TokenBatchPlan] = partial(tuple.__new__, TokenBatchPlan)


def plans_ahead(examples: Int64, bounds: list[int], real_tokens: Int64, longest: Int64, slots: Int64) -> Iterator[TokenBatchPlan]:
    """Yield the plans of neighbouring batches, batch b holding `examples[bounds[b]:bounds[b + 1]]`; no Python runs in between.

    Emptying `bounds` ends them. One that is let go of before the next is asked for gives its memory to it.
    """
    indices = map(examples.__getitem__, map(slice, bounds, bounds[1:]))
    tokens = real_tokens.tolist()
    return map(_plan_of, zip(indices, tokens, longest.tolist(), tokens if slots is real_tokens else slots.tolist(), strict=False))
