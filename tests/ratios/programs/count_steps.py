"""What tests of the exact pass have its workers do to rows."""

from __future__ import annotations

import os
import signal
from typing import Any


def keep(row: dict[str, Any]) -> bool:
    """Keep a row."""
    return True


def without_nulls(row: dict[str, Any]) -> dict[str, Any] | None:
    """Drop a row without text."""
    return row if row["text"] is not None else None


class Doubled:
    """Makes two rows of each, once it is set up."""

    def __init__(self) -> None:
        self.times = 1

    def setup(self) -> None:
        """Be ready."""
        self.times += 1

    def __call__(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Repeat a row."""
        return [row] * self.times


def words(row: dict[str, Any]) -> int:
    """Count words; fails on a row without text."""
    return len(row["text"].split()) + 1


def kill_worker(row: Any) -> int:
    """End the process that counts."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 1
