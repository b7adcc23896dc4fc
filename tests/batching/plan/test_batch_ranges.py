"""Sets of batch numbers against Python's own sets."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.batching.plan.batch_ranges import BatchRanges
from zephon_core.errors import SpecError, StateError

numbers = st.sets(st.integers(0, 60), max_size=40)


@given(numbers, numbers)
def test_behaves_like_a_set(mine, other):
    ranges = BatchRanges.of(mine)
    assert len(ranges) == len(mine)
    assert [number in ranges for number in range(-1, 63)] == [number in mine for number in range(-1, 63)]
    assert ranges.end == max(mine, default=-1) + 1
    assert ranges.union(BatchRanges.of(other)) == BatchRanges.of(mine | other)
    assert hash(ranges) == hash(BatchRanges.of(sorted(mine, reverse=True)))
    assert (ranges == BatchRanges.of(other)) == (mine == other)


@given(numbers, st.integers(0, 70))
def test_counts_below_and_outside(mine, number):
    ranges = BatchRanges.of(mine)
    assert ranges.below(number) == sum(other < number for other in mine)
    outside = [other for other in range(200) if other not in mine]
    assert ranges.outside(np.arange(100)).tolist() == outside[:100]
    assert ranges.holds(np.arange(70)).tolist() == [other in mine for other in range(70)]


@given(numbers, st.integers(1, 9))
def test_finds_whole_steps(mine, world_size):
    steps = {step for step in range(61) if all(step * world_size + rank in mine for rank in range(world_size))}
    assert BatchRanges.of(mine).whole_steps(world_size) == BatchRanges.of(steps)


@given(numbers)
def test_survives_json(mine):
    ranges = BatchRanges.of(mine)
    again = BatchRanges.of_json(json.loads(json.dumps(ranges.to_json())), "skipped", 61)
    assert again == ranges
    for first, count in ranges.to_json():
        assert set(range(first, first + count)) <= mine


def test_ranges_cost_nothing():
    huge = BatchRanges.of(range(5, 10**15))
    assert huge.to_json() == [[5, 10**15 - 5]]
    assert BatchRanges.of(range(7, 7)) == BatchRanges.of([]) == BatchRanges.of(np.zeros(0, np.int64))
    assert BatchRanges.of(range(0, 9, 3)) == BatchRanges.of(np.array([6, 0, 3], np.uint32))
    assert BatchRanges.of(huge) is huge


@pytest.mark.parametrize("wrong", [[-1], [1.0], [True], ["1"], np.array([-2]), np.array([0.5]), range(-3, 2), [2**63 - 1], [2**70]])
def test_refuses_what_is_no_number(wrong):
    with pytest.raises(SpecError, match="whole numbers from 0 on"):
        BatchRanges.of(wrong)


@pytest.mark.parametrize(
    "wrong",
    [None, {}, "01", [[0]], [[0, 0]], [[-1, 2]], [[0, 1], [1, 1]], [[5, 1], [0, 1]], [[0, 11]], [[0, 1.0]], [[True, 1]], [3]],
)
def test_refuses_damaged_documents(wrong):
    with pytest.raises(StateError, match=r"^skipped"):
        BatchRanges.of_json(wrong, "skipped", 10)


@pytest.mark.parametrize(
    "wrong", [3, "12", np.array([2**64 - 1], np.uint64), np.array([[1, 2]]), np.array([True, False]), [[1, 2], [3, 4]], None]
)
def test_what_are_no_batch_numbers_is_refused(wrong):
    with pytest.raises(SpecError, match="batch_ids: "):
        BatchRanges.of(wrong)


def test_numbers_of_any_integer_type_will_do():
    for kind in (np.uint64, np.int32, np.uint8):
        assert BatchRanges.of(np.array([4, 1, 2], kind)).to_json() == [[1, 2], [4, 1]]
    assert BatchRanges.of(np.array([])).to_json() == []
