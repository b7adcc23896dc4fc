"""What a block is, on its way to a worker and back: rows to work on, and rows that are ready to be stored."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from zephon_core.errors import ModelError

__all__ = ["BlockJob", "BlockResult", "Finished", "Flaw", "flaws_of", "in_halves", "unless_out_of_memory"]

_T = TypeVar("_T")

Rows = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]


class Flaw(IntEnum):
    """Why a row can't be used; such rows are called poison."""

    NAN = 1
    INFINITE = 2
    OUT_OF_RANGE = 3

    @property
    def label(self) -> str:
        """The reason in words."""
        return {Flaw.NAN: "not a number", Flaw.INFINITE: "infinite", Flaw.OUT_OF_RANGE: "beyond the stored type's range"}[self]


@dataclass(frozen=True)
class BlockJob:
    """A block to work on: its number and rows (int64). wanted: false for one that only keeps others company in a forward pass."""

    block: int
    rows: npt.NDArray[np.int64]
    wanted: bool = True


@dataclass(frozen=True)
class Finished:
    """A block ready for its file.

    stored: [rows, width] in the stored type, poison rows all NaN: whoever uses one notices. flaws: uint8 [rows], 0 or a `Flaw`.
    largest: largest absolute value of the rows without a flaw, before the cast; 0 if there is none.
    """

    stored: npt.NDArray[np.floating]
    flaws: npt.NDArray[np.uint8]
    largest: float


@dataclass(frozen=True)
class BlockResult:
    """A finished block, how long it took, and how often it was halved for want of memory."""

    block: int
    finished: Finished
    took_us: int
    halvings: int = 0


def flaws_of(values: npt.NDArray[np.floating]) -> npt.NDArray[np.uint8]:
    """Tell of each row of [rows, width] whether it holds NaN or an infinity: uint8 [rows], 0 or a `Flaw`."""
    flaws = np.zeros(len(values), np.uint8)
    flaws[np.isinf(values).any(1)] = Flaw.INFINITE
    flaws[np.isnan(values).any(1)] = Flaw.NAN
    return flaws


def in_halves(rows: Rows, work: Callable[[Rows], Values], too_long: Callable[[int], ModelError]) -> tuple[Values, int]:
    """Return what `work` makes of rows, and how often they were halved because memory ran out.

    Raises what `too_long` gives for a single row that is too much by itself.
    """
    values = unless_out_of_memory(lambda: work(rows))
    if values is not None:
        return values, 0
    if len(rows) == 1:
        raise too_long(int(rows[0]))
    middle = (len(rows) + 1) // 2
    (first, before), (second, after) = in_halves(rows[:middle], work, too_long), in_halves(rows[middle:], work, too_long)
    return np.concatenate([first, second]), 1 + before + after


def unless_out_of_memory(work: Callable[[], _T]) -> _T | None:
    """Return what `work` returns, None if memory ran out; what the attempt held is released then."""
    try:
        return work()
    except (MemoryError, RuntimeError) as error:
        known = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
        if not known and "can't allocate memory" not in str(error):
            raise
    gc.collect()
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
    return None
