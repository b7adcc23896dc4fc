"""The page that a person looks at before training on advantages: self-contained HTML, and the same in sentences for a terminal."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from zephon_core.html import Bar, columns, page, section, stacked, table, tiles
from zephon_core.tokenizers import Tokenizer
from zephon_core.xtoken.advantages import ENOUGH_COVERAGE, ChunkAdvantageStats
from zephon_core.xtoken.pictures.charts import lengths_section, many, percent
from zephon_core.xtoken.pictures.figures import COVERAGE_STEPS, AdvantageFigures, Bin
from zephon_core.xtoken.pictures.view import pictures, view_style
from zephon_core.xtoken.vocabulary import Vocabulary

__all__ = ["REPORT_NAME", "REPORT_VERSION", "describe", "render_report"]

REPORT_NAME = "report.html"
REPORT_VERSION = 1

_MOST_DROPS = 100
_PICTURED_TOKENS = 1500
_COMPARED = {"alone": "stored logprobs and a sequence alone", "float32": "stored logprobs and plain float32"}


def describe(stats: Mapping[str, Any]) -> dict[str, str]:
    """Say in words what came of attaching, from the plain values of `ChunkAdvantageStats`: {what: words}."""
    figures = _stats(stats)
    dropped = figures.mismatch_drops + figures.empty_coverage_drops
    words = {"datums": f"{figures.datums:,} of {many(figures.datums + dropped, 'datum')} got advantages"}
    if dropped:
        words["datums"] += (
            f"; {figures.mismatch_drops:,} dropped for what doesn't fit, {figures.empty_coverage_drops:,} without a chunk"
        )
    losses = figures.scored_loss_tokens + figures.unscored_loss_tokens
    words["coverage"] = f"{percent(figures.coverage_rate)} of {losses:,} loss tokens, in {many(figures.chunks, 'chunk')}"
    if figures.chunk_reverse_kl is None or figures.advantage_mean is None or figures.advantage_std is None:
        return words
    less = "less" if figures.chunk_reverse_kl >= 0 else "more"
    words["gap"] = (
        f"the teacher finds a token {abs(figures.chunk_reverse_kl):.4f} nats {less} likely than the student did, on average"
    )
    words["advantages"] = f"mean {figures.advantage_mean:+.4f}, standard deviation {figures.advantage_std:.4f}"
    if figures.clipped_chunks:
        words["advantages"] += f"; {percent(figures.clipped_chunks / figures.chunks)} of the chunks clipped"
    return words


def _stats(stats: Mapping[str, Any]) -> ChunkAdvantageStats:
    return ChunkAdvantageStats.model_validate({name: stats[name] for name in ChunkAdvantageStats.model_fields})


def render_report(
    name: str,
    stats: ChunkAdvantageStats,
    figures: AdvantageFigures,
    *,
    student: Tokenizer | Vocabulary,
    teacher: Tokenizer | Vocabulary,
    fingerprint: str,
    drops: Sequence[Mapping[str, Any]],
    settings: Mapping[str, object],
    clip: float | None,
    center: bool,
    receipt: Mapping[str, Any] | None,
    forward: str = "",
) -> str:
    """Return the page on a run as one HTML document.

    fingerprint: the advantages' in the store. drops: the first of those that were dropped, as rows of drops.parquet. settings:
    what decided the advantages, by name. receipt, forward: of the scoring, None where the logprobs were given.
    """
    body = [
        _figures(stats),
        _advantages(stats, figures, clip, center),
        _coverage(stats, figures),
        lengths_section(figures.student_lengths.tolist(), figures.teacher_lengths.tolist(), _one_to_one(figures)),
        _drops(stats, drops),
        *_pictures(figures, student, teacher),
        _receipt(receipt, forward),
        _settings(settings),
    ]
    good = stats.datums > 0 and stats.coverage_rate >= ENOUGH_COVERAGE and not stats.mismatch_drops
    return page(
        name,
        [part for part in body if part],
        badge=f"{percent(stats.coverage_rate)} covered" if stats.datums else "nothing to train on",
        good=good,
        subtitle=f"What the teacher thinks of what the student said, in the student's tokens; advantages "
        f"<code>{html.escape(fingerprint)}</code>",
        style=view_style(),
    )


def _number(value: float | None, form: str) -> str:
    return "none" if value is None else format(value, form).replace("-", "\u2212")


def _figures(stats: ChunkAdvantageStats) -> str:
    return tiles(
        [
            (f"{stats.datums:,}", "datums with advantages"),
            (f"{stats.chunks:,}", "chunks"),
            (percent(stats.coverage_rate), "of the loss tokens are in a chunk"),
            (_number(stats.chunk_reverse_kl, "+.4f"), "nats a token: student less teacher, the reverse KL"),
            (_number(stats.advantage_mean, "+.4f"), "advantage of a scored token on average"),
            (_number(stats.advantage_std, ".4f"), "its standard deviation"),
        ]
    )


def _advantages(stats: ChunkAdvantageStats, figures: AdvantageFigures, clip: float | None, center: bool) -> str:
    bins = figures.advantages.bins()
    if not bins:
        return ""
    marks = [
        Bar(_label(each), float(each.tokens), f"{_range(each)}: {many(each.tokens, 'token')}", accent=each.low < 0) for each in bins
    ]
    words = "Scored tokens by their advantage, as trained: positive where the teacher finds it likelier than the student did."
    if math.isinf(bins[0].low) or math.isinf(bins[-1].high):
        words += " The columns at the ends hold all that is beyond."
    if clip is not None:
        words += (
            f" {many(stats.clipped_chunks, 'chunk')} ({percent(stats.clipped_chunks / (stats.chunks or 1))}) clipped to ±{clip:g}."
        )
    if center:
        words += " The mean of the chunks' totals was subtracted from each."
    return section("Advantages", words, columns(marks, describe="histogram of scored tokens by advantage"))


def _label(each: Bin) -> str:
    if math.isinf(each.low):
        return f"<{_number(each.high, '.3g')}"
    return _number(each.low, ".3g")


def _range(each: Bin) -> str:
    low, high = _number(each.low, ".4g"), _number(each.high, ".4g")
    return f"below {high}" if math.isinf(each.low) else f"{low} and above" if math.isinf(each.high) else f"{low} to {high}"


def _coverage(stats: ChunkAdvantageStats, figures: AdvantageFigures) -> str:
    if not stats.datums:
        return ""
    parts = [
        Bar("in a chunk", float(stats.scored_loss_tokens), f"{stats.scored_loss_tokens:,}"),
        Bar("in none", float(stats.unscored_loss_tokens), f"{stats.unscored_loss_tokens:,}"),
    ]
    marks = []
    for step, count in enumerate(figures.coverage.tolist()):
        low, high = step / COVERAGE_STEPS, (step + 1) / COVERAGE_STEPS
        words = "all of it" if step == COVERAGE_STEPS else f"{low:.0%} to {high:.0%} of it"
        marks.append(Bar(f"{low:.0%}", float(count), f"{words}: {many(count, 'datum')}", accent=low < ENOUGH_COVERAGE))
    words = "Loss tokens in a chunk, and in none: nothing is learnt from these, their advantage is 0."
    chart = columns(marks, height=130, describe="histogram of datums by coverage")
    drawn = stacked([part for part in parts if part.value], describe="share of loss tokens in a chunk")
    return section("Coverage", words, drawn, f"<p>Datums by the share of their loss tokens that is in a chunk</p>{chart}")


def _one_to_one(figures: AdvantageFigures) -> str:
    chunks = int(figures.student_lengths.sum())
    words = f"{percent(figures.one_to_one / (chunks or 1))} of them"
    if figures.inexact:
        words += f"; {percent(figures.inexact / chunks)} are the same text only once normalised"
    return words


def _drops(stats: ChunkAdvantageStats, drops: Sequence[Mapping[str, Any]]) -> str:
    dropped = stats.mismatch_drops + stats.empty_coverage_drops
    if not dropped:
        return ""
    shown = drops[:_MOST_DROPS]
    words = f"{many(dropped, 'datum')} got no advantages and {'is' if dropped == 1 else 'are'} not among the output's rows."
    if len(shown) < dropped:
        words += f" The first {len(shown):,}; drops.parquet lists all."
    headings = ("row", "trial_name", "fragment_index", "reason", "detail")
    rows = [["" if drop.get(name) is None else drop[name] for name in headings] for drop in shown]
    return section("Dropped", words, table([heading.replace("_", " ") for heading in headings], rows))


def _pictures(figures: AdvantageFigures, student: Tokenizer | Vocabulary, teacher: Tokenizer | Vocabulary) -> list[str]:
    gaps, uncovered = figures.pictured()
    if not gaps and not uncovered:
        return []
    named = [
        *((datum, "Among the largest gaps a token.") for datum in gaps),
        *((datum, "Among the lowest coverages.") for datum in uncovered),
    ]
    words = "What is trained: the datums of which teacher and student think most differently, and those of which least is covered."
    drawn = pictures(
        [datum.remarked(remark) for datum, remark in named], student=student, teacher=teacher, most_tokens=_PICTURED_TOKENS
    )
    return [section("Some datums", words), *drawn]


def _receipt(receipt: Mapping[str, Any] | None, forward: str) -> str:
    if not receipt or not receipt["probe"]["rows"]:
        return ""
    rows: list[Sequence[object]] = [
        [_COMPARED[key], receipt[key]["skipped"], ""]
        if "skipped" in receipt[key]
        else [_COMPARED[key], f"{receipt[key]['largest_deviation']:.2e}", f"{receipt[key]['mean_deviation']:.2e}"]
        for key in _COMPARED
        if key in receipt
    ]
    probe = receipt["probe"]
    words = f"{many(probe['rows'], 'sequence')} of {many(probe['tokens'], 'token')} were scored again in other ways"
    words += f"; {forward} runs the model." if forward else "."
    words += " How far these are off, in nats, is what to expect of another machine or batch."
    return section("Receipt of the scoring", words, table(["compared", "largest deviation", "mean deviation"], rows))


def _settings(settings: Mapping[str, object]) -> str:
    rows = [[name.replace("_", " "), f"{value:,}" if type(value) is int else str(value)] for name, value in settings.items()]
    return section("Settings", "What decided the advantages.", table(["setting", "value"], rows)) if rows else ""
