"""From datums and what the teacher reads to plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from zephon_core.errors import ChatTemplateError, SpecError
from zephon_core.tokenizers import Tokenizer
from zephon_core.xtoken.alignment.align import align_pairs
from zephon_core.xtoken.alignment.islands import Conversation, Islands, Message, Render, RenderedPieces, render_pieces
from zephon_core.xtoken.datums import DatumColumns, TrainDatum, joined, offsets_of
from zephon_core.xtoken.plans import ChunkPlan, PlanColumns
from zephon_core.xtoken.vocabulary import Vocabulary, tabulate

__all__ = ["TeacherInput", "TeacherSide", "build_chunk_plans", "build_plan_columns", "render_teacher"]

TeacherInput = Sequence[int] | npt.NDArray[np.integer[Any]] | Sequence[Message] | Conversation


class TeacherSide:
    """What the teacher reads for each datum. ids: int64, flat. offsets: int64 [datums + 1]. islands: of those given as messages."""

    def __init__(
        self, ids: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], islands: Sequence[Islands | None] | None = None
    ) -> None:
        self.ids = ids
        self.offsets = offsets
        self.islands = islands

    def row(self, datum: int) -> npt.NDArray[np.int64]:
        """Return the teacher's tokens for one datum, which are what it has to score."""
        return self.ids[self.offsets[datum] : self.offsets[datum + 1]]


def build_chunk_plans(
    datums: Sequence[TrainDatum],
    teacher: Sequence[TeacherInput],
    *,
    student_tokenizer: Tokenizer | Vocabulary,
    teacher_tokenizer: Tokenizer | Vocabulary,
    student_template: Render | None = None,
    teacher_template: Render | None = None,
) -> list[ChunkPlan]:
    """Plan each datum's chunks, in order.

    teacher: for each datum the teacher's token ids, or the messages (with options: a `Conversation`) to render with
    `teacher_template`. With `student_template` too, what both sides render from the same content is matched with one another;
    without it, and for token ids, what the two sequences have in common is found by a diff.
    Raises SpecError unless there is one of `teacher` a datum, and TokenizerError for ids that a tokenizer has not.
    """
    side = render_teacher(
        teacher, teacher_tokenizer=teacher_tokenizer, student_template=student_template, teacher_template=teacher_template
    )
    columns = DatumColumns.of(datums)
    return list(build_plan_columns(columns, side, student_tokenizer=student_tokenizer, teacher_tokenizer=teacher_tokenizer).plans())


def build_plan_columns(
    datums: DatumColumns,
    teacher: TeacherSide,
    *,
    student_tokenizer: Tokenizer | Vocabulary,
    teacher_tokenizer: Tokenizer | Vocabulary,
) -> PlanColumns:
    """Do what `build_chunk_plans` does, on columns."""
    if len(teacher.offsets) - 1 != len(datums):
        raise SpecError("teacher", f"are {len(teacher.offsets) - 1:,} for {len(datums):,} datums", wanted="one a datum")
    chunks = align_pairs(
        *(tabulate(student_tokenizer), datums.tokens, datums.offsets),
        *(tabulate(teacher_tokenizer), teacher.ids, teacher.offsets),
        loss=datums.loss,
        islands=teacher.islands,
    )
    return PlanColumns(
        trial_name=datums.trial_name,
        fragment_index=datums.fragment_index,
        teacher_token_count=np.diff(teacher.offsets),
        offsets=chunks.offsets,
        ranges=chunks.ranges,
        exact=chunks.exact,
    )


def render_teacher(
    teacher: Sequence[TeacherInput],
    *,
    teacher_tokenizer: Tokenizer | Vocabulary,
    student_template: Render | None = None,
    teacher_template: Render | None = None,
) -> TeacherSide:
    """Turn what the teacher reads into its token ids; see `build_chunk_plans`.

    Raises what the templates raise; a ChatTemplateError with the position of what they refuse.
    """
    rows: list[npt.NDArray[np.int64]] = []
    islands: list[Islands | None] = []
    rendered: dict[int, RenderedPieces] = {}
    for number, given in enumerate(teacher):
        if not _is_messages(given):
            rows.append(tabulate(teacher_tokenizer).checked(given))
            islands.append(None)
            continue
        if teacher_template is None:
            remedy = "Give teacher_template, or the teacher's token ids."
            raise SpecError("teacher_template", "is missing, and the teacher is given messages", remedy=remedy)
        conversation = Conversation.of(cast(Any, given))
        try:
            rendered[number] = render_pieces(teacher_template, conversation)
            ours = render_pieces(student_template, conversation) if student_template else None
        except ChatTemplateError as error:
            error.position = number
            raise
        rows.append(np.empty(0, dtype=np.int64))
        islands.append(Islands(ours, rendered[number]) if ours else None)
    if rendered:
        if isinstance(teacher_tokenizer, Vocabulary):
            raise SpecError(
                "teacher_tokenizer", "is a table of token bytes, which can't encode", wanted="a Tokenizer, for messages"
            )
        encoded = teacher_tokenizer.encode_batch([piece.text.decode("utf-8") for piece in rendered.values()])
        starts = encoded.starts().tolist()
        for number, start, length in zip(rendered, starts, encoded.lengths.tolist(), strict=True):
            rows[number] = encoded.ids[start : start + length].astype(np.int64)
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    return TeacherSide(joined(rows, np.int64), offsets_of(lengths), islands if rendered else None)


def _is_messages(given: TeacherInput) -> bool:
    if isinstance(given, Conversation):
        return True
    return not isinstance(given, np.ndarray) and len(given) > 0 and isinstance(given[0], Mapping)
