"""The global plan: every example once, equal steps, limits kept, made again alike, resharded."""

from __future__ import annotations

import json

import numpy as np
import pytest

from zephon_core.batching.cutting.cut import cut_batches, cut_packed
from zephon_core.batching.lengths import LengthTable
from zephon_core.batching.options import TokenBatchOptions
from zephon_core.batching.order import epoch_order
from zephon_core.batching.plan.cursor import GlobalBatchCursor
from zephon_core.batching.plan.global_plan import GlobalBatchPlan
from zephon_core.errors import CorruptArtifactError, LengthError, SpecError, StateError


def long_tailed(count: int, seed: int = 0, longest: int = 2000) -> np.ndarray:
    lengths = np.exp(np.random.default_rng(seed).normal(4, 1.1, count)).astype(np.int32) + 1
    return np.minimum(lengths, longest)


def examples_of(plan: GlobalBatchPlan) -> list[int]:
    return sorted(
        np.concatenate([plan.batch(step, rank).indices for step in range(plan.steps) for rank in range(plan.world_size)]).tolist()
    )


def same(one: GlobalBatchPlan, other: GlobalBatchPlan) -> bool:
    arrays = zip(one.arrays, other.arrays, strict=True)
    return one.digest == other.digest and all(mine.dtype == its.dtype and np.array_equal(mine, its) for mine, its in arrays)


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("bucket_width", [0, 1, 16])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 8])
def test_every_example_is_in_one_batch_within_the_limits(layout, bucket_width, world_size):
    lengths = long_tailed(5000)
    options = TokenBatchOptions(maximum_tokens=2048, maximum_examples=40, layout=layout)
    plan = GlobalBatchPlan.build(lengths, options, world_size=world_size, bucket_width=bucket_width)
    assert plan.count == 5000
    assert examples_of(plan) == list(range(5000))
    for step in range(plan.steps):
        for rank in range(world_size):
            batch = plan.batch(step, rank)
            held = lengths[batch.indices]
            assert 1 <= len(held) <= 40
            assert (batch.real_tokens, batch.maximum_sequence_length) == (held.sum(), held.max())
            assert batch.token_slots == (held.sum() if layout == "packed" else len(held) * held.max()) <= 2048
            assert batch.indices.dtype == np.int64


def test_without_a_seed_and_one_rank_it_is_the_source_cut():
    lengths = long_tailed(3000)
    for layout in ("packed", "padded"):
        options = TokenBatchOptions(maximum_tokens=2048, layout=layout)
        plan = GlobalBatchPlan.build(lengths, options, world_size=1, seed=None, window_steps=1)
        assert plan.arrays.examples.tolist() == list(range(3000))
        assert plan.arrays.offsets.tolist() == cut_batches(lengths, None, options).tolist()


def test_without_buckets_batches_are_cut_from_the_order():
    """All batches but those of the last step, which is dealt anew, are the greedy cut of the epoch's order."""
    lengths, options = long_tailed(5000), TokenBatchOptions(maximum_tokens=2048)
    plan = GlobalBatchPlan.build(lengths, options, world_size=4, seed=3, epoch=2)
    order = epoch_order(5000, seed=3, epoch=2)
    offsets = cut_batches(lengths, order, options)
    cut = {tuple(batch) for batch in np.split(order, offsets[1:-1])}
    planned = [tuple(plan.batch(step, rank).indices) for step in range(plan.steps - 1) for rank in range(4)]
    assert set(planned) <= cut
    assert len(cut) - len(set(planned)) in (1, 2, 3, 4)


