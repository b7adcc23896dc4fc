"""A function of the user's in place of text extraction and tokenizing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from zephon_core.errors import MeasureError
from zephon_core.ratios.counting.plans import COUNTED, Count, NotTexts
from zephon_core.ratios.counting.portable import function_name
from zephon_core.ratios.datasets.model import BLANK_ROW
from zephon_core.words import in_words

__all__ = ["MeasureCounter", "MeasurePlan"]

Measure = Callable[[Any], int]


class MeasureCounter:
    """Counts rows with a function payload → tokens, which gets them raw: nothing is replayed. See `TokenCounter`."""

    encoder = ""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure

    def plan(self, prefix: Sequence[Any]) -> MeasurePlan:
        """See `TokenCounter.plan`."""
        return MeasurePlan(self._measure)


class MeasurePlan(NotTexts):
    """A result that is not positive means that the row can't be measured."""

    outputs = COUNTED
    paths = None

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self.description = f"measure, {function_name(measure)}"

    def count(self, payloads: Sequence[Any]) -> list[Count | None]:
        """See `CountPlan.count`. Raises MeasureError if the function fails, or gives no number."""
        counts: list[Count | None] = []
        for position, payload in enumerate(payloads):
            if payload is BLANK_ROW:
                counts.append((0,))
                continue
            try:
                tokens = int(self._measure(payload))
            except Exception as error:  # somebody else's function
                remedy = "Fix it, or let it return 0 for a row that it can't measure."
                failed = MeasureError(self.description, f"failed ({in_words(error)})", remedy=remedy)
                failed.position = position
                raise failed from error
            counts.append((tokens,) if tokens > 0 else None)
        return counts
