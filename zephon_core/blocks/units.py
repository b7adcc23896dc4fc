"""Which blocks a run works on, and which of them go through a model together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zephon_core.blocks.finished import BlockJob
from zephon_core.budget import BlockPlan, runs_within
from zephon_core.errors import SpecError

__all__ = ["Share", "Unit", "plan_units", "unit_jobs", "wanted_blocks"]

UNIT_TOKENS = 2048

Unit = range


@dataclass(frozen=True)
class Share:
    """What of the work a run asks for.

    limit_rows: only blocks with one of the first so many rows, 0: all. rows: only blocks with a row between START:END of the plan's
    order, "": all. part: only this one of `parts`, None: all.
    """

    limit_rows: int = 0
    rows: str = ""
    parts: int = 1
    part: int | None = None

    @property
    def name(self) -> str:
        """What the ledger of this share is called."""
        return "all" if self.part is None else f"part-{self.part:04d}-of-{self.parts:04d}"


def plan_units(block_tokens: npt.NDArray[np.int64]) -> list[Unit]:
    """Cut the blocks into units, runs of neighbours of up to `UNIT_TOKENS` tokens that a model may run in one pass."""
    return list(runs_within(block_tokens, UNIT_TOKENS))


def wanted_blocks(plan: BlockPlan, units: Sequence[Unit], share: Share) -> npt.NDArray[np.bool_]:
    """Tell which blocks `share` asks for, bool [blocks]: whole blocks, in the same composition whatever is asked for.

    Raises SpecError for a row range outside of the plan.
    """
    wanted = np.ones(len(plan), np.bool_)
    if share.limit_rows:
        kept = np.zeros(len(plan), np.bool_)
        kept[plan.blocks_of_rows(share.limit_rows)] = True
        wanted &= kept
    if share.rows:
        start, end = map(int, share.rows.split(":"))
        if not start < end <= plan.row_count:
            raise SpecError("rows", f"is {share.rows}", wanted=f"START:END with START < END <= {plan.row_count}")
        between = plan.blocks_between(start, end)
        wanted[: between.start] = False
        wanted[between.stop :] = False
    if share.part is not None:
        part_of_unit = np.arange(len(units)) % share.parts
        wanted &= np.repeat(part_of_unit, [len(unit) for unit in units]) == share.part
    return wanted


def unit_jobs(plan: BlockPlan, units: Sequence[Unit], wanted: npt.NDArray[np.bool_], *, ragged: bool) -> Iterator[list[BlockJob]]:
    """Yield the jobs of each unit that has a wanted block. ragged: whether several blocks share a forward pass.

    Blocks that share a forward pass always share it with the same others, wanted or not, so that what a block comes out as
    doesn't depend on what else is missing. Where none do, each wanted block is a unit: a kill costs no more than the one in hand.
    """
    for unit in units:
        flags = wanted[unit.start : unit.stop]
        if ragged and flags.any():
            yield [BlockJob(block, plan.rows(block), bool(flag)) for block, flag in zip(unit, flags, strict=True)]
        elif not ragged:
            yield from ([BlockJob(block, plan.rows(block))] for block, flag in zip(unit, flags, strict=True) if flag)
