"""One plan for all ranks: every rank has a batch in every step, and the batches of a step cost nearly the same.

    order      the seeded order of the epoch (`order`)
    buckets    cut into batches; with a bucket width, of neighbouring lengths (`buckets`)
    balance    batches are shuffled; those of like cost share a step; the last step is dealt evenly (`balance`)

The examples lie in one array in the order of (step, rank), so a batch is a slice, what is left of an epoch is the array's tail,
and any step is found at once. The plan is made again from its recipe, or mapped from the files of `save`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_core.batching.cutting import BatchStream, deal_batches, even_parts, form_batches, generator_state, lengths_of, look_up
from zephon_core.batching.cutting.loops import collect_items
from zephon_core.batching.lengths import LengthTable
from zephon_core.batching.options import (
    FOLDER_WANTED,
    LARGEST,
    OPTIONS_WANTED,
    TokenBatchOptions,
    is_whole,
    refuse_other_type,
    shown,
)
from zephon_core.batching.order import EpochOrder, index_dtype
from zephon_core.batching.plan.ahead import helpers, results_ahead
from zephon_core.batching.plan.batch_ranges import BatchRanges
from zephon_core.batching.plan.recipe import LARGEST_SETTING, LARGEST_WORLD, PLAN_VERSION, PlanRecipe, PlanSource, Reshard
from zephon_core.batching.plan.statistics import PlanStatistics, measure_plan
from zephon_core.batching.sampler import TokenBatchPlan
from zephon_core.batching.sampler.token_plan import Row, made, rows_ahead
from zephon_core.errors import CorruptArtifactError, SpecError, StateError

__all__ = ["PLAN_VERSION", "GlobalBatchPlan", "PlanArrays"]

WINDOW_STEPS = 64
"""Steps whose batches are dealt together, where nothing else is said."""

_STRETCHES = 16
_LEAST_AT_ONCE = 1 << 16
_MOST_AT_ONCE = 1 << 18

Int64 = npt.NDArray[np.int64]
Filler = Callable[[int, npt.NDArray[Any]], None]  # writes the examples of an order from a position on to an array


class PlanArrays(NamedTuple):
    """A plan's batches in the order of (step, rank), rank the faster.

    examples: uint32 or int64 [examples]. offsets: int64 [batches + 1]. real_tokens, longest, token_slots: int64 [batches].
    """

    examples: npt.NDArray[Any]
    offsets: Int64
    real_tokens: Int64
    longest: Int64
    token_slots: Int64


class GlobalBatchPlan:
    """The batches of one epoch, or of the rest of one, for `world_size` ranks: `build` it, `open` it, or `reshard` another.

    Rank r's batch in step s is batch number s * world_size + r. Every example is in exactly one batch; each batch keeps to
    the options. The last step is dealt as evenly as it goes; only there may a batch be empty, and only if the step has fewer
    examples than ranks.
    """

    def __init__(
        self, recipe: PlanRecipe, arrays: PlanArrays, table: LengthTable | None, statistics: PlanStatistics | None = None
    ) -> None:
        self._recipe, self._arrays, self._table = recipe, arrays, table
        self._statistics = statistics

    @classmethod
    def build(
        cls,
        lengths: LengthTable | npt.ArrayLike | os.PathLike[str] | str,
        options: TokenBatchOptions,
        *,
        world_size: int,
        seed: int | None = 0,
        epoch: int = 0,
        bucket_width: int = 0,
        window_steps: int = WINDOW_STEPS,
        source_id: str = "",
    ) -> GlobalBatchPlan:
        """Plan an epoch. Equal lengths and settings give the same plan on every machine.

        seed: of the epoch's order; None: the source's own order, as far as buckets and balance leave it.
        bucket_width: the examples that fill so many steps are sorted by length before they are cut; 0: none are. Padding
        shrinks as it grows; 64 is plenty, and examples stay within about as many steps of where the order has them.
        window_steps: the batches of so many steps are dealt to steps by their cost; 1: as they come.
        Takes a second or two for 100 million examples, and memory for an index of each beside the lengths. Up to three threads
        share the work, of as many as the process may use beside this one.
        Raises SpecError for settings, LengthError naming an example that can't be batched.
        """
        refuse_other_type("options", options, TokenBatchOptions, OPTIONS_WANTED)
        world_size = _number("world_size", world_size, 1, LARGEST_WORLD)
        bucket_width = _number("bucket_width", bucket_width, 0, LARGEST_SETTING)
        window_steps = _number("window_steps", window_steps, 1, LARGEST_SETTING)
        epoch = _number("epoch", epoch, 0, LARGEST)
        seed = None if seed is None else _number("seed", seed, 0, LARGEST)
        table = LengthTable.of(lengths, source_id=source_id)
        table.check_unchanged()
        table.check(options)
        source = PlanSource(table.source_id, table.count, "")
        recipe = PlanRecipe(source, seed, epoch, options, world_size, bucket_width, window_steps)
        return cls._begun(recipe, table)

    @classmethod
    def _begun(cls, recipe: PlanRecipe, table: LengthTable) -> GlobalBatchPlan:
        """Plan an epoch. The recipe's lengths_sha256 needn't be known yet: the lengths are read while batches are formed."""
        order = EpochOrder(table.count, seed=recipe.seed, epoch=recipe.epoch)
        return cls(*_planned(order.fill, table.count, table, recipe), table)

    @classmethod
    def restore(
        cls, lengths: LengthTable | npt.ArrayLike | os.PathLike[str] | str, saved: Mapping[str, Any] | str | bytes | PlanRecipe
    ) -> GlobalBatchPlan:
        """Make a plan again from its recipe, or from a cursor's state, which holds one; all its changes of the world included.

        Raises StateError for a recipe or state that isn't whole, of another version, or of other lengths.
        """
        from zephon_core.batching.plan.cursor import recipe_of

        recipe = saved if isinstance(saved, PlanRecipe) else recipe_of(saved)
        table = _table_of(recipe, lengths)
        table.check_unchanged()
        table.check(recipe.options)
        plan = cls._begun(replace(recipe, reshards=()), table)
        for number, one in enumerate(recipe.reshards):
            try:
                plan = plan.reshard(one.step, one.world_size, skipped=one.skipped)
            except SpecError as error:
                raise StateError(f"recipe.reshards[{number}]", error.found, wanted=error.wanted) from error
        return plan

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        lengths: LengthTable | npt.ArrayLike | os.PathLike[str] | str | None = None,
        verify: bool = True,
    ) -> GlobalBatchPlan:
        """Map a saved plan; nothing is computed again.

        lengths: needed only to `reshard` it. verify: read it all once and compare checksums (a second for 100 million
        examples); False: look only at sizes and header, whatever the plan's size.
        Raises MissingArtifactError, CorruptArtifactError for a damaged one, ArtifactError for something else or a later version,
        StateError for other lengths.
        """
        from zephon_core.batching.plan.file import open_plan

        refuse_other_type("folder", folder, (str, os.PathLike), FOLDER_WANTED)
        recipe, arrays, statistics = open_plan(Path(folder), verify=verify)
        table = None if lengths is None else _table_of(recipe, lengths)
        return cls(recipe, arrays, table, statistics)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write plan.arrow and, once that is whole, plan.json into a folder, which is made if need be."""
        from zephon_core.batching.plan.file import save_plan

        refuse_other_type("folder", folder, (str, os.PathLike), FOLDER_WANTED)
        save_plan(Path(folder), self._recipe, self._arrays, self.statistics)

    @property
    def recipe(self) -> PlanRecipe:
        """What decides the plan."""
        return self._recipe

    @property
    def digest(self) -> str:
        """Identity of the plan, 64 hex digits, by its recipe."""
        return self._recipe.digest

    @property
    def arrays(self) -> PlanArrays:
        """The batches, to look at."""
        return self._arrays

    @property
    def options(self) -> TokenBatchOptions:
        """The limits of a batch."""
        return self._recipe.options

    @property
    def epoch(self) -> int:
        """The epoch that this is a plan of."""
        return self._recipe.epoch

    @property
    def world_size(self) -> int:
        """How many data ranks the plan is for."""
        return self._recipe.last_world_size

    @property
    def steps(self) -> int:
        """How many steps there are, and so how many batches each rank has."""
        return len(self._arrays.real_tokens) // self.world_size

    @property
    def count(self) -> int:
        """How many examples are planned."""
        return len(self._arrays.examples)

    def batch(self, step: int, rank: int) -> TokenBatchPlan:
        """Return the batch of a rank in a step; found at once, wherever it is."""
        if not is_whole(step, 0, self.steps - 1) or not is_whole(rank, 0, self.world_size - 1):
            raise IndexError(f"step {shown(step)}, rank {shown(rank)} of a plan of {self.steps} steps and {self.world_size} ranks")
        return self.batches(np.array([step * self.world_size + rank]))[0]

    def batches(self, numbers: Int64, leave_empty: npt.NDArray[np.bool_] | None = None) -> list[TokenBatchPlan]:
        """Return batches by their numbers, int64 [n], step * world_size + rank each; many at once cost less than one by one.

        leave_empty: bool [n], those in whose place an empty batch is returned.
        """
        numbers, most = np.asarray(numbers), self.steps * self.world_size - 1
        if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
            raise SpecError("numbers", f"are {numbers.dtype} {list(numbers.shape)}", wanted="one row of whole numbers")
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) <= most:
            raise IndexError(f"batches {numbers.min()} to {numbers.max()} of a plan whose last is {most}")
        examples, _, rows = self.rows(numbers.astype(np.int64), leave_empty)
        return [made(TokenBatchPlan, (examples[row[0] : row[1]], *row[2:])) for row in rows]

    def rows(self, numbers: Int64, leave_empty: npt.NDArray[np.bool_] | None = None) -> tuple[Int64, list[int], Iterator[Row]]:
        """Return the examples of batches, and bounds and rows of them (`rows_ahead`); the arguments are those of `batches`."""
        arrays = self._arrays
        starts, ends = arrays.offsets[numbers], arrays.offsets[numbers + 1]
        figures = [arrays.real_tokens[numbers], arrays.longest[numbers], arrays.token_slots[numbers]]
        if leave_empty is not None and leave_empty.any():
            ends = np.where(leave_empty, starts, ends)
            figures = [np.where(leave_empty, 0, one) for one in figures]
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(ends - starts)])
        examples = np.empty(bounds[-1], np.int64)
        collect_items(arrays.examples, starts, bounds, examples)
        listed = bounds.tolist()
        return examples, listed, rows_ahead(listed, *figures)

    @cached_property
    def statistics(self) -> PlanStatistics:
        """Waste, imbalance, sizes and shuffling; measured at the first look (a second or two for 100 million examples)."""
        if self._statistics is not None:
            return self._statistics
        return measure_plan(self._arrays, self.options, self.world_size, self._lengths())

    def next_epoch(self) -> GlobalBatchPlan:
        """Plan the epoch that follows, on the present world, with the same settings."""
        return self.of_epoch(self.epoch + 1)

    def of_epoch(self, epoch: int) -> GlobalBatchPlan:
        """Plan another epoch, on the present world, with the same settings."""
        return self._begun(self._recipe.of_epoch(_number("epoch", epoch, 0, LARGEST)), self._lengths())

    def reshard(self, step: int, world_size: int, *, skipped: Iterable[int] | BatchRanges = ()) -> GlobalBatchPlan:
        """Plan for another world what is left of the epoch once `step` steps are taken: each of its examples once.

        skipped: numbers of batches that are left out for good; those of the steps taken change nothing but the record.
        A pure function of this plan and the arguments; the new plan's recipe is this one's and these.
        """
        step, world_size = _number("step", step, 0, self.steps), _number("world_size", world_size, 1, LARGEST_WORLD)
        skipped = BatchRanges.of(skipped)
        if skipped.end > self.steps * self.world_size:
            raise SpecError("skipped", f"names batch {skipped.end - 1}", wanted=f"batches below {self.steps * self.world_size}")
        table = self._lengths()
        arrays, first = self._arrays, step * self.world_size
        kept = np.ones(len(arrays.examples) - int(arrays.offsets[first]), bool)
        for begin, end in zip(np.maximum(skipped.firsts, first), np.maximum(skipped.ends, first), strict=True):
            kept[arrays.offsets[begin] - arrays.offsets[first] : arrays.offsets[end] - arrays.offsets[first]] = False
        left = arrays.examples[arrays.offsets[first] :][kept]
        if len(left) and not 0 <= int(left.min()) <= int(left.max()) < table.count:
            raise CorruptArtifactError("plan", f"names example {left.max()}", wanted=f"0 to {table.count - 1}")
        recipe = replace(self._recipe, reshards=(*self._recipe.reshards, Reshard(step, world_size, skipped)))

        def fill(start: int, out: npt.NDArray[Any]) -> None:
            out[:] = left[start : start + len(out)]

        return type(self)(*_planned(fill, len(left), table, recipe), table)

    def _lengths(self) -> LengthTable:
        if self._table is None:
            remedy = "Open the plan with lengths=, the table that it was made of."
            raise SpecError("lengths", "aren't in the plan's files", wanted="the length table, which is needed here", remedy=remedy)
        self._table.check_unchanged()
        return self._table


