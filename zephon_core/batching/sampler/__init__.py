"""Samplers: one data rank's part of an epoch, batch by batch, and what it saves to go on exactly.

shard_sampler   a rank's part of the source, with a cursor that counts only what was trained on
shard_state     what it saves, and all ranks' states as one
remainder       what is left of an epoch that was dealt to other worlds
token_plan      one batch: its examples, and what it costs
token_sampler   the shard's token-budget batches
token_state     what they save beyond the shard's state
"""

from __future__ import annotations

from zephon_core.batching.sampler.shard_sampler import StatefulShardSampler
from zephon_core.batching.sampler.shard_state import ConsolidatedSamplerState, SamplerState
from zephon_core.batching.sampler.token_plan import TokenBatchPlan
from zephon_core.batching.sampler.token_sampler import LoadedBatch, StatefulTokenBatchSampler
from zephon_core.batching.sampler.token_state import ConsolidatedTokenBatchState, TokenBatchState

__all__ = [
    "ConsolidatedSamplerState",
    "ConsolidatedTokenBatchState",
    "LoadedBatch",
    "SamplerState",
    "StatefulShardSampler",
    "StatefulTokenBatchSampler",
    "TokenBatchPlan",
    "TokenBatchState",
]
