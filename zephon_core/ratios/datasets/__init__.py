"""Data sets: which shards a path leads to, what can be read of them on its own, and reading it.

`Dataset.from_path` gives the shards and the units in them, from a catalog that is built once; `Dataset.open` reads units.
"""

from __future__ import annotations

from zephon_core.ratios.datasets.dataset import Dataset
from zephon_core.ratios.datasets.model import (
    BLANK_ROW,
    LocatedRow,
    Shard,
    ShardProblem,
    TextColumn,
    UnitReader,
    UnitRows,
    UnitTable,
)

__all__ = ["BLANK_ROW", "Dataset", "LocatedRow", "Shard", "ShardProblem", "TextColumn", "UnitReader", "UnitRows", "UnitTable"]
