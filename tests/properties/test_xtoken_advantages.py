"""A chunk moves the student by its gap; what is in no chunk by nothing; the rest as worked out by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.xtoken import ChunkPlan, ChunkSpan, TrainDatum, attach_chunk_advantages
from zephon_core.xtoken.advantages import Attaching, attach_columns
from zephon_core.xtoken.datums import DatumColumns, ragged_floats
from zephon_core.xtoken.plans import PlanColumns

LOGPROBS = st.floats(-60, 0)


@st.composite
def cases(draw: st.DrawFn) -> tuple[TrainDatum, ChunkPlan, list[float | None]]:
    """A datum, its plan and its row, of which some don't fit one another."""
    name = draw(st.sampled_from("ab"))
    chunks, mask, student, teacher = [], [0.0], 1, 1
    for own, other, gap, skipped in draw(
        st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2), st.integers(0, 2)), max_size=6)
    ):
        mask += [float(draw(st.booleans())) for _ in range(gap)] + [1.0] * own
        student, teacher = student + gap, teacher + skipped
        chunks.append(
            ChunkSpan(student_start=student, student_end=student + own, teacher_start=teacher, teacher_end=teacher + other)
        )
        student, teacher = student + own, teacher + other
    logprobs = [draw(LOGPROBS) if value else 0.0 for value in mask]
    row: list[float | None] = [None, *(draw(LOGPROBS) for _ in range(teacher))]
    fault = draw(st.sampled_from(["", "", "", "", "row", "none", "nan", "name", "context", "past"]))
    count = len(row)
    if fault == "row":
        row.append(-1.0)
    if fault == "none":
        row[draw(st.integers(1, len(row) - 1))] = None
    if fault == "nan":
        row[draw(st.integers(1, len(row) - 1))] = math.nan
    if fault == "context" and chunks:
        mask[draw(st.integers(0, len(mask) - 1))] = 0.0
    if fault == "past":
        mask, logprobs = mask[:-1], logprobs[:-1]
    datum = TrainDatum(
        trial_name=name, fragment_index=0, model_input_tokens=[1] * len(mask), loss_mask=mask, sampled_logprobs=logprobs
    )
    plan = ChunkPlan(trial_name="c" if fault == "name" else name, fragment_index=0, chunks=chunks, teacher_token_count=count)
    return datum, plan, row


def by_hand(given_cases, clip, center):
    """The specification, word by word: advantages or None for each datum, and the stats."""
    kept, mismatch, empty, clipped = [], 0, 0, 0
    for number, (datum, plan, row) in enumerate(given_cases):
        try:
            plan.validate_against(datum)
        except ValueError:
            mismatch += 1
            continue
        if len(row) != plan.teacher_token_count:
            mismatch += 1
            continue
        if not plan.chunks:
            empty += 1
            continue
        needed = [row[p] for c in plan.chunks for p in range(c.teacher_start, c.teacher_end)]
        if any(value is None or not math.isfinite(value) for value in needed):
            mismatch += 1
            continue
        gaps = [
            math.fsum(row[c.teacher_start : c.teacher_end]) - math.fsum(datum.sampled_logprobs[c.student_start : c.student_end])
            for c in plan.chunks
        ]
        kept.append((number, plan, gaps))
    values = {}
    for number, plan, gaps in kept:
        a_token = [gap / c.student_len for gap, c in zip(gaps, plan.chunks, strict=True)]
        bounded = [value if clip is None else max(-clip, min(clip, value)) for value in a_token]
        clipped += sum(one != other for one, other in zip(a_token, bounded, strict=True))
        values[number] = [value * c.student_len for value, c in zip(bounded, plan.chunks, strict=True)]
    totals = [total for rows in values.values() for total in rows]
    if center and totals:
        mean = math.fsum(totals) / len(totals)
        values = {number: [total - mean for total in rows] for number, rows in values.items()}
    advantages = {}
    for number, plan, _ in kept:
        line = [0.0] * len(given_cases[number][0].loss_mask)
        for chunk, total in zip(plan.chunks, values[number], strict=True):
            line[chunk.student_start : chunk.student_end] = [total / chunk.student_len] * chunk.student_len
        advantages[number] = line
    scored = sum(plan.scored_student_tokens for _, plan, _ in kept)
    kl = -math.fsum(gap for *_, gaps in kept for gap in gaps) / scored if scored else None
    return advantages, (len(kept), mismatch, empty, len(totals), scored, clipped), kl


