"""The page that a person looks at after planning, self-contained, and the sentences that say the same in a terminal."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.batching.lengths import LengthTable
from zephon_core.batching.plan import Distribution, GlobalBatchPlan, PlanStatistics
from zephon_core.batching.specs import BatchesSpec
from zephon_core.html import Bar, columns, page, section, stacked, table, tiles
from zephon_core.progress import format_amount

__all__ = ["REPORT_NAME", "REPORT_VERSION", "describe", "render_report"]

REPORT_NAME = "report.html"
REPORT_VERSION = 1

_MOST_COLUMNS = 64
_LENGTHS_AT_ONCE = 1 << 22


def describe(statistics: Mapping[str, Any]) -> dict[str, str]:
    """Say in words what a plan's statistics (`PlanStatistics.to_json`) come to: {what: words}."""
    figures = PlanStatistics.model_validate(statistics)
    examples, imbalance, mixing = figures.batch_examples, figures.imbalance, figures.mixing
    empty = f"; in the last step {_many(figures.empty_batches, 'rank')} without an example" if figures.empty_batches else ""
    above = (
        f"a step's costliest batch is {imbalance.mean:.2%} above its mean, {imbalance.largest:.2%} at worst, the last step aside"
    )
    if figures.steps < 2:
        above = f"the only step's costliest batch is {imbalance.last_step:.2%} above its mean"
    return {
        "batches": f"{figures.batches:,} of {figures.examples:,} examples, in {_many(figures.steps, 'step')} on "
        f"{_many(figures.world_size, 'rank')}{empty}",
        "tokens": f"{format_amount(figures.real_tokens, 'tokens')} in {format_amount(figures.token_slots, 'slots')}: "
        f"{figures.padding_waste:.2%} is padding, {figures.unfilled:.2%} of the budget stays unfilled",
        "imbalance": f"ranks wait {imbalance.idle_share:.2%} of their time, if it goes with slots; {above}",
        "sizes": f"{examples.least:,} to {examples.largest:,} examples a batch, the median {examples.median:,}",
        "shuffled": f"place in the plan and length correlate by {mixing.length_correlation:+.4f}, place and number by "
        f"{mixing.index_correlation:+.4f}; neighbouring steps by {mixing.neighbour_correlation:+.4f}",
    }


def render_report(spec: BatchesSpec, plan: GlobalBatchPlan, lengths: LengthTable, *, fingerprint: str) -> str:
    """Return the page on a plan as one HTML document. fingerprint: the plan's in the store."""
    figures = plan.statistics
    body = [
        _figures(figures),
        _waste(figures, plan.options.maximum_tokens),
        _imbalance(plan),
        _ranks(plan),
        _sizes(figures),
        _lengths(lengths),
        _mixing(figures),
        _settings(spec, plan),
    ]
    return page(
        spec.name,
        [part for part in body if part],
        badge=f"{_many(figures.steps, 'step')} on {_many(figures.world_size, 'rank')}",
        subtitle=f"Batches of at most {plan.options.maximum_tokens:,} token slots, epoch {plan.epoch}; "
        f"plan <code>{html.escape(fingerprint)}</code>",
    )


def _many(count: int, one: str, more: str = "") -> str:
    return f"{count:,} {one if count == 1 else more or f'{one}s'}"


def _figures(figures: PlanStatistics) -> str:
    values = [
        (f"{figures.examples:,}", "examples, each in one batch"),
        (f"{figures.batches:,}", "batches"),
        (format_amount(figures.real_tokens, "tokens"), "in all"),
        (f"{figures.padding_waste:.2%}", "of the token slots is padding"),
        (f"{figures.unfilled:.2%}", "of the budget stays unfilled"),
        (f"{figures.imbalance.idle_share:.2%}", "of the ranks' time is waiting, if time goes with slots"),
    ]
    return tiles(values)


def _waste(figures: PlanStatistics, budget: int) -> str:
    room = figures.batches * budget
    parts = [
        Bar("tokens", float(figures.real_tokens), f"{figures.real_tokens:,}"),
        Bar("padding", float(figures.token_slots - figures.real_tokens), f"{figures.token_slots - figures.real_tokens:,}"),
        Bar("unfilled", float(room - figures.token_slots), f"{room - figures.token_slots:,}"),
    ]
    words = f"What became of {room:,} slots, {budget:,} for each batch that holds an example."
    return section(
        "Waste", words, stacked([part for part in parts if part.value], describe="share of tokens, padding and unfilled slots")
    )


