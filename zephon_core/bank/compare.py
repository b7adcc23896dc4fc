"""Look into banks: the texts most like another, and what two banks have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.bank.reader import FeatureBank

__all__ = ["BankDifference", "Neighbour", "diff_banks", "nearest_rows"]

_BLOCK_ROWS = 65_536
_SAMPLE_ROWS = 100_000


@dataclass(frozen=True)
class Neighbour:
    """A row and its cosine similarity to the query."""

    row: int
    similarity: float


def nearest_rows(bank: FeatureBank, query: npt.NDArray[np.floating[Any]], count: int) -> list[Neighbour]:
    """Return the `count` valid rows most similar to a feature vector [hidden_size], the most similar first.

    Exact: every row is compared, block by block, so that the matrix is never in memory as a whole.
    """
    wanted = query.astype(np.float32)
    wanted /= max(float(np.linalg.norm(wanted)), 1e-30)
    valid = bank.valid
    best_rows = np.empty(0, np.int64)
    best = np.empty(0, np.float32)
    for start in range(0, len(bank), _BLOCK_ROWS):
        block = bank.features[start : start + _BLOCK_ROWS].astype(np.float32)
        scores = (block @ wanted) / np.maximum(np.linalg.norm(block, axis=1), 1e-30)
        scores[~valid[start : start + _BLOCK_ROWS]] = -np.inf
        best = np.concatenate([best, scores])
        best_rows = np.concatenate([best_rows, np.arange(start, start + len(block))])
        keep = np.lexsort((best_rows, -best))[:count]
        best, best_rows = best[keep], best_rows[keep]
    return [Neighbour(int(row), float(score)) for row, score in zip(best_rows, best, strict=True) if np.isfinite(score)]


@dataclass(frozen=True)
class BankDifference:
    """What two banks share. The figures on features are over at most 100,000 shared rows that are valid in both."""

    only_first: int
    only_second: int
    shared: int
    same_row: int
    compared: int
    largest_deviation: float | None
    lowest_cosine: float | None
    mean_cosine: float | None
    settings: dict[str, list[Any]]

    def to_json(self) -> dict[str, Any]:
        """Return the difference as plain values."""
        return dict(vars(self))


def diff_banks(first: FeatureBank, second: FeatureBank) -> BankDifference:
    """Compare two banks: texts by digest, settings by name, features of shared texts by value."""
    (digests_first, filed_first), (digests_second, filed_second) = first.index, second.index
    _, in_first, in_second = np.intersect1d(digests_first, digests_second, assume_unique=True, return_indices=True)
    rows_first, rows_second = filed_first[in_first].astype(np.int64), filed_second[in_second].astype(np.int64)
    shared = len(rows_first)
    usable = np.flatnonzero(first.valid[rows_first] & second.valid[rows_second])
    if len(usable) > _SAMPLE_ROWS:
        usable = usable[np.linspace(0, len(usable) - 1, _SAMPLE_ROWS).astype(np.int64)]
    deviation = lowest = mean = None
    if len(usable) and first.features.shape[1] == second.features.shape[1]:
        a = first.features[rows_first[usable]].astype(np.float32)
        b = second.features[rows_second[usable]].astype(np.float32)
        cosine = (a * b).sum(1) / np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-30)
        deviation, lowest, mean = float(np.abs(a - b).max()), float(cosine.min()), float(cosine.mean())
    return BankDifference(
        only_first=len(first) - shared,
        only_second=len(second) - shared,
        shared=shared,
        same_row=int((rows_first == rows_second).sum()),
        compared=len(usable),
        largest_deviation=deviation,
        lowest_cosine=lowest,
        mean_cosine=mean,
        settings=_differing_settings(first.manifest, second.manifest),
    )


def _differing_settings(first: dict[str, Any], second: dict[str, Any]) -> dict[str, list[Any]]:
    names = (
        "hidden_size",
        "max_key_tokens",
        "dtype",
        "precision",
        "quantization",
        "engine",
        "complete",
        "encoding",
        "fingerprints",
    )
    content = {name: [first.get(name), second.get(name)] for name in names if first.get(name) != second.get(name)}
    for name in ("tokenizer", "model"):
        digests = [manifest.get(name, {}).get("sha256") for manifest in (first, second)]
        if digests[0] != digests[1]:
            content[name] = digests
    return content
