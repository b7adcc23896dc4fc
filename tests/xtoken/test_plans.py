"""Chunks and plans refuse what can't be, alone and in bulk."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from zephon_core.errors import SpecError
from zephon_core.xtoken import ChunkPlan, ChunkSpan, TrainDatum
from zephon_core.xtoken.plans import PlanColumns


def span(student_start: int, student_end: int, teacher_start: int, teacher_end: int, exact: bool = True) -> ChunkSpan:
    return ChunkSpan(
        student_start=student_start, student_end=student_end, teacher_start=teacher_start, teacher_end=teacher_end, exact=exact
    )


def plan(*spans: ChunkSpan, count: int = 10) -> ChunkPlan:
    return ChunkPlan(trial_name="t", fragment_index=0, chunks=spans, teacher_token_count=count)


def datum(mask: str, name: str = "t") -> TrainDatum:
    return TrainDatum(
        trial_name=name,
        fragment_index=0,
        model_input_tokens=[*range(len(mask))],
        loss_mask=[float(value) for value in mask],
        sampled_logprobs=[-1.0] * len(mask),
    )


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ((0, 2, 1, 2), "greater than or equal to 1"),
        ((1, 2, 0, 2), "greater than or equal to 1"),
        ((2, 2, 1, 2), "the student's range 2 to 2 is empty"),
        ((1, 2, 5, 3), "the teacher's range 5 to 3 is inverted"),
    ],
)
def test_spans_that_cannot_be(ranges, message):
    with pytest.raises(ValidationError, match=message):
        span(*ranges)


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([span(1, 3, 1, 2), span(2, 4, 2, 3)], "chunk 1 starts at student position 2, before chunk 0 ends at 3"),
        ([span(1, 2, 1, 3), span(2, 4, 2, 4)], "chunk 1 starts at teacher position 2, before chunk 0 ends at 3"),
        ([span(3, 4, 3, 4), span(1, 2, 1, 2)], "out of order"),
        ([span(1, 2, 1, 3), span(4, 5, 9, 12)], "ends at teacher position 12, past the 10 tokens"),
    ],
)
def test_plans_that_cannot_be(spans, message):
    with pytest.raises(ValidationError, match=message):
        plan(*spans)


def test_models_are_frozen_and_closed():
    with pytest.raises(ValidationError, match="frozen"):
        span(1, 2, 1, 2).student_end = 3
    with pytest.raises(ValidationError, match="Extra inputs"):
        ChunkSpan(student_start=1, student_end=2, teacher_start=1, teacher_end=2, bytes=3)
    with pytest.raises(ValidationError, match="frozen"):
        plan().teacher_token_count = 3


def test_a_plan_and_its_datum():
    good = plan(span(1, 3, 1, 2), span(4, 5, 2, 9))
    good.validate_against(datum("01101"))
    assert good.scored_student_tokens == 3
    for bad, message in (
        (datum("01101", "u"), "is used for trial u, fragment 0, expected the datum that it was made for"),
        (datum("0110"), "chunk 1 end at student position 5, past the datum's 4 tokens"),
        (datum("01001"), "chunk 0 on student position 2, which is context"),
        (datum("00101"), "chunk 0 on student position 1, which is context"),
    ):
        with pytest.raises(ValueError, match=message):
            good.validate_against(bad)


def test_plans_are_compared_by_what_they_say():
    assert plan(span(1, 2, 1, 2)) == plan(span(1, 2, 1, 2))
    assert plan(span(1, 2, 1, 2)) != plan(span(1, 2, 1, 3))
    assert ChunkPlan.model_validate_json(plan(span(1, 2, 1, 2)).model_dump_json()) == plan(span(1, 2, 1, 2))
    assert datum("01") == datum("01") != datum("11")


def test_columns_there_and_back(tmp_path):
    plans = [plan(span(1, 3, 1, 2), span(4, 5, 2, 9, False)), plan(count=0), plan(span(2, 3, 3, 4))]
    columns = PlanColumns.of(plans)
    assert list(columns.plans()) == plans
    assert [made.model_dump() for made in columns.plans()] == [made.model_dump() for made in plans]
    pq.write_table(columns.to_arrow(), tmp_path / "plans.parquet")
    again = PlanColumns.from_arrow(pq.read_table(tmp_path / "plans.parquet"))
    assert list(again.plans()) == plans
    sliced = PlanColumns.from_arrow(columns.to_arrow().slice(1))
    assert list(sliced.plans()) == plans[1:]
    assert list(PlanColumns.from_arrow(columns.to_arrow().slice(0, 0)).plans()) == []


def test_columns_refuse_what_models_refuse():
    columns = PlanColumns.of([plan(), plan(span(1, 3, 1, 2), span(4, 5, 2, 9))])
    for change in ([0, 0], [0, 1], [1, 0], [1, 2], [1, 3]):
        ranges = columns.ranges.copy()
        ranges[tuple(change)] = {(0, 0): 0, (0, 1): 1, (1, 0): 2, (1, 2): 1, (1, 3): 11}[tuple(change)]
        broken = PlanColumns(
            columns.trial_name, columns.fragment_index, columns.teacher_token_count, columns.offsets, ranges, columns.exact
        )
        with pytest.raises(SpecError, match=rf"trial t, fragment 0: has chunk {change[0]} at \["):
            broken.check()
        with pytest.raises(SpecError, match="expected chunks in order"):
            PlanColumns.from_arrow(broken.to_arrow())
    with pytest.raises(SpecError, match="are no table of chunk plans"):
        PlanColumns.from_arrow(pa.table({"trial_name": ["a"]}))


def test_numbers_of_columns_are_whole():
    columns = PlanColumns.of([plan(span(1, 2, 1, 2))])
    assert columns.ranges.dtype == np.int64
    assert columns.to_arrow().column("chunks").type.value_type.field("student_start").type == pa.int32()


def test_a_copy_with_other_chunks_has_their_arrays():
    whole = plan(span(1, 2, 1, 2), span(2, 4, 2, 3, exact=False))
    assert whole.model_copy().arrays is whole.arrays
    fewer = whole.model_copy(update={"chunks": tuple(each for each in whole.chunks if each.exact)})
    assert fewer.scored_student_tokens == 1 and PlanColumns.of([fewer]).ranges.tolist() == [[1, 2, 1, 2]]
    assert whole.scored_student_tokens == 3
