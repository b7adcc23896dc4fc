"""A function of the user's counts in place of everything else."""

from __future__ import annotations

import pytest

from zephon_core.errors import MeasureError, SpecError
from zephon_core.ratios.counting import Replay, build_counter
from zephon_core.ratios.datasets.model import BLANK_ROW


def words(payload: dict[str, str]) -> int:
    return len(payload["text"].split())


def test_it_gets_the_raw_rows():
    seen = []
    plan = build_counter(None, measure=lambda payload: seen.append(payload) or 3).plan([{"x": 1}])
    assert plan.count([{"x": 1}, "text", None, BLANK_ROW]) == [(3,), (3,), (3,), (0,)]
    assert seen == [{"x": 1}, "text", None]
    assert (plan.paths, plan.text_path, plan.column, plan.outputs, plan.specials) == (None, None, None, ("tokens",), 0)


def test_nothing_is_replayed_for_it():
    counter = build_counter(None, measure=words, replay=Replay(["replayed_steps:drop_empty"]))
    plan = counter.plan([])
    assert plan.description.startswith("measure, ")
    assert plan.description.endswith(":words")
    assert plan.count([{"text": "a b"}]) == [(2,)]
    assert counter.encoder == ""


@pytest.mark.parametrize("result", [0, -1, 0.5, False])
def test_a_result_that_is_not_positive_is_no_measurement(result):
    assert build_counter(None, measure=lambda payload: result).plan([]).count(["a"]) == [None]


@pytest.mark.parametrize("result", [None, "many", float("nan")])
def test_a_result_that_is_no_number_is_an_error(result):
    with pytest.raises(MeasureError, match="failed"):
        build_counter(None, measure=lambda payload: result).plan([]).count(["a"])


def test_an_exception_says_which_row():
    plan = build_counter(None, measure=words).plan([])
    with pytest.raises(MeasureError, match=r"words: failed \(KeyError: 'text'\). Fix it, or let it return 0") as caught:
        plan.count([{"text": "a"}, {"text": "b"}, {}])
    assert caught.value.position == 2
    assert "words, on part.jsonl:7: failed" in str(caught.value.at("part.jsonl:7"))


def test_without_either_there_is_nothing_to_count_with():
    with pytest.raises(SpecError, match="counting: is not set"):
        build_counter(None)
