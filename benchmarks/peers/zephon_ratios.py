"""The PyPI package zephon's own estimate over many seeds: `python zephon_ratios.py ROWS.jsonl SEEDS`, where zephon is installed.

ROWS.jsonl: a shard a line, {"raw_bytes": n, "rows": [[payload, tokens], ...]}. Its own functions choose shards, take the census,
draw rows and estimate; tokens come from the file, so that hundreds of seeds take minutes and no tokenizer differs. Prints JSON:
ratios, and the raw bytes of the shards that were scanned, one a seed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from zephon.work import token_estimation


class Shards:
    """A data set, its store and its shards, as the package sees them."""

    name = "rows"

    def __init__(self, path: str) -> None:
        self._shards: list[dict[str, Any]] = []
        with open(path) as file:  # noqa: PTH123
            self._shards = [json.loads(line) for line in file]
        self._rows: list[dict[str, Any]] = []
        self.scanned: set[int] = set()

    def ids(self) -> np.ndarray[Any, Any]:
        """Return the shards' numbers."""
        return np.arange(len(self._shards))

    def counts(self) -> np.ndarray[Any, Any]:
        """Return rows by shard."""
        return np.array([len(shard["rows"]) for shard in self._shards])

    def raw_bytes(self) -> np.ndarray[Any, Any]:
        """Return bytes by shard."""
        return np.array([shard["raw_bytes"] for shard in self._shards])

    def for_dataset(self, dataset_id: int) -> Shards:
        """Return the store's view of the data set."""
        return self

    def open(self, shard: int) -> tuple[Shards, None]:
        """Open a shard."""
        self.scanned.add(shard)
        opened = object.__new__(Shards)
        opened._rows = [{**payload, "_tokens": np.int64(tokens)} for payload, tokens in self._shards[shard]["rows"]]
        return opened, None

    def getsamples(self, rows: list[int]) -> list[dict[str, Any]]:
        """Return rows of the open shard."""
        return [self._rows[row] for row in rows]


class Counter:
    """Counts what the file says."""

    description = "tokens of the file"
    abort_on_error = False

    def plan(self, payloads: list[Any]) -> Counter:
        """Count all alike."""
        return self

    def count(self, payload: dict[str, Any]) -> int:
        """Return what the file says."""
        return int(payload["_tokens"])


def main() -> None:
    data = Shards(sys.argv[1])
    raw = data.raw_bytes()
    ratios, scanned = [], []
    for seed in range(int(sys.argv[2])):
        data.scanned = set()
        measured = token_estimation._measure_dataset(data, 0, data, token_estimation.TokenEstimation(), Counter(), seed)
        ratios.append(measured.ratio.tokens_per_byte)
        scanned.append(int(raw[sorted(data.scanned)].sum()))
    json.dump({"ratios": ratios, "scanned_bytes": scanned}, sys.stdout)


if __name__ == "__main__":
    main()
