"""Whether training delivers the tokens that the ratio promised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zephon_core.errors import SpecError
from zephon_core.ratios.estimation import TokenRatio

__all__ = ["ROUNDING", "Drift", "check_drift"]

ROUNDING = 1e-14
"""How far one ratio may come out from itself, as a share of it, where sums are divided in another order."""


@dataclass(frozen=True)
class Drift:
    """A data set's ratio as training sees it, against the one that was promised.

    observed: tokens delivered a byte scheduled. observed_interval: of that, where there are steps enough to tell, else both
    ends are `observed`. promised: what may pass. share_factor: what the data set gets of its wanted tokens.
    """

    dataset: str
    observed: float
    observed_interval: tuple[float, float]
    promised: tuple[float, float]
    share_factor: float
    alarm: bool

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain values."""
        return {**vars(self), "observed_interval": list(self.observed_interval), "promised": list(self.promised)}


def check_drift(
    dataset: str,
    delivered_tokens: float | Sequence[float],
    scheduled_bytes: float | Sequence[float],
    *,
    ratio: TokenRatio,
    tolerance: float = 0.01,
    confidence: float = 0.999,
) -> Drift:
    """Compare what training has delivered of a data set with its ratio; alarm when the two can't be the same.

    delivered_tokens, scheduled_bytes: totals, or one figure each for every stretch of the training (a step, a thousand
    samples). From 8 stretches on, what they vary by is allowed for, at `confidence`: a ratio of sums by linearisation
    (Cochran 1977, 6.4). Totals are taken as they are.
    tolerance: how far outside of the ratio's interval (of the ratio itself where it has none) may pass, as a share of it.
    Raises SpecError for figures that can't be.
    """
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < math.inf:
        raise SpecError("tolerance", f"is {tolerance!r}", wanted="a share of the ratio, from 0 up")
    if not 0 < confidence < 1:
        raise SpecError("confidence", f"is {confidence!r}", wanted="a number between 0 and 1")
    delivered, scheduled = _figures("delivered_tokens", delivered_tokens), _figures("scheduled_bytes", scheduled_bytes)
    if len(delivered) != len(scheduled):
        raise SpecError(dataset, f"has {len(delivered):,} figures of tokens and {len(scheduled):,} of bytes", wanted="as many")
    if scheduled.sum() <= 0:
        raise SpecError(dataset, "has no bytes scheduled", remedy="Check again once the training draws from it.")
    observed = float(delivered.sum() / scheduled.sum())
    half = _half_width(delivered, scheduled, observed, confidence)
    low, high = ratio.interval or (ratio.tokens_per_byte, ratio.tokens_per_byte)
    slack = (tolerance + ROUNDING) * ratio.tokens_per_byte
    promised = (max(0.0, low - slack), high + slack)
    seen = (max(0.0, observed - half), observed + half)
    return Drift(
        dataset=dataset,
        observed=observed,
        observed_interval=seen,
        promised=promised,
        share_factor=observed / ratio.tokens_per_byte,
        alarm=seen[0] > promised[1] or seen[1] < promised[0],
    )


_FEWEST_STRETCHES = 8


def _figures(where: str, values: float | Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    figures = np.atleast_1d(np.asarray(values, np.float64))
    if figures.ndim != 1 or not np.isfinite(figures).all() or (figures < 0).any():
        raise SpecError(where, "hold something other than numbers from zero up", wanted="a total, or one number a stretch")
    return figures


def _half_width(
    delivered: np.ndarray[Any, np.dtype[np.float64]],
    scheduled: np.ndarray[Any, np.dtype[np.float64]],
    observed: float,
    confidence: float,
) -> float:
    count = len(delivered)
    if count < _FEWEST_STRETCHES:
        return 0.0
    from scipy.special import stdtrit

    residuals = delivered - observed * scheduled
    variance = float((residuals**2).sum()) * count / (count - 1) / float(scheduled.sum()) ** 2
    return float(stdtrit(count - 1, (1 + confidence) / 2)) * math.sqrt(variance)
