"""From files of datums to files of plans, and of the teacher's tokens that are to be scored, a part at a time.

plans.parquet          one row a datum, see `PlanColumns.to_arrow`
token_ids.npy, …       what the teacher reads, see `TokenRows`; a datum for which that is nothing has no row
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.blocks import TokenRowsWriter
from zephon_core.errors import BadRowError, ChatTemplateError, SpecError, TokenizerError
from zephon_core.fingerprint import canonical_json
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.readers.rows import RowProblem
from zephon_core.tokenizers import Tokenizer
from zephon_core.tokenizers.chat_template import ChatTemplate, load_chat_template, read_template
from zephon_core.xtoken.alignment import Conversation, Render, TeacherSide, build_plan_columns, render_teacher
from zephon_core.xtoken.alignment.samples import conversation_of
from zephon_core.xtoken.datums import DATUM_FIELDS, check_datum_columns, check_list_column
from zephon_core.xtoken.files.doubts import DOUBTFUL_COVERAGE, own_share, whose_ids
from zephon_core.xtoken.files.parquet_rows import ParquetRows, Part, bad_columns, parquet_writer
from zephon_core.xtoken.plans import PlanColumns
from zephon_core.xtoken.specs import NO_TEMPLATE
from zephon_core.xtoken.vocabulary import Vocabulary, tabulate

__all__ = [
    "PLANS_NAME",
    "TEACHER_TOKENS",
    "Templates",
    "check_datum_rows",
    "late_template",
    "load_templates",
    "reads_messages",
    "teacher_side",
    "write_plans",
]

_log = logging.getLogger(__name__)

PLANS_NAME = "plans.parquet"

TEACHER_TOKENS = "teacher_tokens"

_MESSAGES, _TOOLS = "messages", "tools"


@dataclass(frozen=True)
class Templates:
    """Both sides' chat templates. student: None where its rendering isn't known."""

    student: ChatTemplate | None
    teacher: ChatTemplate

    @property
    def sha256(self) -> tuple[str, str]:
        """What decides the renderings, the student's and the teacher's, as SHA-256; "" for none."""
        return _template_sha256(self.student), _template_sha256(self.teacher)


def load_templates(student: str, student_template: str, teacher: str, teacher_template: str) -> Templates:
    """Read the templates that are given, for "" those in the tokenizers' folders. Raises SpecError, naming the setting."""
    own = None if student_template == NO_TEMPLATE else _template(student, student_template, "student_template")
    return Templates(own, _template(teacher, teacher_template, "teacher_template"))


def late_template(tokenizer: str, given: str, setting: str) -> Render:
    """Return a template that is read now if it is given, else when the first conversation is rendered.

    Raises SpecError then, naming the setting.
    """
    if given and given != NO_TEMPLATE:
        return _template(tokenizer, given, setting).render

    @cache
    def template() -> ChatTemplate:
        if given == NO_TEMPLATE:
            raise SpecError(setting, "is none", wanted="a template: it tells which tokens of a conversation are whose")
        return _template(tokenizer, given, setting)

    return lambda messages, options: template().render(messages, options)


def _template(tokenizer: str, given: str, setting: str) -> ChatTemplate:
    text = read_template(given, setting=setting) if given else None
    return load_chat_template(tokenizer, text, setting=setting)


def _template_sha256(template: ChatTemplate | None) -> str:
    if template is None:
        return ""
    return hashlib.sha256(canonical_json([template.texts, template.special_tokens])).hexdigest()


def check_datum_rows(rows: ParquetRows) -> None:
    """Raise InputError for files whose columns are no datums', or that don't say what the teacher reads in one way."""
    with bad_columns(rows):
        check_datum_columns(rows.schema)
        sides = [name for name in (TEACHER_TOKENS, _MESSAGES) if name in rows.schema.names]
        if len(sides) != 1:
            found = f"have {'both columns' if sides else 'no column'} {TEACHER_TOKENS} {'and' if sides else 'or'} {_MESSAGES}"
            remedy = f"Drop one: with {TEACHER_TOKENS}, the teacher reads these." if sides else ""
            raise SpecError("datums", found, wanted="one of them, for what the teacher reads", remedy=remedy)
        if sides == [TEACHER_TOKENS]:
            check_list_column(rows.schema, TEACHER_TOKENS, whole=True)


def reads_messages(rows: ParquetRows) -> bool:
    """Tell whether the teacher is given messages, not tokens."""
    return _MESSAGES in rows.schema.names


def teacher_columns(rows: ParquetRows) -> tuple[str, ...]:
    """Name the columns that say what the teacher reads."""
    return tuple(name for name in (TEACHER_TOKENS, _MESSAGES, _TOOLS) if name in rows.schema.names)


