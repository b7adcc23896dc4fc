"""What a look at a pair of tokenizers came to: tables for a terminal, and a page with the same and more."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from zephon_core.html import page, section, table, tiles
from zephon_core.xtoken.checking.check import Example, PairReport, PoorSample
from zephon_core.xtoken.checking.gaps import CAUSE_WORDS, Cause
from zephon_core.xtoken.checking.verdicts import Level, SideFacts
from zephon_core.xtoken.pictures.charts import lengths_section, many, mean_length, percent

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["CHECK_REPORT_NAME", "render_check", "show_check"]

CHECK_REPORT_NAME = "check.html"

_COLOURS = {Level.GOOD: "green", Level.NOTE: "yellow", Level.BAD: "red"}
_STYLE = """
.level { font-weight: 600; }
.level.good { color: var(--three); }
.level.note { color: var(--two); }
.level.bad { color: var(--bad); }
.verdicts td:nth-child(-n + 2) { white-space: nowrap; }
.code mark { background: var(--faint); color: var(--ink); border-bottom: .12rem solid var(--two); }
.code b { font-weight: normal; border: 1px solid var(--faint); border-radius: .2rem; padding: 0 .2rem; margin-right: .15rem; }
"""
_LISTED_LENGTHS = 8


def show_check(report: PairReport) -> None:
    """Print what came of it to standard output."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    console.print(f"{escape(report.student.origin)}  taught by  {escape(report.teacher.origin)}")
    console.print(f"{_looked_at(report)}: {_sizes(report)}\n")
    verdicts = _table("", "")
    for verdict in report.verdicts:
        colour = _COLOURS[verdict.level]
        words = escape(f"{verdict.found} {verdict.remedy}".strip())
        verdicts.add_row(f"[{colour}]{verdict.level.value}[/{colour}]", f"[bold]{verdict.topic}[/bold]", words)
    console.print(verdicts)
    if report.chunks:
        console.print()
        console.print(_lengths(report))
        console.print(f"{percent(_one_to_one(report))} of the bytes with loss are in chunks of one token on both sides")
    if report.uncovered:
        console.print()
        causes = _table("loss tokens in no chunk", "", numbers=("loss tokens in no chunk", ""))
        for cause, tokens in _causes(report.uncovered):
            causes.add_row(f"{tokens:,}", percent(tokens / report.loss_tokens), CAUSE_WORDS[cause])
        console.print(causes)
        console.print()
        console.print(_worst(report))


def _table(*headings: str, numbers: Sequence[str] = ()) -> Table:
    from rich.table import Table

    found = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_header=any(headings), pad_edge=False)
    for heading in headings:
        found.add_column(heading, justify="right" if heading in numbers else "left", overflow="fold")
    if len(headings) < 3:
        found.add_column("")
    return found


def _lengths(report: PairReport) -> Table:
    found = _table("tokens of a chunk", "student", "teacher", numbers=("tokens of a chunk", "student", "teacher"))
    sides = report.student_lengths, report.teacher_lengths
    longest = max(length for counts in sides for length, count in enumerate(counts, start=1) if count)
    for length in range(1, min(longest, _LISTED_LENGTHS) + 1):
        more = length == _LISTED_LENGTHS < longest
        shares = (sum(counts[length - 1 :]) if more else counts[length - 1] for counts in sides)
        found.add_row(f"{length}+" if more else str(length), *(percent(share / report.chunks) for share in shares))
    found.add_row("mean", *(f"{mean_length(counts):.2f}" for counts in sides))
    return found


def _worst(report: PairReport) -> Table:
    from rich.markup import escape

    found = _table("covered", "of the worst", numbers=("covered",))
    for poor in report.worst:
        example = max(poor.examples, key=lambda each: each.tokens)
        lines = [
            f"{escape(poor.place)}, {many(poor.loss_tokens, 'loss token')}",
            f"{escape(example.before)}[reverse]{escape(example.text)}[/reverse]{escape(example.after)}",
            f"{_place(example)}: {CAUSE_WORDS[example.cause]}",
            f"student {escape(' | '.join(example.student))}; teacher {escape(' | '.join(example.teacher) or 'nothing')}",
        ]
        found.add_row(percent(poor.coverage_rate), "\n".join(lines))
    return found


def _place(example: Example) -> str:
    return f"{many(example.tokens, 'token')} from {example.token:,} on (byte {example.byte:,})"


def _causes(causes: dict[Cause, int]) -> Iterator[tuple[Cause, int]]:
    yield from sorted(causes.items(), key=lambda item: -item[1])


def _looked_at(report: PairReport) -> str:
    parts = [many(count, one) for count, one in ((report.texts, "text"), (report.conversations, "conversation")) if count]
    return " and ".join(parts) or "nothing"


