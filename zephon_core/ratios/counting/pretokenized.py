"""Rows that hold token ids already: they are counted, not tokenized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zephon_core.ratios.counting.fields import FieldPath, label, look_up, token_array_length
from zephon_core.ratios.counting.plans import COUNTED, Count, NotTexts
from zephon_core.ratios.datasets.model import BLANK_ROW

__all__ = ["PretokenizedPlan"]


class PretokenizedPlan(NotTexts):
    """Counts the ids in one field. An empty array, or none, can't be measured; a null delivers nothing."""

    outputs = COUNTED

    def __init__(self, path: FieldPath) -> None:
        self._path = path
        self.paths = (".".join(path),) if path else None
        self.description = f"token ids, {label(path)}"

    def count(self, payloads: Sequence[Any]) -> list[Count | None]:
        """See `CountPlan.count`."""
        return [self._count(payload) for payload in payloads]

    def _count(self, payload: Any) -> Count | None:
        value = None if payload is BLANK_ROW else look_up(payload, self._path)
        if value is None:
            return (0,)
        length = token_array_length(value)
        return (length,) if length else None
