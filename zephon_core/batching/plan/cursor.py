"""A rank's place in a global plan: an epoch, a step, the plan's digest, and the batches left out. The same for every rank."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from zephon_core.batching.lengths import LengthTable
from zephon_core.batching.options import LARGEST, is_whole, refuse_other_type, shown
from zephon_core.batching.plan.batch_ranges import BatchRanges
from zephon_core.batching.plan.global_plan import GlobalBatchPlan
from zephon_core.batching.plan.recipe import PlanRecipe
from zephon_core.batching.sampler import TokenBatchPlan
from zephon_core.batching.sampler.token_plan import Row, made
from zephon_core.batching.state_fields import StateFields, sealed
from zephon_core.errors import SpecError

__all__ = ["CURSOR_VERSION", "GlobalBatchCursor", "recipe_of"]

CURSOR_VERSION = 1

Int64 = npt.NDArray[np.int64]

_FEWEST_AHEAD = 16
_MOST_AHEAD = 1024

_FORMAT = "zephon-global-batches"
_NAMES = ["plan", "epoch", "step", "skipped", "recipe"]


class GlobalBatchCursor:
    """Hands one rank its batches of a plan, step by step; issued ones count once they are committed.

    skip: numbers of batches to leave out, see `skip`. All ranks are given the same.
    A step all of whose batches are left out is passed over; in one that is left out in part, the ranks concerned get an empty
    batch, so that all ranks still take part in it.
    Saving and restoring take the same small time wherever in the epoch.
    """

    def __init__(self, plan: GlobalBatchPlan, rank: int, *, skip: Iterable[int] = ()) -> None:
        refuse_other_type("plan", plan, GlobalBatchPlan, "GlobalBatchPlan.build(…), or one that was opened")
        if not is_whole(rank, 0, plan.world_size - 1):
            raise SpecError("rank", f"is {shown(rank)}", wanted=f"0 to {plan.world_size - 1}")
        self._plan, self._rank, self._moves = plan, int(rank), 0
        self._committed = self._issued = self._made = 0
        self._examples: Int64  # of the batches before `_made`, whose rows follow
        self._bounds: list[int] = []
        self._rows: Iterator[Row]
        self._place(_in_plan(plan, BatchRanges.of(skip)), 0)

    @property
    def plan(self) -> GlobalBatchPlan:
        """The plan."""
        return self._plan

    @property
    def rank(self) -> int:
        """The rank whose batches these are."""
        return self._rank

    @property
    def epoch(self) -> int:
        """The plan's epoch."""
        return self._plan.epoch

    @property
    def step(self) -> int:
        """The first step that isn't committed and not passed over; the plan's `steps` at the end."""
        return self._step_of(self._committed)

    @property
    def next_step(self) -> int:
        """The step whose batch `next_plan` would issue; the plan's `steps` at the end."""
        return self._step_of(self._issued)

    @property
    def moves(self) -> int:
        """How often it was moved otherwise than by issuing and committing: what was issued before isn't counted any more."""
        return self._moves

    @property
    def issued_batches(self) -> int:
        """How many batches are issued and not committed."""
        return self._issued - self._committed

    @property
    def remaining_batches(self) -> int:
        """How many batches are still to be issued."""
        return self._count - self._issued

    @property
    def skipped(self) -> BatchRanges:
        """The batches that are left out."""
        return self._skipped

    def peek(self) -> TokenBatchPlan | None:
        """Return the batch that `next_plan` would issue, or None at the end of the epoch; moves nothing."""
        batches = self._plan.batches(*self._from_here(1))
        return batches[0] if batches else None

    def next_plan(self) -> TokenBatchPlan | None:
        """Issue the rank's next batch; None at the end of the epoch."""
        for start, stop, tokens, longest, slots in self._rows:  # not even a signal comes between a row that is taken and its count
            self._issued += 1
            return made(TokenBatchPlan, (self._examples[start:stop], tokens, longest, slots))
        return self.next_plan() if self._look_ahead() else None

    def __iter__(self) -> Iterator[TokenBatchPlan]:
        """Issue batch after batch to the end of the epoch."""
        while self._issued < self._made or self._look_ahead():
            examples = self._examples
            for start, stop, tokens, longest, slots in self._rows:  # as in `next_plan`
                self._issued += 1
                yield made(TokenBatchPlan, (examples[start:stop], tokens, longest, slots))

    def commit(self, batches: int = 1) -> None:
        """Count the first `batches` issued ones as consumed. Raises SpecError for more than are issued."""
        if batches == 1 and self._committed < self._issued and batches.__class__ is int:  # as in every step of a loop
            self._committed += 1
            return
        if not is_whole(batches, 0, self._issued - self._committed):
            raise SpecError("batches", f"is {shown(batches)}", wanted=f"0 to {self.issued_batches}, as many as are issued")
        self._committed += int(batches)

    def rewind_uncommitted(self) -> None:
        """Take back what was issued and not committed."""
        self._issued = self._committed
        self._moves += 1
        self._forget()

    def seek(self, step: int) -> None:
        """Go to the beginning of a step, taking back what was issued; every step before it counts as committed."""
        if not is_whole(step, 0, self._plan.steps):
            raise SpecError("step", f"is {shown(step)}", wanted=f"0 to {self._plan.steps}")
        self._place(self._skipped, int(step))

    def skip(self, batch_ids: Iterable[int]) -> None:
        """Leave out batches from now on.

        A batch's number is step * world_size + rank, so steps a to b - 1 are range(a * world_size, b * world_size).
        Raises SpecError for a batch that isn't in the plan or is in a step already committed, and while batches are issued.
        """
        if self.issued_batches:
            remedy = "Commit them, or rewind_uncommitted() first."
            raise SpecError("skip", f"is called with {self.issued_batches} batches issued", wanted="none", remedy=remedy)
        self.leave_out(batch_ids)

    def leave_out(self, batch_ids: Iterable[int]) -> None:
        """Do as `skip` does, taking back what is issued."""
        added = _in_plan(self._plan, BatchRanges.of(batch_ids))
        both, committed = self._skipped.union(added), self.step * self._plan.world_size
        if both.below(committed) > self._skipped.below(committed):
            found = f"names batch {int(added.firsts[0])}, of step {int(added.firsts[0]) // self._plan.world_size}"
            raise SpecError("batch_ids", found, wanted=f"batches of step {self.step} or later: those before it are committed")
        self._place(both, self.step)

    def state(self, *, issued: bool = False) -> dict[str, Any]:
        """Return the place as a plain document: committed steps, the plan's digest and recipe, batches left out.

        issued: as if all that is issued were committed.
        """
        document = {
            "format": _FORMAT,
            "version": CURSOR_VERSION,
            "plan": self._plan.digest,
            "epoch": self._plan.epoch,
            "step": self.next_step if issued else self.step,
            "skipped": self._skipped.to_json(),
            "recipe": self._plan.recipe.to_json(),
        }
        return sealed(document)

    def load_state(self, state: Mapping[str, Any] | str | bytes) -> None:
        """Go to a saved place, of any rank.

        Raises StateError naming the difference if it isn't one of this plan; nothing moves then.
        """
        read, recipe = _read(state)
        recipe.refuse_other(self._plan.recipe)
        step = read.integer("step", high=self._plan.steps)
        end = self._plan.steps * self._plan.world_size
        self._place(BatchRanges.of_json(read.raw("skipped"), f"{read.name}.skipped", end), step)

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Any] | str | bytes,
        lengths: LengthTable | npt.ArrayLike | os.PathLike[str] | str,
        rank: int,
    ) -> Self:
        """Make the plan of a state again, and go to the state's place in it."""
        cursor = cls(GlobalBatchPlan.restore(lengths, state), rank)
        cursor.load_state(state)
        return cursor

    def reshard(self, world_size: int) -> GlobalBatchPlan:
        """Plan what isn't committed of the epoch for another world; batches left out stay so. Each of its ranks makes a cursor."""
        return self._plan.reshard(self.step, world_size, skipped=self._skipped)

    def _place(self, skipped: BatchRanges, step: int) -> None:
        self._skipped = skipped
        self._moves += 1
        self._passed = skipped.whole_steps(self._plan.world_size)
        self._count = self._plan.steps - len(self._passed)
        self._committed = self._issued = step - self._passed.below(step)
        self._forget()

    def _step_of(self, place: int) -> int:
        return self._plan.steps if place == self._count else int(self._passed.outside(np.array([place]))[0])

    def _forget(self) -> None:
        """Forget what is planned ahead, also in iterators that have it in hand."""
        self._bounds.clear()
        self._made, self._rows, self._at_once = self._issued, iter(()), _FEWEST_AHEAD

    def _look_ahead(self) -> bool:
        """Make the next batches ready, twice as many as the last time, once all of those are issued; False if there are none."""
        self._examples, self._bounds, self._rows = self._plan.rows(*self._from_here(self._at_once))
        self._made = self._issued + len(self._bounds) - 1
        self._at_once = min(2 * self._at_once, _MOST_AHEAD)
        return self._issued < self._made

    def _from_here(self, most: int) -> tuple[Int64, npt.NDArray[np.bool_]]:
        """Return the numbers of the next batches to be issued, and which of them are left out."""
        steps = self._passed.outside(np.arange(self._issued, min(self._issued + most, self._count)))
        numbers = steps * self._plan.world_size + self._rank
        return numbers, self._skipped.holds(numbers)