def _sizes(report: PairReport) -> str:
    student, teacher = report.student, report.teacher
    words = f"{student.tokens:,} tokens of the student's, {teacher.tokens:,} of the teacher's"
    if student.bytes and teacher.bytes:
        words += f" ({student.tokens / student.bytes:.4f} and {teacher.tokens / teacher.bytes:.4f} a byte)"
    return words


def _one_to_one(report: PairReport) -> float:
    return report.one_to_one_bytes / report.loss_bytes if report.loss_bytes else 0.0


def render_check(report: PairReport) -> str:
    """Return the page on a pair as one HTML document."""
    bad = sum(verdict.level is Level.BAD for verdict in report.verdicts)
    body = [
        _tiles(report),
        _verdicts(report),
        lengths_section(report.student_lengths, report.teacher_lengths, f"{percent(_one_to_one(report))} of the bytes with loss"),
        _uncovered(report),
        *(_poor(poor) for poor in report.worst),
        _sides(report),
    ]
    return page(
        "A pair of tokenizers",
        [part for part in body if part],
        badge=f"{many(bad, 'finding')} to mend" if bad else "fit for each other",
        good=not bad,
        subtitle=f"<code>{html.escape(report.student.origin)}</code> taught by <code>{html.escape(report.teacher.origin)}</code>, "
        f"looked at with {html.escape(_looked_at(report))}",
        style=_STYLE,
    )


def _tiles(report: PairReport) -> str:
    return tiles(
        [
            (percent(report.coverage_rate), "of the loss tokens are in a chunk"),
            (f"{report.loss_tokens:,}", "loss tokens: what the assistant says; of a text, all but the first"),
            (percent(_one_to_one(report)), "of their bytes in chunks of one token on both sides"),
            (f"{mean_length(report.student_lengths):.2f}", "student tokens a chunk"),
            (f"{mean_length(report.teacher_lengths):.2f}", "teacher tokens a chunk"),
            (
                f"{report.teacher.tokens / (report.student.tokens or 1):.2f}",
                "teacher tokens for one of the student's, framing included",
            ),
        ]
    )


def _verdicts(report: PairReport) -> str:
    rows = "".join(
        f'<tr><td><span class="level {verdict.level.value}">{verdict.level.value}</span></td><td>{html.escape(verdict.topic)}</td>'
        f"<td>{html.escape(verdict.found)} {html.escape(verdict.remedy)}</td></tr>"
        for verdict in report.verdicts
    )
    words = "What is fine, worth knowing, or to be mended."
    return section("Verdicts", words, f'<div class="wide"><table class="verdicts"><tbody>{rows}</tbody></table></div>')


def _uncovered(report: PairReport) -> str:
    if not report.uncovered:
        return ""
    shares = [(tokens, percent(tokens / report.loss_tokens), CAUSE_WORDS[cause]) for cause, tokens in _causes(report.uncovered)]
    words = "Loss tokens in no chunk, by cause. Nothing is learnt from them."
    return section("What is in the way", words, table(["loss tokens", "of all", "because"], shares))


def _poor(poor: PoorSample) -> str:
    causes = ", ".join(f"{tokens:,} {CAUSE_WORDS[cause]}" for cause, tokens in _causes(poor.causes))
    words = f"{percent(poor.coverage_rate)} of {poor.loss_tokens:,} loss tokens are in a chunk. Of the others: {causes}."
    return section(poor.place, words, "".join(map(_example, poor.examples)))


def _example(example: Example) -> str:
    sides = (("student", example.student), ("teacher", example.teacher))
    rows = "".join(
        f"<tr><td>{name}</td><td>{''.join(f'<b>{html.escape(token)}</b>' for token in tokens) or 'nothing'}</td></tr>"
        for name, tokens in sides
    )
    text = f"{html.escape(example.before)}<mark>{html.escape(example.text)}</mark>{html.escape(example.after)}"
    rows = f"<tr><td>text</td><td>{text}</td></tr>{rows}"
    place = html.escape(f"{_place(example)}: {CAUSE_WORDS[example.cause]}")
    return f'<p>{place}</p><div class="wide"><table class="code"><tbody>{rows}</tbody></table></div>'


def _sides(report: PairReport) -> str:
    rows = [
        [name.replace("_", " "), _value(getattr(report.student, name)), _value(getattr(report.teacher, name))]
        for name in SideFacts.model_fields
    ]
    return section("The two sides", "What they are, and what they made of the texts.", table(["", "student", "teacher"], rows))


def _value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} ({count:,})" for name, count in value.items()) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value) or "none"