def _table_of(recipe: PlanRecipe, lengths: LengthTable | npt.ArrayLike | os.PathLike[str] | str) -> LengthTable:
    """Return the lengths of a recipe; raises StateError for others. Where they have no source_id, the recipe's is theirs."""
    table = LengthTable.of(lengths)
    table = LengthTable.of(table, source_id=table.source_id or recipe.source.source_id)
    recipe.refuse_other(replace(recipe, source=PlanSource.of_table(table)))
    return table


def _planned(fill: Filler, count: int, table: LengthTable, recipe: PlanRecipe) -> tuple[PlanRecipe, PlanArrays]:
    """Make a plan of `count` examples in the order that `fill` tells; return it and the recipe, which knows the lengths now."""
    options, world_size, window = recipe.options, recipe.last_world_size, recipe.bucket_width * recipe.last_world_size
    order, stream, buckets = _formed(fill, count, table, options, window)
    recipe = replace(recipe, source=PlanSource.of_table(table))
    state = None if recipe.seed is None else generator_state(recipe.shuffling_key)
    rooms, steps = buckets if window else None, recipe.window_steps
    stream = deal_batches(order, stream, options, world_size=world_size, window_steps=steps, state=state, buckets=rooms)
    if len(order):
        stream = _with_even_end(order, table, stream, options, world_size)
    arrays = PlanArrays(order, *stream, stream.token_slots(options))
    for array in arrays:
        array.flags.writeable = False
    return recipe, arrays


