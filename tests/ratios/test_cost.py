"""What a sample costs in tokens."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pytest

from zephon_core.errors import SpecError
from zephon_core.ratios.cost import FlatCostWarning, PerShardTokenCost, mean_sample_bytes
from zephon_core.ratios.estimation import TokenRatio


@dataclass
class Sizes:
    """Shards of so many rows and bytes."""

    rows: list[int]
    size: list[int]

    def ids(self) -> np.ndarray:
        return np.arange(10, 10 + len(self.rows), dtype=np.int64)

    def counts(self) -> np.ndarray:
        return np.array(self.rows, np.int64)

    def raw_bytes(self) -> np.ndarray:
        return np.array(self.size, np.int64)


def test_a_sample_costs_its_shards_mean_bytes_times_the_ratio() -> None:
    cost = PerShardTokenCost({"a": Sizes([10, 2], [1000, 900])}, {"a": TokenRatio(0.5, "measured")})
    assert cost.cost("a", (0, 10, 3)) == 50.0
    assert cost.cost("a", (0, 11, 0)) == 225.0
    assert cost.mean_cost("a") == pytest.approx(1900 / 12 / 2)


def test_nothing_costs_less_than_a_token() -> None:
    cost = PerShardTokenCost({"a": Sizes([100], [100])}, {"a": TokenRatio(0.25, "pinned")})
    assert cost.cost("a", (0, 10, 0)) == cost.mean_cost("a") == 1.0


def test_a_shard_of_unknown_rows_costs_the_mean() -> None:
    cost = PerShardTokenCost({"a": Sizes([10, -1, 0], [1000, 5000, 0])}, {"a": TokenRatio(0.5, "measured")})
    assert cost.cost("a", (0, 11, 0)) == cost.cost("a", (0, 12, 0)) == cost.cost("a", (0, 99, 0)) == cost.mean_cost("a") == 50.0
    assert mean_sample_bytes(Sizes([-1], [100])) is None


def test_one_warning_names_all_that_cost_the_same_for_every_sample() -> None:
    datasets = {"x": Sizes([], []), "y": Sizes([5], [0]), "z": Sizes([5], [50])}
    with pytest.warns(FlatCostWarning, match="of x, y: each") as caught:
        cost = PerShardTokenCost(datasets, dict.fromkeys(datasets, TokenRatio(3.0, "measured")))
    assert len(caught) == 1
    assert cost.cost("x", (0, 0, 0)) == 3.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PerShardTokenCost({"z": datasets["z"]}, {"z": TokenRatio(3.0, "measured")})


def test_a_data_set_without_a_ratio_is_refused() -> None:
    with pytest.raises(SpecError, match="lack b"):
        PerShardTokenCost({"a": Sizes([1], [1]), "b": Sizes([1], [1])}, {"a": TokenRatio(1.0, "pinned")})
