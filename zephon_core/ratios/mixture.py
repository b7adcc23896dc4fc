"""Token shares wanted → how often to draw from each data set, and how far off the shares may come out.

A data set that is to give a share s of the tokens is drawn with a probability ∝ s / m, m being its mean tokens a sample. What
it then delivers of the tokens is s·x / Σ s_j·x_j, x_j being a data set's true ratio over the one that was assumed. Only the x_j
are unknown, and each data set was measured by draws of its own. The interval of a share follows from the ratios' intervals
by MOVER (Zou and Donner 2008), on the scale where it is a difference: logit = ln x_i - ln Σ_{j≠i} w_j x_j + constant, with
w_j = s_j / (1 - s_i). The distances of the ratios' ends from their middles, in logarithms and weighted by w_j, add up as
squares, those that push the share down to its lower end and the others to its upper. It needs no symmetric intervals and no
standard errors, and stays within 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zephon_core.errors import SpecError
from zephon_core.ratios.cost import ShardSizes, mean_sample_bytes
from zephon_core.ratios.estimation import GUESS_SPREAD, TokenRatio

__all__ = ["DatasetWeight", "Mixture", "mixture_weights"]

Interval = tuple[float, float]


@dataclass(frozen=True)
class DatasetWeight:
    """One data set's part in a mixture.

    share: of the tokens, as wanted. share_interval: of what will be delivered. probability: of a sample being drawn from it.
    tokens_per_sample: on average. tokens: in all of it, None where that can't be known. epochs: how often the token budget
    passes it, None without a budget. blame: its part in the uncertainty of all shares; those of a mixture add up to 1.
    """

    share: float
    share_interval: Interval
    probability: float
    tokens_per_sample: float
    tokens: float | None
    epochs: float | None
    blame: float
    source: str


@dataclass(frozen=True)
class Mixture:
    """A mixture by tokens. calibrate_next: the data set whose better ratio tightens it most, "" where all are exact."""

    datasets: dict[str, DatasetWeight]
    calibrate_next: str
    budget_tokens: float | None = None

    @property
    def probabilities(self) -> dict[str, float]:
        """Sample probabilities by data set; they add up to 1."""
        return {name: weight.probability for name, weight in self.datasets.items()}

    @property
    def shares(self) -> dict[str, float]:
        """Token shares wanted by data set; they add up to 1."""
        return {name: weight.share for name, weight in self.datasets.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the mixture as plain values."""
        return {
            "mixture": {name: {**vars(w), "share_interval": list(w.share_interval)} for name, w in self.datasets.items()},
            "calibrate_next": self.calibrate_next,
            "budget_tokens": self.budget_tokens,
        }


def mixture_weights(
    shares: Mapping[str, float],
    ratios: Mapping[str, TokenRatio],
    datasets: Mapping[str, ShardSizes],
    *,
    budget_tokens: float | None = None,
    sample_bytes: Mapping[str, float] | None = None,
) -> Mixture:
    """Work out how often to draw from each data set so that they give the wanted shares of the tokens.

    shares: positive numbers in any unit, one a data set. ratios: of at least those. datasets: of those that sample_bytes lacks.
    budget_tokens: how many tokens the training will see. sample_bytes: mean raw bytes a sample, where a data set can't say.
    Pinned ratios count as exact; a fallback as anything up to GUESS_SPREAD times more or less. Intervals have the ratios'
    confidence. Raises SpecError for shares that can't be, missing ratios, and data sets whose rows are not known.
    """
    sample_bytes = sample_bytes or {}
    total = _checked_total(shares, ratios, {*datasets, *sample_bytes})
    if budget_tokens is not None:
        _check_positive("budget_tokens", budget_tokens)
    for name, value in sample_bytes.items():
        _check_positive(f"sample_bytes[{name!r}]", value)
        if name not in ratios:
            raise SpecError("sample_bytes", f"name {name}, of which there is no ratio", wanted=f"names among {', '.join(ratios)}")
    share = {name: value / total for name, value in shares.items()}
    per_sample = {name: _tokens_per_sample(name, ratios[name], datasets, sample_bytes) for name in shares}
    draws = {name: share[name] / per_sample[name] for name in shares}
    distances = {name: _distances(ratios[name]) for name in shares}
    blame = _blame(share, distances)
    weights = {}
    for name in shares:
        tokens = _tokens(ratios[name], datasets[name]) if name in datasets else None
        weights[name] = DatasetWeight(
            share=share[name],
            share_interval=_share_interval(name, share, distances),
            probability=draws[name] / sum(draws.values()),
            tokens_per_sample=per_sample[name],
            tokens=tokens,
            epochs=budget_tokens * share[name] / tokens if budget_tokens and tokens else None,
            blame=blame[name],
            source=ratios[name].source,
        )
    worst = max(blame, key=blame.__getitem__)
    return Mixture(weights, worst if blame[worst] > 0 else "", budget_tokens)


