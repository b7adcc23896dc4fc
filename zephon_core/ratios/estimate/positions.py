"""Where to look: positions drawn from an axis that holds every byte of a data set.

The axis is cut into strata of equal length, and two positions are drawn in each. A byte is as likely as any other, so that a
row is met with a probability proportional to its size; every part of the axis is visited; and the two positions of a stratum
tell what is left to chance there.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from zephon_core.errors import SpecError
from zephon_core.fingerprint import canonical_json

__all__ = ["PER_STRATUM", "draw_positions", "generator", "locate"]

PER_STRATUM = 2

Int64 = npt.NDArray[np.int64]


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """Return the stream of random numbers that belongs to `seed` and `names`, whatever else was drawn before."""
    digest = hashlib.sha256(canonical_json([seed, *names])).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def draw_positions(length: int, draws: int, rng: np.random.Generator) -> Int64:
    """Draw positions from 0 to length - 1, two in each of draws / 2 strata of equal length, independent within a stratum.

    draws: rounded up to an even number. Returns int64 [draws]; positions 2 h and 2 h + 1 are those of stratum h. Where strata
    are not whole numbers of bytes long, a byte on the border of two is shared between them by chance.
    Cochran (1977), chapter 5. Raises SpecError if there is nothing to draw from.
    """
    if length < 1 or draws < 1:
        raise SpecError("positions", f"{draws:,} draws from {length:,} bytes", wanted="at least one of each")
    strata = -(-draws // PER_STRATUM)
    place = (np.repeat(np.arange(strata), PER_STRATUM) + rng.random(strata * PER_STRATUM)) / strata
    return np.minimum((place * length).astype(np.int64), length - 1)


def locate(positions: Int64, sizes: Int64) -> tuple[Int64, Int64]:
    """Tell which of the units of `sizes` bytes, laid end to end, holds each position, and where in it.

    positions: int64 [draws]; sizes: int64 [units], none negative. Returns (unit, offset), int64 [draws] each.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    unit = np.searchsorted(ends, positions, side="right").astype(np.int64)
    return unit, positions - (ends[unit] - sizes[unit])
