"""What the draws say: the estimate, how sure it is, and how many draws more would make it surer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zephon_core.errors import SpecError
from zephon_core.ratios.estimate.positions import PER_STRATUM

__all__ = ["Estimate", "combine_rounds", "draws_needed"]

_MANY_STRATA = 64

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean over the axis, with its interval.

    standard_error: of the mean, by differences within strata. degrees_of_freedom: of the t distribution of the interval.
    design_effect: variance of this design over that of as many independent draws; below 1, strata have helped.
    draws: how many were measured; failed: how many were not, and are left out.
    """

    mean: float
    standard_error: float
    low: float
    high: float
    degrees_of_freedom: float
    design_effect: float
    draws: int
    failed: int

    @property
    def relative_half_width(self) -> float:
        """Half the interval's width over the mean; infinite for a mean of zero."""
        return (self.high - self.low) / 2 / self.mean if self.mean > 0 else math.inf


def combine_rounds(rounds: Sequence[Float64], confidence: float, *, looks: int = 1, most: float = 0.0) -> Estimate:
    """Estimate the mean of a value over the axis from the draws of one or more rounds, each of `draw_positions`.

    rounds: float64 [draws of the round] each, in the order of the positions, NaN where a draw could not be measured. A round
    counts in proportion to its draws. looks: how many places a draw's value is the mean of. most: the largest value that a
    place may have, of which the draws need not have met any; 0: as large as those that they met.

    Of independent draws of equal probability in strata of equal length, the mean of all is unbiased, and the sum over strata of
    the squared half differences, over the squared number of strata, is an unbiased estimate of its variance (Cochran 1977,
    5.12; Hansen and Hurwitz 1943 for draws in proportion to size). Draws whose partner failed are paired with the next such
    one (collapsed strata), which only widens the interval. Degrees of freedom are Satterthwaite's (1946). In a round of few strata
    chance may put both draws of one that isn't alike on the same side: there the differences of successive draws, across the
    borders of strata, are looked at as well (Wolter 2007, 8.2, v2), and the larger variance counts.

    Where few draws differ from the rest, or none, their differences say little of what wasn't met. n looks that all found the same
    leave room, at confidence c, for a share of -ln((1 - c) / 2) / n of the axis with anything in it (the rule of three; Hanley and
    Lippman-Hand 1983): the interval has that much more width, and the less of it the more draws the variance is made of.
    Raises SpecError for fewer than two measured draws.
    """
    measured = [values[~np.isnan(values)] for values in rounds]
    count = sum(len(values) for values in measured)
    if count < PER_STRATUM:
        raise SpecError("estimate", f"{count} measured draws", wanted=f"at least {PER_STRATUM}")
    everything = np.concatenate(measured)
    mean = float(everything.mean())
    # Of two draws of variance s² each, the squared difference is 2 s² in expectation: what both add to the mean's variance.
    parts = np.concatenate([_variance_parts(values) for values in rounds]) / count**2
    variance = float(parts.sum())
    freedom = min(variance**2 / float((parts**2).sum()), count / PER_STRATUM) if variance > 0 else count / PER_STRATUM
    contributing = max(1.0, freedom) if variance > 0 else 1.0
    unmet = -math.log((1 - confidence) / 2) / (count * looks) * max(0.0, most - mean) / math.sqrt(contributing)
    half = math.hypot(_t_quantile(confidence, freedom) * math.sqrt(variance), unmet)
    simple = float(everything.var(ddof=1)) / count
    return Estimate(
        mean=mean,
        standard_error=math.sqrt(variance),
        low=max(0.0, mean - half),
        high=mean + half,
        degrees_of_freedom=freedom,
        design_effect=variance / simple if simple > 0 else 1.0,
        draws=count,
        failed=sum(len(values) for values in rounds) - count,
    )


def draws_needed(estimate: Estimate, target_rel_error: float) -> float:
    """Return how many draws in all an interval of that relative half width will take, going by the draws so far."""
    return estimate.draws * (estimate.relative_half_width / target_rel_error) ** 2


def _variance_parts(values: Float64) -> Float64:
    """Return what adds up to a round's variance times its squared number of draws."""
    within = _squared_differences(values)
    if len(values) >= _MANY_STRATA * PER_STRATUM:
        return within
    measured = values[~np.isnan(values)]
    if len(measured) < PER_STRATUM:
        return within
    across = np.square(np.diff(measured)) * (len(measured) / (2 * (len(measured) - 1)))
    return across if across.sum() > within.sum() else within


def _squared_differences(values: Float64) -> Float64:
    """Return the squared difference of each stratum's two draws; draws left alone are paired with the next left alone."""
    missing = np.isnan(values)
    pairs, lost = values.reshape(-1, PER_STRATUM), missing.reshape(-1, PER_STRATUM)
    whole = pairs[~lost.any(axis=1)]
    alone = pairs[lost.sum(axis=1) == 1]
    alone = alone[~np.isnan(alone)]
    squares = np.square(whole[:, 0] - whole[:, 1])
    if not len(alone):
        return squares
    collapsed = np.square(np.diff(alone[: len(alone) // PER_STRATUM * PER_STRATUM].reshape(-1, PER_STRATUM), axis=1))[:, 0]
    if len(alone) % PER_STRATUM:  # the last one has no partner: it is taken to vary as the others do
        known = np.concatenate([squares, collapsed])
        collapsed = np.append(collapsed, known.mean() / 2 if len(known) else 0.0)
    return np.concatenate([squares, collapsed])


def _t_quantile(confidence: float, degrees_of_freedom: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, (1 + confidence) / 2))
