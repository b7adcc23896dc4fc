"""Loss tokens that no chunk covers, and why not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from zephon_core.xtoken.alignment import Islands, SamplePairs
from zephon_core.xtoken.alignment.islands import Key
from zephon_core.xtoken.alignment.pairs import FRAMING
from zephon_core.xtoken.normalised import Fold, folded
from zephon_core.xtoken.vocabulary import UNKNOWN

__all__ = ["CAUSE_WORDS", "Cause", "Gap", "find_gaps"]

_NEAR = 8
"""Tokens of the teacher's on either side of a gap that are looked at for what they are."""


class Cause(StrEnum):
    """Why loss tokens are in no chunk."""

    BEGINNING = "beginning"
    UNKNOWN = "unknown"
    LEFT_OUT = "left_out"
    OTHERWISE = "otherwise"
    REORDERED = "reordered"
    EDGE = "edge"
    NORMALISED = "normalised"
    OTHER = "other"


CAUSE_WORDS = {
    Cause.BEGINNING: "share bytes with a first token, which nothing precedes",
    Cause.UNKNOWN: "beside a character that one side has no token for",
    Cause.LEFT_OUT: "the teacher's template leaves them out, changes or repeats them",
    Cause.OTHERWISE: "the teacher's template writes them otherwise",
    Cause.REORDERED: "the teacher's template writes what is said in another order",
    Cause.EDGE: "a token reaches over the edge of what is said",
    Cause.NORMALISED: "the tokenizers' normalisers leave other bytes of them",
    Cause.OTHER: "no boundary nearby that both sides share",
}


@dataclass(frozen=True)
class Gap:
    """Student tokens first to last of a sample, all with loss and in no chunk; and the teacher's between the same chunks, if any.

    closes: whether the next chunk follows at once, so that what the teacher has for them stands at its range's end.
    """

    first: int
    last: int
    teacher_first: int
    teacher_last: int
    closes: bool
    cause: Cause

    def __len__(self) -> int:
        return self.last - self.first


def find_gaps(pairs: SamplePairs, sample: int) -> Iterator[Gap]:
    """Yield the gaps of one sample, in order."""
    tokens, teacher = pairs.student.of(sample), pairs.teacher.of(sample)
    ranges = pairs.chunks.ranges[pairs.chunks.offsets[sample] : pairs.chunks.offsets[sample + 1]]
    open_ = _open_runs(pairs.loss[tokens], ranges)
    if not len(open_):
        return
    causes = _Causes(pairs, sample, ranges)
    before = np.searchsorted(ranges[:, 0], open_[:, 0]) - 1  # the chunk before each run, -1 for none
    for (first, last), chunk in zip(open_.tolist(), before.tolist(), strict=True):
        teacher_first = int(ranges[chunk, 3]) if chunk >= 0 else 0
        following = chunk + 1 < len(ranges)
        teacher_last = int(ranges[chunk + 1, 2]) if following else teacher.stop - teacher.start
        closes = following and int(ranges[chunk + 1, 0]) == last
        opens = chunk >= 0 and int(ranges[chunk, 1]) == first
        begin = teacher_first if opens or not closes else max(teacher_first, teacher_last - _NEAR)
        end = teacher_last if closes or not opens else min(teacher_last, teacher_first + _NEAR)
        yield Gap(first, last, teacher_first, teacher_last, closes, causes.of(first, last, begin, end))


