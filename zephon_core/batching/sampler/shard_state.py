"""What a rank's sampler saves, and all ranks' states as one.

A state is a plain document (numbers, texts, lists, objects): it goes through JSON, msgpack, pickle and
`torch.save(weights_only=True)`, and holds no list of examples unless one is asked for. Instead of the rank's indices it holds
their recipe: the seed and the version of the order, a digest by which another order would show, and how many each rank of
earlier worlds of the same epoch had committed (`remainder`). So it weighs about 600 bytes, and after a reshard one to three
more for each rank of the world that stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zephon_core.batching.order import ORDER_VERSION, EpochOrder
from zephon_core.batching.sampler.remainder import Remainder, shard_length
from zephon_core.batching.state_fields import StateFields, decode_integers, difference, encode_integers, refuse_no_states, sealed
from zephon_core.errors import StateError

__all__ = ["STATE_VERSION", "TAILS", "ConsolidatedSamplerState", "SamplerState", "Tail", "refuse_other"]

Int64 = npt.NDArray[np.int64]
Tail = Literal["uneven", "drop"]

STATE_VERSION = 1
TAILS = ("uneven", "drop")

_FORMAT = "zephon-shard-sampler"
_CONSOLIDATED = "zephon-shard-sampler-consolidated"
_SOURCE = ["source_id", "source_length", "epoch", "shuffle_seed", "tail", "epoch_size"]


@dataclass(frozen=True)
class _SourceState:
    """What is the same in every rank's state of one epoch."""

    source_id: str
    source_length: int
    epoch: int
    shuffle_seed: int | None
    tail: Tail
    epoch_size: int

    @cached_property
    def order(self) -> EpochOrder:
        """The order of the epoch."""
        return EpochOrder(self.source_length, seed=self.shuffle_seed, epoch=self.epoch)

    def source_json(self) -> dict[str, Any]:
        """Write the fields of this class."""
        return {name: getattr(self, name) for name in _SOURCE}


@dataclass(frozen=True)
class SamplerState(_SourceState):
    """A rank's part of an epoch and how much of it was committed.

    epoch_size: examples of the epoch: all, or with tail "drop" the largest multiple of the world that began it.
    held: the rank's indices, as the recipe of what the ranks share or as int64 [n]. carried_consumed: examples that earlier
    worlds of the epoch committed. scope_size: examples that the present world shares. committed: of the rank's own.
    """

    rank: int
    world_size: int
    carried_consumed: int
    committed: int
    held: Remainder | Int64

    version = STATE_VERSION

    @property
    def scope_size(self) -> int:
        """How many examples the present world shares."""
        return self.epoch_size - self.carried_consumed

    @property
    def length(self) -> int:
        """How many examples the rank was dealt."""
        return shard_length(self.scope_size, self.rank, self.world_size)

    @property
    def indices(self) -> Int64:
        """The rank's examples in their order, int64 [length]; computed anew at each look if the state holds their recipe."""
        return self.examples(0, self.length)

    def examples(self, start: int, length: int) -> Int64:
        """Return examples start .. start + length - 1 of the rank: int64 [length]."""
        if not isinstance(self.held, Remainder):
            return self.held[start : start + length]
        first = self.rank + start * self.world_size
        if not self.held.deals:
            return self.order.stretch(first, length, stride=self.world_size).astype(np.int64)
        return self.order.at(self.held.positions(first, length, stride=self.world_size)).astype(np.int64)

    def to_json(self) -> dict[str, Any]:
        """Write the state as a plain document."""
        if isinstance(self.held, Remainder):
            indices: dict[str, Any] = _recipe_json(self.order, self.held)
        else:
            indices = encode_integers(self.held)
        mine = {"rank": self.rank, "world_size": self.world_size, "carried_consumed": self.carried_consumed}
        rest = {"scope_size": self.scope_size, "indices": indices, "committed": self.committed}
        return sealed({"format": _FORMAT, "version": STATE_VERSION, **self.source_json(), **mine, **rest})

    @classmethod
    def of(cls, value: Mapping[str, Any] | str | bytes) -> SamplerState:
        """Read a state from its document or the document's JSON text, checking all it says; raises StateError."""
        names = [*_SOURCE, "rank", "world_size", "carried_consumed", "scope_size", "indices", "committed"]
        read = StateFields.of_document(value, _FORMAT, STATE_VERSION, names)
        source = _read_source(read)
        world_size = read.integer("world_size", low=1)
        rank = read.integer("rank", high=world_size - 1)
        carried = read.integer("carried_consumed", high=source.epoch_size)
        read.integer("scope_size", low=source.epoch_size - carried, high=source.epoch_size - carried)
        length = shard_length(source.epoch_size - carried, rank, world_size)
        committed = read.integer("committed", high=length)
        held = _read_held(read, source, "indices")
        if isinstance(held, Remainder):
            if held.consumed != carried:
                raise read.error("carried_consumed", f"is {carried}", f"{held.consumed}, which the earlier worlds committed")
            _check_tail(read, source, held, world_size)
        elif len(held) != length:
            raise read.error("indices", f"holds {len(held)} examples", str(length))
        read.check_seal()
        return cls(**_plain(source), rank=rank, world_size=world_size, carried_consumed=carried, committed=committed, held=held)


