"""However ranks are interrupted, restored and dealt anew, an epoch is consumed exactly once, in the batches it would have had."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from zephon_core.batching import (
    ConsolidatedSamplerState,
    ConsolidatedTokenBatchState,
    ConsumptionAudit,
    StatefulShardSampler,
    StatefulTokenBatchSampler,
    TokenBatchOptions,
)

LONGEST = 12


@pytest.fixture(scope="module", autouse=True)
def short_stretches() -> Iterator[None]:
    """Plan a few examples at once, so that these small epochs consist of many stretches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zephon_core.batching.sampler.token_sampler._FIRST_STRETCH", 2)
        patch.setattr("zephon_core.batching.sampler.token_sampler._LONGEST_STRETCH", 6)
        yield


@st.composite
def epochs(draw: st.DrawFn, *, at_most: int = 40) -> dict[str, Any]:
    """A source, its limits, and a world."""
    lengths = draw(st.lists(st.integers(1, LONGEST), max_size=at_most))
    options = TokenBatchOptions(
        maximum_tokens=draw(st.integers(LONGEST, 3 * LONGEST)),
        maximum_examples=draw(st.none() | st.integers(1, 4)),
        layout=draw(st.sampled_from(["packed", "padded"])),
    )
    return {
        "lengths": np.array(lengths, np.int32),
        "options": options,
        "world_size": draw(st.integers(1, 9)),
        "seed": draw(st.none() | st.integers(0, 2**63 - 1)),
        "epoch": draw(st.integers(0, 3)),
        "tail": draw(st.sampled_from(["uneven", "drop"])),
    }


def sampler_of(case: dict[str, Any], rank: int) -> StatefulTokenBatchSampler:
    shard = StatefulShardSampler(
        "source",
        len(case["lengths"]),
        rank,
        case["world_size"],
        epoch=case["epoch"],
        shuffle_seed=case["seed"],
        tail=case["tail"],
    )
    return StatefulTokenBatchSampler(shard, case["lengths"], case["options"])


def world_of(case: dict[str, Any]) -> list[StatefulTokenBatchSampler]:
    return [sampler_of(case, rank) for rank in range(case["world_size"])]


def saved(sampler: StatefulTokenBatchSampler, *, inline: bool = False) -> str:
    return json.dumps(sampler.state(indices="inline" if inline else "recipe"))


def rest_of(sampler: StatefulTokenBatchSampler) -> list[list[int]]:
    return [plan.indices.tolist() for plan in sampler]


def resharded(
    samplers: list[StatefulTokenBatchSampler], world_size: int, *, inline: bool = False
) -> list[StatefulTokenBatchSampler]:
    whole = ConsolidatedTokenBatchState.consolidate([saved(sampler, inline=inline) for sampler in samplers])
    text = json.dumps(whole.to_json())
    return [StatefulTokenBatchSampler.reshard(text, rank, world_size) for rank in range(world_size)]


@given(case=epochs())
def test_the_ranks_together_hold_every_example_once(case: dict[str, Any]) -> None:
    count, world = len(case["lengths"]), case["world_size"]
    examples = [index for sampler in world_of(case) for batch in rest_of(sampler) for index in batch]
    dropped = count % world if case["tail"] == "drop" else 0
    assert len(examples) == len(set(examples)) == count - dropped
    assert set(examples) <= set(range(count))


