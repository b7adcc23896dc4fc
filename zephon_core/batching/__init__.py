"""Token-budget batches: an epoch cut into batches of an exact cost, for any number of ranks, resumed and resharded exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zephon_core.batching.audit import ConsumptionAudit
    from zephon_core.batching.cutting import cut_batches
    from zephon_core.batching.lengths import LengthTable
    from zephon_core.batching.options import TokenBatchOptions
    from zephon_core.batching.order import EpochOrder, epoch_order
    from zephon_core.batching.plan import GlobalBatchCursor, GlobalBatchPlan
    from zephon_core.batching.sampler import (
        ConsolidatedSamplerState,
        ConsolidatedTokenBatchState,
        LoadedBatch,
        SamplerState,
        StatefulShardSampler,
        StatefulTokenBatchSampler,
        TokenBatchPlan,
        TokenBatchState,
    )

__all__ = [
    "ConsolidatedSamplerState",
    "ConsolidatedTokenBatchState",
    "ConsumptionAudit",
    "EpochOrder",
    "GlobalBatchCursor",
    "GlobalBatchPlan",
    "LengthTable",
    "LoadedBatch",
    "SamplerState",
    "StatefulShardSampler",
    "StatefulTokenBatchSampler",
    "TokenBatchOptions",
    "TokenBatchPlan",
    "TokenBatchState",
    "cut_batches",
    "epoch_order",
]

_HOMES = {
    "ConsolidatedSamplerState": "sampler",
    "ConsolidatedTokenBatchState": "sampler",
    "ConsumptionAudit": "audit",
    "EpochOrder": "order",
    "GlobalBatchCursor": "plan",
    "GlobalBatchPlan": "plan",
    "LengthTable": "lengths",
    "LoadedBatch": "sampler",
    "SamplerState": "sampler",
    "StatefulShardSampler": "sampler",
    "StatefulTokenBatchSampler": "sampler",
    "TokenBatchOptions": "options",
    "TokenBatchPlan": "sampler",
    "TokenBatchState": "sampler",
    "cut_batches": "cutting",
    "epoch_order": "order",
}


def __getattr__(name: str) -> Any:
    """Import an export where it is first used, so that looking at the command line's help doesn't load numba."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"zephon_core.batching.{_HOMES[name]}"), name)