def _open_runs(loss: npt.NDArray[np.bool_], ranges: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Find the runs of loss tokens that no range covers: int64 [runs, 2]."""
    steps = np.zeros(len(loss) + 1, dtype=np.int64)
    np.add.at(steps, ranges[:, 0], 1)
    np.add.at(steps, ranges[:, 1], -1)
    edges = np.diff(np.concatenate([[False], loss & (np.cumsum(steps[:-1]) == 0), [False]]).astype(np.int8))
    return np.stack([np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)], axis=1).astype(np.int64)


class _Causes:
    """Tells of a sample's gaps why they are."""

    def __init__(self, pairs: SamplePairs, sample: int, ranges: npt.NDArray[np.int64]) -> None:
        student, teacher = pairs.student, pairs.teacher
        self._pairs, self._sample = pairs, sample
        self._kinds = student.vocabulary.kinds[student.ids[student.of(sample)]]
        self._teacher_kinds = teacher.vocabulary.kinds[teacher.ids[teacher.of(sample)]]
        self._pieces = student.pieces[student.of(sample)]
        self._keys = student.piece_keys[sample]
        self._islands = pairs.islands[sample]
        self._ranges = ranges
        self._fold = student.vocabulary.fold | teacher.vocabulary.fold

    def of(self, first: int, last: int, teacher_first: int, teacher_last: int) -> Cause:
        """Judge student tokens first to last, with the teacher's tokens near them."""
        if (self._kinds[first:last] == UNKNOWN).any() or (self._teacher_kinds[teacher_first:teacher_last] == UNKNOWN).any():
            return Cause.UNKNOWN
        if first <= 1 and teacher_first == 0 and last - first <= _NEAR:
            return Cause.BEGINNING
        if self._islands is None:
            return Cause.NORMALISED if self._altered else Cause.OTHER
        return self._of_piece(first, last, self._islands)

    @cached_property
    def _altered(self) -> bool:
        """Whether either side's tokens are other bytes than its text."""
        sides = (self._pairs.student, self._pairs.teacher)
        return any(side.spans(self._sample).content.tobytes() != side.texts[self._sample] for side in sides)

    def _of_piece(self, first: int, last: int, islands: Islands) -> Cause:
        piece = int(self._pieces[first])
        key = self._keys[piece]
        if key not in islands.teacher.pieces:
            related = (other for other in islands.teacher.pieces if key[: len(other)] == other or other[: len(key)] == key)
            return Cause.OTHERWISE if any(related) else Cause.LEFT_OUT
        ours, theirs = (side.text[slice(*side.pieces[key])] for side in (islands.student, islands.teacher))
        if not np.array_equal(_folded(ours, self._fold, 1), _folded(theirs, self._fold, 2)):
            return Cause.OTHERWISE
        if key in self._reordered and not self._kept(key, piece):
            return Cause.REORDERED
        within = np.flatnonzero(self._pieces == piece)
        if first == int(within[0]) or last == int(within[-1]) + 1:
            return Cause.EDGE
        return Cause.NORMALISED if self._altered else Cause.OTHER

    @cached_property
    def _reordered(self) -> frozenset[Key]:
        """The pieces of both sides that stand before another on one side and behind it on the other."""
        if self._islands is None:
            return frozenset()
        ours, theirs = self._islands.student.pieces, self._islands.teacher.pieces
        shared = sorted((key for key in ours if key in theirs), key=lambda key: ours[key])
        places = np.array([theirs[key][0] for key in shared], dtype=np.int64)
        before = np.maximum.accumulate(places) > places
        behind = np.minimum.accumulate(places[::-1])[::-1] < places
        return frozenset(key for key, moved in zip(shared, (before | behind).tolist(), strict=True) if moved)

    def _kept(self, key: Key, piece: int) -> bool:
        """Tell whether a chunk pairs a piece with the teacher's rendering of it, not with the same words elsewhere."""
        teacher = self._pairs.teacher
        keys = teacher.piece_keys[self._sample]
        here = self._ranges[self._pieces[self._ranges[:, 0]] == piece, 2]
        others = np.unique(teacher.pieces[teacher.of(self._sample)][here])
        return any(other != FRAMING and keys[other] == key for other in others.tolist())


def _folded(content: bytes, fold: Fold, side: int) -> npt.NDArray[np.uint8]:
    return folded(content, fold, side=side).content
