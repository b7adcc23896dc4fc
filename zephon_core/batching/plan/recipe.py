"""What decides a global plan: some hundred bytes, from which it can be made again, and whose digest is the plan's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from zephon_core.batching.lengths import LengthTable
from zephon_core.batching.options import LARGEST, TokenBatchOptions
from zephon_core.batching.order import ORDER_VERSION
from zephon_core.batching.plan.batch_ranges import BatchRanges
from zephon_core.batching.state_fields import StateFields, difference, read_options
from zephon_core.errors import StateError
from zephon_core.fingerprint import fingerprint

__all__ = ["LARGEST_SETTING", "LARGEST_WORLD", "PLAN_VERSION", "PlanRecipe", "PlanSource", "Reshard"]

PLAN_VERSION = 1
"""Changes with the batches that a recipe gives."""

_DEALING = ["seed", "epoch", "options", "world_size", "bucket_width", "window_steps", "reshards"]
_NAMES = ["version", "order_version", "source", *_DEALING]

LARGEST_WORLD = 1 << 20
"""The most ranks that are planned for."""

LARGEST_SETTING = 1 << 31
"""The widest windows, in steps."""


@dataclass(frozen=True)
class PlanSource:
    """The examples: how the caller calls them ("" for not at all), how many, and the identity of their lengths."""

    source_id: str
    count: int
    lengths_sha256: str

    @classmethod
    def of_table(cls, table: LengthTable) -> PlanSource:
        """Name a table, which is read once if its identity isn't known yet."""
        return cls(table.source_id, table.count, table.sha256)


@dataclass(frozen=True)
class Reshard:
    """One change of the world in mid-epoch: the steps before `step` were taken; batches in `skipped` are left out for good."""

    step: int
    world_size: int
    skipped: BatchRanges


@dataclass(frozen=True)
class PlanRecipe:
    """A plan is a pure function of this. world_size: of the world that began the epoch. reshards: what followed it, in order."""

    source: PlanSource
    seed: int | None
    epoch: int
    options: TokenBatchOptions
    world_size: int
    bucket_width: int
    window_steps: int
    reshards: tuple[Reshard, ...] = ()

    @property
    def last_world_size(self) -> int:
        """The size of the world that the plan is for."""
        return self.reshards[-1].world_size if self.reshards else self.world_size

    def of_epoch(self, epoch: int) -> PlanRecipe:
        """Return the recipe of another epoch, on the present world, with the same settings."""
        return replace(self, epoch=epoch, world_size=self.last_world_size, reshards=())

    @cached_property
    def digest(self) -> str:
        """Identity of the plan, 64 hex digits; instant, as no plan is needed for it."""
        return fingerprint("global batch plan", PLAN_VERSION, recipe=self.to_json())

    @property
    def shuffling_key(self) -> int:
        """64 bits that seed the plan's shuffles; the same whatever the source is called."""
        unnamed = replace(self, source=replace(self.source, source_id=""))
        return int(unnamed.digest[:16], 16)

    def to_json(self) -> dict[str, Any]:
        """Write the recipe as a plain object."""
        source = {"source_id": self.source.source_id, "count": self.source.count, "lengths_sha256": self.source.lengths_sha256}
        reshards = [{"step": one.step, "world_size": one.world_size, "skipped": one.skipped.to_json()} for one in self.reshards]
        return {
            "version": PLAN_VERSION,
            "order_version": ORDER_VERSION,
            "source": source,
            "seed": self.seed,
            "epoch": self.epoch,
            "options": self.options.model_dump(),
            "world_size": self.world_size,
            "bucket_width": self.bucket_width,
            "window_steps": self.window_steps,
            "reshards": reshards,
        }

    @classmethod
    def of(cls, value: object, name: str = "recipe") -> PlanRecipe:
        """Read what `to_json` wrote, checking all it says; raises StateError, by name for one that another version made."""
        read = StateFields(value, name, _NAMES)
        for key, present in (("version", PLAN_VERSION), ("order_version", ORDER_VERSION)):
            if read.integer(key) != present:
                found, remedy = f"is {read.integer(key)}", "Only the release that planned can plan the same batches."
                raise read.error(key, found, f"{present}, which this release makes", remedy)
        source = StateFields(read.raw("source"), f"{name}.source", ["source_id", "count", "lengths_sha256"])
        source_id = source.raw("source_id")
        return cls(
            PlanSource("" if source_id == "" else source.text("source_id"), source.integer("count"), source.text("lengths_sha256")),
            read.optional_integer("seed"),
            read.integer("epoch"),
            read_options(read.raw("options"), f"{name}.options"),
            read.integer("world_size", low=1, high=LARGEST_WORLD),
            read.integer("bucket_width", high=LARGEST_SETTING),
            read.integer("window_steps", low=1, high=LARGEST_SETTING),
            _read_reshards(read.raw("reshards"), f"{name}.reshards"),
        )

    def refuse_other(self, present: PlanRecipe) -> None:
        """Raise StateError naming what differs between this recipe, of a saved state, and the one of the plan at hand."""
        mine, other = self.to_json(), present.to_json()
        pairs = [(key, mine[key], other[key]) for key in _NAMES]
        for key in ("source", "options"):
            pairs += [(f"{key}.{inner}", value, other[key][inner]) for inner, value in mine[key].items()]
        found = [(key, saved, now) for key, saved, now in pairs if saved != now and not isinstance(saved, dict)]
        for key, saved, now in found:
            remedy = {
                "epoch": "Make the plan of the state's epoch (GlobalBatchPlan.restore).",
                "world_size": "Restore the old plan (GlobalBatchPlan.restore) and let it `reshard` to the new world.",
                "reshards": "Restore the plan that the state belongs to (GlobalBatchPlan.restore).",
            }.get(key, "The state belongs to another plan.")
            raise difference(key, saved, now, remedy=remedy)


def _read_reshards(value: object, name: str) -> tuple[Reshard, ...]:
    if not isinstance(value, list | tuple):
        raise StateError(name, f"is a {type(value).__name__}", wanted="a list of the worlds that followed")
    reshards = []
    for k, item in enumerate(value):
        read = StateFields(item, f"{name}[{k}]", ["step", "world_size", "skipped"])
        skipped = BatchRanges.of_json(read.raw("skipped"), f"{name}[{k}].skipped", LARGEST)
        reshards.append(Reshard(read.integer("step"), read.integer("world_size", low=1, high=LARGEST_WORLD), skipped))
    return tuple(reshards)
