"""What is of a wrong type altogether is refused in one line that says where, what was found and what is wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from zephon_core.batching import (
    ConsolidatedSamplerState,
    ConsolidatedTokenBatchState,
    ConsumptionAudit,
    EpochOrder,
    GlobalBatchCursor,
    GlobalBatchPlan,
    LengthTable,
    SamplerState,
    StatefulShardSampler,
    StatefulTokenBatchSampler,
    TokenBatchOptions,
    TokenBatchState,
    cut_batches,
    epoch_order,
)
from zephon_core.batching.torch import TokenBatchSampler, read_checkpoint, read_states
from zephon_core.errors import ZephonError

WRONG = [None, 2.5, {"a": 1}, object(), np.array([1.5]), float("nan"), b"x", [None]]

LENGTHS = np.array([3, 4, 5, 6], np.int32)
OPTIONS = TokenBatchOptions(maximum_tokens=10)
PLAN = GlobalBatchPlan.build(LENGTHS, OPTIONS, world_size=1)


def shard(**settings: Any) -> StatefulShardSampler:
    return StatefulShardSampler(**({"source_id": "s", "source_length": 4, "rank": 0, "world_size": 1} | settings))


def sampler() -> StatefulTokenBatchSampler:
    return StatefulTokenBatchSampler(shard(), LENGTHS, OPTIONS)


def cursor() -> GlobalBatchCursor:
    return GlobalBatchCursor(PLAN, 0)


def build(**settings: Any) -> GlobalBatchPlan:
    return GlobalBatchPlan.build(**({"lengths": LENGTHS, "options": OPTIONS, "world_size": 1} | settings))


CALLS: dict[str, Callable[[Any], object]] = {
    **{f"shard {name}": lambda value, name=name: shard(**{name: value}) for name in ("source_length", "rank", "world_size")},
    "shard epoch": lambda value: shard(epoch=value),
    "shard source_id": lambda value: shard(source_id=value),
    "shard tail": lambda value: shard(tail=value),
    "shard next_indices": lambda value: shard().next_indices(value),
    "shard look_ahead start": lambda value: shard().look_ahead(value, 1),
    "shard look_ahead count": lambda value: shard().look_ahead(0, value),
    "shard issue start": lambda value: shard().issue(value, 1),
    "shard issue count": lambda value: shard().issue(0, value),
    "shard commit": lambda value: shard().commit(value),
    "shard state": lambda value: shard().state(value),
    "shard load_state": lambda value: shard().load_state(value),
    "shard from_state": StatefulShardSampler.from_state,
    "shard reshard": lambda value: StatefulShardSampler.reshard(value, 0, 1),
    "shard start_epoch": lambda value: shard().start_epoch(value),
    "sampler state": SamplerState.of,
    "consolidated sampler states": ConsolidatedSamplerState.consolidate,
    "consolidated sampler state": ConsolidatedSamplerState.of,
    "sampler sampler": lambda value: StatefulTokenBatchSampler(value, LENGTHS, OPTIONS),
    "sampler lengths": lambda value: StatefulTokenBatchSampler(shard(), value, OPTIONS),
    "sampler options": lambda value: StatefulTokenBatchSampler(shard(), LENGTHS, value),
    "sampler commit": lambda value: sampler().commit(value),
    "sampler load_state": lambda value: sampler().load_state(value),
    "sampler from_state": StatefulTokenBatchSampler.from_state,
    "sampler reshard": lambda value: StatefulTokenBatchSampler.reshard(value, 0, 1),
    "token state": TokenBatchState.of,
    "consolidated token states": ConsolidatedTokenBatchState.consolidate,
    "consolidated token state": ConsolidatedTokenBatchState.of,
    "options maximum_tokens": lambda value: TokenBatchOptions(maximum_tokens=value),
    "options layout": lambda value: TokenBatchOptions(maximum_tokens=8, layout=value),
    "table": LengthTable.of,
    "cut lengths": lambda value: cut_batches(value, None, OPTIONS),
    "cut options": lambda value: cut_batches(LENGTHS, None, value),
    "order": lambda value: epoch_order(value, seed=0, epoch=0),
    "order epoch": lambda value: EpochOrder(4, seed=0, epoch=value),
    "audit": lambda value: ConsumptionAudit.of(value),
    "audit epoch": lambda value: ConsumptionAudit().add(value, [1]),
    **{f"plan {name}": lambda value, name=name: build(**{name: value}) for name in ("lengths", "options", "world_size", "epoch")},
    **{f"plan {name}": lambda value, name=name: build(**{name: value}) for name in ("bucket_width", "window_steps")},
    "plan restore": lambda value: GlobalBatchPlan.restore(LENGTHS, value),
    "plan open": GlobalBatchPlan.open,
    "plan save": PLAN.save,
    "plan of_epoch": PLAN.of_epoch,
    "plan reshard": lambda value: PLAN.reshard(value, 1),
    "plan batches": PLAN.batches,
    "cursor plan": lambda value: GlobalBatchCursor(value, 0),
    "cursor rank": lambda value: GlobalBatchCursor(PLAN, value),
    "cursor skip": lambda value: cursor().skip(value),
    "cursor commit": lambda value: cursor().commit(value),
    "cursor seek": lambda value: cursor().seek(value),
    "cursor load_state": lambda value: cursor().load_state(value),
    "cursor from_state": lambda value: GlobalBatchCursor.from_state(value, LENGTHS, 0),
    "torch source": lambda value: TokenBatchSampler(value),
    "torch load_state_dict": lambda value: TokenBatchSampler(sampler()).load_state_dict(value),
    "torch iterator load_state_dict": lambda value: iter(TokenBatchSampler(sampler())).load_state_dict(value),
    "torch state": lambda value: TokenBatchSampler(sampler()).load_state_dict({"rank-0-of-1": value}),
    "torch set_epoch": lambda value: TokenBatchSampler(cursor()).set_epoch(value),
    "torch read_states": read_states,
    "torch read_states of one": lambda value: read_states([value]),
    "torch read_checkpoint": read_checkpoint,
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_types_are_refused_in_one_line(name: str) -> None:
    for value in WRONG:
        with pytest.raises(ZephonError) as caught:
            CALLS[name](value)
        assert "\n" not in str(caught.value), value
        assert caught.value.where, value
        assert caught.value.found, value


@pytest.mark.parametrize("value", [None, 2.5, True, "x", -1, 4])
def test_a_batch_that_is_not_there(value: Any) -> None:
    for place in ((value, 0), (0, value)):
        with pytest.raises(IndexError, match=f"of a plan of {PLAN.steps} steps and 1 ranks"):
            PLAN.batch(*place)
    if isinstance(value, int) and value is not True:
        with pytest.raises(IndexError, match="of a plan whose last is"):
            PLAN.batches(np.array([value]))


@pytest.mark.parametrize("order", [[0, 4], [-1], [1.5], [[0]], ["x"], 5, [None]])
def test_an_order_of_other_examples_is_refused(order: Any) -> None:
    """Lookups don't check it."""
    with pytest.raises(ZephonError, match=r"^order: "):
        cut_batches(LENGTHS, order, OPTIONS)
    assert cut_batches(LENGTHS, [], OPTIONS).tolist() == [0]
    assert cut_batches(LENGTHS, [3, 0], OPTIONS).tolist() == [0, 2]


@pytest.mark.parametrize("dataset", [None, 5, object(), iter([1, 2])])
def test_no_data_set(dataset: Any) -> None:
    one = sampler()
    for load in (lambda: shard().load_next(dataset, 1), lambda: one.load_next(dataset)):
        with pytest.raises(ZephonError, match=r"^data set: is "):
            load()
    assert one.issued_batches == 0
