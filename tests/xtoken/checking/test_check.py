"""The linter: figures that add up, whatever the batches; the worst first; nothing that one couldn't act on."""

from __future__ import annotations

import json

import numpy as np
import pytest
from chats import chatml, gemma, stripping
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_core.errors import SpecError
from zephon_core.xtoken.alignment.pairs import tokenize_samples
from zephon_core.xtoken.alignment.samples import Sample, named_samples, read_samples
from zephon_core.xtoken.checking import check as check_module
from zephon_core.xtoken.checking.check import PairReport, check_pair
from zephon_core.xtoken.checking.gaps import Cause
from zephon_core.xtoken.checking.verdicts import Level

CHAT = [{"role": "user", "content": "Say 1234567."}, {"role": "assistant", "content": "1234567, and 😁."}]
SAMPLES = ["one two three", "333 naïve", CHAT, "a 😁 face", "", CHAT[:1], "中文", [*CHAT, *CHAT]]


def report(tokenizer, samples, student="qwen", teacher="minilm", **options) -> PairReport:
    options = {"student_template": chatml, "teacher_template": gemma} | options
    return check_pair(tokenizer(student), tokenizer(teacher), samples, **options)


def test_the_figures_are_those_of_the_chunks(tokenizer):
    found = report(tokenizer, SAMPLES)
    full = [sample for sample in named_samples(SAMPLES) if sample.content]
    pairs = tokenize_samples(full, tokenizer("qwen"), tokenizer("minilm"), chatml, gemma)
    ranges = pairs.chunks.ranges
    lengths, teacher_lengths = ranges[:, 1] - ranges[:, 0], ranges[:, 3] - ranges[:, 2]
    assert (found.texts, found.conversations, found.empty, found.refused) == (4, 3, 1, 0)
    assert (found.student.tokens, found.teacher.tokens) == (len(pairs.student.ids), len(pairs.teacher.ids))
    assert (found.student.bytes, found.teacher.bytes) == (sum(map(len, pairs.student.texts)), sum(map(len, pairs.teacher.texts)))
    assert (found.loss_tokens, found.covered_tokens, found.chunks) == (int(pairs.loss.sum()), int(lengths.sum()), len(ranges))
    assert found.coverage_rate == lengths.sum() / pairs.loss.sum()
    assert found.inexact_chunks == int((~pairs.chunks.exact).sum())
    for counts, each in ((found.student_lengths, lengths), (found.teacher_lengths, teacher_lengths)):
        assert [(length, count) for length, count in enumerate(counts, start=1) if count] == list(
            zip(*(part.tolist() for part in np.unique(each, return_counts=True)), strict=True)
        )
    assert sum(found.uncovered.values()) == found.loss_tokens - found.covered_tokens
    assert found.one_to_one_bytes < found.loss_bytes


def test_bytes_of_chunks_of_one_token(tokenizer):
    found = report(tokenizer, ["one two threefold 12345 ok"], teacher="deepseek")
    pairs = tokenize_samples([Sample("", "one two threefold 12345 ok")], tokenizer("qwen"), tokenizer("deepseek"), None, None)
    spans = pairs.student.spans(0)
    single = [
        int(spans.starts[last] - spans.starts[first])
        for first, last, start, end in pairs.chunks.ranges.tolist()
        if last - first == end - start == 1
    ]
    assert 0 < found.one_to_one_bytes == sum(single) < found.loss_bytes == len("one two threefold 12345 ok") - int(spans.starts[1])


@settings(max_examples=15)
@given(order=st.permutations(range(len(SAMPLES))), batch=st.integers(1, 4), characters=st.integers(1, 40))
def test_batches_change_nothing(tokenizer, order, batch, characters):
    samples = [Sample(f"row {number}", sample.content) for number, sample in enumerate(named_samples(SAMPLES))]
    whole = report(tokenizer, samples)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check_module, "_BATCH_SAMPLES", batch)
        patch.setattr(check_module, "_BATCH_CHARACTERS", characters)
        assert report(tokenizer, iter(samples)) == whole
        other = report(tokenizer, [samples[place] for place in order])
    assert other.model_dump(exclude={"worst", "verdicts"}) == whole.model_dump(exclude={"worst", "verdicts"})
    assert {(poor.place, poor.coverage_rate) for poor in other.worst} == {(poor.place, poor.coverage_rate) for poor in whole.worst}