@given(given_cases=st.lists(cases(), max_size=6), clip=st.none() | st.floats(0.01, 30), center=st.booleans())
def test_as_worked_out_by_hand(given_cases, clip, center):
    datums, plans, rows = [case[0] for case in given_cases], [case[1] for case in given_cases], [case[2] for case in given_cases]
    attached, stats = attach_chunk_advantages(datums, plans, rows, clip=clip, center=center)
    expected, counts, kl = by_hand(given_cases, clip, center)
    found = (stats.datums, stats.mismatch_drops, stats.empty_coverage_drops, stats.chunks, stats.scored_loss_tokens)
    assert found == counts[:5]
    assert [datum.loss_mask for datum in attached] == [datums[number].loss_mask for number in expected]
    for datum, line in zip(attached, expected.values(), strict=True):
        assert datum.advantages == pytest.approx(line, abs=1e-9)
    assert stats.chunk_reverse_kl == (None if kl is None else pytest.approx(kl, abs=1e-9))
    assert stats.unscored_loss_tokens == sum(datum.loss_token_count for datum in attached) - stats.scored_loss_tokens
    if clip is None:
        assert stats.clipped_chunks == 0


@given(given_cases=st.lists(cases(), max_size=6))
def test_a_chunks_advantages_are_its_gap_and_the_rest_exactly_nothing(given_cases):
    for datum, plan, row in given_cases:
        attached, _ = attach_chunk_advantages([datum], [plan], [row])
        if not attached:
            continue
        rest = list(attached[0].advantages)
        for chunk in plan.chunks:
            own = slice(chunk.student_start, chunk.student_end)
            gap = math.fsum(row[chunk.teacher_start : chunk.teacher_end]) - math.fsum(datum.sampled_logprobs[own])
            assert math.fsum(rest[own]) == pytest.approx(gap, abs=1e-9)
            rest[own] = [0.0] * chunk.student_len
        assert rest == [0.0] * len(rest)
        for center in (True, False):
            (centred,), _ = attach_chunk_advantages([datum], [plan], [row], center=center, clip=1.0)
            inside = {p for chunk in plan.chunks for p in range(chunk.student_start, chunk.student_end)}
            assert all(value == 0.0 for p, value in enumerate(centred.advantages) if p not in inside)


@given(
    given=st.lists(cases(), max_size=6), clip=st.none() | st.floats(0.01, 5), center=st.booleans(), cuts=st.sets(st.integers(0, 6))
)
def test_in_parts_as_all_at_once_to_the_bit(given, clip, center, cuts):
    """Centring and deviations are over all datums, however they come."""

    def columns(part):
        datums, plans, rows = zip(*part, strict=True) if part else ((), (), ())
        return DatumColumns.of(datums), PlanColumns.of(plans), *ragged_floats(rows)

    whole = attach_columns(*columns(given), clip=clip, center=center)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(given)), len(given)]
    parts = [columns(given[start:end]) for start, end in itertools.pairwise(bounds)]
    attaching = Attaching(clip=clip, center=center)
    for datums, plans, row_offsets, rows in parts:
        attaching.tally(datums, plans, attaching.weigh(datums, plans, row_offsets, rows))
    made = []
    for datums, plans, row_offsets, rows in parts:
        weighed = attaching.weigh(datums, plans, row_offsets, rows)
        made.append((*attaching.give(datums, plans, weighed), weighed.drops))
    for name, pieces in zip(("advantages", "chunk_values", "drops"), zip(*made, strict=True), strict=True):
        assert np.concatenate(pieces).tobytes() == getattr(whole, name).tobytes()
    assert attaching.stats() == whole.stats
