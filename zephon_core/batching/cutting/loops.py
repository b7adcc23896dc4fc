"""Loops that the compiler makes vectors of, which it does where all indices are unsigned: none can be one from an array's end."""

from __future__ import annotations

from typing import Any

import numpy as np

from zephon_core.compiled import compiled

__all__ = ["collect_items", "copy_items", "sum_items"]


@compiled
def copy_items(source: Any, start: int, target: Any, at: int, count: int) -> None:
    """Copy source[start : start + count] to target[at : at + count]; where these overlap, `at` is the smaller."""
    for k in range(np.uint64(count)):
        target[np.uint64(at) + k] = source[np.uint64(start) + k]


@compiled
def collect_items(source: Any, starts: Any, bounds: Any, target: Any) -> None:
    """Copy one piece of `source` after the other: the one from starts[k] on to target[bounds[k] : bounds[k + 1]]."""
    for piece in range(len(starts)):
        start, at = np.uint64(starts[piece]), np.uint64(bounds[piece])
        for k in range(np.uint64(bounds[piece + 1]) - at):
            target[at + k] = source[start + k]


@compiled
def sum_items(items: Any, start: int, end: int) -> Any:
    """Return the sum of items[start:end], which must be below 2**63."""
    total: Any = np.int64(0)
    for k in range(np.uint64(start), np.uint64(end)):
        total += np.int64(items[k])
    return total
