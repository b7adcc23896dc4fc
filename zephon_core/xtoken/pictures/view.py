"""A picture of chunks: both tokenizations of a text, one above the other, each chunk coloured by its advantage.

One HTML file without a script. Above stand the student's tokens, below the teacher's; what is in no chunk is grey, and every
number is in the tooltip of its box.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources

import numpy as np
import numpy.typing as npt

from zephon_core.errors import InputError, SpecError
from zephon_core.html import page, section
from zephon_core.tokenizers import Tokenizer
from zephon_core.xtoken.alignment import Render, SampleInput, TeacherSide, align_pairs, named_samples, tokenize_samples
from zephon_core.xtoken.datums import DatumColumns
from zephon_core.xtoken.pictures.legible import LINE_END, token_words
from zephon_core.xtoken.plans import PlanColumns
from zephon_core.xtoken.vocabulary import Vocabulary, tabulate

__all__ = ["ViewedDatum", "pictures", "render_view", "view_datums", "view_sample", "view_style"]

MOST_TOKENS = 4000

_CONTEXT_TOKENS = 120
"""Of a longer stretch without loss only the ends are drawn."""
_WORD_LENGTH = 40
_TOGETHER = 24
_FAINTEST, _STRONGEST = 0.08, 0.7


@dataclass(frozen=True, eq=False)
class ViewedDatum:
    """What is drawn of one datum.

    student_ids, teacher_ids: int64. ranges: int64 [chunks, 4]. exact: bool [chunks]. loss: bool, one a student token.
    advantages: float64, one a student token; None where there are none yet. student_logprobs, teacher_logprobs: float64, one a
    token of that side, NaN for none. remark: a sentence about it.
    """

    title: str
    student_ids: npt.NDArray[np.int64]
    teacher_ids: npt.NDArray[np.int64]
    ranges: npt.NDArray[np.int64]
    exact: npt.NDArray[np.bool_]
    loss: npt.NDArray[np.bool_]
    advantages: npt.NDArray[np.float64] | None = None
    student_logprobs: npt.NDArray[np.float64] | None = None
    teacher_logprobs: npt.NDArray[np.float64] | None = None
    remark: str = ""

    def remarked(self, remark: str) -> ViewedDatum:
        """Return the same datum with a remark."""
        return replace(self, remark=remark)


def view_sample(
    sample: SampleInput,
    student: Tokenizer,
    teacher: Tokenizer,
    *,
    student_template: Render | None = None,
    teacher_template: Render | None = None,
) -> ViewedDatum:
    """Tokenize and align a text, or a conversation (for which both templates are needed), to be drawn without advantages.

    Raises InputError for a conversation that a template refuses.
    """
    (named,) = named_samples([sample])
    pairs = tokenize_samples([named], student, teacher, student_template, teacher_template)
    if pairs.refused:
        place, side, reason = pairs.refused[0]
        raise InputError(place, f"is refused by the {side}'s template ({reason})", remedy="Give another template or conversation.")
    return ViewedDatum(named.place, pairs.student.ids, pairs.teacher.ids, pairs.chunks.ranges, pairs.chunks.exact, pairs.loss)


def view_datums(
    datums: DatumColumns,
    plans: PlanColumns,
    teacher: TeacherSide,
    rows: Sequence[int],
    *,
    advantages: npt.NDArray[np.float64] | None = None,
    row_offsets: npt.NDArray[np.int64] | None = None,
    teacher_logprobs: npt.NDArray[np.float64] | None = None,
) -> list[ViewedDatum]:
    """Take some rows of columns to be drawn. advantages: one a token of all datums; the rest as `attach_columns` takes it."""
    viewed = []
    for row in rows:
        tokens = slice(int(datums.offsets[row]), int(datums.offsets[row + 1]))
        chunks = slice(int(plans.offsets[row]), int(plans.offsets[row + 1]))
        scored = None
        if row_offsets is not None and teacher_logprobs is not None:
            scored = teacher_logprobs[row_offsets[row] : row_offsets[row + 1]].copy()
        viewed.append(
            ViewedDatum(
                title=f"{datums.trial_name[row]}, fragment {int(datums.fragment_index[row])}",
                student_ids=datums.tokens[tokens].copy(),
                teacher_ids=teacher.row(row).copy(),
                ranges=plans.ranges[chunks].copy(),
                exact=plans.exact[chunks].copy(),
                loss=datums.loss[tokens].copy(),
                advantages=None if advantages is None else advantages[tokens].copy(),
                student_logprobs=datums.logprobs[tokens].copy(),
                teacher_logprobs=scored,
            )
        )
    return viewed


def render_view(
    datums: Sequence[ViewedDatum],
    *,
    student: Tokenizer | Vocabulary,
    teacher: Tokenizer | Vocabulary,
    title: str = "Chunks",
    subtitle: str = "",
    most_tokens: int = MOST_TOKENS,
) -> str:
    """Return a page with the picture of each datum. most_tokens: no more of one are drawn; subtitle is text.

    Raises TokenizerError for ids that a tokenizer has not.
    """
    body = pictures(datums, student=student, teacher=teacher, most_tokens=most_tokens)
    return page(title, body, subtitle=html.escape(subtitle), style=view_style())


def view_style() -> str:
    """Return the style sheet of pictures, for a page that holds some."""
    return resources.files("zephon_core").joinpath("xtoken", "pictures", "view.css").read_text(encoding="utf-8")


def pictures(
    datums: Sequence[ViewedDatum],
    *,
    student: Tokenizer | Vocabulary,
    teacher: Tokenizer | Vocabulary,
    most_tokens: int = MOST_TOKENS,
) -> list[str]:
    """Return the legend of all and a section for each datum; nothing for none. They share one scale of colours."""
    if not datums:
        return []
    strongest = _strongest(datums)
    sides = tabulate(student), tabulate(teacher)
    return [_legend(datums, strongest), *(_picture(datum, *sides, strongest, most_tokens) for datum in datums)]


def _strongest(datums: Sequence[ViewedDatum]) -> float:
    """Find the advantage from which on the colour is strongest: 95 of 100 covered tokens have a weaker one."""
    values = [np.abs(datum.advantages[datum.advantages != 0.0]) for datum in datums if datum.advantages is not None]
    flat = np.concatenate([np.empty(0), *values])
    flat = flat[np.isfinite(flat)]
    return float(np.percentile(flat, 95)) if len(flat) else 0.0


def _legend(datums: Sequence[ViewedDatum], strongest: float) -> str:
    parts = []
    if any(datum.advantages is not None for datum in datums):
        parts.append(
            f'<span>{_signed(-strongest)} and below<i class="scale"></i>{_signed(strongest)} and above: advantage of a token, '
            "dashed below where it is negative</span>"
        )
    if any(datum.advantages is None for datum in datums):
        parts.append('<span><i class="even"></i><i class="odd"></i>chunks, in turn</span>')
    parts.append('<span><i class="none"></i>carries loss, in no chunk</span><span><i class="context"></i>carries no loss</span>')
    words = "Above the student's tokens, below the teacher's. A box shows its numbers when the pointer rests on it."
    return f'<p>{words}</p><div class="legend">{"".join(parts)}</div>'


def _picture(datum: ViewedDatum, student: Vocabulary, teacher: Vocabulary, strongest: float, most_tokens: int) -> str:
    covered = int((datum.ranges[:, 1] - datum.ranges[:, 0]).sum())
    losses = int(np.count_nonzero(datum.loss))
    words = f"{len(datum.ranges):,} chunks cover {covered:,} of {losses:,} loss tokens"
    words += f", of {len(datum.student_ids):,} of the student's; the teacher has {len(datum.teacher_ids):,}."
    if datum.remark:
        words += f" {datum.remark}"
    drawing = _Drawing(datum, student, teacher, strongest)
    return section(datum.title, words, f'<div class="chunks">{"".join(drawing.draw(most_tokens))}</div>')


@dataclass(frozen=True)
class _Box:
    """A range of the student's tokens above one of the teacher's. chunk: its number, -1 for none."""

    student: tuple[int, int]
    teacher: tuple[int, int]
    chunk: int = -1

    @property
    def tokens(self) -> int:
        return max(self.student[1] - self.student[0], self.teacher[1] - self.teacher[0])


class _Drawing:
    """Draws one datum."""

    def __init__(self, datum: ViewedDatum, student: Vocabulary, teacher: Vocabulary, strongest: float) -> None:
        ends = datum.ranges[:, [1, 3]].max(axis=0, initial=0).tolist()
        if ends[0] > len(datum.student_ids) or ends[1] > len(datum.teacher_ids):
            found = f"has chunks up to {ends}, and {len(datum.student_ids):,} and {len(datum.teacher_ids):,} tokens"
            raise SpecError(datum.title, found, wanted="the chunks of its own plan")
        self._datum = datum
        self._strongest = strongest
        self._sides = student, teacher
        self._words = [
            token_words(vocabulary.spans(ids)) for vocabulary, ids in ((student, datum.student_ids), (teacher, datum.teacher_ids))
        ]

    def draw(self, most_tokens: int) -> Iterator[str]:
        """Yield the boxes, up to so many tokens."""
        drawn = 0
        for run, context in self._runs():
            shown = self._shortened(run) if context else [run]
            for number, boxes in enumerate(shown):
                if number:
                    left_out = sum(box.tokens for box in run) - sum(box.tokens for part in shown for box in part)
                    yield f"<p>… {left_out:,} tokens of context …</p>"
                for box in boxes:
                    if drawn >= most_tokens:
                        yield f"<p>… the rest of {max(map(len, self._words)):,} tokens isn't drawn.</p>"
                        return
                    drawn += box.tokens
                    yield self._box(box)

    def _runs(self) -> Iterator[tuple[list[_Box], bool]]:
        """Yield boxes in runs: without loss, or with."""
        run: list[_Box] = []
        context = True
        for box in self._boxes():
            without = box.chunk < 0 and not self._datum.loss[slice(*box.student)].any()
            if run and without != context:
                yield run, context
                run = []
            context = without
            run.append(box)
        if run:
            yield run, context

    def _shortened(self, run: list[_Box]) -> list[list[_Box]]:
        """Leave the middle of a long stretch of context out."""
        if sum(box.tokens for box in run) <= _CONTEXT_TOKENS:
            return [run]
        ends = np.cumsum([box.tokens for box in run])
        head = int(np.searchsorted(ends, _CONTEXT_TOKENS // 2)) + 1
        tail = int(np.searchsorted(ends, ends[-1] - _CONTEXT_TOKENS // 2))
        return [run[:head], run[tail:]] if head < tail else [run]

    def _boxes(self) -> Iterator[_Box]:
        """Yield chunks, and what is between them: paired for the eye where the bytes are the same, else each side by itself."""
        s = t = 0
        if self._words[0][:1] == self._words[1][:1] != []:
            yield _Box((0, 1), (0, 1))
            s = t = 1
        chunks = self._datum.ranges
        ranges = np.concatenate([chunks, self._context_pairs()])
        order = np.argsort(ranges[:, 0], kind="stable")
        for number, (first, last, start, end) in zip(order.tolist(), ranges[order].tolist(), strict=True):
            yield from self._between(s, first, t, start)
            yield _Box((first, last), (start, end), number if number < len(chunks) else -1)
            s, t = last, end
        yield from self._between(s, len(self._datum.student_ids), t, len(self._datum.teacher_ids))

    def _context_pairs(self) -> npt.NDArray[np.int64]:
        """Align what is in no chunk, only to have it side by side: int64 [., 4]."""
        datum = self._datum
        student, teacher = (np.array([0, len(ids)], dtype=np.int64) for ids in (datum.student_ids, datum.teacher_ids))
        every = align_pairs(self._sides[0], datum.student_ids, student, self._sides[1], datum.teacher_ids, teacher).ranges
        bounds = np.concatenate([np.zeros((1, 4), np.int64), datum.ranges, [np.repeat([student[1], teacher[1]], 2)]])
        following = np.searchsorted(datum.ranges[:, 0], every[:, 0], side="right")
        before, after = bounds[following], bounds[following + 1]
        fits = (every[:, [0, 2]] >= before[:, [1, 3]]).all(axis=1) & (every[:, [1, 3]] <= after[:, [0, 2]]).all(axis=1)
        return every[fits]

    def _between(self, s: int, s_end: int, t: int, t_end: int) -> Iterator[_Box]:
        alike = len(set(self._datum.loss[s:s_end].tolist())) == 1
        if alike and t < t_end and s_end - s + t_end - t <= _TOGETHER:
            yield _Box((s, s_end), (t, t_end))
            return
        for token in range(s, s_end):
            yield _Box((token, token + 1), (t, t))
        for token in range(t, t_end):
            yield _Box((s_end, s_end), (token, token + 1))

    def _box(self, box: _Box) -> str:
        rows = "".join(
            f"<span>{''.join(f'<i>{html.escape(_short(word))}</i>' for word in words[slice(*tokens)])}</span>"
            for words, tokens in zip(self._words, (box.student, box.teacher), strict=True)
        )
        colour, style = self._colour(box)
        drawn = f'<span class="box {colour}"{style} title="{html.escape(self._tooltip(box))}">{rows}</span>'
        said = self._words[0][slice(*box.student)]
        framing = colour == "context" and box.teacher[0] == box.teacher[1]
        return f"{drawn}<hr>" if said and said[-1].endswith(LINE_END) and not framing else drawn

    def _colour(self, box: _Box) -> tuple[str, str]:
        if box.chunk < 0:
            return ("none" if self._datum.loss[slice(*box.student)].any() else "context"), ""
        if self._datum.advantages is None:
            return ("odd" if box.chunk % 2 else "even"), ""
        value = float(self._datum.advantages[box.student[0]])
        strength = min(abs(value) / self._strongest, 1.0) if self._strongest else 0.0
        alpha = _FAINTEST + (_STRONGEST - _FAINTEST) * strength if value else 0.0
        return ("down" if value < 0 else "up"), f' style="--a:{alpha:.2f}"'

    def _tooltip(self, box: _Box) -> str:
        datum = self._datum
        lines = []
        if box.chunk >= 0:
            if datum.advantages is not None:
                value, length = float(datum.advantages[box.student[0]]), box.student[1] - box.student[0]
                lines.append(f"advantage {_signed(value)} a token, {_signed(value * length)} in all")
            if datum.student_logprobs is not None and datum.teacher_logprobs is not None:
                ours = float(datum.student_logprobs[slice(*box.student)].sum())
                theirs = float(datum.teacher_logprobs[slice(*box.teacher)].sum())
                lines.append(f"gap {_signed(theirs - ours)}: teacher {theirs:.4f}, student {ours:.4f}")
            if not datum.exact[box.chunk]:
                lines.append("the same text only once normalised")
        elif datum.loss[slice(*box.student)].any():
            lines.append("carries loss, in no chunk: advantage 0")
        else:
            lines.append("carries no loss")
        sides = (("student", 0, box.student, datum.student_logprobs), ("teacher", 1, box.teacher, datum.teacher_logprobs))
        lines += [self._tokens(name, side, tokens, logprobs) for name, side, tokens, logprobs in sides if tokens[0] < tokens[1]]
        return "\n".join(lines)

    def _tokens(self, name: str, side: int, tokens: tuple[int, int], logprobs: npt.NDArray[np.float64] | None) -> str:
        ids = (self._datum.student_ids, self._datum.teacher_ids)[side]
        parts = []
        for token in range(*tokens):
            known = logprobs is not None and token < len(logprobs) and np.isfinite(logprobs[token])
            scored = f" {logprobs[token]:.4f}" if known and logprobs is not None else ""
            parts.append(f"{_short(self._words[side][token])} (id {ids[token]}){scored}")
        return f"{name} {tokens[0]}: {', '.join(parts)}"


def _short(word: str) -> str:
    return word if len(word) <= _WORD_LENGTH else f"{word[:_WORD_LENGTH]}… ({len(word)})"


def _signed(value: float) -> str:
    """Write a number with its sign, by the typographer's minus."""
    return f"{value:+.4g}".replace("-", "\u2212")
