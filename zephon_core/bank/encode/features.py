"""From what a model returns to what is stored: normalise, look for values that can't be stored, cast."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

__all__ = ["Finished", "Flaw", "finish_features"]

_SMALLEST_NORM = 1e-12


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
class Finished:
    """A block ready for the matrix.

    stored: [rows, width] in the stored type, poison rows all NaN: whoever uses one notices. flaws: uint8 [rows], 0 or a `Flaw`.
    largest: largest absolute value of the rows without a flaw, before the cast; 0 if there is none.
    """

    stored: npt.NDArray[np.floating]
    flaws: npt.NDArray[np.uint8]
    largest: float


def finish_features(features: npt.NDArray[np.float32], *, normalize: bool, dtype: np.dtype[np.floating]) -> Finished:
    """Normalise float32 [rows, width] if asked to, and cast it; nothing that overflows or isn't finite is stored silently."""
    flaws = np.zeros(len(features), np.uint8)
    flaws[np.isinf(features).any(1)] = Flaw.INFINITE
    flaws[np.isnan(features).any(1)] = Flaw.NAN
    if normalize:
        with np.errstate(invalid="ignore"):
            norms = np.sqrt(np.square(features, dtype=np.float64).sum(1, keepdims=True))
            features = (features / np.maximum(norms, _SMALLEST_NORM)).astype(np.float32)
    largest = np.abs(features).max(1, initial=0)
    with np.errstate(over="ignore", invalid="ignore"):
        stored = features.astype(dtype)
    flaws[(flaws == 0) & ~np.isfinite(stored).all(1)] = Flaw.OUT_OF_RANGE
    stored[flaws > 0] = np.nan
    return Finished(stored=stored, flaws=flaws, largest=float(largest[flaws == 0].max(initial=0)))
