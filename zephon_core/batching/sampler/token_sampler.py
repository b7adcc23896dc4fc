"""One data rank's token-budget batches: the greedy cut of its shard, planned ahead in stretches, handed out one by one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from zephon_core.batching.cutting import CutBatches, cut_stretch, lengths_of
from zephon_core.batching.lengths import LengthTable
from zephon_core.batching.options import OPTIONS_WANTED, TokenBatchOptions, is_whole, refuse_other_type, shown
from zephon_core.batching.sampler.shard_sampler import ExampleSource, StatefulShardSampler
from zephon_core.batching.sampler.shard_state import refuse_other
from zephon_core.batching.sampler.token_plan import Row, TokenBatchPlan, made, rows_ahead
from zephon_core.batching.sampler.token_state import (
    ConsolidatedTokenBatchState,
    TokenBatchState,
    refuse_other_options,
    refuse_other_table,
    saved_lengths,
    table_of,
)
from zephon_core.errors import SpecError

__all__ = ["LoadedBatch", "StatefulTokenBatchSampler"]

Int64 = npt.NDArray[np.int64]

_FIRST_STRETCH = 1 << 8
_LONGEST_STRETCH = 1 << 15


class LoadedBatch(NamedTuple):
    """A batch with its examples, as the data set gave them."""

    plan: TokenBatchPlan
    examples: list[Any]


class StatefulTokenBatchSampler:
    """Greedy contiguous batches over a rank's shard: each takes the next examples as long as its budget lasts.

    sampler: the rank's shard, which belongs to this object from now on: move it through here. lengths: one of each example of
    the source (`LengthTable`, an array, or the path of an .npy file); read once in full, to refuse what can't be batched.
    What is counted here is batches: `next_plan` issues one, `commit(n)` commits the n that were issued first. The state counts
    the examples in them, so a batch begins where the last committed one ended.
    Nothing is truncated, repeated, reordered, padded or dropped.
    Raises SpecError if the lengths aren't those of the source, LengthError naming an example of length zero, or one that alone
    exceeds the budget.
    """

    def __init__(
        self,
        sampler: StatefulShardSampler,
        lengths: LengthTable | npt.ArrayLike | os.PathLike[str] | str,
        options: TokenBatchOptions,
    ) -> None:
        refuse_other_type("sampler", sampler, StatefulShardSampler, "StatefulShardSampler(source_id, …)")
        refuse_other_type("options", options, TokenBatchOptions, OPTIONS_WANTED)
        table = LengthTable.of(lengths)
        if table.count != sampler.source_length:
            raise SpecError("lengths", f"are {table.count}", wanted=f"{sampler.source_length}, one of each example of the source")
        if table.source_id and table.source_id != sampler.source_id:
            raise SpecError("lengths", f"are those of source {table.source_id!r}", wanted=f"source {sampler.source_id!r}")
        if sampler.issued != sampler.committed:
            found = f"has {sampler.issued - sampler.committed} examples issued and not committed"
            raise SpecError("sampler", found, wanted="none", remedy="Commit them, or rewind_uncommitted() first.")
        table.check(options)
        self._sampler, self._table, self._options = sampler, table, options
        # The stretch that is planned begins at the shard's example `_start` and has `_planned` batches; batch b holds its examples
        # _ends[b] .. _ends[b + 1] - 1. Batches before `_next` are issued, those before `_first` committed; below 0, `_first` says
        # how many of earlier stretches aren't, which end at the last of `_earlier`. `_rows` are those of batches from `_next` on.
        # The shard's own cursors follow when they matter (`_settle`): examples before `_counted` are told as issued.
        self._start, self._planned, self._next, self._first, self._counted, self._moves = 0, 0, 0, 0, 0, 0
        self._examples: Int64
        self._cut: CutBatches
        self._slots: Int64
        self._ends: list[int] = []
        self._earlier: list[int] = []
        self._rows: Iterator[Row]
        self._stretch = _FIRST_STRETCH
        self._restart()

    @property
    def sampler(self) -> StatefulShardSampler:
        """The rank's shard, to look at."""
        self._settle()
        return self._sampler

    @property
    def lengths(self) -> LengthTable:
        """The lengths of the source's examples."""
        return self._table

    @property
    def options(self) -> TokenBatchOptions:
        """The limits of a batch."""
        return self._options

    @property
    def epoch(self) -> int:
        """The present epoch."""
        return self._sampler.epoch

    @property
    def moves(self) -> int:
        """How often it was moved otherwise than by issuing and committing: what was issued before isn't counted any more."""
        return self._moves

    @property
    def issued_batches(self) -> int:
        """How many batches are issued and not committed."""
        return self._next - self._first

    def peek(self) -> TokenBatchPlan | None:
        """Return the batch that `next_plan` would issue, or None at the end of the epoch; moves nothing."""
        if self._next == self._planned and not self._plan_ahead():
            return None
        batch = self._next
        figures = int(self._cut.real_tokens[batch]), int(self._cut.longest[batch]), int(self._slots[batch])
        return TokenBatchPlan(self._examples[self._ends[batch] : self._ends[batch + 1]], *figures)

    def next_plan(self) -> TokenBatchPlan | None:
        """Issue the next batch; None at the end of the epoch."""
        for start, stop, tokens, longest, slots in self._rows:  # not even a signal comes between a row that is taken and its count
            self._next += 1
            return made(TokenBatchPlan, (self._examples[start:stop], tokens, longest, slots))
        return self.next_plan() if self._plan_ahead() else None

    def load_next(self, dataset: ExampleSource) -> LoadedBatch | None:
        """Issue the next batch with its examples; None at the end of the epoch.

        Every example is loaded before a cursor moves: where the data set raises, nothing has changed. Raises InputError if it
        has another length than the source, or lacks an example.
        """
        plan = self.peek()
        if plan is None:
            return None
        examples = self._sampler.load(dataset, plan.indices)
        self.next_plan()
        return LoadedBatch(plan, examples)

    def __iter__(self) -> Iterator[TokenBatchPlan]:
        """Issue batch after batch to the end of the epoch."""
        while self._next < self._planned or self._plan_ahead():
            examples = self._examples
            for start, stop, tokens, longest, slots in self._rows:  # as in `next_plan`
                self._next += 1
                yield made(TokenBatchPlan, (examples[start:stop], tokens, longest, slots))

    def commit(self, count: int = 1) -> None:
        """Count the first `count` issued batches as consumed; 0 is allowed. Raises SpecError for more than were issued."""
        if count == 1 and self._first < self._next and count.__class__ is int:  # as in every step of a loop
            self._first += 1
            return
        if not is_whole(count, 0, self.issued_batches):
            wanted = f"a whole number from 0 to {self.issued_batches}, as many as are issued"
            raise SpecError("commit", f"is of {shown(count)} batches", wanted=wanted)
        self._first += int(count)

    def rewind_uncommitted(self) -> None:
        """Take back the batches that were issued and not committed: they will be issued again, the same ones."""
        self._settle()
        self._sampler.rewind_uncommitted()
        self._restart()

    def start_epoch(self, epoch: int, *, discard: bool = False) -> None:
        """Begin an epoch, on the whole source and this rank and world.

        Raises SpecError while batches are issued and not committed, unless `discard` gives them up.
        """
        self._settle()
        self._sampler.start_epoch(epoch, discard=discard)
        self._restart()

    def state(
        self,
        lengths: Literal["inline", "reference"] | None = None,
        *,
        indices: Literal["recipe", "inline"] = "recipe",
        issued: bool = False,
    ) -> dict[str, Any]:
        """Return what is committed, the lengths and the limits, as a plain document (`TokenBatchState`).

        lengths "reference": a few hundred bytes; the first one takes a pass to identify the lengths, later ones don't. "inline":
        the lengths themselves, 2 to 11 bytes each. None: a reference if they are a file, else inline. indices: as in
        `StatefulShardSampler.state`. issued: as if all that is issued were committed.
        """
        self._settle()
        how = lengths or ("inline" if self._table.path is None else "reference")
        saved = self._sampler.saved(indices)
        if issued:
            saved = replace(saved, committed=self._sampler.issued)
        return TokenBatchState(saved, saved_lengths(self._table, how), self._options).to_json()

    def load_state(self, state: TokenBatchState | Mapping[str, Any] | str | bytes) -> None:
        """Go to where a state was saved, by this rank of this world, with this source, seed, tail, lengths and limits.

        Raises StateError, naming the difference, for any other state, and then changes nothing. Nothing is computed until the
        next batch is asked for.
        """
        saved = state if isinstance(state, TokenBatchState) else TokenBatchState.of(state)
        refuse_other(saved.sampler, self._sampler.saved())
        refuse_other_options(saved.options, self._options)
        refuse_other_table(saved.lengths, self._table)
        self._sampler.load_state(saved.sampler)
        self._restart()

    @classmethod
    def from_state(
        cls,
        state: TokenBatchState | Mapping[str, Any] | str | bytes,
        *,
        lengths: LengthTable | npt.ArrayLike | os.PathLike[str] | str | None = None,
    ) -> Self:
        """Make the sampler that saved a state.

        lengths: the table, if the state doesn't hold it and its file isn't where it was. Raises StateError for a state that
        can't be read or whose lengths are others.
        """
        saved = state if isinstance(state, TokenBatchState) else TokenBatchState.of(state)
        table = table_of(saved.lengths, None if lengths is None else LengthTable.of(lengths))
        return cls(StatefulShardSampler.from_state(saved.sampler), table, saved.options)

    @classmethod
    def reshard(
        cls,
        consolidated: ConsolidatedTokenBatchState | Mapping[str, Any] | str | bytes,
        rank: int,
        world_size: int,
        *,
        lengths: LengthTable | npt.ArrayLike | os.PathLike[str] | str | None = None,
    ) -> Self:
        """Make rank `rank` of a new world, which shares what nobody has consumed of the epoch; each of it is issued once.

        lengths: as in `from_state`.
        """
        if not isinstance(consolidated, ConsolidatedTokenBatchState):
            consolidated = ConsolidatedTokenBatchState.of(consolidated)
        table = table_of(consolidated.lengths, None if lengths is None else LengthTable.of(lengths))
        return cls(StatefulShardSampler.reshard(consolidated.sampler, rank, world_size), table, consolidated.options)

    def _restart(self) -> None:
        """Forget what was planned ahead; nothing is computed before the next look."""
        self._stretch = _FIRST_STRETCH
        self._moves += 1
        self._earlier.clear()
        self._counted = self._sampler.issued
        self._hold(self._sampler.issued, np.zeros(0, np.int64), CutBatches(*np.zeros((3, 0), np.int64)))

    def _hold(self, start: int, examples: Int64, cut: CutBatches) -> None:
        """Go on with the batches of a stretch, which begins at the shard's example `start`."""
        self._ends.clear()  # ends the rows that an iterator may still have in hand
        packed = self._options.layout == "packed"
        self._slots = cut.real_tokens if packed else np.diff(cut.ends, prepend=0) * cut.longest
        self._start, self._planned, self._ends = start, len(cut.ends), [0, *cut.ends.tolist()]
        self._examples, self._cut = examples, cut
        self._next, self._first = 0, -len(self._earlier)
        self._rows = rows_ahead(self._ends, cut.real_tokens, cut.longest, self._slots)

    def _settle(self) -> None:
        """Bring the shard's cursors to where they are here. Raises SpecError if something else has moved them."""
        issued = self._start + self._ends[self._next]
        self._sampler.issue(self._counted, issued - self._counted)
        self._counted = issued
        committed, done = self._sampler.committed, len(self._earlier) + self._first
        if self._first > 0:
            committed = self._start + self._ends[self._first]
        elif done:
            committed = self._earlier[done - 1]
        self._sampler.commit(committed - self._sampler.committed)

    def _plan_ahead(self) -> bool:
        """Plan the batches of the next stretch of the shard, once all of this one are issued; False if nothing is left of it."""
        self._settle()
        sampler = self._sampler
        start, left = sampler.issued, sampler.unissued
        while left:
            size = min(self._stretch, left)
            examples = sampler.look_ahead(start, size)
            lengths = lengths_of(self._table.values, examples)
            self._table.check_still(lengths, examples, self._options)
            cut = cut_stretch(lengths, self._options, closed=size == left)
            if not len(cut.ends):  # the batch is longer than the stretch
                self._stretch *= 4
                continue
            self._stretch = max(self._stretch, min(self._stretch * 4, _LONGEST_STRETCH))
            del self._earlier[: len(self._earlier) + min(self._first, 0)]
            self._earlier.extend(map(self._start.__add__, self._ends[max(self._first, 0) + 1 :]))
            self._hold(start, examples, cut)
            return True
        return False
