"""What a report draws: the same whatever parts the datums come in, and the datums one should look at."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.xtoken.advantages import Drop, attach_columns
from zephon_core.xtoken.alignment.build import TeacherSide
from zephon_core.xtoken.datums import DatumColumns, offsets_of
from zephon_core.xtoken.pictures.figures import AdvantageFigures, Spread, length_histogram
from zephon_core.xtoken.plans import PlanColumns

VALUES = st.lists(st.tuples(st.floats(-50, 50), st.integers(1, 5)), min_size=1, max_size=40)


def spread(*parts) -> Spread:
    made = Spread()
    for part in parts:
        made.add(np.array([value for value, _ in part]), np.array([count for _, count in part], np.int64))
    return made


@given(values=VALUES, cut=st.integers(0, 40))
def test_a_histogram_of_parts(values, cut):
    whole = spread(values)
    assert whole.bins() == spread(values[:cut], values[cut:]).bins() == spread(values[::-1]).bins()
    assert whole.total == sum(count for _, count in values)


@given(values=VALUES, most=st.integers(8, 60))
def test_a_histogram_holds_every_value(values, most):
    bins = spread(values).bins(most)
    assert len(bins) <= most
    assert sum(each.tokens for each in bins) == sum(count for _, count in values)
    for each, other in itertools.pairwise(bins):
        assert each.high == other.low
    for each in bins:
        assert each.tokens == sum(count for value, count in values if each.low <= value < each.high)
    widths = {each.high - each.low for each in bins if np.isfinite(each.low) and np.isfinite(each.high)}
    assert len(widths) == 1


def test_a_histogram_of_outliers_shows_the_rest():
    rng = np.random.default_rng(0)
    made = Spread()
    made.add(rng.normal(size=10_000), np.ones(10_000, np.int64))
    made.add(np.array([4000.0]), np.ones(1, np.int64))
    bins = made.bins()
    assert bins[-1].high == np.inf
    assert -4.5 < bins[0].high < bins[-1].low < 4.5
    assert Spread().bins() == []


def test_lengths():
    counts = length_histogram(np.array([1, 1, 2, 64, 65, 1000]))
    assert (len(counts), counts[0], counts[1], counts[63], counts.sum()) == (64, 2, 1, 3, 6)


class Made:
    """Datums with plans and teacher rows, by fixed random numbers; some of them don't fit."""

    def __init__(self, count: int, *, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        lengths, teacher_lengths = rng.integers(4, 30, count), rng.integers(4, 30, count)
        plans, loss = [], []
        for length, teacher_length in zip(lengths.tolist(), teacher_lengths.tolist(), strict=True):
            ours, theirs = self._cuts(rng, length), self._cuts(rng, teacher_length)
            size = min(len(ours), len(theirs)) - 1
            plans.append([(ours[n], ours[n + 1], theirs[n], theirs[n + 1]) for n in range(size) if rng.random() < 0.8])
            mask = rng.random(length) < 0.3
            for first, last, _, _ in plans[-1]:
                mask[first:last] = True
            loss.append(mask)
        self.datums = DatumColumns(
            [f"trial-{number}" for number in range(count)],
            rng.integers(0, 3, count),
            offsets_of(lengths),
            rng.integers(0, 99, lengths.sum()),
            np.concatenate(loss),
            -rng.exponential(size=lengths.sum()),
        )
        self.teacher = TeacherSide(rng.integers(0, 99, teacher_lengths.sum()), offsets_of(teacher_lengths))
        self.rows = -rng.exponential(size=teacher_lengths.sum())
        self.rows[rng.random(len(self.rows)) < 0.01] = np.nan
        chunks = [len(plan) for plan in plans]
        ranges = np.array([chunk for plan in plans for chunk in plan], np.int64).reshape(-1, 4)
        self.plans = PlanColumns(
            self.datums.trial_name,
            self.datums.fragment_index,
            teacher_lengths,
            offsets_of(np.array(chunks)),
            ranges,
            rng.random(len(ranges)) < 0.9,
        )
        self.attached = attach_columns(self.datums, self.plans, self.teacher.offsets, self.rows, clip=2.0, center=True)

    @staticmethod
    def _cuts(rng: np.random.Generator, length: int) -> list[int]:
        return sorted(set(rng.integers(1, length, 8).tolist()))

    def figures(self, cuts: list[int], pictured: int = 3) -> AdvantageFigures:
        """The figures of the datums in parts."""
        made = AdvantageFigures(pictured=pictured)
        for begin, end in zip([0, *cuts], [*cuts, len(self.datums)], strict=True):
            tokens, rows = self._part(self.datums.offsets, begin, end), self._part(self.teacher.offsets, begin, end)
            chunks = self._part(self.plans.offsets, begin, end)
            names, fragments = self.datums.trial_name[begin:end], self.datums.fragment_index[begin:end]
            offsets, teacher_offsets, plan_offsets = (
                columns[begin : end + 1] - columns[begin]
                for columns in (self.datums.offsets, self.teacher.offsets, self.plans.offsets)
            )
            made.add(
                DatumColumns(
                    names, fragments, offsets, self.datums.tokens[tokens], self.datums.loss[tokens], self.datums.logprobs[tokens]
                ),
                PlanColumns(
                    names, fragments, np.diff(teacher_offsets), plan_offsets, self.plans.ranges[chunks], self.plans.exact[chunks]
                ),
                TeacherSide(self.teacher.ids[rows], teacher_offsets),
                teacher_offsets,
                self.rows[rows],
                self.attached.advantages[tokens],
                self.attached.drops[begin:end],
            )
        return made

    @staticmethod
    def _part(offsets, begin: int, end: int) -> slice:
        return slice(int(offsets[begin]), int(offsets[end]))


def plain(figures: AdvantageFigures):
    """Everything in it as plain values."""
    pictured = [
        [
            (datum.title, datum.student_ids.tolist(), datum.advantages.tolist(), datum.teacher_logprobs.tolist()[1:])
            for datum in kind
        ]
        for kind in figures.pictured()
    ]
    return (
        figures.advantages.bins(),
        figures.student_lengths.tolist(),
        figures.teacher_lengths.tolist(),
        figures.coverage.tolist(),
        figures.one_to_one,
        figures.inexact,
        repr(pictured),
    )


@pytest.mark.parametrize("cuts", [[50], list(range(1, 100)), [0, 7, 7, 99, 100]])
def test_parts_change_nothing(cuts):
    made = Made(100)
    assert 0 < np.count_nonzero(made.attached.drops) < 50
    assert plain(made.figures(cuts)) == plain(made.figures([]))


def test_they_are_those_of_the_kept_datums():
    made = Made(60, seed=3)
    figures, stats = made.figures([]), made.attached.stats
    assert figures.student_lengths.sum() == figures.teacher_lengths.sum() == stats.chunks
    assert figures.advantages.total == stats.scored_loss_tokens
    assert figures.coverage.sum() == stats.datums
    of = np.repeat(made.attached.drops, np.diff(made.plans.offsets))
    ranges = made.plans.ranges[of == Drop.NONE]
    ours, theirs = ranges[:, 1] - ranges[:, 0], ranges[:, 3] - ranges[:, 2]
    assert figures.one_to_one == np.count_nonzero((ours == 1) & (theirs == 1))
    assert figures.inexact == np.count_nonzero(~made.plans.exact[of == Drop.NONE])


def test_the_datums_to_look_at():
    made = Made(60, seed=4)
    kept = np.flatnonzero(made.attached.kept).tolist()
    ranks, uncovered = {}, {}
    for row in kept:
        chunks = made.plans.ranges[made.plans.offsets[row] : made.plans.offsets[row + 1]].tolist()
        ours = made.datums.logprobs[made.datums.offsets[row] : made.datums.offsets[row + 1]]
        theirs = made.rows[made.teacher.offsets[row] : made.teacher.offsets[row + 1]]
        losses = int(made.datums.loss[made.datums.offsets[row] : made.datums.offsets[row + 1]].sum())
        scored = sum(last - first for first, last, _, _ in chunks)
        gap = sum(theirs[start:end].sum() - ours[first:last].sum() for first, last, start, end in chunks)
        title = f"trial-{row}, fragment {made.datums.fragment_index[row]}"
        ranks[title], uncovered[title] = abs(gap) / (scored + 16), (losses - scored) / (losses + 16)
    gaps, lows = made.figures([20, 40], pictured=4).pictured()
    assert [datum.title for datum in gaps] == sorted(ranks, key=lambda title: -ranks[title])[:4]
    lowest = sorted(uncovered, key=lambda title: -uncovered[title])[:4]
    assert [datum.title for datum in lows] == [title for title in lowest if title not in {datum.title for datum in gaps}]


def test_no_datum_at_all():
    figures = Made(5).figures([], pictured=0)
    assert figures.pictured() == ([], [])
    empty = AdvantageFigures()
    assert empty.pictured() == ([], [])
    assert empty.advantages.bins() == []
