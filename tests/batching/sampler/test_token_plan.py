"""One batch, and the rows that many are made of."""

from __future__ import annotations

import pickle

import numpy as np

from zephon_core.batching import TokenBatchPlan
from zephon_core.batching.sampler.token_plan import made, rows_ahead

TOKENS, LONGEST, SLOTS = np.array([5, 0, 7]), np.array([3, 0, 7]), np.array([6, 0, 7])


def test_rows_tell_where_batches_lie_and_what_they_cost() -> None:
    rows = list(rows_ahead([2, 4, 4, 5], TOKENS, LONGEST, SLOTS))
    assert rows == [(2, 4, 5, 3, 6), (4, 4, 0, 0, 0), (4, 5, 7, 7, 7)]
    assert list(rows_ahead([0], *np.zeros((3, 0), np.int64))) == []
    assert [row[4] for row in rows_ahead([0, 1, 1, 2], TOKENS, LONGEST, TOKENS)] == [5, 0, 7]
    assert {type(number) for row in rows for number in row} == {int}


def test_emptying_the_bounds_ends_the_rows() -> None:
    bounds = [0, 1, 2, 3]
    rows = rows_ahead(bounds, TOKENS, LONGEST, SLOTS)
    assert next(rows) == (0, 1, 5, 3, 6)
    bounds.clear()
    assert list(rows) == []


def test_a_plan_made_of_its_fields_is_one() -> None:
    indices = np.array([4, 1])
    plan = made(TokenBatchPlan, (indices, 5, 3, 6))
    assert type(plan) is TokenBatchPlan
    assert plan.indices is indices
    assert plan == TokenBatchPlan(indices.copy(), 5, 3, 6) == pickle.loads(pickle.dumps(plan))
    assert plan._asdict().keys() == {"indices", "real_tokens", "maximum_sequence_length", "token_slots"}