def test_the_worst_come_first(tokenizer):
    long = " ".join(["plain words go on"] * 40)
    samples = [
        Sample("long", f"{long} 😁 {long}"),
        Sample("short", "a 😁"),
        Sample("all", "so 😁😁 be 😁😁 it 😁😁" * 4),
        Sample("fine", "so be it"),
    ]
    found = report(tokenizer, samples)
    assert [poor.place for poor in found.worst] == ["all", "short", "long"]
    assert report(tokenizer, samples, worst=2).worst == found.worst[:2]
    assert report(tokenizer, samples, worst=0).worst == ()
    poor = found.worst[2]
    assert (poor.loss_tokens - poor.covered_tokens, poor.causes) == (2, {Cause.UNKNOWN: 2})
    (example,) = poor.examples
    assert example.text == " 😁"
    assert (example.before[-6:], example.after[:6]) == ("s go on"[-6:], " plain")
    assert example.before[0] == example.after[-1] == "…"
    assert "".join(example.student) == "·⟨F0⟩⟨9F⟩⟨98⟩⟨81⟩"
    assert example.teacher == ("⍰",)
    assert example.byte == len(long)
    assert example.tokens == 2
    assert len(found.worst[0].examples) <= 3


def test_a_pair_that_is_fit(tokenizer):
    found = report(tokenizer, [CHAT, [*CHAT, *CHAT]], teacher="deepseek", teacher_template=stripping)
    assert found.ok
    assert found.coverage_rate == 1.0
    assert found.worst == ()
    assert found.uncovered == {}
    assert {verdict.level for verdict in found.verdicts} == {Level.GOOD}


def test_a_conversation_that_is_refused(tokenizer):
    def refusing(messages, options):
        raise ValueError("roles must alternate")

    found = report(tokenizer, [CHAT, "text", CHAT], teacher_template=refusing)
    assert not found.ok
    assert (found.refused, found.conversations, found.texts) == (2, 0, 1)
    assert (found.teacher.refused, found.teacher.refusal) == (2, "conversation 1: roles must alternate")
    assert found.student.refused == 0
    with pytest.raises(SpecError, match="student_template"):
        report(tokenizer, [CHAT], student_template=None)


def test_it_is_plain_values(tokenizer):
    found = report(tokenizer, SAMPLES)
    values = json.loads(json.dumps(found.to_json()))
    assert values["ok"] is False
    assert values["coverage_rate"] == found.coverage_rate
    assert values["worst"][0]["coverage_rate"] == found.worst[0].coverage_rate
    assert values["uncovered"]["unknown"] == found.uncovered[Cause.UNKNOWN]
    assert set(values["verdicts"][0]) == {"topic", "level", "found", "remedy"}


@pytest.mark.parametrize(
    ("file", "teacher", "template", "least"),
    [
        ("gsm8k_test.jsonl", "deepseek", stripping, 1.0),
        ("crosswoz_zh_val.jsonl", "deepseek", stripping, 0.995),
        ("oasst_trees_a.jsonl", "mistral", gemma, 0.995),
    ],
)
def test_real_conversations(tokenizer, shared_data, file, teacher, template, least):
    found = report(tokenizer, read_samples(str(shared_data / "chat" / file)), teacher=teacher, teacher_template=template)
    assert found.ok
    assert found.coverage_rate >= least
    assert found.inexact_chunks == 0


def test_what_holds_nothing_is_counted_as_that_and_as_nothing_else(tokenizer):
    hollow = [[], "", [{"role": "user", "content": ""}, {"role": "assistant", "content": None, "tool_calls": []}]]
    call = [{"role": "user", "content": ""}, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]
    some, none = report(tokenizer, [*hollow, CHAT, " ", call]), report(tokenizer, [CHAT, " ", call])
    assert (some.empty, none.empty, some.texts, some.conversations) == (3, 0, 1, 2)
    assert some.verdicts[0].topic == "samples" and some.verdicts[0].level is Level.NOTE
    assert some.verdicts[0].found == "3 of 6 samples hold nothing, an empty text or no content, and are left out."
    assert some.verdicts[1:] == none.verdicts and some.ok == none.ok
    but = {"empty", "verdicts", "worst"}
    assert some.model_dump(exclude=but) == none.model_dump(exclude=but)


@pytest.mark.parametrize(("count", "words"), [(1, "The only sample holds"), (3, "All 3 samples hold")])
def test_where_all_hold_nothing_the_pair_is_not_fine(tokenizer, count, words):
    found = report(tokenizer, [[]] * count)
    assert not found.ok and found.verdicts[0].level is Level.BAD
    assert found.verdicts[0].found == f"{words} nothing: there is nothing to judge by."
    assert (found.texts, found.conversations, found.empty, found.student.tokens) == (0, 0, count, 0)
