"""What a sample costs in tokens, by the bytes of its shard: what a loader needs that draws before it has read anything."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from zephon_core.errors import SpecError
from zephon_core.ratios.estimation import TokenRatio

__all__ = ["FlatCostWarning", "PerShardTokenCost", "ShardSizes", "mean_sample_bytes"]


class FlatCostWarning(RuntimeWarning):
    """Some data sets carry no byte metadata, so that their samples all cost the same."""


class ShardSizes(Protocol):
    """What of a data set is needed here: id, number of rows (-1: unknown) and raw bytes of each shard, int64 [shards] each."""

    def ids(self) -> npt.NDArray[np.int64]:
        """Shard ids."""

    def counts(self) -> npt.NDArray[np.int64]:
        """Rows a shard."""

    def raw_bytes(self) -> npt.NDArray[np.int64]:
        """Raw bytes a shard."""


def mean_sample_bytes(dataset: ShardSizes) -> float | None:
    """Return the raw bytes a row has on average, over the shards whose rows and bytes are known; None if there are none."""
    rows, raw_bytes = np.asarray(dataset.counts(), np.int64), np.asarray(dataset.raw_bytes(), np.int64)
    known = (rows > 0) & (raw_bytes > 0)
    return float(raw_bytes[known].sum() / rows[known].sum()) if known.any() else None


class PerShardTokenCost:
    """Expected tokens of a sample: its shard's average bytes times its data set's ratio, at least 1.

    A data set without byte metadata costs the same for every sample; one FlatCostWarning names all of those.
    Raises SpecError for a data set without a ratio.
    """

    def __init__(self, datasets: Mapping[str, ShardSizes], ratios: Mapping[str, TokenRatio]) -> None:
        if missing := sorted(set(datasets) - set(ratios)):
            raise SpecError("ratios", f"lack {', '.join(missing)}", wanted="one for every data set")
        self._shards = {name: _shard_costs(dataset, ratios[name].tokens_per_byte) for name, dataset in datasets.items()}
        means = {name: mean_sample_bytes(dataset) for name, dataset in datasets.items()}
        self._mean = {name: max(1.0, (mean or 1.0) * ratios[name].tokens_per_byte) for name, mean in means.items()}
        if flat := sorted(name for name, mean in means.items() if mean is None):
            warnings.warn(
                f"No rows or bytes are known of {', '.join(flat)}: each of their samples costs the same, so that long ones are "
                "drawn as often as short ones. Data sets still weigh as they should against each other.",
                FlatCostWarning,
                stacklevel=2,
            )

    def cost(self, name: str, sample_id: Sequence[int]) -> float:
        """Return the expected tokens of a sample, at least 1. sample_id: (data set, shard, row), as zephon numbers samples."""
        return self._shards[name].get(int(sample_id[1]), self._mean[name])

    def mean_cost(self, name: str) -> float:
        """Return the expected tokens of a sample drawn anywhere in the data set, at least 1."""
        return self._mean[name]


def _shard_costs(dataset: ShardSizes, tokens_per_byte: float) -> dict[int, float]:
    columns = zip(dataset.ids().tolist(), dataset.counts().tolist(), dataset.raw_bytes().tolist(), strict=True)
    return {shard: max(1.0, size / rows * tokens_per_byte) for shard, rows, size in columns if rows > 0 and size > 0}
