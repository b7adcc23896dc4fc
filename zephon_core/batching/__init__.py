"""Token-budget batches: an epoch cut into batches of an exact cost, for any number of ranks, resumed and resharded exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zephon_core.batching.audit import ConsumptionAudit
    from zephon_core.batching.cut import cut_batches
    from zephon_core.batching.global_plan import GlobalBatchPlan
    from zephon_core.batching.lengths import LengthTable
    from zephon_core.batching.options import TokenBatchOptions
    from zephon_core.batching.order import EpochOrder, epoch_order
    from zephon_core.batching.plan_cursor import GlobalBatchCursor
    from zephon_core.batching.shard_sampler import StatefulShardSampler
    from zephon_core.batching.shard_state import ConsolidatedSamplerState, SamplerState
    from zephon_core.batching.token_sampler import LoadedBatch, StatefulTokenBatchSampler, TokenBatchPlan
    from zephon_core.batching.token_state import ConsolidatedTokenBatchState, TokenBatchState

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
    "ConsolidatedSamplerState": "shard_state",
    "ConsolidatedTokenBatchState": "token_state",
    "ConsumptionAudit": "audit",
    "EpochOrder": "order",
    "GlobalBatchCursor": "plan_cursor",
    "GlobalBatchPlan": "global_plan",
    "LengthTable": "lengths",
    "LoadedBatch": "token_sampler",
    "SamplerState": "shard_state",
    "StatefulShardSampler": "shard_sampler",
    "StatefulTokenBatchSampler": "token_sampler",
    "TokenBatchOptions": "options",
    "TokenBatchPlan": "token_sampler",
    "TokenBatchState": "token_state",
    "cut_batches": "cut",
    "epoch_order": "order",
}


def __getattr__(name: str) -> Any:
    """Import an export where it is first used, so that looking at the command line's help doesn't load numba."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"zephon_core.batching.{_HOMES[name]}"), name)
