"""Shares of a plan add up to all of it, in whole blocks."""

from __future__ import annotations

import numpy as np
import pytest

from zephon_core.blocks import Share, plan_units, unit_jobs, wanted_blocks
from zephon_core.budget import BlockPlan, exact_blocks
from zephon_core.errors import SpecError

LENGTHS = np.random.default_rng(0).integers(1, 200, 3000).astype(np.int32)


@pytest.fixture(scope="module")
def plan() -> BlockPlan:
    return exact_blocks(LENGTHS, max_batch=128, token_budget=8192)


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 50])
def test_parts_share_all_blocks_evenly(plan: BlockPlan, parts: int) -> None:
    tokens = plan.block_tokens(LENGTHS)
    units = plan_units(tokens)
    masks = [wanted_blocks(plan, units, Share(parts=parts, part=part)) for part in range(parts)]
    assert (np.sum(masks, axis=0) == 1).all()
    shares = [int(tokens[mask].sum()) for mask in masks]
    assert max(shares) - min(shares) <= 2 * tokens.max() + 2048


def test_a_row_range_takes_the_blocks_that_hold_it(plan: BlockPlan) -> None:
    units = plan_units(plan.block_tokens(LENGTHS))
    wanted = np.flatnonzero(wanted_blocks(plan, units, Share(rows="10:1200")))
    assert wanted.tolist() == list(plan.blocks_between(10, 1200))
    with pytest.raises(SpecError, match="START:END with START < END <= 3000"):
        wanted_blocks(plan, units, Share(rows="10:3001"))


def test_the_first_rows_take_the_blocks_that_hold_them(plan: BlockPlan) -> None:
    units = plan_units(plan.block_tokens(LENGTHS))
    wanted = wanted_blocks(plan, units, Share(limit_rows=5))
    assert {row for block in np.flatnonzero(wanted) for row in plan.rows(int(block))} >= set(range(5))
    assert all((plan.rows(int(block)) < 5).any() for block in np.flatnonzero(wanted))


@pytest.mark.parametrize("ragged", [True, False])
def test_a_missing_block_keeps_its_company(plan: BlockPlan, ragged: bool) -> None:
    units = plan_units(plan.block_tokens(LENGTHS))
    wanted = np.zeros(len(plan), np.bool_)
    wanted[[3, 4, 40]] = True
    jobs = list(unit_jobs(plan, units, wanted, ragged=ragged))
    assert sorted(job.block for unit in jobs for job in unit if job.wanted) == [3, 4, 40]
    company = [[job.block for job in unit] for unit in jobs]
    if ragged:
        assert company == [list(unit) for unit in units if wanted[unit.start : unit.stop].any()]
    else:
        assert company == [[3], [4], [40]]


def test_a_share_names_its_ledger() -> None:
    assert Share().name == "all"
    assert Share(parts=12, part=3).name == "part-0003-of-0012"
