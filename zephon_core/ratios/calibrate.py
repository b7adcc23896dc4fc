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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_core.errors import BudgetSpentError, MeasureError
from zephon_core.progress import NULL_PROGRESS, Phase, Progress
from zephon_core.ratios.byte_budget import ByteBudget
from zephon_core.ratios.counting import build_counter
from zephon_core.ratios.estimate import PER_STRATUM, Estimate, combine_rounds, draw_positions, draws_needed, generator
from zephon_core.ratios.estimation import GUESS_SPREAD, TokenEstimation
from zephon_core.ratios.looks import STRETCH_BYTES
from zephon_core.ratios.reading_cost import ROW_READ_BYTES
from zephon_core.ratios.sampling import Draws, Sampler
from zephon_core.ratios.specs import RatioRun
from zephon_core.store import ArtifactStore

if TYPE_CHECKING:
    from zephon_core.ratios.count import ExactCount
    from zephon_core.ratios.counting import CountingSpec, CountPlan, Replay, TokenCounter
    from zephon_core.ratios.datasets import Dataset

__all__ = ["Measurement", "calibrate"]

FIRST_DRAWS = 512
LEAST_DRAWS = 256
_PREFIX_ROWS = 8
_LEAST_MEASURED = 0.5
_FEW_DRAWS = 16
_TOO_FEW_DRAWS = 4
_LEAST_UNITS = 32
_SAFETY = 1.02
_MOST_GROWTH = 4
_MOST_UNITS_GROWTH = 1
# To look once more costs next to nothing where a unit is kept; where units are too large for that, they are looked at well at once.
_FIRST_VISITS = 8
_ONLY_VISITS = 128
_MOST_VISITS = 512
_WORTH_LOOKING_AGAIN = 1.5
_MOST_TO_KEEP_BYTES = 256 << 20
_MOST_TOKENS_A_BYTE = 1.0
_ENCODED_BYTES = 16 << 20  # about as much as a calibration encodes
# What the first round may read without being asked for thrift: a share of the data set, but never less or more than this.
_EASY_SHARE = 0.01
_EASY_BYTES = (8 << 20, 64 << 20)

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Measurement:
    """Tokens per raw byte of one data set.

    ratio: tokens a raw byte; source: measured or fallback; interval: (low, high) at the confidence that was asked for.
    draws: measured ones; failed: those that could not be measured, as a share of all, and `reasons` says why: what they would have
    shown is not in the ratio, but the interval has room for it. units: how many different ones were read or read in. bytes_read:
    off the disk or wire. design: stratified (draws in proportion to size, two in each of many equal parts), exact (everything was
    counted), or counted in part (all that could be).
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
    store: ArtifactStore | None = None,
    progress: Progress = NULL_PROGRESS,
) -> Measurement:
    """Measure a data set's ratio; the result depends on content, settings and seed alone.

    workers: how many units are read at once; 0: one a core. store: where a faster encoder's proof is kept; None: the default.
    Where less than half of the draws can be measured, the result is a fallback that says why. Raises FatalCountError for a row
    that the training would refuse; SpecError, TokenizerError for settings that can't be used.
    """
    try:
        store = store or ArtifactStore()
        return _Calibration(dataset, counting, estimation, seed, replay, workers or os.cpu_count() or 1, store).run(progress)
    except MeasureError as error:
        return _fallback(dataset, estimation, str(error))


class _Step(NamedTuple):
    """What to do next: so many draws more, or look so often at what was drawn, or count everything."""

    draws: int = 0
    visits: int = 0
    everything: bool = False


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
        store: ArtifactStore,
    ) -> None:
        self._store = store
        self._dataset = dataset
        self._counting = counting
        self._estimation = estimation
        self._seed = seed
        self._replay = replay
        self._workers = workers
        self._axis = int(dataset.units.size.sum())
        self._budget: ByteBudget | None = None
        self._is_spent = False
        self._tries = 0
        self._raw = int(dataset.raw_bytes().sum())
        self._reasons: Counter[str] = Counter(problem.reason for problem in dataset.problems)
        self._transient = any(problem.transient for problem in dataset.problems)

    def run(self, progress: Progress) -> Measurement:
        if not self._axis or not self._raw:
            reason = f"holds nothing that can be read{_words(self._reasons)}"
            return _fallback(self._dataset, self._estimation, reason, retryable=self._transient)
        small = self._raw <= self._estimation.exact_below_bytes
        limit = self._estimation.byte_budget
        if small and limit is None:
            return self._counted(progress)
        with ExitStack() as stack:
            sampler = Sampler(self._dataset, threads=self._workers, stack=stack, byte_budget=limit)
            if limit is not None:
                self._budget = ByteBudget(self._dataset, sampler, limit, self._seed)
            try:
                if small and self._may_read_rest():
                    return self._counted_at_once(sampler, progress)
                if self._fitting < _LEAST_MEASURED:
                    return _fallback(self._dataset, self._estimation, f"two draws read more than the byte budget of {limit:,}")
                return self._sampled(sampler, stack, progress)
            except BudgetSpentError:
                reason = f"the first rows that were looked at read more than the byte budget of {limit:,}"
                fallback = _fallback(self._dataset, self._estimation, reason, retryable=self._transient)
                return replace(fallback, bytes_read=sampler.bytes_read)

    def _counted_at_once(self, sampler: Sampler, progress: Progress) -> Measurement:
        from zephon_core.ratios.count import prefix_rows

        counter = self._counter()
        plan = counter.plan(sampler.first_rows(prefix_rows(self._replay)))
        return self._counted_rest(sampler, plan, counter.encoder, progress)

    def _sampled(self, sampler: Sampler, stack: ExitStack, progress: Progress) -> Measurement:
        """Draw in rounds, as many as are needed or may be read. Raises BudgetSpentError if not even the first can be."""
        while (first := self._affordable(sampler, 0, self._first_draws())) is None:
            self._tries += 1
        rng, positions = first
        visits = self._first_visits(len(positions))
        looks = positions[:: -(-len(positions) // _PREFIX_ROWS)]
        counter = self._counter()
        plan = counter.plan(sampler.look(looks, _PREFIX_ROWS, whole=self._replay is not None))
        phase = stack.enter_context(progress.phase(f"calibrate {self._dataset.name}", total=None, unit="draws"))
        rounds = [self._measure(sampler, plan, positions, rng, visits, phase)]
        try:
            while step := self._next_step(rounds, visits, sampler):
                if step.everything:
                    if self._budget is None:
                        return self._counted(progress)
                    return self._counted_rest(sampler, plan, counter.encoder, progress)
                if step.visits:
                    again = [self._positions(number, len(found.values)) for number, found in enumerate(rounds)]
                    rounds = [self._measure(sampler, plan, positions, rng, step.visits, phase) for rng, positions in again]
                    visits = step.visits
                elif more := self._affordable(sampler, len(rounds), step.draws, made=sum(len(found.values) for found in rounds)):
                    rng, positions = more
                    rounds.append(self._measure(sampler, plan, positions, rng, visits, phase))
                else:
                    self._is_spent = True
                    break
        except BudgetSpentError:  # what cost more than was known of it; what was found before counts
            self._is_spent = True
            self._reasons["a round of draws that read more than the byte budget had left"] += 1
        for found in rounds:
            self._reasons.update(found.reasons)
        if self._fitting < 1:
            self._reasons["two draws at times read more than the byte budget"] += 1
        return self._measurement(plan, rounds, visits, sampler)

    @property
    def _fitting(self) -> float:
        """How likely two draws fit in the budget. Those that do are the cheaper ones: for the rest, the interval must have room."""
        return 1.0 if self._budget is None else self._budget.fitting

    def _counter(self) -> TokenCounter:
        return build_counter(
            self._counting,
            replay=self._replay,
            measure=self._estimation.load_measure(),
            text_bytes=min(self._axis, _ENCODED_BYTES),
            threads=self._workers,
            store=self._store,
        )

    def _positions(self, number: int, draws: int) -> tuple[np.random.Generator, Int64]:
        again = () if number or not self._tries else ("try", self._tries)
        rng = generator(self._seed, "round", number, *again, self._dataset.fingerprint)
        return rng, draw_positions(self._axis, draws, rng)

    def _measure(
        self, sampler: Sampler, plan: CountPlan, positions: Int64, rng: np.random.Generator, visits: int, phase: Phase
    ) -> Draws:
        found = sampler.measure(plan, positions, rng, visits=visits, advance=phase.advance)
        self._transient |= found.transient
        return found

    def _first_draws(self) -> int:
        """Choose how many draws to begin with: fewer where reading so many units isn't cheap or allowed."""
        wanted = min(FIRST_DRAWS, self._estimation.calibration_samples)
        limit = self._estimation.byte_budget
        if limit is None:
            limit = int(np.clip(_EASY_SHARE * int(self._dataset.units.stored_bytes.sum()), *_EASY_BYTES))
        draws = wanted
        while draws > PER_STRATUM and self._cost(draws) > limit:
            draws = max(PER_STRATUM, min(draws - PER_STRATUM, int(draws * limit / self._cost(draws))))
        return draws if self._estimation.byte_budget is not None else max(draws, min(wanted, _LEAST_UNITS))

    def _first_visits(self, draws: int) -> int:
        """Choose how often to look where one of so many draws falls on a unit that is read whole: the oftener the fewer."""
        units = self._dataset.units
        if units.addressable.all():
            return 1
        wanted, most = min(FIRST_DRAWS, self._estimation.calibration_samples), _FIRST_VISITS
        if self._estimation.byte_budget is not None or self._expected(draws, units.size) > _MOST_TO_KEEP_BYTES:
            wanted, most = self._estimation.calibration_samples, _ONLY_VISITS  # what was read is made the most of
        return min(most, -(-wanted // draws))

    def _cost(self, draws: int) -> float:
        """Return the bytes that so many draws read, as expected."""
        units = self._dataset.units
        rows = float(units.size[units.addressable].sum()) / self._axis * draws
        return self._expected(draws, units.stored_bytes) + rows * ROW_READ_BYTES

    def _expected(self, draws: int, unit_bytes: Int64) -> float:
        """Return how many bytes of units are read whole for so many draws, as expected: those that fall on one unit share it."""
        units = self._dataset.units
        touched = -np.expm1(draws * np.log1p(-np.minimum(units.size / self._axis, 1 - 1e-12)))
        return float((touched * unit_bytes)[~units.addressable].sum())

    def _next_step(self, rounds: list[Draws], visits: int, sampler: Sampler) -> _Step | None:
        """Say what to do next: draw more, look more often at what was read, or count everything; None if nothing need be done."""
        values = np.concatenate([found.values for found in rounds])[:, 0]
        made, measured = len(values), float(sum(found.measured.sum() for found in rounds))
        if np.isfinite(values).sum() < PER_STRATUM or measured < _LEAST_MEASURED * made:
            return None
        estimate = self._estimate(rounds, 0, visits)
        within, between = _variances(rounds, estimate, visits)
        # Who stops once the interval is narrow stops too often where it is so by chance: a little more is asked for.
        needed = draws_needed(estimate, self._estimation.target_rel_error) * (1 + math.sqrt(2 / estimate.degrees_of_freedom))
        # Looks at one unit are worth as many draws only where units are alike.
        worth = (between + within) / (between + within / visits) if between + within > 0 else visits
        needed = max(needed, LEAST_DRAWS / worth)
        if needed <= measured:
            return None
        wanted = min(1e15, needed * _SAFETY * made / measured)
        if self._may_read_rest() and wanted * visits * STRETCH_BYTES > self._axis:
            return _Step(everything=True)
        best = self._best_visits(within, between, visits, wanted, made, sampler)
        first = len(rounds) == 1 and visits == _FIRST_VISITS
        if best >= _WORTH_LOOKING_AGAIN * visits or (first and visits >= _WORTH_LOOKING_AGAIN * best):
            return _Step(visits=best)
        growth = _MOST_UNITS_GROWTH if visits > 1 else _MOST_GROWTH
        return _Step(draws=int(min(max(wanted - made, LEAST_DRAWS // visits, PER_STRATUM), growth * made)))

    def _best_visits(self, within: float, between: float, visits: int, wanted: float, made: int, sampler: Sampler) -> int:
        """Say how often to look at each unit that is read, so that fewest bytes are read and counted, both together."""
        seen = sampler.decoded_bytes_seen
        if visits == 1 or not seen or seen > _MOST_TO_KEEP_BYTES:
            return visits
        limit = max(visits, min(_MOST_VISITS, seen // (sampler.units_seen * STRETCH_BYTES)))

        def cost(looks: int) -> float:
            spread = between + within / visits
            draws = max(made, min(1e9, wanted * (between + within / looks) / spread if spread > 0 else made))
            return self._cost(int(draws)) + draws * looks * STRETCH_BYTES

        candidates = [2**power for power in range(1, limit.bit_length())]
        return int(min((*candidates, limit), key=cost))

    def _affordable(self, sampler: Sampler, number: int, draws: int, *, made: int = 0) -> tuple[np.random.Generator, Int64] | None:
        """Draw a round's positions, as many of those wanted as the budget of bytes has room for; None for none.

        made: draws in earlier rounds. Far fewer than those aren't worth it; of the first round, two are tried in any case.
        """
        budget = self._budget
        if budget is None:
            return self._positions(number, draws)
        draws = budget.room_for(number, draws)
        if made and draws < max(PER_STRATUM, made // 8):
            return None
        rng, positions = self._positions(number, max(draws, PER_STRATUM))
        return (rng, positions) if budget.takes(sampler.units_at(positions)) else None

    def _may_read_rest(self) -> bool:
        return self._budget is None or self._budget.covers_rest()

    def _counted(self, progress: Progress) -> Measurement:
        """Count everything, with all processes, which read some of it more than once."""
        from zephon_core.ratios.count import count_tokens

        run = RatioRun(workers=self._workers, store=str(self._store.root))
        measure = self._estimation.load_measure()
        counted = count_tokens(self._dataset, self._counting, replay=self._replay, measure=measure, run=run, progress=progress)
        return self._exact(counted, counted.bytes_read)

    def _counted_rest(self, sampler: Sampler, plan: CountPlan, encoder: str, progress: Progress) -> Measurement:
        """Count everything, and read nothing of it twice."""
        from zephon_core.ratios.count import count_units

        counted = count_units(self._dataset, sampler.every_unit(plan), plan, encoder, progress=progress)
        return self._exact(counted, sampler.bytes_read)

    def _exact(self, counted: ExactCount, bytes_read: int) -> Measurement:
        self._reasons.update(counted.bad_rows)
        self._reasons.update(counted.bad_units)
        self._transient |= counted.transient
        share = counted.measured_share * self._dataset.readable_share
        if share < _LEAST_MEASURED or not counted.tokens:
            reason = f"only {share:.0%} of the bytes could be measured as {counted.what}{_words(self._reasons)}"
            if share >= _LEAST_MEASURED:
                reason = f"no token was found ({counted.what}){_words(self._reasons)}"
            return _fallback(self._dataset, self._estimation, reason, retryable=self._transient)
        ratio, loss = counted.tokens_per_byte, counted.loss_tokens_per_byte
        return Measurement(
            ratio=ratio,
            source="measured",
            interval=_with_rest(ratio, ratio, share),
            failed=1 - share,
            units=len(self._dataset.units),
            bytes_read=bytes_read,
            design="exact" if counted.complete else "counted in part",
            loss_ratio=loss,
            loss_interval=None if loss is None else _with_rest(loss, loss, share),
            counted=counted.what,
            reason=self._left_out(share),
            reasons=tuple(self._reasons.most_common()),
            retryable=self._transient,
        )

    def _left_out(self, share: float) -> str:
        if not self._reasons:
            return ""
        what = f"{1 - share:.2%} of the bytes are" if share < 1 else "what has no known size is"
        return f"{what} left out{_words(self._reasons)}"

    def _few(self, draws: int) -> str:
        """Warn of an interval that only a few draws tell of: it is as wide as they differ."""
        if not self._is_spent or draws >= _FEW_DRAWS:
            return ""
        return f"the byte budget has room for {draws} draws: a file unlike the others may not be among them"

    def _estimate(self, rounds: list[Draws], output: int, visits: int) -> Estimate:
        values = [found.values[:, output] for found in rounds]
        return combine_rounds(values, self._estimation.confidence, looks=visits, most=_MOST_TOKENS_A_BYTE)

    def _measurement(self, plan: CountPlan, rounds: list[Draws], visits: int, sampler: Sampler) -> Measurement:
        measured = np.concatenate([found.measured for found in rounds])
        share = float(measured.mean()) * self._dataset.readable_share * self._fitting
        if share < _LEAST_MEASURED or (measured > 0).sum() < PER_STRATUM:
            reason = f"only {share:.0%} of the bytes drawn could be measured as {plan.description}{_words(self._reasons)}"
            return _fallback(self._dataset, self._estimation, reason, retryable=self._transient)
        scale = self._axis / self._raw
        estimate = self._estimate(rounds, 0, visits)
        if estimate.mean <= 0:
            return _fallback(self._dataset, self._estimation, f"no token was found ({plan.description})")
        loss = self._estimate(rounds, 1, visits) if len(plan.outputs) > 1 else None
        # Two draws that fell on one file, or two that are alike, say nothing of the others: they are guessed at.
        told = share * sampler.seen_share if estimate.draws < _TOO_FEW_DRAWS else share
        return Measurement(
            ratio=estimate.mean * scale,
            source="measured",
            interval=_with_rest(estimate.low * scale, estimate.high * scale, told),
            draws=estimate.draws,
            failed=1 - share,
            units=sampler.units_seen,
            bytes_read=sampler.bytes_read,
            design="stratified" + (f", {visits} looks a draw" if visits > 1 else ""),
            design_effect=estimate.design_effect,
            degrees_of_freedom=estimate.degrees_of_freedom,
            loss_ratio=loss.mean * scale if loss else None,
            loss_interval=_with_rest(loss.low * scale, loss.high * scale, told) if loss else None,
            counted=plan.description,
            reason="; ".join(filter(None, (self._left_out(share), self._few(estimate.draws)))),
            reasons=tuple(self._reasons.most_common()),
            retryable=self._transient,
        )


def _variances(rounds: list[Draws], estimate: Estimate, visits: int) -> tuple[float, float]:
    """Tell the variance of a look within its unit from that of units among each other, within strata."""
    one_draw = estimate.standard_error**2 * estimate.draws
    looks = np.concatenate([found.within for found in rounds])
    within = float(np.nanmean(looks)) if visits > 1 and np.isfinite(looks).any() else 0.0
    return within, max(0.0, one_draw - within / visits)


def _with_rest(low: float, high: float, share: float) -> tuple[float, float]:
    """Widen an interval of a ratio that only this share of the bytes was measured for: the rest may be any guess at it."""
    return low * (share + (1 - share) / GUESS_SPREAD), high * (share + (1 - share) * GUESS_SPREAD)


def _words(reasons: Counter[str]) -> str:
    """Tell the commonest reasons why something could not be measured, to follow what could not be."""
    told = "; ".join(f"{reason} ({count:,})" if count > 1 else reason for reason, count in reasons.most_common(3))
    return f": {told}" if told else ""


def _fallback(dataset: Dataset, estimation: TokenEstimation, reason: str, *, retryable: bool = False) -> Measurement:
    """Guess: the fallback is one of content bytes, and is put on the raw bytes that the training is charged with."""
    axis, raw = int(dataset.units.size.sum()), int(dataset.raw_bytes().sum())
    scale = axis / raw if axis and raw else 1.0
    return Measurement(estimation.fallback_tokens_per_byte * scale, "fallback", reason=reason, retryable=retryable)