def _check_positive(where: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise SpecError(where, f"is {value!r}", wanted="a finite, positive number")


def _checked_total(shares: Mapping[str, float], ratios: Mapping[str, TokenRatio], datasets: Collection[str]) -> float:
    if not shares:
        raise SpecError("shares", "are empty", wanted="a share of the tokens for each data set")
    for name, value in shares.items():
        _check_positive(f"shares[{name!r}]", value)
        for what, known in (("ratio", ratios), ("data set", datasets)):
            if name not in known:
                raise SpecError("shares", f"name {name}, of which there is no {what}", wanted=f"names among {', '.join(known)}")
    return float(sum(shares.values()))


def _tokens_per_sample(
    name: str, ratio: TokenRatio, datasets: Mapping[str, ShardSizes], sample_bytes: Mapping[str, float]
) -> float:
    mean_bytes = sample_bytes[name] if name in sample_bytes else mean_sample_bytes(datasets[name])
    if mean_bytes is None:
        empty = not np.any(datasets[name].counts())
        raise SpecError(
            f"data set {name}",
            "has no rows" if empty else "doesn't say how many rows it has",
            remedy="Leave it out."
            if empty
            else f"Say how many raw bytes a row of it has: --sample-bytes {name}=2000, sample_bytes.",
        )
    return mean_bytes * ratio.tokens_per_byte


def _tokens(ratio: TokenRatio, dataset: ShardSizes) -> float | None:
    raw_bytes = int(dataset.raw_bytes().sum())
    return raw_bytes * ratio.tokens_per_byte if raw_bytes > 0 else None


def _distances(ratio: TokenRatio) -> Interval:
    """Return how far the ends of a ratio's interval lie from it, down and up, in natural logarithms."""
    if ratio.source == "fallback":
        return math.log(GUESS_SPREAD), math.log(GUESS_SPREAD)
    if ratio.interval is None:
        return 0.0, 0.0
    low, high = ratio.interval
    middle = ratio.tokens_per_byte
    return max(0.0, math.log(middle / low)) if low > 0 else math.inf, max(0.0, math.log(high / middle))


def _share_interval(name: str, share: Mapping[str, float], distances: Mapping[str, Interval]) -> Interval:
    wanted = share[name]
    if wanted >= 1:
        return 1.0, 1.0
    others = {other: value / (1 - wanted) for other, value in share.items() if other != name}
    down = math.hypot(distances[name][0], *(weight * distances[other][1] for other, weight in others.items()))
    up = math.hypot(distances[name][1], *(weight * distances[other][0] for other, weight in others.items()))
    middle = math.log(wanted / (1 - wanted))
    return _logistic(middle - down), _logistic(middle + up)


def _logistic(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0


def _blame(share: Mapping[str, float], distances: Mapping[str, Interval]) -> dict[str, float]:
    """Divide the summed variance of all shares among the data sets, to first order: Σ_i (∂share_i / ∂ln x_j)² half-width_j²."""
    parts = {}
    for name, own in share.items():
        half_width = min(sum(distances[name]) / 2, 50.0)  # of an interval that goes down to zero
        slopes = sum((value * ((other == name) - own)) ** 2 for other, value in share.items())
        parts[name] = slopes * half_width**2
    total = sum(parts.values())
    return {name: part / total if total > 0 else 0.0 for name, part in parts.items()}
