"""What a plan is like: padding, waiting, sizes, and how well the order is still shuffled. Exact figures of the whole plan."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from zephon_core.batching.lengths import LengthTable
from zephon_core.batching.options import TokenBatchOptions
from zephon_core.compiled import compiled
from zephon_core.errors import StateError

if TYPE_CHECKING:
    from zephon_core.batching.plan.global_plan import PlanArrays

__all__ = ["Distribution", "Imbalance", "Mixing", "PlanStatistics", "measure_plan"]

_BINS = 32
_DIGITS = 9
_IMPOSSIBLE = 2.0
_COUNTED_LENGTHS = 1 << 24

Int64 = npt.NDArray[np.int64]


class _Figures(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Distribution(_Figures):
    """Of a number that each batch has. edges: [bins + 1] and counts: [bins] are a histogram; the last bin holds its upper edge."""

    mean: float
    least: int
    p1: int
    p25: int
    median: int
    p75: int
    p99: int
    largest: int
    edges: tuple[int, ...]
    counts: tuple[int, ...]


class Imbalance(_Figures):
    """How far ranks wait for each other.

    A step's imbalance is the slots of its costliest batch over the mean of its batches, less one. idle_share: the part of all
    ranks' time that is waiting, if time goes with slots: 1 - slots / (ranks x the sum of each step's costliest batch).
    mean, median, p99, largest: of the steps but the last. last_step: of that one.
    """

    idle_share: float
    mean: float
    median: float
    p99: float
    largest: float
    last_step: float


class Mixing(_Figures):
    """How well the order is still shuffled: all three are near 0, and `step_clustering` near 1, for a random one.

    length_correlation, index_correlation: Spearman's, between an example's position in the plan and its length, or its number.
    neighbour_correlation: Pearson's, between the mean length of an example in one step and in the next.
    step_clustering: variance between steps of the batches' mean lengths, over what it would be with batches dealt at random: how
    far a step's ranks train on examples of like length. At most `world_size`. NaN-free: where nothing varies, 0 and 1.
    """

    length_correlation: float
    index_correlation: float
    neighbour_correlation: float
    step_clustering: float


class PlanStatistics(_Figures):
    """The figures of a plan.

    batches: those that aren't empty. padding_waste: 1 - real_tokens / token_slots. unfilled: 1 - token_slots / (batches x budget).
    batches_per_rank: [world_size], those that aren't empty. empty_batches: all are in the last step.
    """

    examples: int
    world_size: int
    steps: int
    batches: int
    empty_batches: int
    real_tokens: int
    token_slots: int
    padding_waste: float
    unfilled: float
    imbalance: Imbalance
    mixing: Mixing
    batches_per_rank: tuple[int, ...]
    batch_examples: Distribution
    batch_slots: Distribution

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return self.model_dump(mode="json")


def measure_plan(arrays: PlanArrays, options: TokenBatchOptions, world_size: int, table: LengthTable) -> PlanStatistics:
    """Measure a plan. One pass over its examples, which is what takes the time."""
    sizes = np.diff(arrays.offsets)
    filled = sizes > 0
    batches, steps = int(filled.sum()), len(sizes) // world_size
    real, slots = _total(arrays.real_tokens), _total(arrays.token_slots)
    return PlanStatistics(
        examples=len(arrays.examples),
        world_size=world_size,
        steps=steps,
        batches=batches,
        empty_batches=len(sizes) - batches,
        real_tokens=real,
        token_slots=slots,
        padding_waste=_rounded(1 - real / slots if slots else 0.0),
        unfilled=_rounded(1 - slots / (batches * options.maximum_tokens) if batches else 0.0),
        imbalance=_imbalance(arrays.token_slots.reshape(steps, world_size), slots),
        mixing=_mixing(arrays, sizes, world_size, table),
        batches_per_rank=tuple(filled.reshape(steps, world_size).sum(axis=0).tolist()),
        batch_examples=_distribution(sizes[filled]),
        batch_slots=_distribution(arrays.token_slots[filled]),
    )


def _imbalance(slots: Int64, total: int) -> Imbalance:
    """slots: int64 [steps, ranks]."""
    costliest = slots.max(axis=1, initial=0)
    reached = _total(costliest) * slots.shape[1]
    means = slots.mean(axis=1)
    each = np.divide(costliest, means, out=np.ones(len(means)), where=means > 0) - 1
    whole = each[:-1] if len(each) > 1 else np.zeros(1)
    median, high = np.quantile(whole, [0.5, 0.99])
    return Imbalance(
        idle_share=_rounded(1 - total / reached if reached else 0.0),
        mean=_rounded(whole.mean()),
        median=_rounded(median),
        p99=_rounded(high),
        largest=_rounded(whole.max()),
        last_step=_rounded(each[-1] if len(each) else 0.0),
    )


def _mixing(arrays: PlanArrays, sizes: Int64, world_size: int, table: LengthTable) -> Mixing:
    count = len(arrays.examples)
    by_length, of_lengths = _length_ranks(table, arrays.examples)
    by_index = np.zeros(0, np.int64) if count == table.count else _index_ranks(arrays.examples, table.count)
    if of_lengths is None:
        lengths, indices = _correlations(arrays.examples, table.values, by_length, by_index)
    else:
        lengths, indices = _correlations(arrays.examples, of_lengths, np.zeros(0), by_index)
    if lengths > _IMPOSSIBLE:
        raise _rewritten()
    whole = max(0, len(sizes) - world_size)
    tokens, held = (array[:whole].reshape(-1, world_size) for array in (arrays.real_tokens, sizes))
    means = tokens / np.maximum(held, 1)
    varied = means.var() if whole else 0.0
    between = means.mean(axis=1).var() * world_size / varied if varied else 1.0
    per_step = tokens.sum(axis=1, dtype=np.float64) / np.maximum(held.sum(axis=1), 1)
    return Mixing(
        length_correlation=_rounded(lengths),
        index_correlation=_rounded(indices),
        neighbour_correlation=_rounded(_pearson(per_step[:-1], per_step[1:])),
        step_clustering=_rounded(between),
    )


def _length_ranks(table: LengthTable, examples: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any] | None]:
    """Return the mean rank of each length, by length; or, where lengths are too large to count, nothing and each example's."""
    if table.longest < _COUNTED_LENGTHS:
        counts = _counted(examples, table.values, table.longest + 1)
        if not len(counts):
            raise _rewritten()
        return np.cumsum(counts) - (counts + 1) / 2, None
    distinct, inverse, counts = np.unique(table.values[examples], return_inverse=True, return_counts=True)
    ranks = np.zeros(table.count)
    ranks[examples] = (np.cumsum(counts) - (counts + 1) / 2)[inverse]
    return np.zeros(len(distinct)), ranks


