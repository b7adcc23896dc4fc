"""A rank's place in a plan: interrupted at every step, moved, skipping, refused."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest

from zephon_core.batching.options import TokenBatchOptions
from zephon_core.batching.plan.cursor import GlobalBatchCursor
from zephon_core.batching.plan.global_plan import GlobalBatchPlan
from zephon_core.batching.state_fields import sealed
from zephon_core.errors import SpecError, StateError

LENGTHS = np.minimum(np.exp(np.random.default_rng(5).normal(3, 1, 900)).astype(np.int32) + 1, 500)


def plan_of(world_size: int = 3, **settings) -> GlobalBatchPlan:
    options = TokenBatchOptions(maximum_tokens=500, layout=settings.pop("layout", "padded"))
    return GlobalBatchPlan.build(LENGTHS, options, world_size=world_size, **settings)


def drained(cursor: GlobalBatchCursor) -> list[list[int]]:
    return [batch.indices.tolist() for batch in cursor]


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("bucket_width", [0, 4])
@pytest.mark.parametrize("world_size", range(1, 10))
def test_interruption_at_every_step_is_invisible(layout, bucket_width, world_size):
    plan = plan_of(world_size, layout=layout, bucket_width=bucket_width)
    for rank in range(world_size):
        whole = drained(GlobalBatchCursor(plan, rank))
        assert len(whole) == plan.steps
        cursor = GlobalBatchCursor(plan, rank)
        for step in range(plan.steps + 1):
            resumed = GlobalBatchCursor(plan, rank)
            resumed.load_state(json.loads(json.dumps(cursor.state())))
            assert resumed.step == step
            assert drained(resumed) == whole[step:]
            if cursor.next_plan() is not None:
                cursor.commit(1)


def test_what_is_prefetched_is_not_saved():
    plan = plan_of()
    whole = drained(GlobalBatchCursor(plan, 1))
    for depth in range(8):
        cursor = GlobalBatchCursor(plan, 1)
        for _ in range(5):
            cursor.next_plan()
            cursor.commit(1)
        ahead = [cursor.next_plan().indices.tolist() for _ in range(depth)]
        assert ahead == whole[5 : 5 + depth]
        assert (cursor.issued_batches, cursor.step, cursor.next_step) == (depth, 5, 5 + depth)
        other = GlobalBatchCursor.from_state(cursor.state(), LENGTHS, 1)
        assert drained(other) == whole[5:]
        cursor.rewind_uncommitted()
        assert cursor.peek().indices.tolist() == whole[5]
        assert drained(cursor) == whole[5:]


def test_a_state_is_the_same_for_every_rank_and_small():
    plan = plan_of(7, bucket_width=4)
    states = []
    for rank in range(7):
        cursor = GlobalBatchCursor(plan, rank, skip=range(40, 55))
        cursor.seek(4)
        states.append(cursor.state())
    assert all(state == states[0] for state in states)
    assert len(json.dumps(states[0])) < 1024
    later = GlobalBatchCursor(plan, 0)
    later.seek(plan.steps)
    assert abs(len(json.dumps(later.state())) - len(json.dumps(states[0]))) < 32


def test_a_state_survives_every_way_of_saving(tmp_path):
    torch = pytest.importorskip("torch")
    cursor = GlobalBatchCursor(plan_of(seed=2**63 - 1), 2, skip=[5, 6])
    cursor.seek(3)
    state = cursor.state()
    torch.save({"batches": state}, tmp_path / "checkpoint.pt")
    kept = [json.loads(json.dumps(state)), pickle.loads(pickle.dumps(state)), copy.deepcopy(state)]
    kept.append(torch.load(tmp_path / "checkpoint.pt", weights_only=True)["batches"])
    expected = drained(cursor)
    for one in [*kept, json.dumps(state), json.dumps(state).encode()]:
        other = GlobalBatchCursor.from_state(one, LENGTHS, 2)
        assert other.state() == state
        assert drained(other) == expected


def test_seeks_anywhere():
    plan = plan_of()
    whole = drained(GlobalBatchCursor(plan, 0))
    cursor = GlobalBatchCursor(plan, 0)
    for step in [*range(plan.steps, -1, -1), 3]:
        cursor.next_plan()
        cursor.seek(step)
        assert (cursor.step, cursor.issued_batches, cursor.remaining_batches) == (step, 0, plan.steps - step)
        assert cursor.peek() == (None if step == plan.steps else plan.batch(step, 0))
    assert drained(cursor) == whole[3:]
    for wrong in (-1, plan.steps + 1, 1.0, True):
        with pytest.raises(SpecError, match=r"^step: is "):
            cursor.seek(wrong)


def test_commits_no_more_than_was_issued():
    cursor = GlobalBatchCursor(plan_of(), 0)
    cursor.commit(0)
    cursor.next_plan()
    for wrong in (-1, 2, 1.0, True):
        with pytest.raises(SpecError, match=r"^batches: is "):
            cursor.commit(wrong)
    cursor.commit(1)
    assert cursor.step == 1


def test_whole_steps_that_are_skipped_are_passed_over():
    plan = plan_of(3)
    whole = drained(GlobalBatchCursor(plan, 1))
    skipping = range(4 * 3, 9 * 3)
    cursor = GlobalBatchCursor(plan, 1, skip=skipping)
    assert cursor.remaining_batches == plan.steps - 5
    assert drained(cursor) == whole[:4] + whole[9:]
    cursor.rewind_uncommitted()
    steps = []
    while cursor.next_plan() is not None:
        cursor.commit(1)
        steps.append(cursor.step)
        assert GlobalBatchCursor.from_state(cursor.state(), LENGTHS, 1).step == cursor.step
    assert steps == [1, 2, 3, 9, *range(10, plan.steps + 1)]


def test_a_step_skipped_in_part_leaves_the_rank_an_empty_batch():
    plan = plan_of(3)
    for rank in range(3):
        whole = drained(GlobalBatchCursor(plan, rank))
        found = drained(GlobalBatchCursor(plan, rank, skip=[2 * 3 + 1]))
        assert found == [[] if (step, rank) == (2, 1) else batch for step, batch in enumerate(whole)]
    empty = list(GlobalBatchCursor(plan, 1, skip=[7]))[2]
    assert (empty.real_tokens, empty.maximum_sequence_length, empty.token_slots, empty.indices.dtype) == (0, 0, 0, np.int64)


def test_skipping_in_mid_run_is_recorded_and_reproducible():
    """A loss spike: go back to a checkpoint, leave out what came after it."""
    plan = plan_of(3)
    cursor = GlobalBatchCursor(plan, 0)
    for _ in range(10):
        cursor.next_plan()
    cursor.commit(6)
    checkpoint = cursor.state()
    resumed = GlobalBatchCursor(plan, 0)
    resumed.load_state(checkpoint)
    resumed.skip(range(6 * 3, 8 * 3))
    resumed.skip([9 * 3 + 1])
    assert resumed.state()["skipped"] == [[18, 6], [28, 1]]
    again = GlobalBatchCursor.from_state(json.dumps(resumed.state()), LENGTHS, 0)
    assert drained(again) == drained(resumed)
    assert again.skipped == resumed.skipped
    assert resumed.state()["step"] == 8


def test_skip_refuses_what_is_gone_or_issued():
    plan = plan_of(3)
    cursor = GlobalBatchCursor(plan, 0)
    cursor.next_plan()
    with pytest.raises(SpecError, match="1 batches issued"):
        cursor.skip([50])
    cursor.commit(1)
    with pytest.raises(SpecError, match="names batch 2, of step 0"):
        cursor.skip([2])
    with pytest.raises(SpecError, match="name batch"):
        cursor.skip([plan.steps * 3])
    with pytest.raises(SpecError, match="name batch"):
        GlobalBatchCursor(plan, 0, skip=[10**9])
    assert not len(cursor.skipped)
    cursor.skip(range(3, 9))
    cursor.skip(range(3, 9))
    assert cursor.step == 3


@pytest.mark.parametrize("rank", [-1, 3, 1.0, True])
def test_refuses_ranks(rank):
    with pytest.raises(SpecError, match=r"^rank: is .*expected 0 to 2"):
        GlobalBatchCursor(plan_of(3), rank)


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_resharding_twice_in_one_epoch_from_cursors(layout):
    """W → W' → W'' with interruptions, skipped batches and prefetching: every example is trained on once or was skipped."""
    for first_stop in range(0, 12, 3):
        plan, seen, left_out = plan_of(5, layout=layout, bucket_width=4), [], []
        for world_size, stop in ((2, first_stop), (7, 9), (None, None)):
            cursors = [GlobalBatchCursor(plan, rank) for rank in range(plan.world_size)]
            skipped = [(plan.steps - 1) * plan.world_size + rank for rank in range(2)] if stop != 9 else []
            for cursor in cursors:
                cursor.skip(skipped)
                left = cursor.remaining_batches if stop is None else stop
                for _ in range(left):
                    seen.append(cursor.next_plan().indices)
                    cursor.commit(1)
                cursor.next_plan()
            left_out += [plan.batch(*divmod(number, plan.world_size)).indices for number in skipped]
            states = {json.dumps(cursor.state()) for cursor in cursors}
            assert len(states) == 1
            if world_size is not None:
                plans = [GlobalBatchCursor.from_state(state, LENGTHS, 0).reshard(world_size) for state in states]
                plan = plans[0]
        assert sorted(np.concatenate(seen + left_out).tolist()) == list(range(900))


