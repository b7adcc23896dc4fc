"""A shard's saved state: what it holds, and every way in which another one is refused."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest
from state_carriers import CARRIERS

from zephon_core.batching import ConsolidatedSamplerState, SamplerState, StatefulShardSampler, epoch_order
from zephon_core.batching.state_fields import sealed
from zephon_core.errors import StateError
from zephon_core.fingerprint import canonical_json


def advanced(rank: int = 1, world_size: int = 3, *, length: int = 20, committed: int = 2, **settings: Any) -> StatefulShardSampler:
    shard = StatefulShardSampler("source", length, rank, world_size, **({"shuffle_seed": 9} | settings))
    shard.next_indices(committed + 1)
    shard.commit(committed)
    return shard


def rest_of(shard: StatefulShardSampler) -> list[int]:
    return shard.unissued_indices().tolist()


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("indices", ["recipe", "inline"])
def test_a_state_survives_whatever_carries_it(carrier: str, indices: Any) -> None:
    shard = advanced(epoch=3)
    state = CARRIERS[carrier](shard.state(indices))
    again = StatefulShardSampler.from_state(state)
    assert (again.rank, again.world_size, again.epoch, again.committed, again.issued) == (1, 3, 3, 2, 2)
    shard.rewind_uncommitted()
    assert rest_of(again) == rest_of(shard)
    other = StatefulShardSampler("source", 20, 1, 3, shuffle_seed=9)
    other.next_indices(4)
    other.load_state(state)
    assert rest_of(other) == rest_of(shard)
    assert other.state(indices) == shard.state(indices)


def test_the_written_form() -> None:
    digest = advanced().saved().order.digest
    written = {
        "format": "zephon-shard-sampler",
        "version": 1,
        "source_id": "source",
        "source_length": 20,
        "epoch": 0,
        "shuffle_seed": 9,
        "tail": "uneven",
        "epoch_size": 20,
        "rank": 1,
        "world_size": 3,
        "carried_consumed": 0,
        "scope_size": 20,
        "indices": {"order_version": 1, "order_digest": digest, "deals": []},
        "committed": 2,
    }
    assert advanced().state() == sealed(written)
    assert sealed(written)["sha256"] == hashlib.sha256(canonical_json(written)).hexdigest()
    inline = advanced().state("inline")["indices"]
    assert {key: inline[key] for key in ("least", "bytes", "count")} == {"least": 2, "bytes": 1, "count": 7}


def test_a_state_is_small_whatever_the_source() -> None:
    shard = StatefulShardSampler("f" * 64, 10**12, 5, 64, shuffle_seed=2**63 - 1)
    shard.issue(0, 10**9)
    shard.commit(10**9)
    assert len(json.dumps(shard.state())) < 1024
    again = StatefulShardSampler.from_state(shard.state())
    assert again.next_indices(3).tolist() == shard.next_indices(3).tolist()  # type: ignore[union-attr]


def test_a_plain_list_of_indices_is_taken_as_it_is() -> None:
    state = sealed(advanced().state() | {"indices": [5, 3, 1, 8, 13, 0, 19]})
    assert rest_of(StatefulShardSampler.from_state(state)) == [1, 8, 13, 0, 19]


def test_inline_indices_outlive_the_order_until_the_next_epoch() -> None:
    listed = list(range(7))
    shard = StatefulShardSampler.from_state(sealed(advanced().state() | {"indices": listed}))
    assert StatefulShardSampler.from_state(shard.state()).unissued_indices().tolist() == listed[2:]
    shard.start_epoch(1)
    assert rest_of(shard) == epoch_order(20, seed=9, epoch=1).tolist()[1::3]
    assert "order_version" in shard.state()["indices"]


GOOD = advanced().state()
DIFFERENT = [
    ({"source_id": "other"}, "source_id: is 'other' in the state and 'source' here"),
    ({"source_length": 21, "epoch_size": 21, "scope_size": 21}, "order_digest|source_length: is 21 in the state and 20 here"),
    ({"rank": 0}, "rank: is 0 in the state and 1 here"),
    ({"world_size": 4, "rank": 1}, "world_size: is 4 in the state and 3 here. To go on with another world size, consolidate"),
    ({"shuffle_seed": None}, "order_digest"),
    ({"shuffle_seed": 8}, "order_digest"),
    ({"epoch": 1}, "order_digest"),
    ({"tail": "drop"}, "epoch_size: is 20, expected 18 with tail 'drop', begun by 3 ranks"),
    ({"version": 2}, "version 2, expected 1 or below. A later release"),
    ({"version": 0}, "version 0"),
    ({"format": "zephon-token-batches"}, "format 'zephon-token-batches', expected 'zephon-shard-sampler'"),
    ({"rank": 3}, "rank: is 3, expected 0 to 2"),
    ({"rank": -1}, "rank: is -1"),
    ({"committed": 8}, "committed: is 8, expected 0 to 7"),
    ({"committed": -1}, "committed: is -1"),
    ({"committed": 1.0}, "committed: is 1.0, expected a whole number"),
    ({"epoch_size": 21}, "epoch_size: is 21, expected 0 to 20"),
    ({"scope_size": 19}, "scope_size: is 19, expected 20"),
    ({"carried_consumed": 1, "scope_size": 19}, "carried_consumed: is 1, expected 0"),
    ({"source_id": ""}, "source_id: is ''"),
    ({"tail": "even"}, "tail: is 'even'"),
    ({"world_size": 0}, "world_size: is 0"),
    ({"indices": None}, "indices: is nothing"),
    ({"indices": [1, 2, 3]}, "indices: holds 3 examples, expected 7"),
    ({"indices": [1, 2, 3, 4, 5, 6, 20]}, r"indices\[6\]: is 20, expected 0 to 19"),
    ({"indices": [1, 2, 3, 4, 5, 6, -1]}, r"indices\[6\]: is -1"),
    ({"indices": [1, 2, 3, 4, 5, 6, 1]}, "indices: hold example 1 twice"),
    ({"indices": GOOD["indices"] | {"order_version": 2}}, "order_version: is 2, expected 1"),
    ({"indices": GOOD["indices"] | {"order_digest": "0" * 64}}, "order_digest: isn't that of the order"),
    ({"indices": GOOD["indices"] | {"deals": [{"world_size": 1, "committed": [21]}]}}, "committed: is 21 for rank 0"),
    ({"more": 1}, "holds more, which this version doesn't know"),
]


@pytest.mark.parametrize(("change", "named"), DIFFERENT)
def test_other_states_are_refused_and_change_nothing(change: dict[str, Any], named: str) -> None:
    shard = advanced()
    with pytest.raises(StateError, match=named):
        shard.load_state(sealed(GOOD | change))
    assert (shard.issued, shard.committed, shard.state()) == (3, 2, GOOD)


@pytest.mark.parametrize("setting", [{"shuffle_seed": None}, {"shuffle_seed": 8}, {"tail": "drop"}, {"length": 22}])
def test_states_of_other_samplers_are_refused(setting: dict[str, Any]) -> None:
    shard = advanced()
    name = {"length": "source_length"}.get(next(iter(setting)), next(iter(setting)))
    with pytest.raises(StateError, match=f"{name}: is .* in the state and .* here"):
        shard.load_state(advanced(**setting).state())
    assert (shard.issued, shard.committed) == (3, 2)


@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_state_that_lacks_anything_is_refused(name: str) -> None:
    with pytest.raises(StateError, match=name if name != "format" else "format None"):
        StatefulShardSampler.from_state({key: value for key, value in GOOD.items() if key != name})


@pytest.mark.parametrize("change", [{"committed": 3}, {"source_id": "other"}, {"indices": [5, 3, 1, 8, 13, 0, 19]}])
def test_a_changed_state_is_refused_as_such(change: dict[str, Any]) -> None:
    with pytest.raises(StateError, match="zephon-shard-sampler: has another SHA-256"):
        StatefulShardSampler.from_state(GOOD | change)
    with pytest.raises(StateError, match="zephon-shard-sampler-consolidated: has another SHA-256"):
        StatefulShardSampler.reshard(CONSOLIDATED | {"source_id": "other"}, 0, 2)


def test_a_state_cut_short_anywhere_is_refused() -> None:
    text = json.dumps(GOOD)
    for end in range(len(text)):
        with pytest.raises(StateError, match="isn't whole JSON"):
            StatefulShardSampler.from_state(text[:end])


def states(committed: list[int], *, length: int = 20, **settings: Any) -> list[dict[str, Any]]:
    world = len(committed)
    return [advanced(rank, world, length=length, committed=count, **settings).state() for rank, count in enumerate(committed)]


@pytest.mark.parametrize("inline", ["none", "some", "all"])
@pytest.mark.parametrize("tail", ["uneven", "drop"])
def test_what_is_left_is_dealt_in_its_order(inline: str, tail: Any) -> None:
    committed = [2, 0, 5]
    shards = [advanced(rank, 3, committed=count, tail=tail) for rank, count in enumerate(committed)]
    modes = {"none": "rrr", "some": "rir", "all": "iii"}[inline]
    saved = [shard.state("inline" if mode == "i" else "recipe") for shard, mode in zip(shards, modes, strict=True)]
    whole = ConsolidatedSamplerState.consolidate(reversed(saved))
    order = epoch_order(20, seed=9, epoch=0).tolist()[: 18 if tail == "drop" else 20]
    left = [example for place, example in enumerate(order) if place // 3 >= committed[place % 3]]
    assert whole.remaining.tolist() == left
    assert (whole.consumed, whole.scope_size, whole.epoch_size) == (7, len(left), len(order))
    for carried in (whole, whole.to_json(), json.dumps(whole.to_json())):
        for world in (1, 2, 5):
            for rank in range(world):
                shard = StatefulShardSampler.reshard(carried, rank, world)
                assert rest_of(shard) == left[rank::world]
                assert (shard.rank, shard.world_size, shard.committed, shard.length) == (rank, world, 0, len(left[rank::world]))
                assert rest_of(StatefulShardSampler.from_state(shard.state())) == left[rank::world]
                assert shard.state()["carried_consumed"] == 7


def test_after_a_reshard_the_next_epoch_is_of_the_new_world() -> None:
    whole = ConsolidatedSamplerState.consolidate(states([1, 1, 1], tail="drop"))
    shard = StatefulShardSampler.reshard(whole, 1, 4)
    shard.start_epoch(1)
    assert rest_of(shard) == epoch_order(20, seed=9, epoch=1).tolist()[1::4]
    assert (shard.state()["carried_consumed"], shard.state()["epoch_size"]) == (0, 20)


def test_equal_copies_of_a_rank_count_once() -> None:
    saved = states([2, 1, 0])
    once = ConsolidatedSamplerState.consolidate(saved)
    assert ConsolidatedSamplerState.consolidate(saved + saved[:2] + saved) == once
    inline = [advanced(rank, 3, committed=count).state("inline") for rank, count in enumerate([2, 1, 0])]
    assert ConsolidatedSamplerState.consolidate(inline + saved).remaining.tolist() == once.remaining.tolist()


BAD_WORLDS: list[tuple[str, Any, str]] = [
    ("none", lambda s: [], "states: are none"),
    ("one missing", lambda s: [s[0], s[2]], "states: lack rank 1 of 3"),
    ("two missing", lambda s: [s[1]], "states: lack rank 0, 2 of 3"),
    ("two copies that differ", lambda s: [*s, sealed(s[1] | {"committed": 3})], "rank 1: is there twice, with 1 and 3 committed"),
    ("another epoch", lambda s: [*s[:2], states([0] * 3, epoch=1)[2]], "epoch: is 0 for rank 0 and 1 for rank 2"),
    (
        "another source",
        lambda s: [*s[:2], sealed(s[2] | {"source_id": "b"})],
        "source_id: is 'source' for rank 0 and 'b' for rank 2",
    ),
    ("another length", lambda s: [*s[:2], states([0] * 3, length=21)[2]], "source_length: is 20 for rank 0 and 21 for rank 2"),
    ("another seed", lambda s: [*s[:2], states([0] * 3, shuffle_seed=1)[2]], "shuffle_seed: is 9 for rank 0 and 1 for rank 2"),
    ("another world", lambda s: [*s, states([0] * 4)[3]], "world_size: is 3 for rank 0 and 4 for rank 3"),
    (
        "an example twice",
        lambda s: [s[0], s[1], sealed(s[2] | {"indices": [0, 1, 2, 3, 4, 5]})],
        "indices of all ranks: hold example",
    ),
]


@pytest.mark.parametrize(("change", "named"), [case[1:] for case in BAD_WORLDS], ids=[case[0] for case in BAD_WORLDS])
def test_worlds_that_are_not_whole_are_refused(change: Any, named: str) -> None:
    with pytest.raises(StateError, match=named):
        ConsolidatedSamplerState.consolidate(change(states([2, 1, 0])))


def test_ranks_of_different_reshards_are_refused() -> None:
    first, second = (ConsolidatedSamplerState.consolidate(states(committed)) for committed in ([2, 1, 0], [1, 2, 0]))
    mixed = [StatefulShardSampler.reshard(whole, rank, 2).state() for rank, whole in enumerate((first, second))]
    with pytest.raises(StateError, match="deals: differ between rank 0 and rank 1"):
        ConsolidatedSamplerState.consolidate(mixed)


CONSOLIDATED = ConsolidatedSamplerState.consolidate(states([2, 1, 0])).to_json()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"version": 2}, "version 2"),
        ({"format": "zephon-shard-sampler"}, "format"),
        ({"consumed": 4}, "remaining: holds 17 examples, expected 16"),
        ({"consumed": 21}, "consumed: is 21"),
        ({"remaining": [1]}, "remaining: holds 1 examples, expected 17"),
        ({"epoch_size": 19}, "remaining: holds 16 examples, expected 16|epoch_size: is 19"),
        ({"more": 0}, "holds more"),
    ],
)
def test_other_consolidated_states_are_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(StateError, match=named):
        StatefulShardSampler.reshard(sealed(CONSOLIDATED | change), 0, 2)


def test_typed_states_can_be_handed_in() -> None:
    state = SamplerState.of(GOOD)
    assert rest_of(StatefulShardSampler.from_state(state)) == rest_of(StatefulShardSampler.from_state(GOOD))
    assert state.to_json() == GOOD
    assert (state.version, state.length, state.scope_size) == (1, 7, 20)
    assert np.array_equal(state.indices, epoch_order(20, seed=9, epoch=0)[1::3])
