"""Plans: one for all ranks, whose steps cost nearly the same on each.

global_plan    what others call
recipe         what decides a plan, and its digest
cursor         a rank's place in it
batch_ranges   batches left out, as ranges
statistics     what a plan is like: padding, waiting, sizes, order
file           a plan as files
ahead          work done by threads before it's asked for
"""

from __future__ import annotations

from zephon_core.batching.plan.cursor import GlobalBatchCursor, recipe_of
from zephon_core.batching.plan.global_plan import PLAN_VERSION, GlobalBatchPlan
from zephon_core.batching.plan.statistics import Distribution, PlanStatistics

__all__ = ["PLAN_VERSION", "Distribution", "GlobalBatchCursor", "GlobalBatchPlan", "PlanStatistics", "recipe_of"]