@given(case=epochs(), rank=st.integers(0, 8), ahead=st.integers(0, 7), further=st.integers(0, 3), inline=st.booleans())
def test_interrupted_at_every_step_twice_it_goes_on_as_if_it_had_not_been(
    case: dict[str, Any], rank: int, ahead: int, further: int, inline: bool
) -> None:
    rank %= case["world_size"]
    whole = rest_of(sampler_of(case, rank))
    running = sampler_of(case, rank)
    for step in range(len(whole) + 1):
        while running.issued_batches < ahead and running.next_plan() is not None:
            pass
        once = StatefulTokenBatchSampler.from_state(saved(running, inline=inline))
        assert rest_of(once) == whole[step:]
        once.rewind_uncommitted()
        for _ in range(min(further, len(whole) - step)):
            once.next_plan()
            once.commit()
        twice = sampler_of(case, rank)
        twice.next_plan()
        twice.load_state(saved(once, inline=inline))
        assert rest_of(twice) == whole[step + further :]
        if step < len(whole):
            if not running.issued_batches:
                running.next_plan()
            running.commit()
    assert running.next_plan() is None


@given(case=epochs(), depths=st.lists(st.integers(0, 7), min_size=1, max_size=5))
def test_how_far_ahead_is_issued_never_matters(case: dict[str, Any], depths: list[int]) -> None:
    """A loader that prefetches, by another depth after every crash, commits the same batches and saves the same states."""
    plain, states = sampler_of(case, 0), []
    batches = []
    while (plan := plain.next_plan()) is not None:
        batches.append(plan.indices.tolist())
        plain.commit()
        states.append(plain.state())
    eager, waiting, step = sampler_of(case, 0), [], 0
    while step < len(batches):
        depth = depths[step % len(depths)]
        while len(waiting) < depth + 1 and (plan := eager.next_plan()) is not None:
            waiting.append(plan.indices.tolist())
        assert waiting.pop(0) == batches[step]
        eager.commit()
        assert eager.state() == states[step]
        step += 1
        if depth % 3 == 0:  # what was prefetched is lost
            eager, waiting = StatefulTokenBatchSampler.from_state(saved(eager)), []
    assert eager.next_plan() is None
    assert not waiting


@settings(max_examples=60)
@given(case=epochs(at_most=24), second=st.integers(1, 9), third=st.integers(1, 9), data=st.data(), inline=st.booleans())
def test_two_reshards_at_every_step_lose_and_repeat_nothing(
    case: dict[str, Any], second: int, third: int, data: st.DataObject, inline: bool
) -> None:
    """The first world stops at every step it has, its ranks up to two batches apart; the second one anywhere."""
    count, world = len(case["lengths"]), case["world_size"]
    everything = set(range(count))
    if case["tail"] == "drop":
        everything = {index for sampler in world_of(case) for batch in rest_of(sampler) for index in batch}
    apart = data.draw(st.lists(st.integers(0, 2), min_size=world, max_size=world))
    steps = max(len(rest_of(sampler)) for sampler in world_of(case))
    for step in range(steps + 1):
        consumed: list[int] = []
        samplers = world_of(case)
        for sampler, lead in zip(samplers, apart, strict=True):
            consumed += committed(sampler, step + lead)
        samplers = resharded(samplers, second, inline=inline)
        for rank, sampler in enumerate(samplers):
            consumed += committed(sampler, (step * 7 + rank * 3) % 4)
        samplers = resharded(samplers, third)
        for sampler in samplers:
            consumed += committed(sampler, count)
        assert len(consumed) == len(set(consumed))
        assert set(consumed) == everything


def committed(sampler: StatefulTokenBatchSampler, steps: int) -> list[int]:
    """Issue up to `steps` batches and two more, and commit all but those."""
    examples: list[int] = []
    for _ in range(steps):
        plan = sampler.next_plan()
        if plan is not None:
            examples += plan.indices.tolist()
    sampler.commit(sampler.issued_batches)
    sampler.next_plan()
    sampler.next_plan()
    return examples