@dataclass(frozen=True)
class ConsolidatedSamplerState(_SourceState):
    """All ranks' states folded into what nobody has consumed of the epoch.

    consumed: examples of the epoch that were committed, in this world and those before it. held: the rest, as its recipe or as
    int64 [epoch_size - consumed] in the order in which the next world is dealt it.
    """

    consumed: int
    held: Remainder | Int64

    version = STATE_VERSION

    @property
    def scope_size(self) -> int:
        """How many examples are left for the next world."""
        return self.epoch_size - self.consumed

    @property
    def remaining(self) -> Int64:
        """The examples that are left, in the order in which the next world is dealt them: int64 [scope_size]."""
        return self.shard(0, 1).indices

    def shard(self, rank: int, world_size: int) -> SamplerState:
        """Return the state in which rank `rank` of a new world of `world_size` begins on what is left."""
        held = self.held if isinstance(self.held, Remainder) else self.held[rank::world_size]
        mine: dict[str, Any] = {"rank": rank, "world_size": world_size, "carried_consumed": self.consumed, "committed": 0}
        return SamplerState(**self.source_json(), **mine, held=held)

    @classmethod
    def consolidate(cls, states: Iterable[Mapping[str, Any] | str | bytes | SamplerState]) -> ConsolidatedSamplerState:
        """Fold the states of every rank of a world, in any order; equal copies of one rank's state count once.

        Raises StateError for none at all, a missing rank, two different copies of one, states of different sources, epochs,
        settings or worlds, and an example that two ranks hold.
        """
        ranks: dict[int, SamplerState] = {}
        for value in refuse_no_states(states):
            state = value if isinstance(value, SamplerState) else SamplerState.of(value)
            first = next(iter(ranks.values()), state)
            _check_same_world(first, state)
            known = ranks.setdefault(state.rank, state)
            if not _equal(known, state):
                raise StateError(
                    f"rank {state.rank}",
                    f"is there twice, with {known.committed} and {state.committed} committed",
                    wanted="equal copies, or one",
                    remedy="Take all states from one checkpoint.",
                )
        if not ranks:
            raise StateError("states", "are none", wanted="the state of every rank")
        whole = [ranks.get(rank) for rank in range(first.world_size)]
        missing = [str(rank) for rank, state in enumerate(whole) if state is None]
        if missing:
            found = f"lack rank {', '.join(missing[:8])}{' and more' if len(missing) > 8 else ''} of {first.world_size}"
            raise StateError("states", found, remedy="Without a rank's state it isn't known what it consumed.")
        return _folded([state for state in whole if state is not None])

    def to_json(self) -> dict[str, Any]:
        """Write the state as a plain document."""
        held = _recipe_json(self.order, self.held) if isinstance(self.held, Remainder) else encode_integers(self.held)
        rest = {"consumed": self.consumed, "remaining": held}
        return sealed({"format": _CONSOLIDATED, "version": STATE_VERSION, **self.source_json(), **rest})

    @classmethod
    def of(cls, value: Mapping[str, Any] | str | bytes) -> ConsolidatedSamplerState:
        """Read a state from its document or the document's JSON text, checking all it says; raises StateError."""
        read = StateFields.of_document(value, _CONSOLIDATED, STATE_VERSION, [*_SOURCE, "consumed", "remaining"])
        source = _read_source(read)
        consumed = read.integer("consumed", high=source.epoch_size)
        held = _read_held(read, source, "remaining")
        left = held.scope_size if isinstance(held, Remainder) else len(held)
        if left != source.epoch_size - consumed:
            raise read.error("remaining", f"holds {left} examples", str(source.epoch_size - consumed))
        if isinstance(held, Remainder):
            _check_tail(read, source, held, 1)
        read.check_seal()
        return cls(**_plain(source), consumed=consumed, held=held)


def _recipe_json(order: EpochOrder, remainder: Remainder) -> dict[str, Any]:
    """Write the recipe of indices."""
    return {"order_version": ORDER_VERSION, "order_digest": order.digest, "deals": remainder.to_json()}


def _plain(source: _SourceState) -> dict[str, Any]:
    return {field.name: getattr(source, field.name) for field in fields(source)}


