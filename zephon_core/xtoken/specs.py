"""Which datums get advantages from which teacher, as the parameters of flows, forms and files.

`ChunkAdvantagesSpec` decides the advantages, `ChunkAdvantagesRun` how they are made; only the first enters a fingerprint.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from zephon_core.xtoken.score.spec import ScoreRun, ScoreSpec

__all__ = ["NO_TEMPLATE", "ChunkAdvantagesRun", "ChunkAdvantagesSpec", "PairSpec", "ScoreSequencesSpec"]

NO_TEMPLATE = "none"
"""In the place of the student's template: its rendering isn't known."""

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_enum_values=False)


_STUDENT = Field(title="Student's tokenizer", description="Folder or file.", min_length=1)
_TEACHER = Field(title="Teacher's tokenizer", description="Folder or file.", min_length=1)
_STUDENT_TEMPLATE = Field(
    default="",
    title="Student's chat template",
    description="For messages: a Jinja template, or its file. Empty: the one in the tokenizer's folder. none: how the student "
    "renders them is not known, and a diff finds what both sides have in common.",
)
_TEACHER_TEMPLATE = Field(
    default="",
    title="Teacher's chat template",
    description="For messages: a Jinja template, or its file. Empty: the one in the tokenizer's folder.",
)


def _none_is_empty(template: Any) -> Any:
    """Accept None for the tokenizer's own; a form shows a plain text better than one that may be absent."""
    return "" if template is None else template


_Template = Annotated[str, BeforeValidator(_none_is_empty)]


def _one_or_several(value: Any) -> Any:
    """Accept one path for a list of one."""
    return (value,) if isinstance(value, str) else value


class PairSpec(_Frozen):
    """A student and a teacher of another vocabulary, to be looked at before there are datums."""

    student: str = _STUDENT
    teacher: str = _TEACHER
    student_template: _Template = _STUDENT_TEMPLATE
    teacher_template: _Template = _TEACHER_TEMPLATE


class ChunkAdvantagesSpec(_Frozen):
    """Datums of a student, and the teacher of another vocabulary whose opinion becomes their advantages."""

    name: str = Field(
        default="advantages",
        title="Name",
        description="Up to 64 letters, digits, dots, - and _, the first a letter or digit: what people call these advantages. "
        "It names runs and pages, and changes no number.",
        pattern=_NAME,
    )
    datums: tuple[str, ...] = Field(
        title="Datums",
        description="Parquet files in order, each a path, glob or fsspec URL. A row is a datum: trial_name, fragment_index, "
        "model_input_tokens, loss_mask, sampled_logprobs, and what the teacher reads, teacher_tokens or messages (with tools). "
        "Other columns travel along.",
        min_length=1,
    )
    student: str = _STUDENT
    teacher: str = _TEACHER
    student_template: _Template = _STUDENT_TEMPLATE
    teacher_template: _Template = _TEACHER_TEMPLATE
    teacher_logprobs: str = Field(
        default="",
        title="Teacher's logprobs",
        description="Parquet file with a column teacher_logprobs, a list a datum, one number a token of what the teacher reads. "
        "Empty: the teacher scores.",
    )
    score: ScoreSpec | None = Field(
        default=None, title="Scoring", description="In place of logprobs: the teacher, which scores what it reads."
    )
    clip: float | None = Field(
        default=None, title="Clip", description="Bound the advantage of a token to ±this. Empty: no bound.", gt=0
    )
    center: bool = Field(
        default=False,
        title="Centre",
        description="Subtract the mean of the chunks' totals from each chunk's total, after clipping.",
    )

    _several_datums = field_validator("datums", mode="before")(_one_or_several)

    @field_validator("clip", mode="before")
    @classmethod
    def _a_bound(cls, clip: Any) -> Any:
        try:
            number = float(clip)
        except (TypeError, ValueError):  # None, or no number: pydantic says so
            return clip
        if not (math.isfinite(number) and number > 0):
            raise ValueError(f"is {clip}; write a positive number, or leave it out for no bound")
        return clip

    @model_validator(mode="after")
    def _logprobs_or_scoring(self) -> ChunkAdvantagesSpec:
        if bool(self.teacher_logprobs) == (self.score is not None):
            found = "both teacher_logprobs and score" if self.teacher_logprobs else "neither teacher_logprobs nor score"
            one = "a file of the teacher's logprobs (--teacher-logprobs), or the model that gives them (--model)"
            raise ValueError(f"names {found}; name one: {one}")
        return self


class ScoreSequencesSpec(_Frozen):
    """Sequences of token ids, and the teacher that scores them."""

    name: str = Field(
        default="logprobs",
        title="Name",
        description="Up to 64 letters, digits, dots, - and _, the first a letter or digit: what people call these logprobs. "
        "It changes no number.",
        pattern=_NAME,
    )
    sequences: tuple[str, ...] = Field(
        title="Sequences",
        description="Parquet files in order, each a path, glob or fsspec URL. A row is a sequence: the teacher's token ids, "
        "in a column teacher_tokens or tokens. Other columns travel along.",
        min_length=1,
    )
    score: ScoreSpec = Field(title="Scoring")

    _several_sequences = field_validator("sequences", mode="before")(_one_or_several)


class ChunkAdvantagesRun(_Frozen):
    """How a run goes. Nothing here changes what is made."""

    store: str = Field(
        default="", title="Store", description="Folder of finished and unfinished work. Empty: $ZEPHON_STORE, else the user cache."
    )
    output: str = Field(
        default="", title="Output", description="Folder where what was made is published. Empty: only in the store."
    )
    workers: int = Field(default=0, title="Workers", description="Processes that score, on a CPU. 0: one a core.", ge=0, le=4096)
    device: str = Field(
        default="auto", title="Device", description="auto, cpu, cuda or cuda:N.", pattern=r"^(auto|cpu|cuda(:\d+)?)$"
    )
    gpu_memory_gb: float = Field(
        default=0.0, title="GPU memory (GB)", description="Never use more of a GPU's memory than this. 0: no limit.", ge=0
    )
    refresh: bool = Field(default=False, title="Refresh", description="Make even what is there, and compare.")

    def scoring(self) -> ScoreRun:
        """Return the options in the form that scoring uses."""
        return ScoreRun(workers=self.workers, device=self.device, gpu_memory_gb=self.gpu_memory_gb)
