"""From what a model returns to what is stored: normalise, look for values that can't be stored, cast."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zephon_core.blocks import Finished, Flaw, flaws_of

__all__ = ["finish_features"]

_SMALLEST_NORM = 1e-12


def finish_features(features: npt.NDArray[np.float32], *, normalize: bool, dtype: np.dtype[np.floating]) -> Finished:
    """Normalise float32 [rows, width] if asked to, and cast it; nothing that overflows or isn't finite is stored silently."""
    flaws = flaws_of(features)
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
