"""A rank's shard: what it hands out, its two cursors, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from zephon_core.batching import StatefulShardSampler, epoch_order
from zephon_core.errors import InputError, SpecError


def sampler(length: int = 10, rank: int = 0, world_size: int = 1, **settings: Any) -> StatefulShardSampler:
    return StatefulShardSampler("source", length, rank, world_size, **settings)


def taken(shard: StatefulShardSampler, count: int) -> list[int]:
    found = shard.next_indices(count)
    assert found is not None
    assert found.dtype == np.int64
    return found.tolist()


def test_ranks_take_every_world_th_position_of_the_order() -> None:
    order = epoch_order(23, seed=4, epoch=2).tolist()
    for rank in range(5):
        shard = sampler(23, rank, 5, epoch=2, shuffle_seed=4)
        assert shard.unissued_indices().tolist() == order[rank::5]
        assert shard.length == len(order[rank::5])
    assert sampler(7, 1, 3).unissued_indices().tolist() == [1, 4]


def test_it_says_what_it_was_made_of() -> None:
    shard = sampler(10, 1, 3, epoch=4, shuffle_seed=5)
    assert (shard.source_id, shard.source_length, shard.rank, shard.world_size) == ("source", 10, 1, 3)
    assert (shard.epoch, shard.shuffle_seed, shard.length, shard.issued, shard.committed, shard.unissued) == (4, 5, 3, 0, 0, 3)


@pytest.mark.parametrize(("length", "world_size"), [(10, 3), (2, 5), (0, 2), (9, 3)])
def test_tails(length: int, world_size: int) -> None:
    order = epoch_order(length, seed=1, epoch=0).tolist()
    uneven = [sampler(length, rank, world_size, shuffle_seed=1).unissued_indices().tolist() for rank in range(world_size)]
    assert uneven == [order[rank::world_size] for rank in range(world_size)]
    dropped = [sampler(length, rank, world_size, shuffle_seed=1, tail="drop").unissued_indices() for rank in range(world_size)]
    assert {len(shard) for shard in dropped} == {length // world_size}
    assert [shard.tolist() for shard in dropped] == [shard[: length // world_size] for shard in uneven]


def test_issued_and_committed() -> None:
    shard = sampler(10)
    assert taken(shard, 3) == [0, 1, 2]
    assert taken(shard, 2) == [3, 4]
    shard.commit(0)
    shard.commit(2)
    assert (shard.issued, shard.committed, shard.unissued) == (5, 2, 5)
    shard.rewind_uncommitted()
    assert (shard.issued, shard.committed) == (2, 2)
    assert taken(shard, 100) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert shard.next_indices(1) is None
    assert len(shard.unissued_indices()) == 0
    shard.commit(8)


def test_an_empty_shard_is_over_at_once() -> None:
    shard = sampler(2, 4, 5)
    assert shard.next_indices(1) is None
    assert shard.load_next([1, 2], 1) is None
    shard.commit(0)
    assert StatefulShardSampler.from_state(shard.state()).next_indices(1) is None


@pytest.mark.parametrize("count", [0, -1, True, 1.0, None])
def test_a_count_below_one_is_refused(count: Any) -> None:
    shard = sampler()
    for attempt in (lambda: shard.next_indices(count), lambda: shard.load_next([0] * 10, count)):
        with pytest.raises(SpecError, match=r"count: is .*at least 1"):
            attempt()
    assert shard.issued == 0


@pytest.mark.parametrize("count", [-1, 4, True, 0.0])
def test_committing_what_was_not_issued_is_refused(count: Any) -> None:
    shard = sampler()
    shard.next_indices(3)
    with pytest.raises(SpecError, match=r"commit|count"):
        shard.commit(count)
    assert (shard.issued, shard.committed) == (3, 0)


def test_numpy_counts_are_counts() -> None:
    shard = sampler()
    shard.next_indices(np.int64(3))  # type: ignore[arg-type]
    shard.commit(np.int32(2))  # type: ignore[arg-type]
    assert type(shard.state()["committed"]) is int


def test_epochs() -> None:
    shard = sampler(10, 1, 2, shuffle_seed=3)
    shard.next_indices(2)
    with pytest.raises(SpecError, match="start_epoch: is called with 2 examples issued and not committed"):
        shard.start_epoch(1)
    assert (shard.epoch, shard.issued) == (0, 2)
    shard.start_epoch(1, discard=True)
    assert (shard.epoch, shard.issued, shard.committed) == (1, 0, 0)
    assert shard.unissued_indices().tolist() == epoch_order(10, seed=3, epoch=1).tolist()[1::2]
    shard.next_indices(2)
    shard.commit(2)
    shard.start_epoch(7)
    assert shard.unissued_indices().tolist() == epoch_order(10, seed=3, epoch=7).tolist()[1::2]
    with pytest.raises(SpecError, match="epoch: is -1"):
        shard.start_epoch(-1)


def test_load_next_loads_before_it_moves() -> None:
    class Torn(list[str]):
        def __getitem__(self, index: Any) -> Any:
            if index == 4 and self.broken:
                raise RuntimeError("disk")
            return super().__getitem__(index)

        broken = True

    data = Torn(["a", "b", "c", "d", "e", "f"])
    shard = sampler(6)
    assert shard.load_next(data, 3) == ["a", "b", "c"]
    with pytest.raises(RuntimeError, match="disk"):
        shard.load_next(data, 3)
    assert (shard.issued, shard.committed) == (3, 0)
    data.broken = False
    assert shard.load_next(data, 9) == ["d", "e", "f"]
    assert shard.load_next(data, 9) is None


def test_load_next_refuses_another_data_set() -> None:
    shard = sampler(3)
    with pytest.raises(InputError, match="data set: has 4 examples, expected 3"):
        shard.load_next([1, 2, 3, 4], 1)
    with pytest.raises(InputError, match="data set: lacks example 1"):
        shard.load_next({0: "a", 2: "c", 3: "d"}, 3)  # type: ignore[arg-type]
    assert shard.issued == 0


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"source_id": ""}, "source_id: is ''"),
        ({"source_id": None}, "source_id: is None"),
        ({"source_length": -1}, "source_length: is -1"),
        ({"source_length": 2**63}, "source_length"),
        ({"rank": -1}, "rank: is -1"),
        ({"rank": 2}, "rank: is 2, expected below world_size = 2"),
        ({"world_size": 0}, "rank: is 0, expected below world_size = 0"),
        ({"world_size": 1.0}, "world_size: is 1.0"),
        ({"epoch": -1}, "epoch: is -1"),
        ({"shuffle_seed": -1}, "shuffle_seed: is -1"),
        ({"shuffle_seed": "a"}, "shuffle_seed: is 'a'"),
        ({"tail": "cut"}, "tail: is 'cut'"),
    ],
)
def test_settings_out_of_bounds_are_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(SpecError, match=named):
        StatefulShardSampler(**({"source_id": "a", "source_length": 5, "rank": 0, "world_size": 2} | wrong))


def test_issue_moves_only_from_where_the_cursor_is() -> None:
    shard = sampler()
    shard.issue(0, 4)
    assert taken(shard, 1) == [4]
    for start, count in ((4, 1), (6, 1), (5, 6), (5, -1)):
        with pytest.raises(SpecError, match="issue"):
            shard.issue(start, count)
    assert shard.issued == 5