def test_it_is_a_function_of_lengths_seed_epoch_options_and_world():
    lengths, options = long_tailed(4000), TokenBatchOptions(maximum_tokens=2048, layout="padded")
    settings = {"world_size": 3, "seed": 1, "epoch": 1, "bucket_width": 8, "window_steps": 16}
    plan = GlobalBatchPlan.build(lengths, options, **settings)
    assert same(plan, GlobalBatchPlan.build(lengths.astype(np.int64), options, **settings))
    assert same(plan, GlobalBatchPlan.build(lengths.tolist(), options, **settings))
    others = [settings | {name: value} for name, value in (("world_size", 4), ("seed", 2), ("epoch", 0), ("bucket_width", 0))]
    others += [settings | {"window_steps": 15}, settings | {"seed": None}]
    digests = {GlobalBatchPlan.build(lengths, options, **other).digest for other in others}
    digests.add(GlobalBatchPlan.build(lengths[:-1], options, **settings).digest)
    digests.add(GlobalBatchPlan.build(lengths, TokenBatchOptions(maximum_tokens=2048), **settings).digest)
    assert len(digests | {plan.digest}) == len(others) + 3


def test_the_source_id_names_and_changes_no_batch():
    lengths, options = long_tailed(500), TokenBatchOptions(maximum_tokens=2048)
    plain, named = (GlobalBatchPlan.build(lengths, options, world_size=2, source_id=name) for name in ("", "bank 7"))
    assert plain.digest != named.digest
    assert all(np.array_equal(mine, its) for mine, its in zip(plain.arrays, named.arrays, strict=True))
    state = GlobalBatchCursor(named, 0).state()
    with pytest.raises(StateError, match=r"source\.source_id: is 'bank 7' in the state and 'bank 8' here"):
        GlobalBatchPlan.restore(LengthTable.of(lengths, source_id="bank 8"), state)


GOLDEN = {
    ("packed", 0): "dc321379c73618d7866bd803255a1261",
    ("packed", 4): "906fae6e2f619c3499d79610abd1fac9",
    ("padded", 0): "b0a569ab47574b64b6920e61ae242d5e",
    ("padded", 4): "3fcd6e7dd50368e43916bd02a677c141",
}