def changed(**fields):
    def change(state):
        state.update(fields)

    return change


def recipe_changed(**fields):
    def change(state):
        state["recipe"].update(fields)

    return change


BAD = {
    "no object": (lambda state: [state], "an object"),
    "other format": (changed(format="zephon-shard-sampler"), "format"),
    "no version": (lambda state: state.pop("version"), "version"),
    "future version": (changed(version=2), "later release"),
    "lacks step": (lambda state: state.pop("step"), "lacks step"),
    "lacks recipe": (lambda state: state.pop("recipe"), "lacks recipe"),
    "extra field": (changed(more=1), "more"),
    "step beyond": (changed(step=10**6), "step"),
    "step negative": (changed(step=-1), "step"),
    "step no number": (changed(step="3"), "step"),
    "skipped damaged": (changed(skipped=[[5, 1], [3, 1]]), "skipped"),
    "skipped beyond": (changed(skipped=[[10**6, 1]]), "skipped"),
    "other digest": (changed(plan="0" * 64), "digest of its recipe"),
    "a digest of two lines": (changed(plan="0\n1"), r"plan: is '0\\n1', expected \w+, the digest of its recipe"),
    "other epoch": (changed(epoch=4), "as in its recipe"),
    "recipe of a later plan version": (recipe_changed(version=2), "recipe.version"),
    "recipe of a later order": (recipe_changed(order_version=2), "recipe.order_version"),
    "recipe cut short": (lambda state: state["recipe"].pop("options"), "lacks options"),
    "recipe with bad options": (lambda state: state["recipe"]["options"].update(layout="ragged"), "layout"),
    "recipe with bad world": (recipe_changed(world_size=0), "world_size"),
    "recipe with bad reshards": (recipe_changed(reshards=[{"step": 1}]), r"reshards\[0\]"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_states_are_refused_and_nothing_moves(name):
    change, message = BAD[name]
    cursor = GlobalBatchCursor(plan_of(), 1, skip=[8])
    cursor.next_plan()
    cursor.next_plan()
    cursor.commit(1)
    state = json.loads(json.dumps(cursor.state()))
    damaged = change(state)
    before = (cursor.state(), cursor.issued_batches)
    with pytest.raises(StateError, match=message):
        cursor.load_state(damaged if isinstance(damaged, list) else sealed(state))
    assert (cursor.state(), cursor.issued_batches) == before


def test_a_changed_state_is_refused_as_such():
    cursor = GlobalBatchCursor(plan_of(), 1)
    with pytest.raises(StateError, match="zephon-global-batches: has another SHA-256"):
        cursor.load_state(cursor.state() | {"step": 2})


@pytest.mark.parametrize("setting", ["window_steps", "bucket_width", "world_size"])
def test_absurd_settings_of_a_recipe_are_state_errors(setting):
    recipe = plan_of().recipe.to_json() | {setting: 2**62}
    with pytest.raises(StateError, match=rf"recipe\.{setting}: is {2**62}"):
        GlobalBatchPlan.restore(LENGTHS, recipe)


def test_a_state_cut_short_is_refused():
    cursor = GlobalBatchCursor(plan_of(), 1)
    text = json.dumps(cursor.state())
    for length in range(len(text)):
        with pytest.raises(StateError):
            cursor.load_state(text[:length])


@pytest.mark.parametrize(
    ("difference", "other"),
    [
        ("seed", {"seed": 4}),
        ("epoch", {"epoch": 1}),
        ("world_size", {"world_size": 4}),
        ("bucket_width", {"bucket_width": 3}),
        ("window_steps", {"window_steps": 9}),
        ("options.layout", {"layout": "packed"}),
    ],
)
def test_a_state_of_another_plan_is_refused_with_the_difference(difference, other):
    cursor, state = GlobalBatchCursor(plan_of(), 0), GlobalBatchCursor(plan_of(**other), 0).state()
    with pytest.raises(StateError, match=f"^{difference}: is .* in the state and .* here"):
        cursor.load_state(state)


def test_a_state_of_other_lengths_is_refused():
    state = GlobalBatchCursor(plan_of(), 0).state()
    changed = LENGTHS.copy()
    changed[17] += 1
    for lengths, difference in ((changed, "source.lengths_sha256"), (LENGTHS[:-1], "source.count")):
        with pytest.raises(StateError, match=f"^{difference}"):
            GlobalBatchCursor.from_state(state, lengths, 0)


def test_a_state_from_before_a_reshard_is_refused_after_it():
    plan = plan_of(3)
    old = GlobalBatchCursor(plan, 0).state()
    new = GlobalBatchCursor(plan.reshard(2, 3), 0)
    with pytest.raises(StateError, match=r"^reshards"):
        new.load_state(old)
    with pytest.raises(StateError, match=r"^recipe.reshards\[0\]"):
        state = new.state()
        recipe = copy.deepcopy(new.plan.recipe.to_json())
        recipe["reshards"][0]["step"] = 10**6
        GlobalBatchPlan.restore(LENGTHS, recipe)
        assert state


def test_iterators_go_on_wherever_the_cursor_is():
    """What one has in hand of a plan is nobody's once the cursor is moved, and nobody else's if another asks first."""
    plan = plan_of()
    whole = drained(GlobalBatchCursor(plan, 1))
    cursor = GlobalBatchCursor(plan, 1)
    first, second = iter(cursor), iter(cursor)
    seen = [next(first), next(second), cursor.next_plan(), next(first)]
    assert [batch.indices.tolist() for batch in seen] == whole[:4]
    assert cursor.peek() == next(second)
    cursor.commit(2)
    cursor.rewind_uncommitted()
    assert [next(one).indices.tolist() for one in (second, first)] == whole[2:4]
    cursor.rewind_uncommitted()
    cursor.skip([3 * 3 + 1])
    assert next(second).indices.tolist() == whole[2]
    assert next(first).indices.tolist() == []
    cursor.seek(0)
    assert [batch.indices.tolist() for batch in first] == [batch if step != 3 else [] for step, batch in enumerate(whole)]
    assert list(second) == []


def test_a_cursor_is_copied_in_the_middle_of_what_is_ready():
    cursor = GlobalBatchCursor(plan_of(), 2)
    whole = drained(GlobalBatchCursor(plan_of(), 2))
    for _ in range(5):
        cursor.next_plan()
    cursor.commit(2)
    other = copy.deepcopy(cursor)
    assert drained(other) == whole[5:]
    other.rewind_uncommitted()
    assert drained(other) == whole[2:]
    assert drained(cursor) == whole[5:]
