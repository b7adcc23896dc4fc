"""One data rank's part of the source, epoch by epoch, with a cursor that counts only what was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt

from zephon_core.batching.options import LARGEST, is_whole, shown
from zephon_core.batching.sampler.remainder import Remainder
from zephon_core.batching.sampler.shard_state import TAILS, ConsolidatedSamplerState, SamplerState, Tail, refuse_other
from zephon_core.errors import InputError, SpecError

__all__ = ["ExampleSource", "StatefulShardSampler"]

Int64 = npt.NDArray[np.int64]


class ExampleSource(Protocol):
    """A data set: as many examples as the source has, each found by its number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class StatefulShardSampler:
    """The examples of one data rank in the epoch's order, handed out in stretches, resumed and resharded exactly.

    Rank r of W takes positions r, r + W, r + 2 W, … of the (shuffled) order. What is handed out is issued; what a finished
    training step consumed is committed; only that is saved, so what was prefetched when a run died is handed out again.
    Nothing is held but the cursors: examples are computed where they are asked for (`order`), so making, saving and restoring
    a sampler cost the same whatever the length of the source and the place in the epoch.

    source_id: the identity of the immutable source, a fingerprint that the caller gives; non-empty.
    shuffle_seed None: the source's own order, in every epoch.
    tail: "uneven" deals out everything, so ranks may differ by one example; "drop" leaves out the last of the order, so
    that all ranks have equally many.
    Raises SpecError for a setting that is out of bounds.
    """

    def __init__(
        self,
        source_id: str,
        source_length: int,
        rank: int,
        world_size: int,
        *,
        epoch: int = 0,
        shuffle_seed: int | None = None,
        tail: Tail = "uneven",
    ) -> None:
        if not isinstance(source_id, str) or not source_id:
            raise SpecError(
                "source_id", f"is {shown(source_id)}", wanted="a text that isn't empty, such as the source's fingerprint"
            )
        if not isinstance(tail, str) or tail not in TAILS:
            raise SpecError("tail", f"is {shown(tail)}", wanted=" or ".join(TAILS))
        _check("source_length", source_length)
        _check_place(rank, world_size)
        if shuffle_seed is not None:
            _check("shuffle_seed", shuffle_seed)
        self._shape = SamplerState(
            source_id=source_id,
            source_length=int(source_length),
            epoch=0,
            shuffle_seed=None if shuffle_seed is None else int(shuffle_seed),
            tail=tail,
            epoch_size=0,
            rank=int(rank),
            world_size=int(world_size),
            carried_consumed=0,
            committed=0,
            held=Remainder(0),
        )
        self._take(_begun(self._shape, epoch))

    def _take(self, shape: SamplerState) -> None:
        self._shape = shape
        self._length = shape.length
        self._committed = self._issued = shape.committed

    @property
    def source_id(self) -> str:
        """The identity of the source."""
        return self._shape.source_id

    @property
    def source_length(self) -> int:
        """How many examples the source has."""
        return self._shape.source_length

    @property
    def rank(self) -> int:
        """The data rank."""
        return self._shape.rank

    @property
    def world_size(self) -> int:
        """How many data ranks there are."""
        return self._shape.world_size

    @property
    def epoch(self) -> int:
        """The present epoch."""
        return self._shape.epoch

    @property
    def shuffle_seed(self) -> int | None:
        """The seed of the order, or None."""
        return self._shape.shuffle_seed

    @property
    def length(self) -> int:
        """How many examples this rank was dealt of the epoch, or, after a reshard, of what was left of it."""
        return self._length

    @property
    def issued(self) -> int:
        """How many of them were handed out."""
        return self._issued

    @property
    def committed(self) -> int:
        """How many of them were consumed."""
        return self._committed

    @property
    def unissued(self) -> int:
        """How many of them are still to be handed out."""
        return self._length - self._issued

    def unissued_indices(self) -> Int64:
        """Return all that is still to be handed out, int64 [unissued], in its order; moves nothing."""
        return self.look_ahead(self._issued, self.unissued)

    def look_ahead(self, start: int, count: int) -> Int64:
        """Return the rank's examples start .. start + count - 1, or as many of them as there are: int64; moves nothing."""
        _check("start", start)
        count = max(0, min(_count(count, at_least=0), self._length - start))
        return self._shape.examples(start, count)

    def next_indices(self, count: int) -> Int64 | None:
        """Hand out the next `count` examples, int64, fewer at the end of the epoch and None after it."""
        found = self.look_ahead(self._issued, _count(count, at_least=1))
        self._issued += len(found)
        return found if len(found) else None

    def issue(self, start: int, count: int) -> None:
        """Hand out the next `count` examples without computing them. Raises SpecError unless `start` is where the cursor is."""
        if not is_whole(start, 0) or start != self._issued or not is_whole(count, 0, self._length - start):
            found, wanted = (
                f"is of {shown(count)} examples from {shown(start)} on",
                f"from {self._issued} on, at most {self.unissued}",
            )
            raise SpecError("issue", found, wanted=wanted)
        self._issued += count

    def load_next(self, dataset: ExampleSource, count: int) -> list[Any] | None:
        """Hand out the next `count` examples as items of the data set; None after the end.

        Every item is loaded before the cursor moves: where the data set raises, nothing has changed. Raises InputError if it
        has another length than the source, or lacks an item.
        """
        found = self.look_ahead(self._issued, _count(count, at_least=1))
        items = self.load(dataset, found)
        self._issued += len(found)
        return items or None

    def load(self, dataset: ExampleSource, indices: Int64) -> list[Any]:
        """Return the items of the data set at `indices`; moves nothing. Raises InputError as `load_next` does."""
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise InputError("data set", f"is {shown(dataset)}", wanted="something with a length, whose examples have numbers")
        if len(dataset) != self.source_length:
            raise InputError("data set", f"has {len(dataset)} examples", wanted=f"{self.source_length}, as the source has")
        items = []
        for index in indices.tolist():
            try:
                items.append(dataset[index])
            except LookupError as error:
                raise InputError("data set", f"lacks example {index} ({error})", wanted=f"0 to {self.source_length - 1}") from error
        return items

    def commit(self, count: int) -> None:
        """Count the next `count` issued examples as consumed; 0 is allowed. Raises SpecError for more than were issued."""
        count, pending = _count(count, at_least=0), self._issued - self._committed
        if count > pending:
            raise SpecError("commit", f"is of {count} examples", wanted=f"at most {pending}, as many as are issued")
        self._committed += count

    def rewind_uncommitted(self) -> None:
        """Take back what was issued and not committed: it will be handed out again, in the same order."""
        self._issued = self._committed

    def start_epoch(self, epoch: int, *, discard: bool = False) -> None:
        """Begin an epoch, on the whole source and this rank and world.

        Raises SpecError while examples are issued and not committed, unless `discard` gives them up.
        """
        pending = self._issued - self._committed
        if pending and not discard:
            remedy = "Commit them, or pass discard=True to give them up."
            raise SpecError(
                "start_epoch", f"is called with {pending} examples issued and not committed", wanted="none", remedy=remedy
            )
        self._take(_begun(self._shape, epoch))

    def state(self, indices: Literal["recipe", "inline"] = "recipe") -> dict[str, Any]:
        """Return what is committed, as a plain document (`SamplerState`).

        indices "recipe": about a kilobyte, whatever the source. "inline": with the rank's examples themselves, up to 11 bytes
        each, so that a release with another order can restore it. A sampler that was restored from inline ones keeps them.
        """
        return self.saved(indices).to_json()

    def saved(self, indices: Literal["recipe", "inline"] = "recipe") -> SamplerState:
        """Return what is committed; `indices` as in `state`."""
        if indices not in ("recipe", "inline"):
            raise SpecError("indices", f"is {indices!r}", wanted="'recipe' or 'inline'")
        state = replace(self._shape, committed=self._committed)
        if indices == "inline" and isinstance(state.held, Remainder):
            state = replace(state, held=state.indices)
        return state

    def load_state(self, state: SamplerState | Mapping[str, Any] | str | bytes) -> None:
        """Go to where a state was saved, by this rank of this world, on this source, with this seed and tail.

        Raises StateError, naming the difference, for any other state, and then changes nothing.
        """
        saved = state if isinstance(state, SamplerState) else SamplerState.of(state)
        refuse_other(saved, self._shape)
        self._take(saved)

    @classmethod
    def from_state(cls, state: SamplerState | Mapping[str, Any] | str | bytes) -> Self:
        """Make the sampler that saved a state. Raises StateError for one that can't be read."""
        state = state if isinstance(state, SamplerState) else SamplerState.of(state)
        made = cls(
            state.source_id, state.source_length, state.rank, state.world_size, shuffle_seed=state.shuffle_seed, tail=state.tail
        )
        made._take(state)
        return made

    @classmethod
    def reshard(cls, consolidated: ConsolidatedSamplerState | Mapping[str, Any] | str | bytes, rank: int, world_size: int) -> Self:
        """Make rank `rank` of a new world, which shares what nobody has consumed of the epoch.

        What is left is dealt in turn, in its order; `tail` isn't applied again, so nothing more is left out.
        """
        if not isinstance(consolidated, ConsolidatedSamplerState):
            consolidated = ConsolidatedSamplerState.of(consolidated)
        _check_place(rank, world_size)
        return cls.from_state(consolidated.shard(rank, world_size))


def _begun(shape: SamplerState, epoch: int) -> SamplerState:
    _check("epoch", epoch)
    size = shape.source_length - (shape.source_length % shape.world_size if shape.tail == "drop" else 0)
    return replace(shape, epoch=int(epoch), epoch_size=size, carried_consumed=0, committed=0, held=Remainder(size))


def _count(value: int, *, at_least: int) -> int:
    if not is_whole(value, at_least):
        raise SpecError("count", f"is {shown(value)}", wanted=f"a whole number, at least {at_least}")
    return int(value)


def _check(name: str, value: int) -> None:
    if not is_whole(value, 0):
        raise SpecError(name, f"is {shown(value)}", wanted=f"a whole number from 0 to {LARGEST}")


def _check_place(rank: int, world_size: int) -> None:
    _check("world_size", world_size)
    _check("rank", rank)
    if rank >= world_size:
        raise SpecError("rank", f"is {rank}", wanted=f"below world_size = {world_size}")