@pytest.mark.parametrize(("layout", "bucket_width"), GOLDEN)
def test_golden_plans(layout, bucket_width):
    """A saved state names its plan by the recipe: the same recipe must give the same batches for ever, or PLAN_VERSION change."""
    import hashlib

    lengths = (np.arange(3001, dtype=np.int64) * 7919 % 251 + 1) ** 2 % 1000 + 1
    options = TokenBatchOptions(maximum_tokens=4096, maximum_examples=30, layout=layout)
    plan = GlobalBatchPlan.build(lengths, options, world_size=5, seed=11, epoch=3, bucket_width=bucket_width, window_steps=8)
    plan = plan.reshard(3, 4, skipped=range(17, 19))
    content = b"".join(array.astype("<i8").tobytes() for array in plan.arrays)
    assert hashlib.sha256(plan.digest.encode() + content).hexdigest()[:32] == GOLDEN[layout, bucket_width]


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_the_last_step_is_even_and_empty_only_for_want_of_examples(layout):
    options = TokenBatchOptions(maximum_tokens=100, layout=layout)
    for count in range(1, 60):
        lengths = np.full(count, 10, np.int32)
        plan = GlobalBatchPlan.build(lengths, options, world_size=4)
        sizes = np.diff(plan.arrays.offsets).reshape(-1, 4)
        assert plan.steps == -(-count // 40)
        last = count - sizes[:-1].sum()
        assert (sizes[:-1] != 10).sum() == (last != count - 40 * (plan.steps - 1))
        assert (sizes[-1] == 0).sum() == plan.statistics.empty_batches == max(0, 4 - count)
        assert sizes[-1].max() == -(-last // 4)
        assert sizes[-1].max() - sizes[-1].min() <= 1 or layout == "padded"


def test_a_last_batch_of_few_examples_leaves_no_rank_without():
    """One long example ends the stream, and there are batches enough to take its place in the last step."""
    lengths = np.array([10] * 80 + [100], np.int32)
    for layout in ("packed", "padded"):
        options = TokenBatchOptions(maximum_tokens=100, layout=layout)
        plan = GlobalBatchPlan.build(lengths, options, world_size=2, seed=None)
        assert plan.statistics.batches == 10
        assert np.diff(plan.arrays.offsets).tolist()[-2:] == [5, 5]
        assert plan.batch(3, 1).indices.tolist() == [80]


def test_no_examples_no_steps():
    plan = GlobalBatchPlan.build([], TokenBatchOptions(maximum_tokens=10), world_size=3, bucket_width=2)
    assert (plan.steps, plan.count) == (0, 0)
    assert plan.statistics.batches_per_rank == (0, 0, 0)
    assert GlobalBatchCursor(plan, 2).next_plan() is None
    assert plan.reshard(0, 5).steps == 0
    with pytest.raises(IndexError):
        plan.batch(0, 0)


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("bucket_width", [0, 4])
def test_reshard_gives_each_remaining_example_once_twice_in_an_epoch(layout, bucket_width):
    lengths = long_tailed(4000)
    options = TokenBatchOptions(maximum_tokens=2048, layout=layout)
    first = GlobalBatchPlan.build(lengths, options, world_size=5, bucket_width=bucket_width)
    for step in range(0, first.steps + 1, 7):
        for second_world, third_world in ((3, 7), (1, 9), (5, 5)):
            second = first.reshard(step, second_world)
            half = second.steps // 2
            third = second.reshard(half, third_world)
            taken = [
                batch
                for plan, steps in ((first, step), (second, half), (third, third.steps))
                for batch in taken_batches(plan, steps)
            ]
            assert sorted(np.concatenate(taken).tolist()) == list(range(4000))
            assert third.recipe.reshards[0] == second.recipe.reshards[0]
            assert (second.world_size, third.world_size) == (second_world, third_world)


def taken_batches(plan: GlobalBatchPlan, steps: int) -> list[np.ndarray]:
    return [plan.batch(step, rank).indices for step in range(steps) for rank in range(plan.world_size)]


def test_a_resharded_plan_is_made_again_from_its_recipe():
    lengths, options = long_tailed(4000), TokenBatchOptions(maximum_tokens=2048, layout="padded")
    plan = GlobalBatchPlan.build(lengths, options, world_size=5, bucket_width=4)
    plan = plan.reshard(3, 4, skipped=[1, 40]).reshard(5, 9).reshard(0, 2, skipped=range(3))
    again = GlobalBatchPlan.restore(lengths, json.loads(json.dumps(plan.recipe.to_json())))
    assert same(plan, again)
    assert len(json.dumps(plan.recipe.to_json())) < 1000
    state = GlobalBatchCursor(plan, 1).state()
    assert same(plan, GlobalBatchPlan.restore(lengths, json.dumps(state)))
    assert same(plan, GlobalBatchPlan.restore(lengths, plan.recipe))


def test_reshard_leaves_out_what_is_skipped():
    lengths, options = long_tailed(4000), TokenBatchOptions(maximum_tokens=2048)
    plan = GlobalBatchPlan.build(lengths, options, world_size=5)
    skipped = [2, 3, 51, 52, 53, 54, 55, 90]
    rest = plan.reshard(10, 3, skipped=skipped)
    left_out = {int(one) for number in skipped if number >= 50 for one in plan.batch(*divmod(number, 5)).indices}
    taken = {int(one) for batch in taken_batches(plan, 10) for one in batch}
    assert set(examples_of(rest)) == set(range(4000)) - left_out - taken
    assert rest.digest != plan.reshard(10, 3).digest
    assert not np.array_equal(rest.arrays.examples, plan.reshard(10, 3).arrays.examples)


def test_next_epoch_is_another_order_on_the_present_world():
    lengths, options = long_tailed(2000), TokenBatchOptions(maximum_tokens=2048)
    plan = GlobalBatchPlan.build(lengths, options, world_size=5).reshard(2, 3)
    following = plan.next_epoch()
    assert same(following, GlobalBatchPlan.build(lengths, options, world_size=3, epoch=1))


def test_bucketing_saves_padding_and_stays_shuffled():
    lengths, options = long_tailed(100_000), TokenBatchOptions(maximum_tokens=4096, layout="padded")
    plain, bucketed = (GlobalBatchPlan.build(lengths, options, world_size=8, bucket_width=width).statistics for width in (0, 32))
    assert plain.padding_waste > 0.3
    assert bucketed.padding_waste < 0.02
    for figures in (plain, bucketed):
        assert abs(figures.mixing.length_correlation) < 3 / figures.steps**0.5
        assert abs(figures.mixing.index_correlation) < 0.02
        assert len(set(figures.batches_per_rank)) == 1
        assert figures.imbalance.idle_share < 0.02


def test_bucketing_puts_no_length_early_or_late():
    """Over many seeds the correlation of place and length averages to nothing, the last step included."""
    lengths, options = long_tailed(8000), TokenBatchOptions(maximum_tokens=4096, layout="padded")
    found = [
        GlobalBatchPlan.build(lengths, options, world_size=4, seed=seed, bucket_width=8).statistics.mixing.length_correlation
        for seed in range(50)
    ]
    assert abs(np.mean(found)) < 4 * np.std(found) / 50**0.5


def test_dealing_makes_waiting_small():
    lengths = long_tailed(40_000)
    for layout, width in (("packed", 0), ("padded", 32)):
        options = TokenBatchOptions(maximum_tokens=4096, layout=layout)
        dealt, plain = (
            GlobalBatchPlan.build(lengths, options, world_size=8, bucket_width=width, window_steps=steps).statistics.imbalance
            for steps in (64, 1)
        )
        assert dealt.idle_share < 0.01 < plain.idle_share
        assert dealt.median < 0.003


def test_examples_stay_near_their_place_in_the_order():
    """A window of so many steps: bucketing and dealing move an example by about one window of each, not across the epoch."""
    lengths, options = long_tailed(30_000), TokenBatchOptions(maximum_tokens=2048, layout="padded")
    plan = GlobalBatchPlan.build(lengths, options, world_size=4, bucket_width=8, window_steps=8)
    order = epoch_order(30_000, seed=0, epoch=0)
    tokens = np.cumsum(lengths[order]) / lengths.sum()
    place = np.empty(30_000)
    place[order] = tokens
    planned = np.repeat(np.repeat(np.arange(plan.steps), 4), np.diff(plan.arrays.offsets)) / plan.steps
    moved = np.abs(place[plan.arrays.examples] - planned) * plan.steps
    assert plan.steps > 150
    assert moved.max() < 30


@pytest.mark.parametrize("shared_table", ["int32", "int64", "mapped"])
def test_every_kind_of_table(tmp_path, shared_table):
    lengths, options = long_tailed(700), TokenBatchOptions(maximum_tokens=2048, layout="padded")
    expected = GlobalBatchPlan.build(lengths, options, world_size=2, bucket_width=2)
    given = lengths.astype(np.int64) if shared_table == "int64" else lengths
    if shared_table == "mapped":
        np.save(tmp_path / "lengths.npy", lengths)
        given = tmp_path / "lengths.npy"
    assert same(expected, GlobalBatchPlan.build(given, options, world_size=2, bucket_width=2))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("world_size", 0),
        ("world_size", True),
        ("world_size", 2.0),
        ("bucket_width", -1),
        ("window_steps", 0),
        ("seed", -1),
        ("seed", 2**63),
        ("epoch", -1),
        ("epoch", None),
    ],
)
def test_refuses_settings(setting, value):
    settings = {"world_size": 2, setting: value}
    with pytest.raises(SpecError, match=f"^{setting}: is "):
        GlobalBatchPlan.build([1, 2], TokenBatchOptions(maximum_tokens=5), **settings)


