"""What a rank's batch sampler saves, and all ranks' states as one: the shard's state, the lengths and the limits.

The lengths are in the state themselves, or as a reference: the .npy file, how many, and the identity of their content. A
reference also holds what the file looked like (size, times, inode) when its content was last read. Where the file still looks
the same, its content is taken to be, as build tools and the store do; where it doesn't, on another machine or after a copy, the
content is read and compared by SHA-256. Either way the state is refused if the lengths are others.

Every state ends with a SHA-256 of itself, so what it says of a file is believed only if nothing in it was changed. What it can't
say is whether states of several ranks are of one moment: all of them have to be taken from one checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from zephon_core.batching.lengths import LengthTable
from zephon_core.batching.options import LARGEST, TokenBatchOptions
from zephon_core.batching.sampler.shard_state import ConsolidatedSamplerState, SamplerState
from zephon_core.batching.state_fields import (
    StateFields,
    decode_integers,
    difference,
    encode_integers,
    read_options,
    refuse_no_states,
    sealed,
)
from zephon_core.errors import InputError, SpecError, StateError

__all__ = [
    "TOKEN_STATE_VERSION",
    "ConsolidatedTokenBatchState",
    "LengthReference",
    "TokenBatchState",
    "refuse_other_options",
    "refuse_other_table",
    "saved_lengths",
    "table_of",
]

TOKEN_STATE_VERSION = 1

_FORMAT = "zephon-token-batches"
_CONSOLIDATED = "zephon-token-batches-consolidated"


@dataclass(frozen=True)
class LengthReference:
    """Lengths that lie elsewhere.

    path: absolute, of an .npy file; "" where they were only in memory, so that they have to be given again. sha256: identity of
    the content (`LengthTable.sha256`). shortest, longest: of them. stamp: size, times and inode of the file when its content
    was read, or None.
    """

    path: str
    count: int
    sha256: str
    shortest: int
    longest: int
    stamp: tuple[int, ...] | None

    @classmethod
    def to(cls, table: LengthTable) -> LengthReference:
        """Refer to a table, which is read once if its identity isn't known yet."""
        path = "" if table.path is None else str(table.path.absolute())
        stamp = None if table.stamp is None else tuple(table.stamp)
        return cls(path, table.count, table.sha256, table.shortest, table.longest, stamp)

    def open(self) -> LengthTable:
        """Map the file's lengths. Raises StateError if it isn't there, can't be read, or holds others."""
        if not self.path:
            remedy = "They were in memory when the state was saved: hand the table in."
            raise StateError("lengths", "aren't in the state, and no file is named", remedy=remedy)
        try:
            table = LengthTable.of(Path(self.path))
        except InputError as error:
            remedy = "If the file was moved, hand its table in."
            raise StateError("lengths", f"can't be opened: {error}", remedy=remedy) from error
        self.refuse_other(table)
        return table

    def refuse_other(self, table: LengthTable) -> None:
        """Raise StateError unless these are the lengths of a table; reads them only where that isn't known otherwise."""
        if self.count != table.count:
            raise difference("lengths.count", self.count, table.count)
        if self.stamp is not None:
            table.vouch(self.sha256, list(self.stamp), shortest=self.shortest, longest=self.longest)
        if self.sha256 != table.sha256:
            raise difference("lengths.sha256", self.sha256, table.sha256, remedy="The state belongs to other lengths.")

    def to_json(self) -> dict[str, Any]:
        """Write the reference as a plain object."""
        stamp = None if self.stamp is None else list(self.stamp)
        rest = {"count": self.count, "sha256": self.sha256, "shortest": self.shortest, "longest": self.longest, "stamp": stamp}
        return {"kind": "reference", "path": self.path or None, **rest}

    @classmethod
    def of(cls, value: object, name: str) -> LengthReference:
        """Read what `to_json` wrote."""
        read = StateFields(value, name, ["kind", "path", "count", "sha256", "shortest", "longest", "stamp"])
        read.choice("kind", ["inline", "reference"])
        path, stamp = read.raw("path"), read.raw("stamp")
        if path is not None:
            path = read.text("path")
        if stamp is not None:
            stamp = tuple(decode_integers(stamp, f"{name}.stamp").tolist())
        shortest, longest = (read.integer(key, low=-LARGEST - 1) for key in ("shortest", "longest"))
        return cls(path or "", read.integer("count"), read.text("sha256"), shortest, longest, stamp)


@dataclass(frozen=True)
class TokenBatchState:
    """A rank's place in its token-budget batches.

    sampler: its shard and how many examples of it are committed. lengths: the table, or where it is. options: the limits.
    """

    sampler: SamplerState
    lengths: LengthTable | LengthReference
    options: TokenBatchOptions

    version = TOKEN_STATE_VERSION

    def to_json(self) -> dict[str, Any]:
        """Write the state as a plain document."""
        body = _body_json(self.lengths, self.options)
        return sealed({"format": _FORMAT, "version": TOKEN_STATE_VERSION, "sampler": self.sampler.to_json(), **body})

    @classmethod
    def of(cls, value: Mapping[str, Any] | str | bytes) -> TokenBatchState:
        """Read a state from its document or the document's JSON text, checking all it says; raises StateError."""
        read = StateFields.of_document(value, _FORMAT, TOKEN_STATE_VERSION, ["sampler", "lengths", "options"])
        sampler = SamplerState.of(read.raw("sampler"))
        lengths, options = _read_body(read, sampler.source_length)
        read.check_seal()
        return cls(sampler, lengths, options)


