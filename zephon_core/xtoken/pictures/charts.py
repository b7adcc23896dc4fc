"""Charts that the page on a pair of tokenizers and the page on advantages share."""

from __future__ import annotations

from collections.abc import Sequence

from zephon_core.html import Bar, columns, section

__all__ = ["lengths_section", "many", "mean_length", "percent"]

_LONGEST_DRAWN = 16
_FEWEST_DRAWN = 8


def lengths_section(student: Sequence[int], teacher: Sequence[int], one_to_one: str) -> str:
    """Draw how many tokens chunks have on either side. student, teacher: chunks of 1, 2, … tokens. one_to_one: in words."""
    if not sum(student):
        return ""
    words = (
        f"Tokens of a chunk: {mean_length(student):.2f} of the student's on average, {mean_length(teacher):.2f} of the teacher's. "
    )
    words += f"The finer both cut at the same bytes, the more often a chunk is one token on both sides: {one_to_one}."
    charts = [
        f"<p>{name} tokens of a chunk</p>{_histogram(counts, name)}"
        for name, counts in (("The student's", student), ("The teacher's", teacher))
    ]
    return section("Lengths of chunks", words, *charts)


def _histogram(counts: Sequence[int], name: str) -> str:
    longest = max((length for length, count in enumerate(counts, start=1) if count), default=1)
    drawn = list(counts[: max(longest, _FEWEST_DRAWN)])
    more = len(drawn) > _LONGEST_DRAWN
    if more:
        drawn[_LONGEST_DRAWN - 1 :] = [sum(drawn[_LONGEST_DRAWN - 1 :])]
    marks = []
    for length, count in enumerate(drawn, start=1):
        last = more and length == _LONGEST_DRAWN
        words = f"{length} and more tokens" if last else many(length, "token")
        marks.append(Bar(f"{length}+" if last else str(length), float(count), f"{words}: {many(count, 'chunk')}"))
    return columns(marks, height=130, describe=f"histogram of chunks by {name.lower()} tokens")


def mean_length(counts: Sequence[int]) -> float:
    """Return the mean of a histogram of lengths from 1; the last place counts as its least."""
    return sum(length * count for length, count in enumerate(counts, start=1)) / (sum(counts) or 1)


def percent(share: float) -> str:
    """Round so that only all is 100 %, and only nothing 0 %."""
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    return f"{min(max(share, 0.0001), 0.9999):.2%}"


def many(count: int, one: str) -> str:
    """Write a count with its noun."""
    return f"{count:,} {one if count == 1 else f'{one}s'}"