def recipe_of(saved: Mapping[str, Any] | str | bytes) -> PlanRecipe:
    """Read the recipe that a cursor's state holds, or that `saved` is; raises StateError."""
    if isinstance(saved, Mapping) and "format" not in saved:
        return PlanRecipe.of(saved)
    return _read(saved)[1]


def _read(state: Mapping[str, Any] | str | bytes) -> tuple[StateFields, PlanRecipe]:
    read = StateFields.of_document(state, _FORMAT, CURSOR_VERSION, _NAMES)
    recipe = PlanRecipe.of(read.raw("recipe"), f"{read.name}.recipe")
    if read.text("plan") != recipe.digest:
        raise read.error("plan", f"is {read.text('plan')!r}", f"{recipe.digest}, the digest of its recipe", "The state is damaged.")
    if read.integer("epoch") != recipe.epoch:
        raise read.error("epoch", f"is {read.integer('epoch')}", f"{recipe.epoch}, as in its recipe", "The state is damaged.")
    read.integer("step")
    BatchRanges.of_json(read.raw("skipped"), f"{read.name}.skipped", LARGEST)
    read.check_seal()
    return read, recipe


def _in_plan(plan: GlobalBatchPlan, batches: BatchRanges) -> BatchRanges:
    if batches.end > plan.steps * plan.world_size:
        raise SpecError("batch_ids", f"name batch {batches.end - 1}", wanted=f"batches below {plan.steps * plan.world_size}")
    return batches
