"""Many pairs of token sequences cut into chunks at the boundaries that both sides share.

Pairs that are the same bytes, which most are, take one compiled pass. The others are compared in the space that both tokenizers'
normalisers leave, stretch by stretch: islands that rendering told, or what a diff finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_core.xtoken.alignment.islands import Islands
from zephon_core.xtoken.datums import offsets_of
from zephon_core.xtoken.normalised import Fold, Folded, folded
from zephon_core.xtoken.vocabulary import ADDED, UNKNOWN, ByteSpans, Vocabulary

__all__ = ["Chunks", "align_pairs"]


class Chunks(NamedTuple):
    """offsets: int64 [pairs + 1]. ranges: int64 [chunks, 4], student from and to, teacher from and to. exact: bool [chunks]."""

    offsets: npt.NDArray[np.int64]
    ranges: npt.NDArray[np.int64]
    exact: npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class _Side:
    """One sequence: its bytes as they are and as they are compared."""

    content: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.uint8]
    compared: Folded

    @property
    def places(self) -> npt.NDArray[np.int64]:
        """Where its tokens begin among what is compared, times four."""
        return self.compared.places[self.starts]

    def marks(self) -> npt.NDArray[np.int64]:
        """Where its added tokens lie among what is compared: int64 [., 2]."""
        which = np.flatnonzero(self.kinds == ADDED)
        return np.stack([self.places[which], self.places[which + 1]], axis=1) // 4


def align_pairs(
    student: Vocabulary,
    student_ids: npt.NDArray[np.int64],
    student_offsets: npt.NDArray[np.int64],
    teacher: Vocabulary,
    teacher_ids: npt.NDArray[np.int64],
    teacher_offsets: npt.NDArray[np.int64],
    *,
    loss: npt.NDArray[np.bool_] | None = None,
    islands: Sequence[Islands | None] | None = None,
) -> Chunks:
    """Align each pair of sequences. ids are flat; offsets: int64 [pairs + 1], where each sequence begins.

    loss: bool, one a student token; None: all carry loss. islands: for each pair what rendering told, or None.
    Chunks lie on loss positions, hold position 0 of neither side and no token whose bytes are unknown, and are the same bytes on
    both sides, or, with exact False, the same once normalised. They are the finest there are.
    Raises TokenizerError for an id that a vocabulary has not.
    """
    from zephon_core.xtoken.kernels import align_same

    pairs = len(student_offsets) - 1
    ours, theirs = student.spans(student_ids, student_offsets), teacher.spans(teacher_ids, teacher_offsets)
    if loss is None:
        loss = np.ones(len(student_ids), dtype=np.bool_)
    counts = np.empty(pairs, dtype=np.int64)
    ranges = np.empty((min(len(student_ids), len(teacher_ids)), 4), dtype=np.int64)
    align_same(
        *(ours.content, ours.starts, student_offsets),
        *(theirs.content, theirs.starts, teacher_offsets),
        *(loss, ours.unknown, theirs.unknown, counts, ranges),
    )
    done = int(counts[counts > 0].sum())
    if (counts >= 0).all():
        return Chunks(offsets_of(counts), ranges[:done], np.ones(done, dtype=np.bool_))
    fold = student.fold | teacher.fold
    others: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]] = {}
    for pair in np.flatnonzero(counts < 0).tolist():
        own = slice(student_offsets[pair], student_offsets[pair + 1])
        sides = (
            _side(ours, own, fold, 1),
            _side(theirs, slice(teacher_offsets[pair], teacher_offsets[pair + 1]), fold, 2),
        )
        blocks = _blocks(*sides, fold, islands[pair] if islands is not None else None)
        others[pair] = _cut(*sides, blocks, loss[own], marked=student.marked or teacher.marked)
    return _interleaved(counts, ranges, others)


def _side(spans: ByteSpans, tokens: slice, fold: Fold, side: int) -> _Side:
    starts = spans.starts[tokens.start : tokens.stop + 1]
    content = spans.content[starts[0] : starts[-1]]
    starts, kinds = starts - starts[0], spans.kinds[tokens]
    sections = [0, *starts[1:][kinds == ADDED].tolist()]
    return _Side(content, starts, kinds, folded(content.tobytes(), fold, side=side, sections=sections))


def _blocks(student: _Side, teacher: _Side, fold: Fold, islands: Islands | None) -> npt.NDArray[np.int64]:
    from zephon_core.xtoken.alignment.difference import matching_blocks

    a, b = student.compared.content, teacher.compared.content
    if islands is not None:
        return islands.between(a, b, fold)
    blocks: npt.NDArray[np.int64] = matching_blocks(a, b, None, student.marks(), teacher.marks())
    return blocks


def _cut(
    student: _Side, teacher: _Side, blocks: npt.NDArray[np.int64], loss: npt.NDArray[np.bool_], *, marked: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    from zephon_core.xtoken.kernels import align, same_ranges

    ours, theirs = student.places, teacher.places
    if marked:
        ours, theirs = _begun(student, ours, blocks[:, 0], blocks[:, 2]), _begun(teacher, theirs, blocks[:, 1], blocks[:, 2])
    ranges = np.empty((min(len(student.kinds), len(teacher.kinds)), 4), dtype=np.int64)
    count = align(
        *(ours, 0, len(student.kinds), theirs, 0, len(teacher.kinds), blocks * 4),
        *(loss, student.kinds == UNKNOWN, teacher.kinds == UNKNOWN, ranges, 0),
    )
    exact = np.empty(count, dtype=np.bool_)
    same_ranges(student.content, student.starts, teacher.content, teacher.starts, ranges[:count], exact)
    return ranges[:count], exact


def _begun(
    side: _Side, places: npt.NDArray[np.int64], begins: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Let a token begin with a block that begins behind the token's own word mark, which the other side's text has not."""
    alone = begins > np.append(0, (begins + lengths)[:-1])  # the blank before it is in no other block
    begins = begins[alone]
    tokens = np.searchsorted(places, begins * 4, side="right") - 1
    inside = (tokens >= 0) & (tokens < len(side.kinds))
    tokens, begins = tokens[inside], begins[inside]
    ahead = places[tokens] == 4 * begins - 4
    tokens, begins = tokens[ahead], begins[ahead]
    blank = side.compared.content[begins - 1] == 0x20
    moved = places.copy()
    moved[tokens[blank]] = 4 * begins[blank]
    return moved


def _interleaved(
    counts: npt.NDArray[np.int64],
    ranges: npt.NDArray[np.int64],
    others: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]],
) -> Chunks:
    """Put the chunks of all pairs in the order of the pairs."""
    same = np.maximum(counts, 0)
    begins = offsets_of(same)
    every: list[Any] = []
    exact: list[Any] = []
    start = 0
    for pair, (other, exactness) in others.items():
        every += [ranges[begins[start] : begins[pair]], other]
        exact += [np.ones(begins[pair] - begins[start], dtype=np.bool_), exactness]
        counts[pair] = len(other)
        start = pair
    every.append(ranges[begins[start] : begins[-1]])
    exact.append(np.ones(begins[-1] - begins[start], dtype=np.bool_))
    return Chunks(offsets_of(counts), np.concatenate(every), np.concatenate(exact))
