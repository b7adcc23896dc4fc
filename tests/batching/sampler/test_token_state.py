"""A batch sampler's saved state: inline and by reference, consolidated, and refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from state_carriers import CARRIERS

from zephon_core.batching import (
    ConsolidatedTokenBatchState,
    ConsumptionAudit,
    LengthTable,
    StatefulShardSampler,
    StatefulTokenBatchSampler,
    TokenBatchOptions,
    TokenBatchState,
)
from zephon_core.batching.state_fields import sealed
from zephon_core.errors import LengthError, SpecError, StateError

LENGTHS = np.random.default_rng(5).integers(1, 30, 200).astype(np.int32)
OPTIONS = TokenBatchOptions(maximum_tokens=64, maximum_examples=9, layout="padded")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "lengths.npy"
    np.save(path, LENGTHS)
    os.utime(path, (1, 1))
    return path


def advanced(
    lengths: Any = LENGTHS, rank: int = 1, world_size: int = 3, *, steps: int = 2, **settings: Any
) -> StatefulTokenBatchSampler:
    options = settings.pop("options", OPTIONS)
    shard = StatefulShardSampler("source", 200, rank, world_size, **({"shuffle_seed": 9} | settings))
    sampler = StatefulTokenBatchSampler(shard, lengths, options)
    for _ in range(steps + 2):
        sampler.next_plan()
    sampler.commit(steps)
    return sampler


def rest_of(sampler: StatefulTokenBatchSampler) -> list[list[int]]:
    sampler.rewind_uncommitted()
    return [plan.indices.tolist() for plan in sampler]


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("lengths", ["inline", "reference"])
@pytest.mark.parametrize("indices", ["recipe", "inline"])
def test_a_state_survives_whatever_carries_it(carrier: str, lengths: Any, indices: Any, table: Path) -> None:
    sampler = advanced(table)
    state = CARRIERS[carrier](sampler.state(lengths, indices=indices))
    other = advanced(table, steps=5)
    other.load_state(state)
    expected = rest_of(sampler)
    assert rest_of(other) == expected
    assert rest_of(StatefulTokenBatchSampler.from_state(state)) == expected
    assert TokenBatchState.of(state).to_json() == sampler.state(lengths, indices=indices)


def test_the_written_form(table: Path) -> None:
    sampler = advanced(table)
    options = {"maximum_tokens": 64, "maximum_examples": 9, "layout": "padded"}
    state = sampler.state()
    stamp = LengthTable.of(table).stamp
    written = {
        "format": "zephon-token-batches",
        "version": 1,
        "sampler": sampler.sampler.state(),
        "lengths": {
            "kind": "reference",
            "path": str(table),
            "count": 200,
            "sha256": LengthTable.of(LENGTHS).sha256,
            "shortest": int(LENGTHS.min()),
            "longest": int(LENGTHS.max()),
            "stamp": stamp,
        },
        "options": options,
    }
    assert state == sealed(written)
    inline = advanced().state()
    assert inline["options"] == options
    assert (inline["lengths"]["kind"], inline["lengths"]["values"]["count"], inline["lengths"]["values"]["bytes"]) == (
        "inline",
        200,
        1,
    )


def test_by_reference_a_state_is_small_on_a_long_table(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 200) / "lengths.npy"
    path.parent.mkdir()
    np.save(path, np.ones(1_000_000, np.int32))
    shard = StatefulShardSampler("f" * 64, 1_000_000, 63, 64, shuffle_seed=2**63 - 1)
    sampler = StatefulTokenBatchSampler(shard, path, TokenBatchOptions(maximum_tokens=2**63 - 1, maximum_examples=7))
    for _ in range(100):
        sampler.next_plan()
    sampler.commit(100)
    state = json.dumps(sampler.state())
    assert len(state) < 4096
    states = [sealed(json.loads(state) | {"sampler": state_of_rank(sampler, rank)}) for rank in range(64)]
    whole = ConsolidatedTokenBatchState.consolidate(states)
    assert len(json.dumps(whole.to_json())) < 4096
    assert len(json.dumps(StatefulTokenBatchSampler.reshard(whole, 55, 56).state())) < 4096


def state_of_rank(sampler: StatefulTokenBatchSampler, rank: int) -> dict[str, Any]:
    return sealed(sampler.sampler.state() | {"rank": rank, "committed": 700 + 7 * rank})


def test_a_file_that_moved_is_handed_in_or_looked_for(table: Path, tmp_path: Path) -> None:
    sampler = advanced(table)
    state, expected = sampler.state(), rest_of(sampler)
    moved = tmp_path / "elsewhere.npy"
    shutil.copyfile(table, moved)
    table.unlink()
    with pytest.raises(
        StateError, match=r"lengths: can't be opened: .*lengths.npy: is not there.* If the file was moved, hand its"
    ):
        StatefulTokenBatchSampler.from_state(state)
    for given in (moved, LENGTHS, LengthTable.of(LENGTHS.tolist())):
        assert rest_of(StatefulTokenBatchSampler.from_state(state, lengths=given)) == expected
        advanced(given).load_state(state)
    changed = LENGTHS.copy()
    changed[7] += 1
    with pytest.raises(StateError, match=r"lengths.sha256: is .* in the state and .* here"):
        StatefulTokenBatchSampler.from_state(state, lengths=changed)


@pytest.mark.parametrize("age_s", [0, 100])
def test_a_file_that_changed_is_refused(table: Path, age_s: float) -> None:
    state = advanced(table).state()
    changed = LENGTHS.copy()
    changed[199] += 1
    np.save(table, changed)
    then = table.stat().st_mtime - age_s
    os.utime(table, (then, then))
    with pytest.raises(StateError, match=r"lengths.sha256"):
        StatefulTokenBatchSampler.from_state(state)
    np.save(table, LENGTHS[:-1])
    with pytest.raises(StateError, match=r"lengths.count: is 200 in the state and 199 here"):
        StatefulTokenBatchSampler.from_state(state)
    np.save(table, LENGTHS)  # the same content, written anew
    StatefulTokenBatchSampler.from_state(state)


def test_restoring_reads_no_length_of_an_unchanged_file(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = json.dumps(advanced(table).state())
    read: list[str] = []
    monkeypatch.setattr("zephon_core.batching.lengths._content_sha256", lambda *_: read.append("all") or "")
    sampler = StatefulTokenBatchSampler.from_state(state)
    assert sampler.lengths.sha256 == json.loads(state)["lengths"]["sha256"]
    assert sampler.state() == json.loads(state)
    assert read == []


@pytest.mark.parametrize("change", [{"sha256": "0" * 64}, {"longest": 3}, {"shortest": 2}])
def test_a_state_that_was_changed_teaches_nothing_about_a_file(table: Path, change: dict[str, Any]) -> None:
    state = advanced(table).state()
    state["lengths"] |= change
    sampler = advanced(table)
    with pytest.raises(StateError, match="zephon-token-batches: has another SHA-256"):
        sampler.load_state(state)
    assert sampler.lengths.sha256 == LengthTable.of(LENGTHS).sha256
    assert (sampler.lengths.shortest, sampler.lengths.longest) == (int(LENGTHS.min()), int(LENGTHS.max()))


def test_a_state_of_lengths_in_memory_by_reference_wants_them_handed_in() -> None:
    sampler = advanced()
    state, expected = sampler.state("reference"), rest_of(sampler)
    assert state["lengths"]["path"] is None
    with pytest.raises(StateError, match="lengths: aren't in the state, and no file is named"):
        StatefulTokenBatchSampler.from_state(state)
    assert rest_of(StatefulTokenBatchSampler.from_state(state, lengths=LENGTHS)) == expected


def changed_lengths() -> np.ndarray:
    changed = LENGTHS.copy()
    changed[7] = 31
    return changed


def with_sampler(**change: Any) -> dict[str, Any]:
    return {"sampler": sealed(advanced().sampler.state() | change)}


def with_lengths(how: Any = "reference", **change: Any) -> dict[str, Any]:
    return {"lengths": advanced().state(how)["lengths"] | change}


def with_options(**change: Any) -> dict[str, Any]:
    return {"options": advanced().state()["options"] | change}


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"lengths": advanced(changed_lengths()).state()["lengths"]}, rf"lengths, example 7: is 31 in the state and {LENGTHS[7]} here"),
    ({"lengths": advanced(changed_lengths()).state("reference")["lengths"]}, r"lengths\.sha256: is"),
    (
        {"options": advanced(options=TokenBatchOptions(maximum_tokens=65)).state()["options"]},
        r"options\.maximum_tokens: is 65 in the",
    ),
    (with_options(maximum_examples=None), r"options\.maximum_examples: is None in the state and 9 here"),
    (with_options(layout="packed"), r"options\.layout: is 'packed' in the state and 'padded' here"),
    (with_options(layout="ragged"), r"options\.layout: is 'ragged'"),
    (with_options(maximum_tokens=0), r"options\.maximum_tokens: is 0"),
    (with_options(more=0), r"options: holds more"),
    ({"options": {"layout": "packed"}}, "options: lacks maximum_tokens, maximum_examples"),
    ({"options": None}, "options: is nothing"),
    (with_sampler(source_id="other"), "source_id: is 'other' in the state and 'source' here"),
    (with_sampler(rank=0), "rank: is 0 in the state and 1 here"),
    (with_sampler(world_size=4), "world_size: is 4 in the state and 3 here"),
    (with_sampler(version=2), "zephon-shard-sampler: has version 2"),
    ({"sampler": None}, "zephon-shard-sampler: is nothing"),
    (with_lengths(kind="elsewhere", path=None), r"lengths\.kind: is 'elsewhere'"),
    (with_lengths(count=199), "lengths: are 199, expected 200, as the source has"),
    (with_lengths(sha256=""), r"lengths\.sha256: is ''"),
    (with_lengths(stamp=5), r"lengths\.stamp: is 5"),
    (with_lengths(path=5), r"lengths\.path: is 5"),
    (with_lengths("inline", values=[1, 2]), "lengths: are 2, expected 200"),
    (with_lengths("inline", values=None), r"lengths\.values: is nothing"),
    ({"lengths": None}, "lengths: is nothing"),
    ({"version": 2}, "zephon-token-batches: has version 2, expected 1 or below"),
    ({"format": "zephon-shard-sampler"}, "format 'zephon-shard-sampler'"),
    ({"more": 1}, "holds more"),
]


@pytest.mark.parametrize(("change", "named"), OTHERS)
def test_other_states_are_refused_and_change_nothing(change: dict[str, Any], named: str) -> None:
    sampler = advanced()
    before = (sampler.state(), sampler.issued_batches, sampler.peek())
    with pytest.raises(StateError, match=named):
        sampler.load_state(sealed(sampler.state() | change))
    assert (sampler.state(), sampler.issued_batches, sampler.peek()) == before


@pytest.mark.parametrize("name", ["format", "version", "sampler", "lengths", "options"])
def test_a_state_that_lacks_anything_is_refused(name: str) -> None:
    with pytest.raises(StateError, match=name):
        StatefulTokenBatchSampler.from_state({key: value for key, value in advanced().state().items() if key != name})


def test_a_state_cut_short_anywhere_is_refused(table: Path) -> None:
    text = json.dumps(advanced(table).state())
    sampler = advanced(table)
    before = sampler.state()
    for end in range(len(text)):
        with pytest.raises(StateError, match="isn't whole JSON"):
            sampler.load_state(text[:end])
    assert sampler.state() == before


def world(committed: list[int], lengths: Any = LENGTHS, **settings: Any) -> list[dict[str, Any]]:
    return [advanced(lengths, rank, len(committed), steps=steps, **settings).state() for rank, steps in enumerate(committed)]


@pytest.mark.parametrize("how", ["inline", "reference"])
def test_a_new_world_gets_exactly_the_rest(how: str, table: Path) -> None:
    lengths = LENGTHS if how == "inline" else table
    samplers = [advanced(lengths, rank, 3, steps=steps) for rank, steps in enumerate([2, 0, 4])]
    audit = ConsumptionAudit()
    for sampler in samplers:
        consumed = sampler.sampler.saved()
        audit = audit.add(0, consumed.examples(0, consumed.committed))
    whole = ConsolidatedTokenBatchState.consolidate([json.dumps(sampler.state()) for sampler in samplers])
    for carried in (whole, whole.to_json(), json.dumps(whole.to_json())):
        for world_size in (1, 2, 7):
            total = audit
            for rank in range(world_size):
                for plan in StatefulTokenBatchSampler.reshard(carried, rank, world_size):
                    total = total.add(0, plan.indices)
            assert total == ConsumptionAudit.of_epoch(0, 200)


def test_mixed_forms_of_the_same_lengths_are_one_table(table: Path) -> None:
    mixed = [world([1, 1])[0], world([1, 1], table)[1]]
    whole = ConsolidatedTokenBatchState.consolidate(mixed)
    assert isinstance(whole.lengths, LengthTable)
    assert len(rest_of(StatefulTokenBatchSampler.reshard(whole, 0, 1))) > 0


def test_equal_copies_of_a_rank_count_once() -> None:
    saved = world([2, 1, 0])
    once = ConsolidatedTokenBatchState.consolidate(saved).to_json()
    assert ConsolidatedTokenBatchState.consolidate([*saved, *saved, saved[1]]).to_json() == once


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda s: [], "states: are none"),
        (lambda s: [s[0], s[2]], "states: lack rank 1 of 3"),
        (lambda s: [*s, world([2, 3, 0])[1]], "rank 1: is there twice"),
        (lambda s: [*s[:2], world([2, 1, 0], changed_lengths())[2]], "lengths: differ between rank 0 and rank 2"),
        (
            lambda s: [*s[:2], world([2, 1, 0], options=TokenBatchOptions(maximum_tokens=64))[2]],
            r"options\.maximum_examples: differs between rank 0 and rank 2: 9 and None",
        ),
        (lambda s: [*s[:2], world([2, 1, 0], epoch=1)[2]], "epoch: is 0 for rank 0 and 1 for rank 2"),
    ],
)
def test_worlds_that_are_not_whole_are_refused(change: Any, named: str) -> None:
    with pytest.raises(StateError, match=named):
        ConsolidatedTokenBatchState.consolidate(change(world([2, 1, 0])))


def test_a_reshard_checks_the_lengths_and_the_place(table: Path) -> None:
    whole = ConsolidatedTokenBatchState.consolidate(world([2, 1, 0], table))
    with pytest.raises(SpecError, match="rank: is 2, expected below world_size = 2"):
        StatefulTokenBatchSampler.reshard(whole, 2, 2)
    with pytest.raises(StateError, match=r"lengths\.sha256"):
        StatefulTokenBatchSampler.reshard(whole, 0, 2, lengths=changed_lengths())
    with pytest.raises(StateError, match="version 2"):
        StatefulTokenBatchSampler.reshard(whole.to_json() | {"version": 2}, 0, 2)


def test_inline_lengths_that_cant_be_batched_are_refused() -> None:
    state = advanced().state()
    state["lengths"]["values"] = [0, *LENGTHS[1:].tolist()]
    with pytest.raises(LengthError, match="example 0: has length 0"):
        StatefulTokenBatchSampler.from_state(sealed(state))