@dataclass(frozen=True)
class ConsolidatedTokenBatchState:
    """All ranks' states folded into what nobody has consumed of the epoch."""

    sampler: ConsolidatedSamplerState
    lengths: LengthTable | LengthReference
    options: TokenBatchOptions

    version = TOKEN_STATE_VERSION

    @classmethod
    def consolidate(cls, states: Iterable[Mapping[str, Any] | str | bytes | TokenBatchState]) -> ConsolidatedTokenBatchState:
        """Fold the states of every data rank, in any order; equal copies of tensor- or pipeline-parallel ranks count once.

        Raises StateError for a missing rank, two different copies of one, other lengths or other options, and whatever else
        `ConsolidatedSamplerState.consolidate` refuses.
        """
        read = [value if isinstance(value, TokenBatchState) else TokenBatchState.of(value) for value in refuse_no_states(states)]
        for state in read[1:]:
            _check_same(read[0], state)
        sampler = ConsolidatedSamplerState.consolidate(state.sampler for state in read)
        held = next((state.lengths for state in read if isinstance(state.lengths, LengthTable)), read[0].lengths)
        return cls(sampler, held, read[0].options)

    def to_json(self) -> dict[str, Any]:
        """Write the state as a plain document."""
        body = _body_json(self.lengths, self.options)
        return sealed({"format": _CONSOLIDATED, "version": TOKEN_STATE_VERSION, "sampler": self.sampler.to_json(), **body})

    @classmethod
    def of(cls, value: Mapping[str, Any] | str | bytes) -> ConsolidatedTokenBatchState:
        """Read a state from its document or the document's JSON text, checking all it says; raises StateError."""
        read = StateFields.of_document(value, _CONSOLIDATED, TOKEN_STATE_VERSION, ["sampler", "lengths", "options"])
        sampler = ConsolidatedSamplerState.of(read.raw("sampler"))
        lengths, options = _read_body(read, sampler.source_length)
        read.check_seal()
        return cls(sampler, lengths, options)


def table_of(lengths: LengthTable | LengthReference, given: LengthTable | None) -> LengthTable:
    """Return the lengths of a state: the given table if it holds the same, else those in the state or where it says."""
    if given is not None:
        refuse_other_table(lengths, given)
        return given
    return lengths.open() if isinstance(lengths, LengthReference) else lengths


def refuse_other_table(saved: LengthTable | LengthReference, present: LengthTable) -> None:
    """Raise StateError unless a state's lengths are the present ones."""
    if isinstance(saved, LengthReference):
        saved.refuse_other(present)
        return
    if saved.count != present.count:
        raise difference("lengths.count", saved.count, present.count)
    differing = saved.values != present.values
    if differing.any():
        example = int(differing.argmax())
        where = f"lengths, example {example}"
        raise difference(
            where, int(saved.values[example]), int(present.values[example]), remedy="The state belongs to other lengths."
        )


def refuse_other_options(saved: TokenBatchOptions, present: TokenBatchOptions) -> None:
    """Raise StateError naming the first limit that isn't the same."""
    for name in TokenBatchOptions.model_fields:
        if getattr(saved, name) != getattr(present, name):
            remedy = "Batches would be cut elsewhere than before: go on with the old options until the epoch ends."
            raise difference(f"options.{name}", getattr(saved, name), getattr(present, name), remedy=remedy)


def saved_lengths(table: LengthTable, how: Literal["inline", "reference"]) -> LengthTable | LengthReference:
    """Return what a state holds of a table."""
    if how not in ("inline", "reference"):
        raise SpecError("lengths", f"is {how!r}", wanted="'inline' or 'reference'")
    return table if how == "inline" else LengthReference.to(table)


def _body_json(lengths: LengthTable | LengthReference, options: TokenBatchOptions) -> dict[str, Any]:
    if isinstance(lengths, LengthReference):
        body = lengths.to_json()
    else:
        body = {"kind": "inline", "values": encode_integers(lengths.values)}
    return {"lengths": body, "options": options.model_dump()}


def _read_body(read: StateFields, source_length: int) -> tuple[LengthTable | LengthReference, TokenBatchOptions]:
    value, name = read.raw("lengths"), f"{read.name}.lengths"
    lengths: LengthTable | LengthReference
    if isinstance(value, Mapping) and value.get("kind") == "inline":
        lengths = LengthTable.of(decode_integers(StateFields(value, name, ["kind", "values"]).raw("values"), f"{name}.values"))
    else:
        lengths = LengthReference.of(value, name)
    if lengths.count != source_length:
        raise StateError(name, f"are {lengths.count}", wanted=f"{source_length}, as the source has examples")
    return lengths, read_options(read.raw("options"), f"{read.name}.options")


def _check_same(first: TokenBatchState, state: TokenBatchState) -> None:
    ranks = f"between rank {first.sampler.rank} and rank {state.sampler.rank}"
    if first.options != state.options:
        names = [name for name in TokenBatchOptions.model_fields if getattr(first.options, name) != getattr(state.options, name)]
        values = f"{getattr(first.options, names[0])!r} and {getattr(state.options, names[0])!r}"
        raise StateError(f"options.{names[0]}", f"differs {ranks}: {values}", wanted="one")
    if first.lengths.count != state.lengths.count or first.lengths.sha256 != state.lengths.sha256:
        raise StateError("lengths", f"differ {ranks}", wanted="one table")
