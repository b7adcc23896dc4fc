"""What a draw comes upon: a row, or of a long text a stretch with what stands around it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zephon_core.ratios.counting.fields import as_text, look_up
from zephon_core.ratios.datasets.model import BLANK_ROW, UnitRows
from zephon_core.readers.rows import RowProblem

__all__ = ["STRETCH_BYTES", "WHOLE_ROW_BYTES", "WHOLE_TEXT_BYTES", "Found", "UnitDraws", "long_text", "stretch_of"]

STRETCH_BYTES = 1024
WHOLE_TEXT_BYTES = 2 * STRETCH_BYTES
_CONTEXT_BYTES = 4096
WHOLE_ROW_BYTES = STRETCH_BYTES + 2 * _CONTEXT_BYTES
"""A row of a decoded unit up to this long is counted whole: with what stands around it, a stretch would cost as much."""
_ROW_BYTES = 1
"""Added to the bytes of a decoded unit's rows, so that those without content can be drawn: they may deliver special tokens."""


@dataclass
class Found:
    """What a draw came upon: a row, or a stretch of its text.

    weight: probability density of the row, relative to the unit's bytes: a row of as many tokens as bytes has value 1.
    share: how many times the stretch's tokens the whole text has, as far as its bytes tell. times: how often it was come upon.
    """

    payload: Any
    weight: float
    where: str
    text: str | None = None
    start: int = 0
    stop: int = 0
    share: float = 1.0
    times: int = 1


class UnitDraws:
    """Draws rows of one decoded unit in proportion to their bytes."""

    def __init__(self, rows: UnitRows, size: int, text_path: tuple[str, ...] | None, where: str) -> None:
        self.rows = rows
        self._where = where
        self._text_path = text_path
        self._texts = rows.texts(text_path) if text_path is not None else None
        self._weights = rows.row_bytes + _ROW_BYTES
        self._ends = np.cumsum(self._weights)
        self._scale = float(self._ends[-1]) / size if len(self._ends) else 0.0
        self._latest = (-1, b"")  # the long text that was looked at last, and most likely is next

    def around(self, place: float, visits: int) -> list[Found]:
        """Return the rows at a place in the unit, 0 to 1, and at others at even distances from it, or stretches of long ones."""
        if not len(self._ends):
            return [Found(BLANK_ROW, 0.0, self._where)]
        targets = (place + np.arange(visits) / visits) % 1.0 * float(self._ends[-1])
        rows = np.minimum(np.searchsorted(self._ends, targets, side="right"), len(self._ends) - 1)
        inside = 1 - (self._ends[rows] - targets) / self._weights[rows]
        is_text = np.zeros(len(rows), np.bool_) if self._texts is None else self._texts.lengths[rows] > WHOLE_ROW_BYTES
        found = [self._stretch_of(row, at) for row, at in zip(rows[is_text].tolist(), inside[is_text].tolist(), strict=True)]
        others, first, times = np.unique(rows[~is_text], return_index=True, return_counts=True)
        for payload, row, number, count in zip(self.rows.payloads(others.tolist()), others.tolist(), first, times, strict=True):
            look = replace(self._found(row), payload=payload, times=int(count))
            text = long_text(look, self._text_path if self._weights[row] > WHOLE_ROW_BYTES else None)
            found.append(look if text is None else stretch_of(text, float(inside[~is_text][number]), look))
        return found

    def _found(self, row: int) -> Found:
        return Found(None, self._scale / float(self._weights[row]), f"{self._where} (row {row + 1:,} of its unit)")

    def _stretch_of(self, row: int, inside: float) -> Found:
        found = self._found(row)
        if self._texts is not None:
            try:
                if self._latest[0] != row:
                    self._latest = (row, self._texts.text(row).encode("utf-8", "surrogatepass"))
                return stretch_of(self._latest[1], inside, found)
            except RowProblem as problem:
                found.payload = problem
        return found


def long_text(found: Found, path: tuple[str, ...] | None) -> bytes | None:
    """Return the text of a row where it is so long that stretches of it are looked at; None otherwise, and without a path."""
    if path is None or found.payload is BLANK_ROW or isinstance(found.payload, RowProblem):
        return None
    text = as_text(look_up(found.payload, path))
    data = b"" if text is None else text.encode("utf-8", "surrogatepass")
    return data if len(data) > WHOLE_TEXT_BYTES else None


def stretch_of(data: bytes, inside: float, row: Found) -> Found:
    """Return the stretch of a long text around a place in it, 0 to 1: texts are cut into stretches of `STRETCH_BYTES`."""
    start = min(int(inside * len(data)), len(data) - 1) // STRETCH_BYTES * STRETCH_BYTES
    stop = min(start + STRETCH_BYTES, len(data))
    left, first, last, right = (_character_start(data, at) for at in (start - _CONTEXT_BYTES, start, stop, stop + _CONTEXT_BYTES))
    before, stretch, after = (data[a:b].decode("utf-8", "surrogatepass") for a, b in ((left, first), (first, last), (last, right)))
    share = len(data) / (stop - start)
    return replace(row, text=before + stretch + after, start=len(before), stop=len(before) + len(stretch), share=share)


def _character_start(data: bytes, at: int) -> int:
    """Return the first byte at or after `at` with which a character begins."""
    at = max(0, at)
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return min(at, len(data))
