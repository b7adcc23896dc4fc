"""Whatever lengths, worlds, layouts and limits: every example once, limits kept, interruptions and new worlds invisible."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_core.batching.options import TokenBatchOptions
from zephon_core.batching.plan.cursor import GlobalBatchCursor
from zephon_core.batching.plan.global_plan import GlobalBatchPlan

worlds = st.integers(1, 9)


@st.composite
def settings_of_plans(draw):
    layout = draw(st.sampled_from(["packed", "padded"]))
    budget = draw(st.integers(1, 50))
    options = TokenBatchOptions(maximum_tokens=budget, maximum_examples=draw(st.none() | st.integers(1, 5)), layout=layout)
    lengths = np.array(draw(st.lists(st.integers(1, budget), max_size=120)), draw(st.sampled_from([np.int32, np.int64])))
    seed = draw(st.none() | st.integers(0, 2**63 - 1))
    more = {"seed": seed, "epoch": draw(st.integers(0, 3)), "bucket_width": draw(st.integers(0, 5))}
    more["window_steps"] = draw(st.integers(1, 9))
    return lengths, options, more | {"world_size": draw(worlds)}


def planned(case) -> tuple[np.ndarray, GlobalBatchPlan]:
    lengths, options, more = case
    return lengths, GlobalBatchPlan.build(lengths, options, **more)


def check(plan: GlobalBatchPlan, lengths: np.ndarray, examples: list[int]) -> None:
    """Hold a plan against what it was made of."""
    held = []
    for step in range(plan.steps):
        batches = [plan.batch(step, rank) for rank in range(plan.world_size)]
        count = sum(len(batch.indices) for batch in batches)
        for batch in batches:
            mine = lengths[batch.indices]
            held += batch.indices.tolist()
            if not len(mine):
                assert step == plan.steps - 1
                assert count < plan.world_size
                continue
            cost = mine.sum() if plan.options.layout == "packed" else len(mine) * mine.max()
            assert (batch.real_tokens, batch.maximum_sequence_length, batch.token_slots) == (mine.sum(), mine.max(), cost)
            assert cost <= plan.options.maximum_tokens
            assert len(mine) <= (plan.options.maximum_examples or len(mine))
    assert sorted(held) == examples
    assert plan.count == len(examples)


@settings(max_examples=150)
@given(settings_of_plans())
def test_every_example_once_and_every_batch_within_limits(case):
    lengths, plan = planned(case)
    check(plan, lengths, list(range(len(lengths))))


@settings(max_examples=60)
@given(settings_of_plans(), st.integers(0, 8), st.data())
def test_interrupted_anywhere_and_restored_is_uninterrupted(case, rank, data):
    """At every step, with anything prefetched, and with batches left out."""
    lengths, plan = planned(case)
    rank %= plan.world_size
    skipped = data.draw(st.sets(st.integers(0, max(plan.steps * plan.world_size - 1, 0)), max_size=12 if plan.steps else 0))
    whole = [batch.indices.tolist() for batch in GlobalBatchCursor(plan, rank, skip=skipped)]
    cursor = GlobalBatchCursor(plan, rank, skip=skipped)
    for taken in range(len(whole) + 1):
        depth = data.draw(st.integers(0, 7))
        for _ in range(depth):
            cursor.next_plan()
        state = json.dumps(cursor.state())
        cursor.rewind_uncommitted()
        other = GlobalBatchCursor.from_state(state, lengths, rank)
        assert [batch.indices.tolist() for batch in other] == whole[taken:]
        if cursor.next_plan() is not None:
            cursor.commit(1)


@settings(max_examples=100)
@given(settings_of_plans(), st.lists(st.tuples(worlds, st.integers(0, 60)), min_size=2, max_size=4), st.data())
def test_world_after_world_consumes_each_example_once(case, changes, data):
    """W, then others, each at any step, two or more in one epoch, with some batches left out."""
    lengths, plan = planned(case)
    consumed, left_out = [], []
    for world_size, step in changes:
        step = min(step, plan.steps)
        cursors = [GlobalBatchCursor(plan, rank) for rank in range(plan.world_size)]
        skipped = data.draw(st.sets(st.integers(0, plan.steps * plan.world_size - 1), max_size=3)) if plan.steps else set()
        for cursor in cursors:
            cursor.skip(skipped)
            while cursor.step < step:
                consumed += cursor.next_plan().indices.tolist()
                cursor.commit(1)
        left_out += [one for number in skipped for one in plan.batch(*divmod(number, plan.world_size)).indices.tolist()]
        after = cursors[0].reshard(world_size)
        assert {json.dumps(cursor.state()) for cursor in cursors} == {json.dumps(cursors[0].state())}
        again = GlobalBatchPlan.restore(lengths, json.loads(json.dumps(after.recipe.to_json())))
        assert again.digest == after.digest
        assert np.array_equal(again.arrays.examples, after.arrays.examples)
        assert np.array_equal(again.arrays.offsets, after.arrays.offsets)
        plan = after
        check(plan, lengths, sorted(set(range(len(lengths))) - set(consumed) - set(left_out)))
    for rank in range(plan.world_size):
        consumed += [one for batch in GlobalBatchCursor(plan, rank) for one in batch.indices.tolist()]
    assert sorted(consumed + left_out) == list(range(len(lengths)))