def test_refuses_lengths_that_fit_no_batch():
    for lengths, found in (([3, 0], "example 1: has length 0"), ([3, 4, 9], "example 2: has length 9, which alone exceeds")):
        with pytest.raises(LengthError, match=found):
            GlobalBatchPlan.build(lengths, TokenBatchOptions(maximum_tokens=5), world_size=1)


def test_refuses_to_reshard_what_is_not_there():
    plan = GlobalBatchPlan.build(long_tailed(300), TokenBatchOptions(maximum_tokens=2048), world_size=2)
    for arguments, where in (((-1, 2), "step"), ((plan.steps + 1, 2), "step"), ((0, 0), "world_size")):
        with pytest.raises(SpecError, match=f"^{where}: is "):
            plan.reshard(*arguments)
    with pytest.raises(SpecError, match="names batch"):
        plan.reshard(0, 2, skipped=[2 * plan.steps])


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_huge_lengths_do_not_wrap(layout):
    lengths = np.array([2**62, 5, 2**62, 2**62 - 1, 1, 2**62, 2**61], np.int64)
    options = TokenBatchOptions(maximum_tokens=2**63 - 1, layout=layout)
    plan = GlobalBatchPlan.build(lengths, options, world_size=2, bucket_width=3)
    assert examples_of(plan) == list(range(7))
    assert plan.statistics.real_tokens == sum(lengths.tolist())
    assert plan.arrays.token_slots.min() > 0


