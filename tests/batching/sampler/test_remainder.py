"""What is left of an epoch, by arithmetic and by lists."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.batching.sampler.remainder import Remainder, shard_length
from zephon_core.errors import StateError


@st.composite
def histories(draw: st.DrawFn) -> tuple[Remainder, list[int]]:
    """An epoch dealt to several worlds that stopped anywhere, and what is left of it, kept as a list."""
    size = draw(st.integers(0, 60))
    rest, left = Remainder(size), list(range(size))
    for _ in range(draw(st.integers(0, 3))):
        world = draw(st.integers(1, 9))
        shards = [left[rank::world] for rank in range(world)]
        committed = tuple(draw(st.integers(0, len(shard))) for shard in shards)
        gone = {place for shard, count in zip(shards, committed, strict=True) for place in shard[:count]}
        left = [place for place in left if place not in gone]
        rest = rest.after(committed)
    return rest, left


@given(history=histories(), data=st.data())
def test_the_rest_is_what_was_not_committed_in_its_order(history: tuple[Remainder, list[int]], data: st.DataObject) -> None:
    rest, left = history
    assert rest.scope_size == len(left)
    assert rest.positions(0, len(left)).tolist() == left
    stride = data.draw(st.integers(1, 9))
    for rank in range(stride):
        shard = left[rank::stride]
        assert shard_length(len(left), rank, stride) == len(shard)
        start = data.draw(st.integers(0, len(shard)))
        found = rest.positions(rank + start * stride, len(shard) - start, stride=stride)
        assert found.tolist() == shard[start:]


@given(history=histories())
def test_it_comes_back_from_its_document(history: tuple[Remainder, list[int]]) -> None:
    rest = history[0]
    assert Remainder.of_json(json.loads(json.dumps(rest.to_json())), rest.epoch_size, "deals") == rest


def test_the_written_form() -> None:
    written = Remainder(100).after((3, 4, 3)).to_json()
    assert written == [{"world_size": 3, "committed": {"least": 3, "bytes": 1, "count": 3, "data": "AAEA"}}]


def test_a_large_world_that_ran_for_long_fits_in_a_few_kilobytes() -> None:
    rng = np.random.default_rng(0)
    rest = Remainder(10**11).after(tuple(int(count) for count in 10**7 + rng.integers(-3000, 3000, 1024)))
    assert len(json.dumps(rest.to_json())) < 4096
    assert rest.positions(rest.scope_size - 2, 2).tolist() == [10**11 - 2, 10**11 - 1]


@pytest.mark.parametrize(
    ("deals", "named"),
    [
        (None, "deals: is a NoneType"),
        ([{"world_size": 2}], r"deals\[0\]: lacks committed"),
        ([{"world_size": 0, "committed": []}], r"deals\[0\]\.world_size: is 0"),
        ([{"world_size": 2, "committed": [1]}], r"deals\[0\]\.committed: holds 1 ranks, expected 2"),
        ([{"world_size": 2, "committed": [6, 0]}], r"deals\[0\]\.committed: is 6 for rank 0, expected 0 to 5"),
        ([{"world_size": 2, "committed": [-1, 0]}], r"deals\[0\]\.committed: is -1 for rank 0"),
        ([{"world_size": 1, "committed": [9]}, {"world_size": 1, "committed": [2]}], r"deals\[1\]\.committed: is 2 for rank 0"),
    ],
)
def test_worlds_that_cant_have_been_are_refused(deals: Any, named: str) -> None:
    with pytest.raises(StateError, match=named):
        Remainder.of_json(deals, 10, "deals")