def _read_source(read: StateFields) -> _SourceState:
    length = read.integer("source_length")
    tail: Any = read.choice("tail", TAILS)
    return _SourceState(
        source_id=read.text("source_id"),
        source_length=length,
        epoch=read.integer("epoch"),
        shuffle_seed=read.optional_integer("shuffle_seed"),
        tail=tail,
        epoch_size=read.integer("epoch_size", high=length),
    )


def _read_held(read: StateFields, source: _SourceState, name: str) -> Remainder | Int64:
    value = read.raw(name)
    where = f"{read.name}.{name}"
    if not (isinstance(value, Mapping) and "order_version" in value):
        return _read_indices(value, source.source_length, where)
    recipe = StateFields(value, where, ["order_version", "order_digest", "deals"])
    version = recipe.integer("order_version", low=1)
    if version != ORDER_VERSION:
        remedy = "Another release wrote it: restore there, and save with the indices inline."
        raise recipe.error("order_version", f"is {version}", f"{ORDER_VERSION}", remedy)
    if recipe.text("order_digest") != source.order.digest:
        remedy = "The state is damaged, or was made by another order: take an older checkpoint."
        raise recipe.error("order_digest", "isn't that of the order of this length, seed and epoch", remedy=remedy)
    return Remainder.of_json(recipe.raw("deals"), source.epoch_size, f"{where}.deals")


def _read_indices(value: object, source_length: int, where: str) -> Int64:
    indices = decode_integers(value, where)
    outside = (indices < 0) | (indices >= source_length)
    if outside.any():
        k = int(np.argmax(outside))
        raise StateError(f"{where}[{k}]", f"is {indices[k]}", wanted=f"0 to {source_length - 1}")
    _check_distinct(indices, where)
    return indices


def _check_distinct(indices: Int64, where: str) -> None:
    ascending = np.sort(indices)
    twice = ascending[1:][ascending[1:] == ascending[:-1]]
    if len(twice):
        raise StateError(where, f"hold example {twice[0]} twice", wanted="each once")


def _check_tail(read: StateFields, source: _SourceState, held: Remainder, world_size: int) -> None:
    began = held.deals[0].world_size if held.deals else world_size
    wanted = source.source_length - (source.source_length % began if source.tail == "drop" else 0)
    if source.epoch_size != wanted:
        raise read.error("epoch_size", f"is {source.epoch_size}", f"{wanted} with tail {source.tail!r}, begun by {began} ranks")


def _check_same_world(first: SamplerState, state: SamplerState) -> None:
    remedy = "Take all states from one checkpoint."
    for name in [*_SOURCE, "world_size", "carried_consumed"]:
        if getattr(first, name) != getattr(state, name):
            found = f"is {getattr(first, name)!r} for rank {first.rank} and {getattr(state, name)!r} for rank {state.rank}"
            raise StateError(name, found, wanted="one", remedy=remedy)
    both = isinstance(first.held, Remainder) and isinstance(state.held, Remainder)
    if both and first.held != state.held:
        raise StateError("deals", f"differ between rank {first.rank} and rank {state.rank}", wanted="one", remedy=remedy)


def _equal(first: SamplerState, second: SamplerState) -> bool:
    if first is second:
        return True
    if isinstance(first.held, Remainder) and isinstance(second.held, Remainder):
        return first == second
    same_rest = replace(first, held=Remainder(0)) == replace(second, held=Remainder(0))
    return same_rest and bool(np.array_equal(first.indices, second.indices))


def _folded(states: list[SamplerState]) -> ConsolidatedSamplerState:
    first = states[0]
    consumed = first.carried_consumed + sum(state.committed for state in states)
    held = first.held
    if isinstance(held, Remainder) and all(isinstance(state.held, Remainder) for state in states):
        held = held.after(tuple(state.committed for state in states))
        return ConsolidatedSamplerState(**first.source_json(), consumed=consumed, held=held)
    everything = np.concatenate([state.indices for state in states])
    _check_distinct(everything, "indices of all ranks")
    rest = [state.indices[state.committed :] for state in states]
    places = [state.rank + np.arange(state.committed, state.length) * state.world_size for state in states]
    dealt = np.concatenate(rest)[np.argsort(np.concatenate(places))]
    return ConsolidatedSamplerState(**first.source_json(), consumed=consumed, held=dealt)


def refuse_other(saved: SamplerState, present: SamplerState) -> None:
    """Raise StateError naming the first setting in which a saved state isn't of the present sampler."""
    for name in ("source_id", "source_length", "world_size", "rank", "shuffle_seed", "tail"):
        if getattr(saved, name) != getattr(present, name):
            remedy = "To go on with another world size, consolidate every rank's state and reshard." if name == "world_size" else ""
            raise difference(name, getattr(saved, name), getattr(present, name), remedy=remedy)
