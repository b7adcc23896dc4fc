"""The batch sampler under torch's loaders: whatever was prefetched, and wherever it stopped, no batch is lost or comes twice."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from zephon_core.batching import (
    ConsolidatedTokenBatchState,
    GlobalBatchCursor,
    GlobalBatchPlan,
    StatefulShardSampler,
    StatefulTokenBatchSampler,
    TokenBatchOptions,
)
from zephon_core.batching.torch import TokenBatchSampler, read_checkpoint, read_states
from zephon_core.errors import MissingArtifactError, SpecError, StateError

# What torchdata 0.11 calls in torch 2.13.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")

COUNT = 80
LENGTHS = np.random.default_rng(4).integers(1, 9, COUNT)
OPTIONS = TokenBatchOptions(maximum_tokens=24, layout="padded")
DATASET = list(range(COUNT))

Make = Callable[..., TokenBatchSampler]


def cut_as_they_come(rank: int = 0, world_size: int = 2, epoch: int = 0) -> TokenBatchSampler:
    shard = StatefulShardSampler("numbers", COUNT, rank, world_size, epoch=epoch, shuffle_seed=7)
    return TokenBatchSampler(StatefulTokenBatchSampler(shard, LENGTHS, OPTIONS))


def planned(rank: int = 0, world_size: int = 2, epoch: int = 0) -> TokenBatchSampler:
    plan = GlobalBatchPlan.build(LENGTHS, OPTIONS, world_size=world_size, seed=7, epoch=epoch, bucket_width=2)
    return TokenBatchSampler(GlobalBatchCursor(plan, rank))


@pytest.fixture(params=[cut_as_they_come, planned])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


def loaded(batches: TokenBatchSampler, *, stateful: bool = True, workers: int = 0, **options: Any) -> Any:
    """A loader whose batches are the numbers of their examples."""
    kind = StatefulDataLoader if stateful else DataLoader
    return kind(DATASET, batch_sampler=batches, collate_fn=list, num_workers=workers, **options)


def through(text: dict[str, Any]) -> dict[str, Any]:
    """A state as it comes out of a checkpoint."""
    file = io.BytesIO()
    torch.save(text, file)
    file.seek(0)
    state: dict[str, Any] = torch.load(file, weights_only=True)
    return state


def test_batches_are_lists_of_numbers_and_an_epoch_is_whole(make: Make) -> None:
    ranks = [list(make(rank)) for rank in range(2)]
    assert all(type(index) is int for batches in ranks for batch in batches for index in batch)
    assert sorted(index for batches in ranks for batch in batches for index in batch) == DATASET
    assert len(ranks[0]) > 6


def test_prefetching_moves_no_state_until_it_is_committed(make: Make) -> None:
    whole, begin = list(make()), make().state_dict()
    batches = make()
    for stop, batch in enumerate(loaded(batches, stateful=False, workers=2, prefetch_factor=3)):
        assert batch == whole[stop]
        assert batches.state_dict() == begin
        batches.commit()
        begin = batches.state_dict()
        resumed = make()
        resumed.load_state_dict(through(begin))
        assert list(resumed) == whole[stop + 1 :]


def test_a_loader_given_up_leaves_nothing_behind(make: Make) -> None:
    whole, batches, seen = list(make()), make(), []
    for depth in (1, 3, 2):
        for batch in islice(loaded(batches, stateful=False, workers=1, prefetch_factor=depth), 2):
            seen.append(batch)
            batches.commit()
    assert seen + list(batches) == whole


@pytest.mark.parametrize("commit", [True, False])
def test_a_stateful_loader_goes_on_from_every_position(make: Make, commit: bool) -> None:
    whole = list(make())
    for stop in range(len(whole) + 1):
        batches = make()
        loader = loaded(batches)
        seen = []
        for batch in islice(loader, stop):
            seen.append(batch)
            if commit:
                batches.commit()
        resumed = loaded(make())
        resumed.load_state_dict(through(loader.state_dict()))
        again = list(islice(resumed, 2))
        third = loaded(make())
        third.load_state_dict(through(resumed.state_dict()))
        assert seen + again == whole[: stop + 2]
        if stop + 2 <= len(whole):
            assert list(third) == whole[stop + 2 :]
        else:  # the state is of a finished epoch
            with pytest.raises(SpecError, match=r"epoch 0: has ended.*Call set_epoch\(1\)"):
                iter(third)


@pytest.mark.parametrize(("workers", "depth"), [(workers, depth) for workers in (1, 2) for depth in range(1, 8)])
def test_prefetch_depth_never_matters(workers: int, depth: int) -> None:
    make: Make = (cut_as_they_come, planned)[depth % 2]
    whole = list(make())
    for stop in {depth % len(whole), len(whole) - depth % 3}:
        loader = loaded(make(), workers=workers, prefetch_factor=depth)
        seen = list(islice(loader, stop))
        resumed = loaded(make(), workers=workers, prefetch_factor=8 - depth)
        resumed.load_state_dict(through(loader.state_dict()))
        assert seen + list(resumed) == whole, stop


def test_a_snapshot_each_third_batch_is_as_exact(make: Make) -> None:
    whole = list(make())
    for stop in (2, 3, 7):
        loader = loaded(make(), workers=1, prefetch_factor=2, snapshot_every_n_steps=3)
        seen = list(islice(loader, stop))
        resumed = loaded(make(), workers=1, prefetch_factor=2, snapshot_every_n_steps=3)
        resumed.load_state_dict(through(loader.state_dict()))
        assert seen + list(resumed) == whole, stop


def trained(batches: TokenBatchSampler, loader: Any, epochs: int, *, stop: int = 1 << 60) -> Iterator[tuple[int, list[int]]]:
    """The loop of the guide: (epoch, batch) of each training step."""
    steps = 0
    for epoch in range(batches.epoch, epochs):
        batches.set_epoch(epoch)
        for batch in loader:
            batches.commit()
            yield epoch, batch
            steps += 1
            if steps == stop:
                return


@pytest.mark.parametrize("workers", [0, 1])
def test_epochs_follow_each_other_wherever_it_was_interrupted(make: Make, workers: int) -> None:
    ahead = {"workers": workers, "prefetch_factor": 3} if workers else {}
    batches = make()
    whole = list(trained(batches, loaded(batches, stateful=False), 3))
    assert [epoch for epoch, _ in whole] == sorted(epoch for epoch, _ in whole)
    per_epoch = [[batch for number, batch in whole if number == epoch] for epoch in range(3)]
    assert len(per_epoch[1]) > 6 and per_epoch[0] != per_epoch[1]
    if make is cut_as_they_come:
        assert per_epoch == [list(make(epoch=epoch)) for epoch in range(3)]
    first = len(per_epoch[0])
    for stop in range(1, first + 3) if not workers else (1, first - 1, first, first + 1):
        batches = make()
        begin = list(trained(batches, loaded(batches, stateful=False, **ahead), 3, stop=stop))
        resumed = make()  # a plan of epoch 0, also where the state is of a later one
        resumed.load_state_dict(through(batches.state_dict()))
        assert begin + list(trained(resumed, loaded(resumed, stateful=False, **ahead), 3)) == whole, stop


@pytest.mark.parametrize("workers", [0, 1])
def test_a_finished_epochs_loader_state_leads_into_the_next(make: Make, workers: int) -> None:
    ahead = {"workers": workers, "prefetch_factor": 2} if workers else {}
    batches = make()
    loader = loaded(batches, **ahead)
    for _ in trained(batches, loader, 1):
        pass
    state = through(loader.state_dict())
    batches.set_epoch(1)
    following = list(loader)
    resumed = make()
    loader = loaded(resumed, **ahead)
    loader.load_state_dict(state)
    resumed.set_epoch(1)
    assert list(loader) == following and resumed.epoch == 1 and following


def test_what_would_lose_or_repeat_batches_is_an_error(make: Make) -> None:
    batches = make()
    iterator = iter(batches)
    next(iterator)
    with pytest.raises(SpecError, match=r"0 to 1.* issued"):
        batches.commit(2)
    again = iter(batches)
    with pytest.raises(SpecError, match="iterator: is out of date"):
        next(iterator)
    whole = list(again)
    batches.set_epoch(1)
    with pytest.raises(SpecError, match=r"epoch 0: isn't over: .* committed.*commit\(\) after each training step"):
        next(iter(batches))
    batches.set_epoch(0)
    for batch in batches:
        assert batch == whole.pop(0)
        batches.commit()
    with pytest.raises(SpecError, match=r"epoch 0: has ended"):
        iter(batches)
    batches.set_epoch(0)  # named, a finished epoch is what it is: there is nothing left of it
    assert list(batches) == []
    batches.set_epoch(2)
    assert len(list(batches)) > 6 and batches.epoch == 2
    batches.set_epoch(1)
    with pytest.raises(SpecError, match="no way back to 1"):
        next(iter(batches))
    with pytest.raises(SpecError, match="epoch: is -1"):
        batches.set_epoch(-1)


def test_an_epoch_begun_elsewhere_is_not_taken_for_another(make: Make) -> None:
    batches = make()
    loader = loaded(batches)
    next(iter(loader))
    resumed = make()
    loader_again = loaded(resumed)
    loader_again.load_state_dict(loader.state_dict())
    resumed.set_epoch(1)
    with pytest.raises(StateError, match=r"in the middle of it, and set_epoch says 1.*Begin the loop at epoch 0"):
        iter(loader_again)
    batches.commit()
    resumed = make()
    resumed.load_state_dict(batches.state_dict())
    resumed.set_epoch(1)
    with pytest.raises(SpecError, match="epoch 0: isn't over"):
        list(resumed)


MOVES: dict[str, Callable[[TokenBatchSampler, dict[str, Any]], Any]] = {
    "rewound": lambda batches, state: batches.source.rewind_uncommitted(),
    "restored": lambda batches, state: batches.source.load_state(state),
    "begun": lambda batches, state: batches.source.start_epoch(1, discard=True),
    "sought": lambda batches, state: batches.source.seek(2),
    "skipped": lambda batches, state: (batches.source.rewind_uncommitted(), batches.source.skip(range(10, 14))),
    "skipped here": lambda batches, state: batches.skip(range(10, 14)),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("how", MOVES)
def test_a_source_that_was_moved_puts_a_live_loader_out_of_date(how: str, workers: int) -> None:
    make = cut_as_they_come if how == "begun" else planned
    batches = make()
    batches.set_epoch(0)
    state = batches.source.state()
    iterator = iter(loaded(batches, stateful=False, workers=workers, prefetch_factor=3 if workers else None))
    for _ in range(3):
        next(iterator)
        batches.commit()
    next(iterator)
    MOVES[how](batches, state)
    with pytest.raises(SpecError, match=r"iterator: is out of date: the batches were moved .* iterate over the loader anew"):
        batches.commit()
    with pytest.raises(SpecError, match="iterator: is out of date"):
        next(iterator)
    batches.set_epoch(batches.epoch)
    for _ in loaded(batches, stateful=False):
        batches.commit()


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_left_out_in_the_middle_of_a_loop(workers: int) -> None:
    """The loop of the guide."""
    batches, whole = planned(), list(planned())
    loader = loaded(batches, stateful=False, workers=workers, prefetch_factor=4 if workers else None)
    seen: list[list[int]] = []

    def one_pass() -> bool:
        for batch in loader:
            seen.append(batch)
            batches.commit()
            if len(seen) == 4:
                step = batches.source.step
                batches.skip(range(step * 2, (step + 3) * 2))
                return False
        return True

    batches.set_epoch(0)
    while not one_pass():
        pass
    assert seen == whole[:4] + whole[7:]
    batches.set_epoch(1)
    assert next(iter(loader))
    with pytest.raises(SpecError, match="skip: is called on batches that are cut as they come"):
        cut_as_they_come().skip([1])


def test_a_second_pass_without_a_commit_is_an_error(make: Make) -> None:
    batches = make()
    whole = list(loaded(batches, stateful=False))
    for _ in range(2):
        with pytest.raises(SpecError, match=rf"none of its {len(whole)} batches committed.*call set_epoch\(0\)"):
            iter(batches)
    batches.set_epoch(0)
    assert list(batches) == whole


def test_a_state_of_a_later_epoch_brings_its_plan() -> None:
    saved, expected = planned(), planned(epoch=2)
    saved.set_epoch(2)
    for batch in islice(loaded(saved), 3):
        assert batch == next(iter(expected))
        saved.commit()
        expected.commit()
    resumed = planned()
    resumed.load_state_dict(saved.state_dict())
    assert resumed.epoch == 2 and list(resumed) == list(expected)
    other = TokenBatchSampler(GlobalBatchCursor(GlobalBatchPlan.build(LENGTHS, OPTIONS, world_size=2, seed=8), 0))
    with pytest.raises(StateError, match="seed: is 7 in the state and 8 here"):
        other.load_state_dict(saved.state_dict())
    assert other.epoch == 0


def test_a_length_is_what_the_next_iterator_gives() -> None:
    batches, whole = planned(), list(planned())
    loader = loaded(batches, stateful=False, workers=1, prefetch_factor=4)
    for _ in islice(loader, 2):
        batches.commit()
    assert len(loader) == len(whole) - 2  # though more are prefetched
    assert [batches.commit() for _ in batches] and len(batches) == 0
    batches.set_epoch(1)
    number = len(batches)
    assert number == len(list(batches)) > 6 and batches.epoch == 1


def test_a_later_epoch_is_planned_without_those_between(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = planned()
    begun: list[int] = []
    plan_of = GlobalBatchPlan._begun.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        GlobalBatchPlan, "_begun", classmethod(lambda cls, recipe, table: begun.append(recipe.epoch) or plan_of(cls, recipe, table))
    )
    batches.set_epoch(20)
    next(iter(batches))
    assert begun == [20]


def test_only_a_plan_knows_how_many_batches_there_are() -> None:
    batches = planned()
    assert len(batches) == len(loaded(batches)) == len(list(planned()))
    next(iter(batches))
    batches.commit()
    assert len(batches) == len(list(planned())) - 1
    with pytest.raises(TypeError, match="GlobalBatchCursor"):
        len(cut_as_they_come())


def test_states_are_small_plain_and_what_torch_calls_stateful(make: Make) -> None:
    batches = make(1)
    assert isinstance(batches, Stateful) and isinstance(iter(batches), Stateful)
    ((key, text),) = batches.state_dict().items()
    assert key == ("rank-1-of-2" if make is cut_as_they_come else "every-rank")
    assert len(text) < 4096 and json.loads(text)["version"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: {"rank-1-of-2": text}, "holds rank-1-of-2, expected rank-0-of-2.*reshard"),
        (lambda text: {"rank-0-of-4": text}, "holds rank-0-of-4, expected rank-0-of-2.*reshard"),
        (lambda text: {"weights": 1}, "holds no state of a TokenBatchSampler"),
        (lambda text: {"rank-0-of-2": text[:-9]}, "isn't whole JSON"),
        (lambda text: {"rank-0-of-2": 5}, "is a int, expected JSON text"),
        (lambda text: {"rank-0-of-2": text.replace('"version": 1', '"version": 2')}, "has version 2"),
        (lambda text: {"rank-0-of-2": text.replace('"maximum_tokens": 24', '"maximum_tokens": 25')}, "has another SHA-256"),
        (lambda text: {"rank-0-of-2": "[" * 200_000}, "isn't whole JSON"),
    ],
)
def test_a_bad_state_is_refused_and_nothing_moves(change: Callable[[str], dict[str, Any]], message: str) -> None:
    batches = cut_as_they_come()
    text = batches.state_dict()["rank-0-of-2"]
    whole = list(batches)
    batches = cut_as_they_come()
    next(iter(batches))
    batches.commit()
    with pytest.raises(StateError, match=message):
        batches.load_state_dict(change(text))
    assert list(batches) == whole[1:]


def consumed(batches: TokenBatchSampler, steps: int) -> list[int]:
    seen = []
    for batch in islice(loaded(batches, stateful=False), steps):
        seen += batch
        batches.commit()
    return seen


def resharded(states: list[dict[str, Any]], make: Make, world_size: int) -> list[TokenBatchSampler]:
    """All ranks of a new world, from what all ranks of the old one saved."""
    if make is cut_as_they_come:
        together = ConsolidatedTokenBatchState.consolidate(states)
        ranks = range(world_size)
        return [TokenBatchSampler(StatefulTokenBatchSampler.reshard(together, rank, world_size, lengths=LENGTHS)) for rank in ranks]
    plan = GlobalBatchCursor.from_state(states[0], LENGTHS, 0).reshard(world_size)
    return [TokenBatchSampler(GlobalBatchCursor(plan, rank)) for rank in range(world_size)]


@pytest.mark.parametrize("stateful", [False, True])
def test_ranks_states_lead_to_another_world(make: Make, stateful: bool) -> None:
    for stop in (0, 1, 4):
        ranks = [make(rank) for rank in range(2)]
        loaders = [loaded(batches, workers=1, prefetch_factor=2) for batches in ranks] if stateful else []
        if stateful:
            before = [index for loader in loaders for batch in islice(loader, stop) for index in batch]
            states = read_states([loader.state_dict() for loader in loaders])
        else:
            before = [index for batches in ranks for index in consumed(batches, stop)]
            states = read_states(batches.state_dict() for batches in ranks)
        after = [index for batches in resharded(states, make, 3) for batch in batches for index in batch]
        assert sorted(before + after) == DATASET


def test_what_is_no_state_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="holds weights, expected that of a TokenBatchSampler"):
        read_states([{"weights": 1}])
    loader = loaded(cut_as_they_come(), workers=1, snapshot_every_n_steps=4)
    list(islice(loader, 2))
    with pytest.raises(StateError, match=r"2 batches older.*snapshot_every_n_steps=1"):
        read_states([loader.state_dict()])
    with pytest.raises(MissingArtifactError, match="holds no checkpoint"):
        read_checkpoint(tmp_path)


def run_ranks(*arguments: object, world_size: int = 2) -> None:
    """Run programs/checkpoint_ranks.py on every rank of a process group."""
    program = Path(__file__).parent / "programs" / "checkpoint_ranks.py"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, str(program), *map(str, arguments)]
    ranks = [subprocess.Popen([*command, str(rank), str(world_size)], env=environment) for rank in range(world_size)]
    assert [rank.wait(120) for rank in ranks] == [0] * world_size


def test_a_distributed_checkpoint_holds_every_rank(tmp_path: Path) -> None:
    """Saved by two processes after different prefetching, put back by two others, and read for a world of three."""
    run_ranks("save", tmp_path)
    run_ranks("load", tmp_path)
    for name, make in (("cut", cut_as_they_come), ("planned", planned)):
        before, after = [
            [json.loads((tmp_path / f"{action}-{name}-{rank}.json").read_text()) for rank in range(2)]
            for action in ("save", "load")
        ]
        assert all(before) and all(after)
        assert sorted(index for rank in range(2) for index in before[rank] + after[rank]) == DATASET
        states = read_checkpoint(tmp_path / "checkpoint", name)
        rest = [index for batches in resharded(states, make, 3) for batch in batches for index in batch]
        assert sorted(rest) == sorted(index for rank in after for index in rank)
    with pytest.raises(MissingArtifactError, match=r"holds cut, planned, weights, expected .* under 'others'"):
        read_checkpoint(tmp_path / "checkpoint", "others")