def _imbalance(plan: GlobalBatchPlan) -> str:
    figures = plan.statistics.imbalance
    if plan.world_size == 1 or plan.steps < 2:
        return ""
    slots = plan.arrays.token_slots.reshape(plan.steps, plan.world_size)[:-1]
    above = slots.max(axis=1) / slots.mean(axis=1) - 1  # only the last step may be without a slot
    counts, edges = np.histogram(above, bins=32, range=(0.0, max(float(above.max()), 1e-4)))
    chart = columns(
        [
            Bar(f"{low:.2%}" if low else "0", float(count), f"{low:.2%} to {high:.2%} above the mean: {_many(count, 'step')}")
            for count, low, high in zip(counts.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        ],
        describe="histogram of the steps' imbalance",
    )
    words = "How far a step's costliest batch, for which all ranks wait, is above the mean of its batches: "
    words += f"{figures.median:.2%} in the median step, {figures.p99:.2%} in one of a hundred, {figures.largest:.2%} at worst."
    words += f" The last step, which is dealt what is left, isn't drawn: {figures.last_step:.2%}."
    return section("Imbalance", words, chart)


def _ranks(plan: GlobalBatchPlan) -> str:
    slots = plan.arrays.token_slots.reshape(plan.steps, plan.world_size)
    batches = np.asarray(plan.statistics.batches_per_rank)
    totals = slots.sum(axis=0, dtype=np.float64)
    width = -(-plan.world_size // _MOST_COLUMNS)
    marks = []
    for first in range(0, plan.world_size, width):
        some = slice(first, first + width)
        last = min(first + width, plan.world_size) - 1
        label = str(first) if last == first else f"{first}-{last}"
        few, many = int(batches[some].min()), int(batches[some].max())
        held = f"{few:,}" if few == many else f"{few:,} to {many:,}"
        mean = float(totals[some].mean())
        marks.append(Bar(label, mean, f"rank {label}: {held} batches, {format_amount(mean, 'slots')}"))
    words = f"Token slots of each rank over the whole epoch. Every rank has a batch in each of the {_many(plan.steps, 'step')}"
    words += "." if int(batches.min()) == plan.steps else ", which may hold no example in the last one."
    if width > 1:
        words += f" A column is the mean of up to {width} ranks."
    return section("Batches of each rank", words, columns(marks, describe="token slots of each rank"))


def _sizes(figures: PlanStatistics) -> str:
    examples, slots = figures.batch_examples, figures.batch_slots
    words = (
        f"Half of the batches hold {examples.p25:,} to {examples.p75:,} examples, and {slots.p25:,} to {slots.p75:,} token slots; "
    )
    words += f"the largest {examples.largest:,} examples, the costliest {slots.largest:,} slots."
    return section(
        "Sizes of batches",
        words,
        "<p>Examples of a batch</p>",
        _distribution(examples, "examples"),
        "<p>Token slots of a batch</p>",
        _distribution(slots, "slots"),
    )


def _distribution(found: Distribution, unit: str) -> str:
    bins = list(zip(found.edges[:-1], found.edges[1:], found.counts, strict=True))
    marks = []
    for low, high, count in bins:
        last = high if high == found.edges[-1] else high - 1
        range_ = f"{low:,}" if low == last else f"{low:,} to {last:,}"
        marks.append(Bar(f"{low:,}", float(count), f"{range_} {unit}: {_many(count, 'batch', 'batches')}"))
    return columns(marks, describe=f"histogram of batches by {unit}")


def _lengths(lengths: LengthTable) -> str:
    if not lengths.count:
        return ""
    width = max(1, -(-lengths.longest // _MOST_COLUMNS))
    counts = np.zeros(-(-lengths.longest // width), np.int64)
    for begin in range(0, lengths.count, _LENGTHS_AT_ONCE):
        part: npt.NDArray[Any] = lengths.values[begin : begin + _LENGTHS_AT_ONCE]
        counts += np.bincount((part.astype(np.int64) - 1) // width, minlength=len(counts))
    marks = []
    for number, count in enumerate(counts.tolist()):
        first, last = number * width + 1, (number + 1) * width
        range_ = f"{first:,}" if first == last else f"{first:,} to {last:,}"
        marks.append(Bar(f"{first:,}", float(count), f"{range_} tokens: {_many(count, 'example')}"))
    mean = lengths.total_tokens / lengths.count
    words = f"Tokens of an example: {lengths.shortest:,} to {lengths.longest:,}, {mean:,.1f} on average."
    return section("Lengths", words, columns(marks, describe="histogram of the examples' lengths"))


def _mixing(figures: PlanStatistics) -> str:
    mixing = figures.mixing
    rows: list[Sequence[object]] = [
        ["place in the plan and length (Spearman)", f"{mixing.length_correlation:+.5f}", "0"],
        ["place in the plan and number of the example (Spearman)", f"{mixing.index_correlation:+.5f}", "0"],
        ["mean length in a step and in the next (Pearson)", f"{mixing.neighbour_correlation:+.5f}", "0"],
        ["variance of mean length between steps, over that of batches dealt at random", f"{mixing.step_clustering:.3f}", "1"],
    ]
    words = "What buckets and balance leave of the random order, beside what a random one has."
    return section("Shuffling", words, table(["correlation", "here", "at random"], rows))


def _settings(spec: BatchesSpec, plan: GlobalBatchPlan) -> str:
    source = spec.lengths.table or ", ".join(spec.lengths.texts)
    rows: list[tuple[str, object]] = [("lengths", source), ("extra tokens", spec.lengths.extra_tokens)]
    rows += [("cut at tokens", spec.lengths.cut_at_tokens or "none"), *spec.plan.model_dump(mode="json").items()]
    rows += [("lengths SHA-256", plan.recipe.source.lengths_sha256), ("plan digest", plan.digest)]
    settings = [[name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value)] for name, value in rows]
    return section("Settings", "What decided the batches.", table(["setting", "value"], settings))