def _formed(
    fill: Filler, count: int, table: LengthTable, options: TokenBatchOptions, window_batches: int
) -> tuple[npt.NDArray[Any], BatchStream, Int64]:
    """Return the examples, and what `form_batches` returns of them.

    While batches are formed of one stretch, threads look up the examples and lengths of those that follow, and read the table for
    its identity, which is needed next. What lengths were written to is written to again once they were used.
    """
    order = np.empty(count, index_dtype(table.count))
    at_once = min(_MOST_AT_ONCE, max(_LEAST_AT_ONCE, count // _STRETCHES))

    unused = deque[npt.NDArray[Any]]()

    def lengths_from(start: int) -> npt.NDArray[Any]:
        part = order[start : start + at_once]
        fill(start, part)
        try:
            lengths = unused.pop()
        except IndexError:  # all are in use
            lengths = np.empty(at_once, table.values.dtype)
        look_up(table.values, part, lengths)
        table.check_still(lengths[: len(part)], part, options)
        return lengths

    def stretches(pool: ThreadPoolExecutor | None) -> Iterator[npt.NDArray[Any]]:
        for number, lengths in enumerate(results_ahead(works, pool)):
            yield lengths[: count - number * at_once]
            unused.append(lengths)

    works = [partial(lengths_from, start) for start in range(0, count, at_once)]
    threads = helpers() if len(works) > 1 else 0
    with ThreadPoolExecutor(threads) if threads else nullcontext() as pool:
        if pool is not None:
            pool.submit(lambda: table.sha256)
        return order, *form_batches(order, stretches(pool), options, longest=table.longest, window_batches=window_batches)


def _with_even_end(
    order: npt.NDArray[Any], table: LengthTable, stream: BatchStream, options: TokenBatchOptions, world_size: int
) -> BatchStream:
    """Deal the examples of the last step, of one batch or more, up to one a rank, evenly to all ranks."""
    first = (len(stream.real_tokens) - 1) // world_size * world_size
    start = stream.offsets[first]
    rest = order[start:].copy()
    lengths = lengths_of(table.values, rest)
    table.check_still(lengths, rest, options)
    turns, offsets = even_parts(lengths, options, world_size)
    order[start:] = rest[turns]
    lengths = lengths[turns].astype(np.int64)
    filled = offsets[:-1] < offsets[1:]
    tokens, longest = np.zeros(world_size, np.int64), np.zeros(world_size, np.int64)
    tokens[filled] = np.add.reduceat(lengths, offsets[:-1][filled])
    longest[filled] = np.maximum.reduceat(lengths, offsets[:-1][filled])
    return BatchStream(
        np.concatenate([stream.offsets[:first], offsets + start]),
        np.concatenate([stream.real_tokens[:first], tokens]),
        np.concatenate([stream.longest[:first], longest]),
    )


def _number(name: str, value: int, least: int, most: int) -> int:
    if not is_whole(value, least, most):
        raise SpecError(name, f"is {shown(value)}", wanted=f"a whole number from {least} to {most}")
    return int(value)