REWRITTEN = "were written to|go from|has length"


@pytest.mark.parametrize("value", [0, -5, 201, 10**8])
@pytest.mark.parametrize("bucket_width", [0, 4])
@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_lengths_rewritten_under_a_plan_stop_whatever_reads_them(value, bucket_width, layout, monkeypatch):
    """In a second process, say: noticed before they are read, and where they change after that as well."""
    lengths = np.random.default_rng(0).integers(1, 50, 3000)
    options = TokenBatchOptions(maximum_tokens=200, layout=layout)
    plan = GlobalBatchPlan.build(lengths, options, world_size=4, bucket_width=bucket_width)
    lengths[5:] = value
    with pytest.raises(LengthError, match="example 5: has length"):
        cut_batches(LengthTable.of(lengths), np.arange(3000), options)
    for check in (LengthTable.check_unchanged, lambda table: None):
        monkeypatch.setattr(LengthTable, "check_unchanged", check)
        for reads in (plan.next_epoch, lambda: plan.reshard(3, 2), lambda: plan.statistics):
            with pytest.raises((StateError, LengthError), match=REWRITTEN):
                reads()


def test_cuts_end_whatever_the_lengths():
    ends = np.empty(64, np.int64)
    assert cut_packed(np.array([300, 1]), 200, 64, True, ends) == 0
    assert cut_packed(np.array([1, 300, 1]), 200, 64, True, ends) == 1


def test_options_and_whole_numbers_are_told_from_others():
    with pytest.raises(SpecError, match="options: is of type dict, expected TokenBatchOptions"):
        GlobalBatchPlan.build([5], {"maximum_tokens": 5}, world_size=1)
    options = TokenBatchOptions(maximum_tokens=50)
    plan = GlobalBatchPlan.build([5] * 50, options, world_size=np.int64(2), seed=np.uint32(3), epoch=np.int64(1))
    assert same(plan, GlobalBatchPlan.build([5] * 50, options, world_size=2, seed=3, epoch=1))
    assert json.dumps(plan.recipe.to_json())
    cursor = GlobalBatchCursor(plan, np.int64(1))
    cursor.seek(np.int64(1))
    cursor.next_plan()
    cursor.commit(np.int64(1))
    assert cursor.step == 2 and json.dumps(cursor.state())
    with pytest.raises(SpecError, match="world_size: is 2147483648"):
        GlobalBatchPlan.build([5], options, world_size=1 << 31)


def test_a_built_plan_cant_be_written_to():
    plan = GlobalBatchPlan.build([5] * 50, TokenBatchOptions(maximum_tokens=50), world_size=2)
    assert not any(array.flags.writeable for array in plan.arrays)


def test_a_plan_that_names_examples_beyond_its_lengths_is_not_resharded():
    plan = GlobalBatchPlan.build([5] * 50, TokenBatchOptions(maximum_tokens=50), world_size=2)
    arrays = plan.arrays._replace(examples=plan.arrays.examples + np.uint32(10))
    with pytest.raises(CorruptArtifactError, match="plan: names example 59, expected 0 to 49"):
        GlobalBatchPlan(plan.recipe, arrays, LengthTable.of([5] * 50)).reshard(1, 3)