def _index_ranks(examples: npt.NDArray[Any], count: int) -> Int64:
    there = np.zeros(count, np.int64)
    there[examples] = 1
    return np.cumsum(there) - 1


@compiled
def _counted(examples: Any, values: Any, size: int) -> Any:
    counts = np.zeros(size, np.int64)
    for k in range(len(examples)):
        length = values[np.uint64(examples[k])]
        if not 1 <= length < size:
            return counts[:0].copy()
        counts[np.uint64(length)] += 1
    return counts


@compiled
def _correlations(examples: Any, values: Any, ranks_of_values: Any, ranks_of_examples: Any) -> tuple[float, float]:
    """Correlate positions 0, 1, … with ranks of lengths and of indices; more than 1 where a length has no rank.

    values: what the ranks of an example's length are found by: its length, or the rank itself if `ranks_of_values` is empty.
    """
    middle = (len(examples) - 1) / 2
    by_position, by_length, by_index, with_length, with_index = 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(len(examples)):
        example = np.uint64(examples[k])
        length = np.float64(values[example])
        if len(ranks_of_values):
            if not 0 <= values[example] < len(ranks_of_values):
                return 3.0, 3.0
            length = ranks_of_values[np.uint64(values[example])]
        index = np.float64(examples[k])
        if len(ranks_of_examples):
            index = np.float64(ranks_of_examples[example])
        length, index, position = length - middle, index - middle, k - middle
        by_position += position * position
        by_length += length * length
        by_index += index * index
        with_length += position * length
        with_index += position * index
    first, second = by_position * by_length, by_position * by_index
    return (
        with_length / math.sqrt(first) if first > 0 else 0.0,
        with_index / math.sqrt(second) if second > 0 else 0.0,
    )


def _rewritten() -> StateError:
    return StateError("lengths", "were written to while they were in use", remedy="Make the table anew, and plan again.")


def _pearson(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    if len(first) < 2 or first.std() == 0 or second.std() == 0:
        return 0.0
    return float(np.mean((first - first.mean()) * (second - second.mean())) / (first.std() * second.std()))


def _distribution(values: Int64) -> Distribution:
    if not len(values):
        values = np.zeros(1, np.int64)
    points = np.quantile(values, [0, 0.01, 0.25, 0.5, 0.75, 0.99, 1], method="lower").astype(np.int64).tolist()
    top = points[-1]
    width = max(1, -(-top // _BINS))
    counts = np.bincount(np.minimum(values // width, _BINS - 1), minlength=_BINS)
    named = dict(zip(("least", "p1", "p25", "median", "p75", "p99", "largest"), points, strict=True))
    edges = tuple(width * k for k in range(_BINS + 1))
    return Distribution(mean=_rounded(values.mean()), edges=edges, counts=tuple(counts.tolist()), **named)


def _total(values: Int64) -> int:
    """Add up without wrapping."""
    return (int((values >> 31).sum()) << 31) + int((values & (2**31 - 1)).sum())


def _rounded(value: float) -> float:
    return round(float(value), _DIGITS)
