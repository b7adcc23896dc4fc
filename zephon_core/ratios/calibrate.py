"""Measure one data set: tokens per raw byte from a small part of it, in rounds, until the interval is narrow enough.

The axis that is drawn from holds every unit of the data set, in the order of content (`zephon_core.ratios.estimate`). A draw's
value is unbiased for tokens per byte of that axis, and the axis is as long as the units' sizes say: so tokens per raw byte are
the mean of the values times that length over the raw bytes, both known exactly.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from zephon_core.errors import MeasureError
from zephon_core.progress import NULL_PROGRESS, Phase, Progress
from zephon_core.ratios.counting import build_counter
from zephon_core.ratios.estimate import PER_STRATUM, Estimate, combine_rounds, draw_positions, draws_needed, generator
from zephon_core.ratios.estimation import TokenEstimation
from zephon_core.ratios.sampling import STRETCH_BYTES, Sampler
from zephon_core.ratios.specs import RatioRun

if TYPE_CHECKING:
    from zephon_core.ratios.counting import CountingSpec, CountPlan, Replay
    from zephon_core.ratios.datasets import Dataset

__all__ = ["Measurement", "calibrate"]

FIRST_DRAWS = 512
LEAST_DRAWS = 256
_PREFIX_ROWS = 8
_LEAST_MEASURED = 0.5
_LEAST_UNITS = 64
_SAFETY = 1.02
_MOST_GROWTH = 4
_MOST_VISITS = 128
_ROW_READ_BYTES = 4 << 10
_EASY_BYTES = 32 << 20
_EASY_SHARE = 0.02
_EVERYTHING = -1

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Measurement:
    """Tokens per raw byte of one data set.

    ratio: tokens a raw byte; source: measured or fallback; interval: (low, high) at the confidence that was asked for.
    draws: measured ones; failed: those that could not be measured, as a share of all, and `reasons` says why: what they would have
    shown is not in the ratio. units: how many different ones were read or read in. bytes_read: off the disk or wire.
    design: stratified (draws in proportion to size, two in each of many equal parts), or exact (everything was counted).
    design_effect, degrees_of_freedom: see `Estimate`.
    loss_ratio, loss_interval: the same for loss-bearing tokens of chat rows. counted: what was counted, in words.
    reason: why it is a fallback, or what is left out. retryable: whether a later try may do better.
    """

    ratio: float
    source: str
    interval: tuple[float, float] | None = None
    draws: int = 0
    failed: float = 0.0
    units: int = 0
    bytes_read: int = 0
    design: str = ""
    design_effect: float | None = None
    degrees_of_freedom: float | None = None
    loss_ratio: float | None = None
    loss_interval: tuple[float, float] | None = None
    counted: str = ""
    reason: str = ""
    reasons: tuple[tuple[str, int], ...] = ()
    retryable: bool = False


def calibrate(
    dataset: Dataset,
    counting: CountingSpec | None,
    estimation: TokenEstimation,
    *,
    seed: int = 0,
    replay: Replay | None = None,
    workers: int = 0,
    progress: Progress = NULL_PROGRESS,
) -> Measurement:
    """Measure a data set's ratio; the result depends on content, settings and seed alone.

    workers: how many units are read at once; 0: one a core. Where less than half of the draws can be measured, the result is a
    fallback that says why. Raises FatalCountError for a row that the training would refuse; SpecError, TokenizerError for
    settings that can't be used.
    """
    try:
        return _Calibration(dataset, counting, estimation, seed, replay, workers or os.cpu_count() or 1).run(progress)
    except MeasureError as error:
        return _fallback(dataset, estimation, str(error))


class _Calibration:
    """The rounds of one data set."""

    def __init__(
        self,
        dataset: Dataset,
        counting: CountingSpec | None,
        estimation: TokenEstimation,
        seed: int,
        replay: Replay | None,
        workers: int,
    ) -> None:
        self._dataset = dataset
        self._counting = counting
        self._estimation = estimation
        self._seed = seed
        self._replay = replay
        self._workers = workers
        self._axis = int(dataset.units.size.sum())
        self._raw = int(dataset.raw_bytes().sum())
        self._reasons: Counter[str] = Counter(problem.reason for problem in dataset.problems)
        self._transient = any(problem.transient for problem in dataset.problems)

    def run(self, progress: Progress) -> Measurement:
        if not self._axis or not self._raw:
            reason = f"holds nothing that can be read{_words(self._reasons)}"
            return _fallback(self._dataset, self._estimation, reason, retryable=self._transient)
        if self._raw <= self._estimation.exact_below_bytes and self._may_read_all():
            return self._exact(progress)
        with ExitStack() as stack:
            sampler = Sampler(self._dataset, threads=self._workers, stack=stack)
            draws, visits = self._first_round()
            rng, positions = self._positions(0, draws)
            looks = positions[:: -(-len(positions) // _PREFIX_ROWS)]
            counter = build_counter(self._counting, replay=self._replay, measure=self._estimation.load_measure())
            plan = counter.plan(sampler.look(looks, _PREFIX_ROWS))
            phase = stack.enter_context(progress.phase(f"calibrate {self._dataset.name}", total=None, unit="draws"))
            rounds = [self._measure(sampler, plan, positions, rng, visits, phase)]
            while more := self._more_draws(rounds, visits, sampler):
                if more == _EVERYTHING:
                    return self._exact(progress)
                rng, positions = self._positions(len(rounds), more)
                rounds.append(self._measure(sampler, plan, positions, rng, visits, phase))
            return self._measurement(plan, rounds, visits, sampler)

    def _positions(self, number: int, draws: int) -> tuple[np.random.Generator, Int64]:
        rng = generator(self._seed, "round", number, self._dataset.fingerprint)
        return rng, draw_positions(self._axis, draws, rng)

    def _measure(
        self, sampler: Sampler, plan: CountPlan, positions: Int64, rng: np.random.Generator, visits: int, phase: Phase
    ) -> Float64:
        found = sampler.measure(plan, positions, rng, visits=visits, advance=phase.advance)
        self._reasons.update(found.reasons)
        self._transient |= found.transient
        return found.values

    def _first_round(self) -> tuple[int, int]:
        """Choose how many draws to begin with, and how many rows to look at where one falls on a unit that is read whole.

        One row each is best while reading all those units is cheap or allowed; else fewer units get more rows each.
        """
        wanted = min(FIRST_DRAWS, self._estimation.calibration_samples)
        limit = self._estimation.byte_budget
        if limit is None:
            limit = max(_EASY_BYTES, int(_EASY_SHARE * int(self._dataset.units.stored_bytes.sum())))
        draws = wanted
        while draws > PER_STRATUM and self._cost(draws) > limit:
            draws = max(PER_STRATUM, min(draws - PER_STRATUM, int(draws * limit / self._cost(draws))))
        if self._estimation.byte_budget is None:
            draws = max(draws, min(wanted, _LEAST_UNITS))
        else:
            wanted = self._estimation.calibration_samples  # bytes are dear, then, and what was read is made the most of
        visits = 1 if self._dataset.units.addressable.all() else min(_MOST_VISITS, -(-wanted // draws))
        return draws, visits

    def _cost(self, draws: int) -> float:
        """Return the bytes that so many draws read, as expected: those that fall on one unit share it."""
        units = self._dataset.units
        probability = units.size / self._axis
        touched = -np.expm1(draws * np.log1p(-np.minimum(probability, 1 - 1e-12)))
        whole = float((touched * units.stored_bytes)[~units.addressable].sum())
        return whole + float(probability[units.addressable].sum()) * draws * _ROW_READ_BYTES

    def _more_draws(self, rounds: list[Float64], visits: int, sampler: Sampler) -> int:
        """Say how many draws the next round takes: 0 if there is no need or no hope, `_EVERYTHING` if counting all is cheaper."""
        values = np.concatenate(rounds)[:, 0]
        made, measured = len(values), int(np.isfinite(values).sum())
        if measured < PER_STRATUM or measured < _LEAST_MEASURED * made:
            return 0
        estimate = self._estimate(rounds, 0)
        # Who stops once the interval is narrow stops too often where it is so by chance: a little more is asked for.
        needed = draws_needed(estimate, self._estimation.target_rel_error) * (1 + math.sqrt(2 / estimate.degrees_of_freedom))
        if needed <= measured and measured * visits >= LEAST_DRAWS:
            return 0
        wanted = min(1e15, needed * _SAFETY * made / measured)
        if self._may_read_all() and wanted * visits * STRETCH_BYTES > self._axis:
            return _EVERYTHING
        more = int(min(max(wanted - made, LEAST_DRAWS // visits), _MOST_GROWTH * made))
        more = min(more, self._affordable(sampler, made))
        return more if more >= PER_STRATUM else 0

    def _affordable(self, sampler: Sampler, made: int) -> int:
        """Return how many draws more the budget of bytes allows, going by what they cost so far."""
        budget = self._estimation.byte_budget
        if budget is None:
            return 1 << 40
        units = self._dataset.units
        cost = sampler.stored_bytes_seen + made * _ROW_READ_BYTES * float(units.size[units.addressable].sum()) / self._axis
        return int(max(0.0, budget - cost) / max(1.0, cost / made))

    def _may_read_all(self) -> bool:
        budget = self._estimation.byte_budget
        return budget is None or int(self._dataset.units.stored_bytes.sum()) <= budget

    def _exact(self, progress: Progress) -> Measurement:
        from zephon_core.ratios.count import count_tokens

        counted = count_tokens(
            self._dataset,
            self._counting,
            replay=self._replay,
            measure=self._estimation.load_measure(),
            run=RatioRun(workers=self._workers),
            progress=progress,
        )
        self._reasons.update(counted.bad_rows)
        self._reasons.update(counted.bad_units)
        self._transient |= counted.transient
        share = counted.measured_share * self._readable_share()
        if share < _LEAST_MEASURED or not counted.tokens:
            reason = f"only {share:.0%} of the bytes could be measured as {counted.what}{_words(self._reasons)}"
            return _fallback(self._dataset, self._estimation, reason, retryable=self._transient)
        ratio, loss = counted.tokens_per_byte, counted.loss_tokens_per_byte
        return Measurement(
            ratio=ratio,
            source="measured",
            interval=(ratio, ratio),
            failed=1 - share,
            units=len(self._dataset.units),
            bytes_read=counted.bytes_read,
            design="exact",
            loss_ratio=loss,
            loss_interval=None if loss is None else (loss, loss),
            counted=counted.what,
            reason=self._left_out(share),
            reasons=tuple(self._reasons.most_common()),
            retryable=self._transient,
        )

    def _readable_share(self) -> float:
        """Return the share of the stored bytes that lies in shards which could be opened."""
        unread = sum(problem.stored_bytes for problem in self._dataset.problems)
        stored = sum(shard.stored_bytes for shard in self._dataset.shards)
        return stored / (stored + unread) if stored else 0.0

    def _left_out(self, share: float) -> str:
        return f"{1 - share:.2%} of the bytes are left out{_words(self._reasons)}" if self._reasons else ""

    def _estimate(self, rounds: list[Float64], output: int) -> Estimate:
        return combine_rounds([values[:, output] for values in rounds], self._estimation.confidence)

    def _measurement(self, plan: CountPlan, rounds: list[Float64], visits: int, sampler: Sampler) -> Measurement:
        made = sum(len(values) for values in rounds)
        measured = int(np.isfinite(np.concatenate(rounds)[:, 0]).sum())
        share = measured / made * self._readable_share()
        if share < _LEAST_MEASURED or measured < PER_STRATUM:
            reason = f"only {share:.0%} of the bytes drawn could be measured as {plan.description}{_words(self._reasons)}"
            return _fallback(self._dataset, self._estimation, reason, retryable=self._transient)
        scale = self._axis / self._raw
        estimate = self._estimate(rounds, 0)
        if estimate.mean <= 0:
            return _fallback(self._dataset, self._estimation, f"no token was found ({plan.description})")
        loss = self._estimate(rounds, 1) if len(plan.outputs) > 1 else None
        return Measurement(
            ratio=estimate.mean * scale,
            source="measured",
            interval=(estimate.low * scale, estimate.high * scale),
            draws=estimate.draws,
            failed=1 - share,
            units=sampler.units_seen,
            bytes_read=sampler.bytes_read,
            design="stratified" + (f", {visits} rows a draw" if visits > 1 else ""),
            design_effect=estimate.design_effect,
            degrees_of_freedom=estimate.degrees_of_freedom,
            loss_ratio=loss.mean * scale if loss else None,
            loss_interval=(loss.low * scale, loss.high * scale) if loss else None,
            counted=plan.description,
            reason=self._left_out(share),
            reasons=tuple(self._reasons.most_common()),
            retryable=self._transient,
        )


def _words(reasons: Counter[str]) -> str:
    """Tell the commonest reasons why something could not be measured, to follow what could not be."""
    told = "; ".join(f"{reason} ({count:,})" if count > 1 else reason for reason, count in reasons.most_common(3))
    return f": {told}" if told else ""


def _fallback(dataset: Dataset, estimation: TokenEstimation, reason: str, *, retryable: bool = False) -> Measurement:
    """Guess: the fallback is one of content bytes, and is put on the raw bytes that the training is charged with."""
    axis, raw = int(dataset.units.size.sum()), int(dataset.raw_bytes().sum())
    scale = axis / raw if axis and raw else 1.0
    return Measurement(estimation.fallback_tokens_per_byte * scale, "fallback", reason=reason, retryable=retryable)
