"""What each chunk moves the student by, and which datums are dropped."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest

from zephon_core.errors import SpecError
from zephon_core.xtoken import ChunkAdvantageStats, ChunkPlan, ChunkSpan, TrainDatum, attach_chunk_advantages

NAN = float("nan")


def make_datum(tokens: int, name: str = "t", first_loss: int = 1, logprob: float = -1.0) -> TrainDatum:
    mask = [float(position >= first_loss) for position in range(tokens)]
    return TrainDatum(
        trial_name=name,
        fragment_index=0,
        model_input_tokens=list(range(tokens)),
        loss_mask=mask,
        sampled_logprobs=[logprob * value for value in mask],
    )


def make_plan(ranges: list[tuple[int, int, int, int]], count: int, name: str = "t") -> ChunkPlan:
    names = ("student_start", "student_end", "teacher_start", "teacher_end")
    spans = [ChunkSpan(**dict(zip(names, values, strict=True))) for values in ranges]
    return ChunkPlan(trial_name=name, fragment_index=0, chunks=spans, teacher_token_count=count)


def test_a_chunk_moves_the_student_by_its_gap_however_long_it_is():
    plan = make_plan([(1, 2, 1, 2), (3, 7, 2, 4)], 5)
    (datum,), stats = attach_chunk_advantages([make_datum(8)], [plan], [[None, -0.5, -1.0, -2.0, NAN]])
    assert datum.advantages == [0.0, 0.5, 0.0, 0.25, 0.25, 0.25, 0.25, 0.0]
    assert isinstance(stats, ChunkAdvantageStats)
    assert stats.model_dump() == pytest.approx(
        {
            "datums": 1,
            "mismatch_drops": 0,
            "empty_coverage_drops": 0,
            "chunks": 2,
            "scored_loss_tokens": 5,
            "unscored_loss_tokens": 2,
            "clipped_chunks": 0,
            "chunk_reverse_kl": -0.3,
            "advantage_mean": 0.3,
            "advantage_std": 0.1,
            "coverage_rate": 5 / 7,
        }
    )


def test_centring_is_over_totals_and_turns_no_long_chunk_around():
    plan = make_plan([(1, 11, 1, 2), (11, 1011, 2, 3), (1011, 1012, 3, 4)], 4)
    datum = make_datum(1013, logprob=-0.0)
    (centred,), _ = attach_chunk_advantages([datum], [plan], [[None, 1.0, 1.0, -5.0]], center=True)
    advantages = np.array(centred.advantages)
    assert advantages[1:11].sum() == pytest.approx(2.0)
    assert advantages[11:1011].sum() == pytest.approx(2.0)
    assert advantages[1011] == pytest.approx(-4.0)
    assert advantages[0] == advantages[1012] == 0.0


def test_clipping_is_a_token_and_before_centring():
    plan = make_plan([(1, 3, 1, 2), (3, 4, 2, 3)], 3)
    (clipped,), stats = attach_chunk_advantages([make_datum(5)], [plan], [[None, 8.0, -1.5]], clip=1.0)
    assert clipped.advantages == [0.0, 1.0, 1.0, -0.5, 0.0]
    assert stats.clipped_chunks == 1
    assert stats.chunk_reverse_kl == pytest.approx((-10.0 + 0.5) / 3)
    (both,), stats = attach_chunk_advantages([make_datum(5)], [plan], [[None, 8.0, -1.5]], clip=1.0, center=True)
    assert both.advantages == pytest.approx([0.0, 0.625, 0.625, -1.25, 0.0])
    assert both.advantages[0] == both.advantages[4] == 0.0
    assert stats.clipped_chunks == 1


@pytest.mark.parametrize("count", [0, 2])
def test_one_plan_and_one_row_a_datum(count):
    plan = make_plan([(1, 2, 1, 2)], 3)
    with pytest.raises(ValueError, match=f"plans: are {count} for 1 datums"):
        attach_chunk_advantages([make_datum(3)], [plan] * count, [[None, -1.0, -1.0]])
    with pytest.raises(ValueError, match=f"teacher_logprobs: are {count} for 1 datums"):
        attach_chunk_advantages([make_datum(3)], [plan], [[None, -1.0, -1.0]] * count)


@pytest.mark.parametrize("clip", [0, -1.0, NAN, math.inf])
def test_a_bound_is_a_positive_number(clip):
    with pytest.raises(SpecError, match="clip: is"):
        attach_chunk_advantages([], [], [], clip=clip)


def test_drops_are_counted_logged_and_leave_the_rest_as_it_is(caplog):
    good = make_plan([(1, 2, 1, 2)], 3)
    row = [None, -1.0, -1.0]
    cases = [
        ("fits", make_datum(3, "fits"), good, row),
        ("short row", make_datum(3, "short row"), good, row[:2]),
        ("long row", make_datum(3, "long row"), good, [*row, -1.0]),
        ("another", make_datum(3, "other"), good, row),
        ("past", make_datum(2, "past"), make_plan([(1, 3, 1, 2)], 3), row),
        ("context", make_datum(3, "context", first_loss=2), good, row),
        ("empty", make_datum(3, "empty"), make_plan([], 3), row),
        ("none", make_datum(3, "none"), good, [None, None, -1.0]),
        ("nan", make_datum(3, "nan"), good, [None, NAN, -1.0]),
        ("infinite", make_datum(3, "infinite"), good, [None, -math.inf, -1.0]),
        ("own nan", make_datum(3, "own nan", logprob=NAN), good, row),
        ("not needed", make_datum(3, "not needed"), good, [NAN, -1.0, math.inf]),
    ]
    named = [plan.model_copy(update={"trial_name": name}) for name, _, plan, _ in cases]
    with caplog.at_level(logging.WARNING, logger="zephon_core"):
        attached, stats = attach_chunk_advantages([case[1] for case in cases], named, [case[3] for case in cases])
    assert [datum.trial_name for datum in attached] == ["fits", "not needed"]
    assert (stats.datums, stats.mismatch_drops, stats.empty_coverage_drops) == (2, 9, 1)
    assert stats.scored_loss_tokens == 2
    assert stats.unscored_loss_tokens == 2
    dropped = [record.args[:2] for record in caplog.records if "dropped" in record.msg]
    assert dropped == [(name if name != "another" else "other", 0) for name, *_ in cases if name not in ("fits", "not needed")]


def test_logprobs_too_large_to_count_with_drop_their_datum():
    plan = make_plan([(1, 2, 1, 2)], 2)
    names = ["fits", "huge", "twice", "own", "masked"]
    datums = [make_datum(2, name, logprob=-1.7e308 if name == "own" else -0.5) for name in names]
    plans = [plan.model_copy(update={"trial_name": name}) for name in names]
    rows = [[None, value] for value in (-1.0, -1e308, -1.7e308, -1.0, -3.4e38)]
    for settings in ({}, {"clip": 2.0}, {"center": True}):
        attached, stats = attach_chunk_advantages(datums, plans, rows, **settings)
        assert [datum.trial_name for datum in attached] == ["fits", "masked"]  # the least float32 is what some mask with
        assert stats.mismatch_drops == 3
        assert all(math.isfinite(value) for value in stats.model_dump().values())


def test_what_is_logged_of_a_drop_is_one_line(caplog):
    plan = make_plan([(1, 2, 1, 2)], 2)
    names = ["a\nb\x1b[31m\u202e", "Zürich 今", "x" * 5000]
    with caplog.at_level(logging.WARNING, logger="zephon_core"):
        for name in names:
            attach_chunk_advantages([make_datum(2, name)], [plan.model_copy(update={"trial_name": name})], [[None] * 3])
    words = [record.getMessage() for record in caplog.records]
    reason = "the teacher's row has 3 logprobs, expected 2, one a token"
    assert words[0] == rf"dropped: trial a\nb\x1b[31m\u202e, fragment 0: {reason}"
    assert words[1] == f"dropped: trial Zürich 今, fragment 0: {reason}"
    assert words[2] == f"dropped: trial {'x' * 199}…, fragment 0: {reason}"


def test_low_coverage_is_told(caplog):
    plan = make_plan([(1, 20, 1, 2)], 3)
    with caplog.at_level(logging.WARNING, logger="zephon_core"):
        attach_chunk_advantages([make_datum(21)], [plan], [[None, -1.0, -1.0]])
        assert not caplog.records
        attach_chunk_advantages([make_datum(22)], [plan], [[None, -1.0, -1.0]])
    assert "cover 90.5 % of the loss tokens (19 of 21)" in caplog.text


def test_nothing_attached():
    attached, stats = attach_chunk_advantages([], [], [])
    assert attached == []
    assert (stats.datums, stats.chunk_reverse_kl, stats.advantage_mean, stats.advantage_std, stats.coverage_rate) == (
        0,
        None,
        None,
        None,
        0.0,
    )
    attached, stats = attach_chunk_advantages([make_datum(2)], [make_plan([], 0)], [[]], center=True, clip=1.0)
    assert (attached, stats.chunk_reverse_kl, stats.empty_coverage_drops) == ([], None, 1)


def test_the_datums_given_stay_as_they_are_and_rows_may_be_arrays():
    datum, plan = make_datum(3), make_plan([(1, 2, 1, 2)], 3)
    (attached,), _ = attach_chunk_advantages([datum], [plan], [np.array([NAN, -0.25, 0.0], dtype=np.float32)])
    assert datum.advantages is None
    assert attached.advantages == [0.0, 0.75, 0.0]
    assert attached == datum.model_copy(update={"advantages": [0.0, 0.75, 0.0]})
    assert TrainDatum.model_validate(attached.model_dump()) == attached
    (again,), _ = attach_chunk_advantages([attached], [plan], [[None, -1.0, -1.0]])
    assert again.advantages == [0.0, 0.0, 0.0]


def test_where_most_rows_are_too_long_the_teacher_is_doubted(caplog):
    datums, plans = [make_datum(4)] * 5, [make_plan([(1, 4, 1, 3)], 3)] * 5
    short, right = [None, -1.0], [None, -1.0, -1.0]
    with caplog.at_level(logging.WARNING):
        attach_chunk_advantages(datums, plans, [short, short, right, right, right])
        assert not [record for record in caplog.records if "another tokenizer" in record.message]
        attach_chunk_advantages(datums, plans, [short, short, short, right, right])
    assert caplog.records[-1].message == (
        "3 of 5 rows of the teacher's logprobs are as long as another sequence than it reads here (6 logprobs for 9 tokens): "
        "they are probably of another tokenizer or chat template than the teacher's"
    )


def test_where_most_datums_are_not_covered_the_tokenizers_are_doubted(caplog):
    silent = make_datum(4, first_loss=4)
    fine, empty = (make_datum(4), make_plan([(1, 4, 1, 3)], 3)), (make_datum(4), make_plan([], 3))
    for pairs, doubted in (
        ([fine, fine, empty], False),
        ([fine, *[(silent, empty[1])] * 5], False),
        ([empty, empty], False),
        ([fine, empty, empty, empty, (silent, empty[1])], True),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            attach_chunk_advantages(*zip(*pairs, strict=True), [[None, -1.0, -1.0]] * len(pairs))
        said = [record.message for record in caplog.records if "tokenizers" in record.message]
        assert bool(said) == doubted
    assert said[0].startswith("no chunk covers any loss token of 3 of 4 datums, so hardly anything is spelled alike on both sides:")


@pytest.mark.parametrize(
    "wrong", [(1, 9, 1, 2), (1, 2, 1, 9), (1, 2, 1, 10**6), (1, 10**6, 1, 2), (9, 2, 1, 2), (1, 2, 9, 2), (-1, 2, 1, 2)]
)
def test_a_plan_that_was_never_checked_reads_nothing_beyond(wrong):
    names = ("student_start", "student_end", "teacher_start", "teacher_end")
    plan = make_plan([(1, 2, 1, 2)], 3).model_copy(
        update={"chunks": (ChunkSpan.model_construct(**dict(zip(names, wrong, strict=True))),)}
    )
    attached, stats = attach_chunk_advantages([make_datum(4)], [plan], [[None, -1.0, -1.0]])
    assert (attached, stats.mismatch_drops) == ([], 1)