@given(
    length=st.integers(0, 60),
    seed=st.none() | st.integers(0, 99),
    worlds=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    data=st.data(),
)
def test_shards_dealt_anew_cover_the_source(length: int, seed: int | None, worlds: list[int], data: st.DataObject) -> None:
    shards = [StatefulShardSampler("source", length, rank, worlds[0], shuffle_seed=seed) for rank in range(worlds[0])]
    consumed: list[int] = []
    for world in [*worlds[1:], 1]:
        for shard in shards:
            count = data.draw(st.integers(0, shard.length))
            taken = shard.look_ahead(0, shard.length)
            shard.issue(0, shard.length)
            shard.commit(count)
            consumed += taken[:count].tolist()
        inline = data.draw(st.lists(st.booleans(), min_size=len(shards), max_size=len(shards)))
        states = [shard.state("inline" if whole else "recipe") for shard, whole in zip(shards, inline, strict=True)]
        whole = ConsolidatedSamplerState.consolidate(states)
        assert whole.consumed == len(consumed)
        shards = [StatefulShardSampler.reshard(whole, rank, world) for rank in range(world)]
    consumed += shards[0].unissued_indices().tolist()
    assert sorted(consumed) == list(range(length))


class Training(RuleBasedStateMachine):
    """Ranks that issue, commit, crash and are dealt anew, in any order, over several epochs."""

    @initialize(case=epochs(at_most=60))
    def begin(self, case: dict[str, Any]) -> None:
        self.case, self.audit, self.epoch = case | {"tail": "uneven"}, ConsumptionAudit(), case["epoch"]
        self.samplers = world_of(self.case)
        self.issued: list[list[np.ndarray]] = [[] for _ in self.samplers]

    @rule(rank=st.integers(0, 8), count=st.integers(1, 7))
    def issue(self, rank: int, count: int) -> None:
        rank %= len(self.samplers)
        for _ in range(count):
            plan = self.samplers[rank].peek()
            assert plan == self.samplers[rank].next_plan()
            if plan is not None:
                self.issued[rank].append(plan.indices)

    @rule(rank=st.integers(0, 8), count=st.integers(1, 7))
    def commit(self, rank: int, count: int) -> None:
        rank %= len(self.samplers)
        count = min(count, len(self.issued[rank]))
        self.samplers[rank].commit(count)
        for indices in self.issued[rank][:count]:
            self.audit = self.audit.add(self.epoch, indices)
        del self.issued[rank][:count]

    @rule(rank=st.integers(0, 8), how=st.sampled_from(["from_state", "load_state", "rewind"]), inline=st.booleans())
    def crash(self, rank: int, how: str, inline: bool) -> None:
        rank %= len(self.samplers)
        self.issued[rank].clear()
        if how == "rewind":
            self.samplers[rank].rewind_uncommitted()
            return
        state = saved(self.samplers[rank], inline=inline)
        if how == "load_state":
            self.samplers[rank].load_state(state)
        else:
            self.samplers[rank] = StatefulTokenBatchSampler.from_state(state)

    @rule(world_size=st.integers(1, 9), inline=st.booleans())
    def reshard(self, world_size: int, inline: bool) -> None:
        self.samplers = resharded(self.samplers, world_size, inline=inline)
        self.issued = [[] for _ in self.samplers]

    @precondition(lambda self: self.epoch < self.case["epoch"] + 3)
    @rule()
    def finish_epoch(self) -> None:
        self.end()
        self.epoch += 1
        self.audit = ConsumptionAudit()
        for sampler in self.samplers:
            sampler.start_epoch(self.epoch)

    def end(self) -> None:
        for rank, sampler in enumerate(self.samplers):
            self.issued[rank] += [plan.indices for plan in sampler]
            self.commit(rank, len(self.issued[rank]))
        assert self.audit == ConsumptionAudit.of_epoch(self.epoch, len(self.case["lengths"]))

    @invariant()
    def no_more_than_an_epoch_is_consumed(self) -> None:
        if hasattr(self, "samplers"):
            assert self.audit.count <= len(self.case["lengths"])
            assert [sampler.issued_batches for sampler in self.samplers] == [len(issued) for issued in self.issued]

    def teardown(self) -> None:
        if hasattr(self, "samplers"):
            self.end()


TestTraining = Training.TestCase
TestTraining.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