def write_plans(
    rows: ParquetRows,
    *,
    student: Tokenizer,
    teacher: Tokenizer,
    templates: Templates | None,
    directory: Path,
    progress: Progress = NULL_PROGRESS,
) -> dict[str, Any]:
    """Plan every datum's chunks and write them and the teacher's tokens into `directory`; return statistics.

    templates: of both sides, for rows with messages. Where little of the loss tokens is covered, `doubt` says whose ids they
    probably aren't. Raises BadRowError for a row that is no datum, holds ids that a tokenizer
    has not, or that a template refuses; InputError and SourceChangedError.
    """
    schema = PlanColumns.of([]).to_arrow().schema
    sample: dict[str, float] = {}
    counts = dict.fromkeys(("datums", "chunks", "exact_chunks", "loss_tokens", "covered_tokens", "student_tokens"), 0)
    with (
        parquet_writer(directory / PLANS_NAME, schema) as plans,
        closing(TokenRowsWriter(directory)) as tokens,
        progress.phase("align", total=rows.count, unit="datums") as phase,
    ):
        for part in rows.parts([*DATUM_FIELDS, *teacher_columns(rows)]):
            datums = part.datums()
            _check_ids(tabulate(student), part, "model_input_tokens", datums.offsets, datums.tokens)
            side = teacher_side(part, teacher, templates)
            made = build_plan_columns(datums, side, student_tokenizer=student, teacher_tokenizer=teacher)
            plans.write_table(made.to_arrow())
            covered = int((made.ranges[:, 1] - made.ranges[:, 0]).sum())
            if not sample and covered < DOUBTFUL_COVERAGE * np.count_nonzero(datums.loss):
                sample["student"] = own_share(student, datums.offsets, datums.tokens)
                if templates is None:
                    sample["teacher"] = own_share(teacher, side.offsets, side.ids)
            lengths = np.diff(side.offsets)
            tokens.append(side.ids, lengths[lengths > 0])
            counts["datums"] += len(datums)
            counts["chunks"] += len(made.ranges)
            counts["exact_chunks"] += int(np.count_nonzero(made.exact))
            counts["loss_tokens"] += int(np.count_nonzero(datums.loss))
            counts["covered_tokens"] += covered
            counts["student_tokens"] += len(datums.tokens)
            phase.advance(len(datums))
        doubt = whose_ids(sample) if counts["covered_tokens"] < DOUBTFUL_COVERAGE * counts["loss_tokens"] else ""
        if doubt:  # before anything is scored in vain
            share = counts["covered_tokens"] / counts["loss_tokens"]
            _log.warning("chunks cover %.1f %% of the loss tokens. %s", share * 100, doubt)
        return {**counts, "teacher_tokens": tokens.tokens, "doubt": doubt}


def teacher_side(part: Part, teacher: Tokenizer, templates: Templates | None) -> TeacherSide:
    """Return what the teacher reads for each row of a part. Raises BadRowError."""
    if templates is None:
        offsets, ids = part.ids(TEACHER_TOKENS)
        _check_ids(tabulate(teacher), part, TEACHER_TOKENS, offsets, ids)
        return TeacherSide(ids, offsets)
    conversations = [_conversation(part, row) for row in range(part.table.num_rows)]
    try:
        return render_teacher(
            conversations,
            teacher_tokenizer=teacher,
            student_template=templates.student.render if templates.student else None,
            teacher_template=templates.teacher.render,
        )
    except ChatTemplateError as error:
        raise BadRowError(part.place(error.position), error.found, wanted=error.wanted, remedy=error.remedy) from error


def _conversation(part: Part, row: int) -> Conversation:
    columns = [name for name in (_MESSAGES, _TOOLS) if name in part.table.column_names]
    try:
        return conversation_of(part.table.select(columns).slice(row, 1).to_pylist()[0])
    except (RowProblem, ValueError, OverflowError) as error:
        problem = error if isinstance(error, RowProblem) else RowProblem("no value", f"can't be read ({error})")
        raise BadRowError(part.place(row), problem.found, wanted=problem.wanted, remedy="Fix or drop the row.") from error


def _check_ids(vocabulary: Vocabulary, part: Part, column: str, offsets: npt.NDArray[np.int64], ids: npt.NDArray[np.int64]) -> None:
    try:
        vocabulary.checked(ids)
    except TokenizerError as flat:
        for row in range(len(offsets) - 1):
            try:
                vocabulary.checked(ids[offsets[row] : offsets[row + 1]])
            except TokenizerError as error:
                found = f"{column} are of another vocabulary: {error.where} {error.found}"
                raise BadRowError(part.place(row), found, wanted=error.wanted, remedy=error.remedy) from flat
        raise
