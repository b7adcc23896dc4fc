"""Blocks are a pure function of lengths and bounds; a plain restatement of the rule is the judge."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.budget import BlockPlan, block_capacity, exact_blocks, longest_first, packed_blocks, padded_blocks, runs_within
from zephon_core.errors import SpecError

LENGTHS = st.lists(st.integers(1, 40), max_size=120)
BOUNDS = {"max_batch": st.integers(1, 9), "token_budget": st.integers(1, 90)}


def blocks_of(plan: BlockPlan) -> list[list[int]]:
    return [plan.rows(block).tolist() for block in range(len(plan))]


def sorted_rows(lengths: list[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))


@given(lengths=LENGTHS, **BOUNDS)
def test_exact_blocks_follow_the_rule(lengths: list[int], max_batch: int, token_budget: int) -> None:
    wanted: list[list[int]] = []
    for row in sorted_rows(lengths):
        length = lengths[row]
        capacity = max(1, min(max_batch, token_budget // length))
        if not wanted or lengths[wanted[-1][0]] != length or len(wanted[-1]) == capacity:
            wanted.append([])
        wanted[-1].append(row)
    plan = exact_blocks(np.array(lengths, np.int32), max_batch=max_batch, token_budget=token_budget)
    assert blocks_of(plan) == wanted
    assert plan.lengths.tolist() == [lengths[block[0]] for block in wanted]
    assert plan.block_tokens(np.array(lengths, np.int32)).tolist() == [sum(lengths[row] for row in block) for block in wanted]


@given(lengths=LENGTHS, **BOUNDS)
def test_packed_blocks_follow_the_rule(lengths: list[int], max_batch: int, token_budget: int) -> None:
    wanted: list[list[int]] = []
    for row in sorted_rows(lengths):
        full = not wanted or len(wanted[-1]) == max_batch or sum(lengths[r] for r in wanted[-1]) + lengths[row] > token_budget
        if full:
            wanted.append([])
        wanted[-1].append(row)
    assert blocks_of(packed_blocks(np.array(lengths, np.int32), max_batch=max_batch, token_budget=token_budget)) == wanted


@given(lengths=LENGTHS, max_waste=st.sampled_from([0.0, 0.125, 0.3, 0.9]), **BOUNDS)
def test_padded_blocks_follow_the_rule(lengths: list[int], max_batch: int, token_budget: int, max_waste: float) -> None:
    wanted: list[list[int]] = []
    for row in sorted_rows(lengths):
        if wanted:
            longest = lengths[wanted[-1][0]]
            room = len(wanted[-1]) < block_capacity(longest, max_batch=max_batch, token_budget=token_budget)
        if not wanted or not room or lengths[row] < longest * (1 - max_waste):
            wanted.append([])
        wanted[-1].append(row)
    plan = padded_blocks(np.array(lengths, np.int32), max_batch=max_batch, token_budget=token_budget, max_waste=max_waste)
    assert blocks_of(plan) == wanted
    assert (plan.block_tokens(np.array(lengths, np.int32)) >= plan.padded_tokens * (1 - max_waste) - 1e-9).all()


@given(lengths=LENGTHS, start=st.integers(0, 120), end=st.integers(0, 120), **BOUNDS)
def test_a_row_range_is_covered_by_whole_blocks(
    lengths: list[int], start: int, end: int, max_batch: int, token_budget: int
) -> None:
    start, end = min(start, len(lengths)), min(end, len(lengths))
    plan = exact_blocks(np.array(lengths, np.int32), max_batch=max_batch, token_budget=token_budget)
    asked = set(plan.order[start:end].tolist())
    wanted = [block for block, rows in enumerate(blocks_of(plan)) if asked & set(rows)]
    assert list(plan.blocks_between(start, end)) == wanted
    assert plan.blocks_of_rows(end).tolist() == [b for b, rows in enumerate(blocks_of(plan)) if min(rows) < end]


@given(sizes=st.lists(st.integers(1, 20), max_size=40), bound=st.integers(1, 30))
def test_runs_cover_everything_within_the_bound(sizes: list[int], bound: int) -> None:
    runs = list(runs_within(np.array(sizes, np.int64), bound))
    assert [place for run in runs for place in run] == list(range(len(sizes)))
    for run, following in pairwise([*runs, range(0)]):
        amount = sum(sizes[place] for place in run)
        assert amount <= bound or len(run) == 1
        assert not following or amount + sizes[following[0]] > bound


def test_equally_long_rows_keep_their_order_and_the_longest_come_first() -> None:
    assert longest_first(np.array([3, 70000, 3, 5, 5], np.int32)).tolist() == [1, 3, 4, 0, 2]


def test_a_row_over_the_budget_is_a_block_of_its_own() -> None:
    plan = exact_blocks(np.array([500, 500, 3], np.int32), max_batch=128, token_budget=64)
    assert blocks_of(plan) == [[0], [1], [2]]


def test_the_digest_is_pinned_and_tells_plans_apart() -> None:
    lengths = np.array([5, 3, 5, 5, 2, 3], np.int32)
    plan = exact_blocks(lengths, max_batch=2, token_budget=100)
    rule = hashlib.sha256(b"block plan 1: 6 rows, 4 blocks\n")
    rule.update(np.array([0, 2, 3, 1, 5, 4], "<u8").tobytes())
    rule.update(np.array([0, 2, 3, 5, 6], "<i8").tobytes())
    rule.update(np.array([5, 5, 3, 2], "<i4").tobytes())
    assert plan.digest() == rule.hexdigest()
    assert plan.digest() != exact_blocks(lengths, max_batch=3, token_budget=100).digest()


def test_no_rows_make_no_blocks() -> None:
    for make in (exact_blocks, packed_blocks):
        plan = make(np.zeros(0, np.int32), max_batch=4, token_budget=4)
        assert len(plan) == 0
        assert plan.block_tokens(np.zeros(0, np.int32)).tolist() == []
        assert list(plan.blocks_between(0, 0)) == []


@pytest.mark.parametrize(("lengths", "bounds"), [([0], {}), ([-1], {}), ([1], {"max_batch": 0}), ([1], {"token_budget": 0})])
def test_values_out_of_bounds_are_refused(lengths: list[int], bounds: dict[str, int]) -> None:
    with pytest.raises(SpecError):
        exact_blocks(np.array(lengths, np.int32), **{"max_batch": 2, "token_budget": 2, **bounds})
    with pytest.raises(SpecError, match="max_waste"):
        padded_blocks(np.array([1], np.int32), max_batch=1, token_budget=1, max_waste=1.0)
