"""A look at two tokenizers before a GPU is rented: how much of what the student says its teacher can judge, and what is in the way.

Samples stream through: memory holds some of them at a time, and the worst.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, computed_field

from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.tokenizers import Tokenizer
from zephon_core.xtoken.alignment import (
    Conversation,
    Render,
    Sample,
    SampleInput,
    SamplePairs,
    named_samples,
    said_pieces,
    tokenize_samples,
)
from zephon_core.xtoken.checking.gaps import Cause, Gap, find_gaps
from zephon_core.xtoken.checking.verdicts import Level, SideFacts, SideTally, Verdict, judge
from zephon_core.xtoken.pictures.figures import LONGEST_LISTED, SHRINK_TOKENS, length_histogram
from zephon_core.xtoken.pictures.legible import excerpt, token_words

__all__ = ["Example", "PairReport", "PoorSample", "check_pair"]

_BATCH_CHARACTERS = 1 << 20
_BATCH_SAMPLES = 256
_EXAMPLES = 3
_EXAMPLE_BYTES = 48
_EXAMPLE_TOKENS = 8


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Example(_Frozen):
    """One place where loss tokens are in no chunk; texts are legible, not literal."""

    token: int = Field(description="The first of them among the student's tokens, from 0.")
    tokens: int = Field(description="How many there are.")
    byte: int = Field(description="Where they begin in the student's text, in bytes of its tokens.")
    cause: Cause
    before: str
    text: str
    after: str
    student: tuple[str, ...] = Field(description="The student's tokens there; the first ones, if they are many.")
    teacher: tuple[str, ...] = Field(description="The teacher's tokens between the same chunks; those nearest, if they are many.")


class PoorSample(_Frozen):
    """A sample with loss tokens in no chunk."""

    place: str
    loss_tokens: int
    covered_tokens: int
    causes: dict[Cause, int] = Field(description="Loss tokens in no chunk, by cause.")
    examples: tuple[Example, ...] = Field(description="The longest gaps, in order.")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def coverage_rate(self) -> float:
        """Share of its loss tokens that a chunk covers."""
        return self.covered_tokens / self.loss_tokens


class PairReport(_Frozen):
    """What a pair of tokenizers is like on some samples. Loss tokens: what the assistant says; of a text, all but the first."""

    student: SideFacts
    teacher: SideFacts
    texts: int
    conversations: int
    empty: int = Field(
        description="Samples that hold nothing: empty texts, and conversations without content. Nothing else counts them."
    )
    refused: int = Field(description="Conversations that a chat template refuses; nothing else counts them.")
    loss_tokens: int
    covered_tokens: int = Field(description="Loss tokens in a chunk.")
    loss_bytes: int = Field(description="Bytes of the loss tokens.")
    one_to_one_bytes: int = Field(description="Of these, bytes of chunks that are one token on both sides.")
    chunks: int
    inexact_chunks: int = Field(description="Chunks that are the same text only once normalised.")
    lookalike_chunks: int = Field(description="Chunks that pair a special token with the other side's plain spelling of it.")
    student_lengths: tuple[int, ...] = Field(description="Chunks of 1, 2, … student tokens; the last counts 64 and more.")
    teacher_lengths: tuple[int, ...] = Field(description="The same by teacher tokens.")
    uncovered: dict[Cause, int] = Field(description="Loss tokens in no chunk, by cause.")
    verdicts: tuple[Verdict, ...]
    worst: tuple[PoorSample, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def coverage_rate(self) -> float:
        """Share of the loss tokens that a chunk covers; 0.0 without any."""
        return self.covered_tokens / self.loss_tokens if self.loss_tokens else 0.0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ok(self) -> bool:
        """Whether no verdict is bad."""
        return all(verdict.level is not Level.BAD for verdict in self.verdicts)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return self.model_dump(mode="json")


def check_pair(
    student: Tokenizer,
    teacher: Tokenizer,
    samples: Iterable[SampleInput],
    *,
    student_template: Render | None = None,
    teacher_template: Render | None = None,
    worst: int = 10,
    progress: Progress = NULL_PROGRESS,
) -> PairReport:
    """Align both tokenizations of every sample and report what comes of it.

    samples: texts, or conversations (messages, with options: a `Conversation`), for which both templates are needed.
    worst: how many samples with the lowest coverage are described. A conversation that a template refuses is counted as such.
    Raises SpecError for a conversation without templates, and what reading the samples raises.
    """
    gathered = _Gathered(SideTally(student), SideTally(teacher), worst)
    with progress.phase("check", total=None, unit="texts") as phase:
        for batch in _batches(named_samples(samples)):
            full = [sample for sample in batch if not _holds_nothing(sample)]
            gathered.empty += len(batch) - len(full)
            gathered.add(tokenize_samples(full, student, teacher, student_template, teacher_template))
            phase.advance(len(batch))
    return gathered.report()


def _batches(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    batch: list[Sample] = []
    characters = 0
    for sample in samples:
        batch.append(sample)
        characters += _characters(sample)
        if characters >= _BATCH_CHARACTERS or len(batch) == _BATCH_SAMPLES:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _holds_nothing(sample: Sample) -> bool:
    if isinstance(sample.content, str):
        return not sample.content
    return not any(value for message in sample.content.messages for field, value in message.items() if field != "role")


def _characters(sample: Sample) -> int:
    if isinstance(sample.content, str):
        return len(sample.content)
    return sum(len(message["content"]) for message in sample.content.messages if isinstance(message.get("content"), str))


@dataclass
class _Gathered:
    """The figures of a report while samples go by."""

    student: SideTally
    teacher: SideTally
    most_worst: int
    texts: int = 0
    conversations: int = 0
    loss_tokens: int = 0
    covered_tokens: int = 0
    loss_bytes: int = 0
    one_to_one_bytes: int = 0
    chunks: int = 0
    inexact_chunks: int = 0
    lookalike_chunks: int = 0
    student_lengths: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(LONGEST_LISTED, dtype=np.int64))
    teacher_lengths: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(LONGEST_LISTED, dtype=np.int64))
    uncovered: Counter[Cause] = field(default_factory=Counter)
    worst: list[tuple[float, int, PoorSample]] = field(default_factory=list)
    empty: int = 0
    seen: int = 0

    def add(self, pairs: SamplePairs) -> None:
        """Count a batch."""
        conversations = sum(islands is not None for islands in pairs.islands)
        self.texts += len(pairs.samples) - conversations
        self.conversations += conversations
        contents = [sample.content for sample in pairs.samples]
        said = [said_pieces(content) if isinstance(content, Conversation) else {} for content in contents]
        self.student.add(pairs.student, [each.student if each else None for each in pairs.islands], pairs.islands, said)
        self.teacher.add(pairs.teacher, [each.teacher if each else None for each in pairs.islands], pairs.islands, said)
        for refusal in pairs.refused:
            (self.student if refusal.side == "student" else self.teacher).refuse(refusal)
        self._count_chunks(pairs)
        for sample in range(len(pairs.samples)):
            self._find_gaps(pairs, sample)
        self.seen += len(pairs.samples)

    def _count_chunks(self, pairs: SamplePairs) -> None:
        ranges, student = pairs.chunks.ranges, pairs.student
        lengths, teacher_lengths = ranges[:, 1] - ranges[:, 0], ranges[:, 3] - ranges[:, 2]
        vocabulary = student.vocabulary
        token_bytes = vocabulary.offsets[student.ids + 1] - vocabulary.offsets[student.ids]
        first = np.repeat(student.offsets[:-1], np.diff(pairs.chunks.offsets)) + ranges[:, 0]
        self.loss_tokens += int(np.count_nonzero(pairs.loss))
        self.covered_tokens += int(lengths.sum())
        self.loss_bytes += int(token_bytes[pairs.loss].sum())
        self.one_to_one_bytes += int(token_bytes[first[(lengths == 1) & (teacher_lengths == 1)]].sum())
        self.chunks += len(ranges)
        self.inexact_chunks += int(np.count_nonzero(~pairs.chunks.exact))
        first_teacher = np.repeat(pairs.teacher.offsets[:-1], np.diff(pairs.chunks.offsets)) + ranges[:, 2]
        special = _any_in(self.student.special(student.ids), first, lengths)
        special_teacher = _any_in(self.teacher.special(pairs.teacher.ids), first_teacher, teacher_lengths)
        self.lookalike_chunks += int(np.count_nonzero(special != special_teacher))
        self.student_lengths += length_histogram(lengths)
        self.teacher_lengths += length_histogram(teacher_lengths)

    def _find_gaps(self, pairs: SamplePairs, sample: int) -> None:
        gaps = list(find_gaps(pairs, sample))
        if not gaps:
            return
        causes = Counter[Cause]()
        for gap in gaps:
            causes[gap.cause] += len(gap)
        self.uncovered += causes
        loss, uncovered = int(np.count_nonzero(pairs.loss[pairs.student.of(sample)])), causes.total()
        rank = uncovered / (loss + SHRINK_TOKENS), -(self.seen + sample)
        if len(self.worst) == self.most_worst and (not self.worst or rank < self.worst[0][:2]):
            return
        examples = sorted(sorted(gaps, key=len, reverse=True)[:_EXAMPLES], key=lambda gap: gap.first)
        poor = PoorSample(
            place=pairs.samples[sample].place,
            loss_tokens=loss,
            covered_tokens=loss - uncovered,
            causes=dict(causes),
            examples=tuple(_example(pairs, sample, gap) for gap in examples),
        )
        (heapq.heappushpop if len(self.worst) == self.most_worst else heapq.heappush)(self.worst, (*rank, poor))

    def report(self) -> PairReport:
        """Put the report together."""
        student, teacher = self.student.facts(), self.teacher.facts()
        return PairReport(
            student=student,
            teacher=teacher,
            texts=self.texts,
            conversations=self.conversations,
            empty=self.empty,
            refused=student.refused + teacher.refused,
            loss_tokens=self.loss_tokens,
            covered_tokens=self.covered_tokens,
            loss_bytes=self.loss_bytes,
            one_to_one_bytes=self.one_to_one_bytes,
            chunks=self.chunks,
            inexact_chunks=self.inexact_chunks,
            lookalike_chunks=self.lookalike_chunks,
            student_lengths=tuple(self.student_lengths.tolist()),
            teacher_lengths=tuple(self.teacher_lengths.tolist()),
            uncovered={cause: self.uncovered[cause] for cause in Cause if self.uncovered[cause]},
            verdicts=judge(
                *(student, teacher),
                texts=self.texts,
                conversations=self.conversations,
                empty=self.empty,
                loss_tokens=self.loss_tokens,
                covered_tokens=self.covered_tokens,
                inexact_chunks=self.inexact_chunks,
                lookalike_chunks=self.lookalike_chunks,
                uncovered=self.uncovered,
            ),
            worst=tuple(poor for _, _, poor in sorted(self.worst, reverse=True)),
        )


def _any_in(flags: npt.NDArray[np.bool_], first: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Tell of ranges of tokens whether any in it is flagged."""
    before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(flags)])
    found: npt.NDArray[np.bool_] = before[first + lengths] > before[first]
    return found


def _example(pairs: SamplePairs, sample: int, gap: Gap) -> Example:
    ours, theirs = pairs.student.spans(sample), pairs.teacher.spans(sample)
    first, last = gap.teacher_first, gap.teacher_last
    first, last = (max(first, last - _EXAMPLE_TOKENS), last) if gap.closes else (first, min(last, first + _EXAMPLE_TOKENS))
    return Example(
        token=gap.first,
        tokens=len(gap),
        byte=int(ours.starts[gap.first]),
        cause=gap.cause,
        before=excerpt(ours, 0, gap.first, most_bytes=_EXAMPLE_BYTES // 2, at_end=True),
        text=excerpt(ours, gap.first, gap.last, most_bytes=_EXAMPLE_BYTES),
        after=excerpt(ours, gap.last, len(ours.kinds), most_bytes=_EXAMPLE_BYTES // 2),
        student=tuple(token_words(ours, gap.first, min(gap.last, gap.first + _EXAMPLE_TOKENS))),
        teacher=tuple(token_words(theirs, first, last)),
    )
