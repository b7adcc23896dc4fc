"""A loader that runs ahead as far as it likes, stops anywhere, twice, and goes on with another world: each example once."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_core.batching import (
    ConsolidatedTokenBatchState,
    GlobalBatchCursor,
    GlobalBatchPlan,
    StatefulShardSampler,
    StatefulTokenBatchSampler,
    TokenBatchOptions,
)
from zephon_core.batching.torch import TokenBatchSampler, read_states


@dataclass(frozen=True)
class Case:
    """An epoch, a world, how far each of three loaders runs ahead, and after how many batches the first two stop."""

    lengths: list[int]
    options: TokenBatchOptions
    world_size: int
    planned: bool
    depths: tuple[int, int, int]
    stops: tuple[int, int]
    next_world_size: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count, seed = draw(st.one_of(st.integers(0, 9), st.integers(10, 80))), draw(st.integers(0, 1 << 32))  # long ones come, too
    lengths = np.random.default_rng(seed).integers(1, 13, count).tolist()
    options = TokenBatchOptions(
        maximum_tokens=draw(st.integers(12, 40)),
        maximum_examples=draw(st.none() | st.integers(1, 5)),
        layout=draw(st.sampled_from(("packed", "padded"))),
    )
    depth, stop, world_size = st.integers(0, 7), st.integers(0, 9), st.integers(1, 9)
    depths, stops = draw(st.tuples(depth, depth, depth)), draw(st.tuples(stop, stop))
    return Case(lengths, options, draw(world_size), draw(st.booleans()), depths, stops, draw(world_size))


def made(case: Case, rank: int) -> TokenBatchSampler:
    if case.planned:
        plan = GlobalBatchPlan.build(case.lengths, case.options, world_size=case.world_size, seed=1, bucket_width=2)
        return TokenBatchSampler(GlobalBatchCursor(plan, rank))
    shard = StatefulShardSampler("numbers", len(case.lengths), rank, case.world_size, shuffle_seed=1)
    return TokenBatchSampler(StatefulTokenBatchSampler(shard, case.lengths, case.options))


class Loader:
    """What a loader with workers does: it asks for `depth` batches more than it has given out, and keeps the iterator's states."""

    def __init__(self, batches: TokenBatchSampler, depth: int, state: dict[str, Any] | None = None) -> None:
        self.iterator, self.depth = iter(batches), depth
        if state is not None:
            self.iterator.load_state_dict(state)
        self.ahead: deque[tuple[list[int], dict[str, Any]]] = deque()
        self.state = self.iterator.state_dict()  # as it was when the batch that was given out last was asked for

    def take(self, batches: int | None = None) -> list[list[int]]:
        taken: list[list[int]] = []
        while batches is None or len(taken) < batches:
            while len(self.ahead) <= self.depth and (batch := next(self.iterator, None)) is not None:
                self.ahead.append((batch, self.iterator.state_dict()))
            if not self.ahead:
                break
            batch, self.state = self.ahead.popleft()
            taken.append(batch)
        return taken


def through(state: dict[str, Any]) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(state))
    return copy


@settings(max_examples=60)
@given(cases())
def test_the_iterators_state_is_exact_however_far_it_ran_ahead(case: Case) -> None:
    for rank in range(case.world_size):
        whole = list(made(case, rank))
        seen, state = [], None
        for depth, stop in zip(case.depths, (*case.stops, None), strict=True):
            loader = Loader(made(case, rank), depth, state)
            seen += loader.take(stop)
            state = through(loader.state)
        assert seen == whole


@settings(max_examples=60)
@given(cases())
def test_the_samplers_state_is_what_was_committed_and_leads_to_any_world(case: Case) -> None:
    before, states = [], []
    for rank in range(case.world_size):
        batches, state = made(case, rank), None
        for depth, stop in zip(case.depths, case.stops, strict=False):
            batches = made(case, rank)
            if state is not None:
                batches.load_state_dict(state)
            taken = Loader(batches, depth).take(stop)
            batches.commit(len(taken))
            before += [index for batch in taken for index in batch]
            state = through(batches.state_dict())
        states.append(state)
    read = read_states(states)
    after = []
    for rank in range(case.next_world_size):
        if case.planned:
            left = GlobalBatchCursor.from_state(read[0], np.array(case.lengths, np.int32), 0)
            source: Any = GlobalBatchCursor(left.reshard(case.next_world_size), rank)
        else:
            together = ConsolidatedTokenBatchState.consolidate(read)
            source = StatefulTokenBatchSampler.reshard(
                together, rank, case.next_world_size, lengths=np.array(case.lengths, np.int32)
            )
        after += [index for batch in Loader(TokenBatchSampler(source), case.depths[2]).take() for index in batch]
    assert sorted(before + after) == list(range(len(case.lengths)))
