"""Token-budget batches of a rank: what they hold, the cursors, and what is refused."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from zephon_core.batching import (
    LengthTable,
    StatefulShardSampler,
    StatefulTokenBatchSampler,
    TokenBatchOptions,
    TokenBatchPlan,
    cut_batches,
    epoch_order,
)
from zephon_core.errors import InputError, LengthError, SpecError

LENGTHS = np.random.default_rng(5).integers(1, 30, 200)
OPTIONS = TokenBatchOptions(maximum_tokens=64)


def batches(
    rank: int = 0, world_size: int = 1, *, lengths: Any = LENGTHS, options: TokenBatchOptions = OPTIONS, **settings: Any
) -> StatefulTokenBatchSampler:
    shard = StatefulShardSampler("source", len(lengths), rank, world_size, **({"shuffle_seed": 3} | settings))
    return StatefulTokenBatchSampler(shard, lengths, options)


def rest_of(sampler: StatefulTokenBatchSampler) -> list[list[int]]:
    return [plan.indices.tolist() for plan in sampler]


def issued(sampler: StatefulTokenBatchSampler) -> TokenBatchPlan:
    plan = sampler.next_plan()
    assert plan is not None
    return plan


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("maximum_examples", [None, 3])
def test_batches_are_the_greedy_cut_of_the_ranks_shard(layout: Any, seed: int | None, maximum_examples: int | None) -> None:
    options = TokenBatchOptions(maximum_tokens=64, maximum_examples=maximum_examples, layout=layout)
    for rank in range(3):
        shard = epoch_order(200, seed=seed, epoch=1)[rank::3]
        offsets = cut_batches(LENGTHS, shard, options)
        sampler = batches(rank, 3, options=options, shuffle_seed=seed, epoch=1)
        for begin, end in pairwise(offsets):
            plan = issued(sampler)
            inside = LENGTHS[shard[begin:end]]
            assert plan.indices.dtype == np.int64
            assert plan.indices.tolist() == shard[begin:end].tolist()
            assert (plan.real_tokens, plan.maximum_sequence_length) == (inside.sum(), inside.max())
            assert plan.token_slots == (inside.sum() if layout == "packed" else len(inside) * inside.max())
            assert plan.token_slots <= 64
            assert [type(number) for number in plan[1:]] == [int, int, int]
        assert sampler.peek() is None
        assert sampler.next_plan() is None


def test_peek_moves_nothing() -> None:
    sampler = batches()
    for _ in range(5):
        plan = sampler.peek()
        assert plan == sampler.peek()
        assert sampler.issued_batches == sampler.sampler.issued == 0
    assert issued(sampler) == plan
    assert (sampler.issued_batches, sampler.sampler.issued, sampler.sampler.committed) == (1, len(plan.indices), 0)  # type: ignore[union-attr]


def test_committing_counts_batches() -> None:
    sampler = batches()
    sizes = [len(issued(sampler).indices) for _ in range(4)]
    sampler.commit(0)
    sampler.commit()
    assert (sampler.issued_batches, sampler.sampler.committed) == (3, sizes[0])
    sampler.commit(2)
    assert (sampler.issued_batches, sampler.sampler.committed, sampler.sampler.issued) == (1, sum(sizes[:3]), sum(sizes))
    for wrong in (2, -1, True, 1.0):
        with pytest.raises(SpecError, match="commit"):
            sampler.commit(wrong)  # type: ignore[arg-type]
    assert sampler.issued_batches == 1


def test_committing_across_stretches_of_planning() -> None:
    """More batches are issued than are planned at once, and committed in other portions than they were issued in."""
    sampler = batches(lengths=np.ones(20_000, np.int32), options=TokenBatchOptions(maximum_tokens=3), shuffle_seed=None)
    assert sum(1 for _ in sampler) == 6667
    done = 0
    for count in (1, 339, 1, 1, 5000, 0, 1325):
        sampler.commit(count)
        done += count
        assert (sampler.issued_batches, sampler.sampler.issued) == (6667 - done, 20_000)
        assert sampler.sampler.committed == sampler.state()["sampler"]["committed"] == min(3 * done, 20_000)


def test_rewinding_issues_the_same_again() -> None:
    sampler = batches()
    whole = rest_of(batches())
    for _ in range(7):
        sampler.next_plan()
    sampler.commit(3)
    sampler.rewind_uncommitted()
    assert sampler.issued_batches == 0
    assert rest_of(sampler) == whole[3:]


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_a_batch_longer_than_what_is_planned_at_once(layout: Any) -> None:
    options = TokenBatchOptions(maximum_tokens=10**9, layout=layout)
    sampler = batches(lengths=np.full(300_000, 7), options=options, shuffle_seed=None)
    plan = issued(sampler)
    assert (len(plan.indices), plan.real_tokens) == (300_000, 2_100_000)
    assert sampler.next_plan() is None


def test_epochs() -> None:
    sampler = batches(1, 2)
    sampler.next_plan()
    with pytest.raises(SpecError, match="start_epoch: is called with"):
        sampler.start_epoch(1)
    sampler.start_epoch(1, discard=True)
    assert sampler.epoch == 1
    assert rest_of(sampler) == rest_of(batches(1, 2, epoch=1))
    sampler.commit(sampler.issued_batches)
    sampler.start_epoch(2)
    assert rest_of(sampler) == rest_of(batches(1, 2, epoch=2))


def test_an_empty_shard_has_no_batches() -> None:
    sampler = batches(3, 4, lengths=np.array([1, 2, 3]))
    assert sampler.peek() is None
    assert sampler.next_plan() is None
    assert sampler.load_next([1, 2, 3]) is None
    assert rest_of(StatefulTokenBatchSampler.from_state(sampler.state())) == []
    assert rest_of(batches(lengths=np.array([], np.int32))) == []


def test_load_next_loads_every_example_before_it_moves() -> None:
    class Torn(list[int]):
        broken: int | None = None

        def __getitem__(self, index: Any) -> Any:
            if index == self.broken:
                raise OSError("disk")
            return super().__getitem__(index)

    data = Torn(range(1000, 1200))
    sampler = batches()
    loaded = sampler.load_next(data)
    assert loaded is not None
    assert loaded.examples == [1000 + index for index in loaded.plan.indices]
    before = sampler.state()
    plan = sampler.peek()
    assert plan is not None
    data.broken = int(plan.indices[-1])
    with pytest.raises(OSError, match="disk"):
        sampler.load_next(data)
    assert (sampler.state(), sampler.issued_batches) == (before, 1)
    with pytest.raises(InputError, match="data set: has 3 examples"):
        sampler.load_next([1, 2, 3])
    with pytest.raises(InputError, match=f"data set: lacks example {plan.indices[0]}"):
        sampler.load_next({k: k for k in range(1000, 1200)})  # type: ignore[arg-type]
    assert sampler.issued_batches == 1
    data.broken = None
    again = sampler.load_next(data)
    assert again is not None
    assert again.plan == plan
    assert sampler.issued_batches == 2


def test_plans_compare_by_what_they_hold() -> None:
    plan = TokenBatchPlan(np.array([1, 2]), 5, 3, 6)
    assert plan == TokenBatchPlan(indices=np.array([1, 2]), real_tokens=5, maximum_sequence_length=3, token_slots=6)
    assert hash(plan) == hash(TokenBatchPlan(np.array([1, 2]), 5, 3, 6))
    for other in ((np.array([1, 3]), 5, 3, 6), (np.array([1]), 5, 3, 6), (np.array([1, 2]), 5, 3, 7)):
        assert plan != TokenBatchPlan(*other)
    assert plan != 1


def test_the_shard_belongs_to_its_batches() -> None:
    shard = StatefulShardSampler("source", 200, 0, 1)
    sampler = StatefulTokenBatchSampler(shard, LENGTHS, OPTIONS)
    sampler.next_plan()
    shard.next_indices(5)
    for attempt in (sampler.state, sampler.rewind_uncommitted, lambda: sampler.start_epoch(1)):
        with pytest.raises(SpecError, match="issue"):
            attempt()


@pytest.mark.parametrize(
    ("lengths", "error", "named"),
    [
        ([5, 6], SpecError, "lengths: are 2, expected 3, one of each example"),
        ([5, 0, 6], LengthError, "example 1: has length 0"),
        ([5, 6, 65], LengthError, "example 2: has length 65, which alone exceeds the budget"),
        (LengthTable.of([5, 6, 7], source_id="other"), SpecError, "lengths: are those of source 'other', expected source 'source'"),
    ],
)
def test_other_lengths_are_refused(lengths: Any, error: Any, named: str) -> None:
    with pytest.raises(error, match=named):
        StatefulTokenBatchSampler(StatefulShardSampler("source", 3, 0, 1), lengths, OPTIONS)


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_no_sum_wraps(layout: Any) -> None:
    most = 2**63 - 1
    lengths = np.array([2**62, 2**62, 2**62, most, 1])
    sampler = batches(lengths=lengths, options=TokenBatchOptions(maximum_tokens=most, layout=layout), shuffle_seed=None)
    assert [plan[1:] for plan in sampler] == [(length, length, length) for length in lengths.tolist()]


def test_a_shard_with_examples_in_the_air_is_refused() -> None:
    shard = StatefulShardSampler("source", 200, 0, 1)
    shard.next_indices(3)
    with pytest.raises(SpecError, match="sampler: has 3 examples issued and not committed"):
        StatefulTokenBatchSampler(shard, LENGTHS, OPTIONS)
    shard.commit(2)
    shard.rewind_uncommitted()
    sampler = StatefulTokenBatchSampler(shard, LENGTHS, OPTIONS)
    assert issued(sampler).indices[0] == 2
    assert (sampler.sampler.committed, sampler.sampler.issued > 2) == (2, True)


def test_lengths_that_are_overwritten_under_way_are_noticed() -> None:
    lengths = np.full(5000, 3, np.int32)
    sampler = batches(lengths=lengths, shuffle_seed=None)
    sampler.next_plan()
    lengths[4000] = 65
    with pytest.raises(LengthError, match="example 4000: has length 65, which alone exceeds the budget"):
        rest_of(sampler)
    lengths[4000] = 0
    with pytest.raises(LengthError, match="example 4000: has length 0"):
        rest_of(sampler)


@pytest.mark.parametrize("wrong", [{"lengths": "both"}, {"indices": "none"}])
def test_unknown_forms_of_a_state_are_refused(wrong: Any) -> None:
    with pytest.raises(SpecError, match=next(iter(wrong))):
        batches().state(**wrong)


def test_iterators_go_on_wherever_the_sampler_is() -> None:
    """What one has in hand of a stretch is nobody's once the sampler is moved, and nobody else's if another asks first."""
    whole = rest_of(batches())
    sampler = batches()
    first, second = iter(sampler), iter(sampler)
    seen = [next(first), next(second), issued(sampler), next(first)]
    assert [plan.indices.tolist() for plan in seen] == whole[:4]
    assert sampler.peek() == next(second)
    sampler.commit(2)
    sampler.rewind_uncommitted()
    assert [next(one).indices.tolist() for one in (second, first)] == whole[2:4]
    sampler.start_epoch(1, discard=True)
    other = rest_of(batches(epoch=1))
    assert [plan.indices.tolist() for plan in first] == other
    assert list(second) == []
    assert sampler.issued_batches == len(other)


def test_a_sampler_is_copied_in_the_middle_of_a_stretch() -> None:
    sampler = batches()
    for _ in range(5):
        sampler.next_plan()
    sampler.commit(2)
    for other in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
        assert rest_of(other) == rest_of(batches())[5:]
        other.rewind_uncommitted()
        assert rest_of(other) == rest_of(batches())[2:]
    assert rest_of(sampler) == rest_of(batches())[5:]
