"""What the training does to rows before it tokenizes them is done before they are counted."""

from __future__ import annotations

import functools
import pickle

import pytest
import replayed_steps as steps

from zephon_core.errors import FatalCountError, MeasureError, SpecError
from zephon_core.fingerprint import canonical_json
from zephon_core.ratios.counting import Replay, TextTokenCountingSpec, build_counter
from zephon_core.ratios.datasets.model import BLANK_ROW

ROWS = [{"text": "a b c"}, {"text": "d"}, {"text": ""}]


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        (["replayed_steps:shout"], [[{"text": "A B C"}], [{"text": "D"}], [{"text": ""}]]),
        ([steps.shout], [[{"text": "A B C"}], [{"text": "D"}], [{"text": ""}]]),
        ([steps.is_long], [[{"text": "a b c"}], [], []]),
        ([steps.is_long_by_numpy], [[{"text": "a b c"}], [], []]),
        ([steps.drop_empty], [[{"text": "a b c"}], [{"text": "d"}], []]),
        ([steps.words], [[{"text": "a"}, {"text": "b"}, {"text": "c"}], [{"text": "d"}], []]),
        ([steps.words_one_by_one], [[{"text": "a"}, {"text": "b"}, {"text": "c"}], [{"text": "d"}], []]),
        ([steps.words, "replayed_steps:shout"], [[{"text": "A"}, {"text": "B"}, {"text": "C"}], [{"text": "D"}], []]),
        ([functools.partial(steps.prefixed, prefix="> ")], [[{"text": "> a b c"}], [{"text": "> d"}], [{"text": "> "}]]),
        ([steps.Lookup({"d": "e"})], [[{"text": "a b c"}], [{"text": "e"}], [{"text": ""}]]),
        ([], [[row] for row in ROWS]),
    ],
)
def test_what_becomes_of_rows(functions, expected):
    replay = Replay(functions)
    assert [replay.apply(dict(row)) for row in ROWS] == expected
    assert [pickle.loads(pickle.dumps(replay)).apply(dict(row)) for row in ROWS] == expected


def test_rows_that_are_lists_stay_whole():
    assert Replay([steps.unchanged]).apply([1, 2, 3]) == [[1, 2, 3]]


def test_functions_are_set_up_once_in_each_process():
    lookup = steps.Lookup({})
    replay = Replay([lookup])
    assert pickle.loads(pickle.dumps(replay)).apply({"text": "a"}) == [{"text": "a"}]
    assert [replay.apply({"text": "set ups"}) for _ in range(3)] == [[{"text": "1"}]] * 3
    assert lookup.set_ups == 0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (steps.not_replayable, r"replayed_steps:not_replayable: can't be replayed.*measure=.*pin"),
        ("replayed_steps:not_replayable", "replayed_steps:not_replayable: can't be replayed"),
        (lambda row: row, r"<lambda>: can't be replayed before counting: workers can't get it.*measure="),
        (steps.Lookup({"a": lambda: 1}), "replayed_steps:Lookup: can't be replayed"),
        ("replayed_steps:nothing", "names replayed_steps:nothing, which is not there"),
        ("no_such_module:function", "can't be imported"),
        ("not a name", "package.module:function"),
        (7, "functions, or package.module:function"),
    ],
)
def test_what_cannot_be_replayed_is_refused_by_name(function, message):
    with pytest.raises(SpecError, match=message):
        Replay([function])


def test_functions_that_no_other_process_can_get(monkeypatch):
    assert Replay([steps.shout, "replayed_steps:words", steps.Lookup({})]).why_not_portable() == ""
    replay = Replay([steps.shout, steps.unchanged])
    monkeypatch.setattr(steps.unchanged, "__module__", "__main__")
    assert replay.why_not_portable() == "__main__:unchanged: workers can't import a script; move it to a module"


def test_identities_are_by_content():
    assert Replay(["replayed_steps:shout"]).identity() == Replay([steps.shout]).identity()
    chains = [[], [steps.shout], [steps.words], [steps.shout, steps.words], [steps.words, steps.shout]]
    replays = [Replay(chain) for chain in [*chains, [steps.Lookup({"a": "b"})], [steps.Lookup({"a": "c"})]]]
    assert len({canonical_json(replay.identity()) for replay in replays}) == len(replays)
    assert not Replay()
    assert Replay([steps.shout])


def counter_of(folder, *functions, **settings):
    return build_counter(TextTokenCountingSpec(folder, **settings), replay=Replay(functions))


def test_counting_after_a_replay(byte_level):
    plain = TextTokenCountingSpec(byte_level).build_counter().plan(ROWS)
    counter = counter_of(byte_level, steps.drop_empty, steps.words)
    plan = counter.plan(ROWS)
    assert counter.encoder == "huggingface"
    assert plan.description == "text, field: text, after replayed_steps:drop_empty, replayed_steps:words"
    assert (plan.paths, plan.text_path, plan.column) == (None, None, None)
    words = [count for (count,) in plain.count([{"text": word} for word in "abcd"])]
    assert plan.count([*ROWS, BLANK_ROW]) == [(sum(words[:3]),), (words[3],), (0,), (0,)]


def test_what_rows_become_votes(byte_level):
    plan = counter_of(byte_level, steps.into_body).plan(ROWS)
    assert plan.description.startswith("text, field: body")
    assert plan.count([{"text": "a"}])[0][0] > 2


def test_rows_vote_as_they_are_if_all_are_dropped(byte_level):
    plan = counter_of(byte_level, steps.is_long).plan([{"text": "a"}, {"text": "b"}])
    assert plan.description.startswith("text, field: text")
    assert plan.count([{"text": "a"}])[0] == (0,)
    assert plan.count([{"text": "a longer one"}])[0][0] > 2


def test_the_rows_of_the_vote_stay_as_they_are(byte_level):
    rows = [{"text": "a"}, BLANK_ROW]
    counter_of(byte_level, steps.shout_in_place).plan(rows)
    assert rows == [{"text": "a"}, BLANK_ROW]


def test_a_part_that_cannot_be_measured_makes_its_row_so(byte_level):
    plan = counter_of(byte_level, steps.with_an_odd_one).plan(ROWS)
    assert plan.count([{"text": "a"}, {"text": "odd"}]) == [plan.count([{"text": "a"}])[0], None]


def test_errors_say_which_row(byte_level):
    plan = counter_of(byte_level, steps.words).plan(ROWS)
    with pytest.raises(FatalCountError, match="lone surrogate") as fatal:
        plan.count([{"text": "a b"}, {"text": ""}, {"text": "c \ud800 d"}])
    assert fatal.value.position == 2
    plan = counter_of(byte_level, steps.fails_on_d).plan([ROWS[0]])
    with pytest.raises(MeasureError, match=r"replayed_steps:fails_on_d: failed \(KeyError: 'd'\).*measure=") as failed:
        plan.count(ROWS)
    assert failed.value.position == 1
    with pytest.raises(MeasureError, match="failed to set up"):
        counter_of(byte_level, steps.NeverReady()).plan(ROWS)
