"""What is left of an epoch after it was dealt to other worlds: an exact recipe of a few numbers, never a list of examples.

The positions 0 .. epoch_size - 1 of an epoch's order are dealt to W ranks in turn, rank r getting r, r + W, r + 2 W, ….
If that world stops when rank r has committed c[r] of its own, the rest is every position r + k W with k >= c[r], and the next
world is dealt that rest, in its order, in turn. So (W, c) of each world that stopped says all there is to say, and position j
of the rest is found by arithmetic: rows of the old deal are whole beyond the largest c, and ragged before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.batching.state_fields import StateFields, decode_integers, encode_integers
from zephon_core.compiled import compiled
from zephon_core.errors import StateError

__all__ = ["Deal", "Remainder", "shard_length"]

Int64 = npt.NDArray[np.int64]


def shard_length(scope_size: int, rank: int, world_size: int) -> int:
    """How many of `scope_size` positions rank `rank` of `world_size` is dealt."""
    return scope_size // world_size + (rank < scope_size % world_size)


@dataclass(frozen=True)
class Deal:
    """One world that stopped: how many of its own each rank had committed, committed[rank]."""

    committed: tuple[int, ...]

    @property
    def world_size(self) -> int:
        """How many ranks there were."""
        return len(self.committed)

    @cached_property
    def consumed(self) -> int:
        """How many examples all ranks had committed."""
        return sum(self.committed)

    @cached_property
    def segments(self) -> tuple[Int64, Int64, Int64, npt.NDArray[np.int32]]:
        """The rest by rows of the deal in which the same ranks are left, as four arrays for `_through`.

        first: position in the rest at which the segment begins; row: its first row; begin [segments + 1]: where its ranks
        begin in `ranks`, the ascending ranks left in each, one segment's after the other's (int32, at most world_size squared).
        """
        committed = np.array(self.committed, np.int64)
        rows = np.unique(committed)
        left = [np.flatnonzero(committed <= row).astype(np.int32) for row in rows]
        sizes = np.array([len(ranks) for ranks in left], np.int64)
        held = np.diff(rows) * sizes[:-1]
        return np.concatenate([[0], np.cumsum(held)]), rows, np.concatenate([[0], np.cumsum(sizes)]), np.concatenate(left)


@dataclass(frozen=True)
class Remainder:
    """What the ranks of the present world share among them: the epoch's positions, less those of earlier worlds of the epoch."""

    epoch_size: int
    deals: tuple[Deal, ...] = ()

    @property
    def consumed(self) -> int:
        """How many of the epoch earlier worlds committed."""
        return sum(deal.consumed for deal in self.deals)

    @property
    def scope_size(self) -> int:
        """How many positions are left for the present world."""
        return self.epoch_size - self.consumed

    def after(self, committed: tuple[int, ...]) -> Remainder:
        """Return what is left once the present world, of len(committed) ranks, stops as well."""
        return Remainder(self.epoch_size, (*self.deals, Deal(committed)))

    def positions(self, start: int, length: int, *, stride: int = 1) -> Int64:
        """Return the epoch's positions of the rest's positions start, start + stride, …: int64 [length], ascending."""
        positions = start + np.arange(length, dtype=np.int64) * stride
        for deal in reversed(self.deals):
            _through(positions, deal.world_size, *deal.segments)
        return positions

    def to_json(self) -> list[dict[str, Any]]:
        """Write the worlds that stopped, oldest first."""
        return [{"world_size": deal.world_size, "committed": encode_integers(np.array(deal.committed))} for deal in self.deals]

    @classmethod
    def of_json(cls, value: object, epoch_size: int, name: str) -> Remainder:
        """Read what `to_json` wrote; raises StateError for worlds that can't have been."""
        if not isinstance(value, list | tuple):
            raise StateError(name, f"is a {type(value).__name__}", wanted="a list of the worlds that stopped")
        rest = cls(epoch_size)
        for k, item in enumerate(value):
            fields = StateFields(item, f"{name}[{k}]", ["world_size", "committed"])
            world_size = fields.integer("world_size", low=1)
            committed = decode_integers(fields.raw("committed"), f"{name}[{k}].committed").tolist()
            if len(committed) != world_size:
                raise fields.error("committed", f"holds {len(committed)} ranks", str(world_size))
            for rank, count in enumerate(committed):
                dealt = shard_length(rest.scope_size, rank, world_size)
                if not 0 <= count <= dealt:
                    raise fields.error("committed", f"is {count} for rank {rank}", f"0 to {dealt}")
            rest = rest.after(tuple(committed))
        return rest


@compiled
def _through(positions: Any, world_size: int, first: Any, row: Any, begin: Any, ranks: Any) -> None:
    """Replace ascending positions of the rest by those of the scope that was dealt."""
    segment, last = 0, len(first) - 1
    for k in range(len(positions)):
        while segment < last and positions[k] >= first[segment + 1]:
            segment += 1
        inside = positions[k] - first[segment]
        if segment == last:
            positions[k] = row[last] * world_size + inside
        else:
            width = begin[segment + 1] - begin[segment]
            rows = inside // width
            positions[k] = (row[segment] + rows) * world_size + ranks[begin[segment] + inside - rows * width]
