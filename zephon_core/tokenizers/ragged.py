"""Token ids of many texts as two flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["RaggedIds", "interleaved"]


class RaggedIds(NamedTuple):
    """The ids of many texts, one text after the other.

    ids: uint32 [sum of lengths]. lengths: int32 [texts]. Text i starts where the lengths before it end.
    """

    ids: npt.NDArray[np.uint32]
    lengths: npt.NDArray[np.int32]

    def starts(self) -> npt.NDArray[np.int64]:
        """Tell where each text's ids begin in `ids`: int64 [texts]."""
        return np.cumsum(self.lengths, dtype=np.int64) - self.lengths

    def row(self, text: int) -> npt.NDArray[np.uint32]:
        """Return the ids of one text."""
        start = int(self.lengths[:text].sum(dtype=np.int64))
        return self.ids[start : start + int(self.lengths[text])]

    def first_difference(self, other: RaggedIds) -> tuple[int, int] | None:
        """Find the first text whose ids differ from the same text's in `other`, and the position in it; None if all are equal.

        Where one is the beginning of the other, the position is the shorter one's length. Both must hold equally many texts.
        """
        same_length = self.lengths == other.lengths
        agreeing = len(same_length) if same_length.all() else int(np.argmin(same_length))
        shared = int(self.lengths[:agreeing].sum(dtype=np.int64))
        unequal = self.ids[:shared] != other.ids[:shared]
        if unequal.any():
            flat, starts = int(np.argmax(unequal)), self.starts()[:agreeing]
            text = int(np.searchsorted(starts, flat, side="right")) - 1
            return text, flat - int(starts[text])
        if agreeing == len(same_length):
            return None
        first, second = self.row(agreeing), other.row(agreeing)
        shorter = min(len(first), len(second))
        unequal = first[:shorter] != second[:shorter]
        return agreeing, int(np.argmax(unequal)) if unequal.any() else shorter


def interleaved(parts: Sequence[tuple[npt.NDArray[np.int64], RaggedIds]], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Lay texts that were encoded in several parts out in one order.

    parts: each part's rows in that order (int64, one a text of the part) and its ids. lengths: int64 [texts], how many ids to
    keep of each text; a row of which no part holds so many is filled up with zeros, and where two parts hold a row the later
    one counts.
    Returns uint32 [sum of lengths].
    """
    starts = np.cumsum(lengths) - lengths
    ids = np.zeros(int(lengths.sum()), dtype=np.uint32)
    for rows, part in parts:
        kept = np.minimum(lengths[rows], part.lengths)
        within = np.arange(int(kept.sum())) - np.repeat(np.cumsum(kept) - kept, kept)
        ids[np.repeat(starts[rows], kept) + within] = part.ids[np.repeat(part.starts(), kept) + within]
    return ids
