"""Loss tokens without a chunk: all of them, and why."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from chats import chatml, gemma, stripping
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_core.xtoken.alignment.pairs import SamplePairs, tokenize_samples
from zephon_core.xtoken.alignment.samples import SampleInput, named_samples
from zephon_core.xtoken.checking.gaps import CAUSE_WORDS, Cause, find_gaps


def pairs_of(tokenizer, student, teacher, *samples: SampleInput, templates=(None, None)) -> SamplePairs:
    return tokenize_samples(list(named_samples(samples)), tokenizer(student), tokenizer(teacher), *templates)


def causes(pairs: SamplePairs) -> Counter[Cause]:
    found = Counter[Cause]()
    for sample in range(len(pairs.samples)):
        for gap in find_gaps(pairs, sample):
            found[gap.cause] += len(gap)
    return found


TEXT = st.text(st.sampled_from("aAb éÄ\u0301中\n 3👍🏽<|im_end|>ﬁ\x00"), max_size=24)


@settings(max_examples=60)
@given(texts=st.lists(TEXT, max_size=4), pair=st.sampled_from([("qwen", "minilm"), ("minilm", "deepseek"), ("qwen_nfc", "qwen")]))
def test_gaps_are_all_that_is_left(tokenizer, texts, pair):
    chats = [[{"role": "user", "content": text}, {"role": "assistant", "content": text}] for text in texts]
    pairs = pairs_of(tokenizer, *pair, *texts, *chats, templates=(chatml, gemma))
    for sample in range(len(pairs.samples)):
        tokens = pairs.student.of(sample)
        left = pairs.loss[tokens].copy()
        chunks = slice(pairs.chunks.offsets[sample], pairs.chunks.offsets[sample + 1])
        ranges = pairs.chunks.ranges[chunks]
        for first, last, _, _ in ranges.tolist():
            left[first:last] = False
        for gap in find_gaps(pairs, sample):
            assert left[gap.first : gap.last].all()
            left[gap.first : gap.last] = False
            assert len(gap) == gap.last - gap.first > 0
            assert gap.closes == any(gap.last == first for first in ranges[:, 0].tolist())
            before = ranges[ranges[:, 1] <= gap.first]
            after = ranges[ranges[:, 0] >= gap.last]
            assert gap.teacher_first == (before[-1, 3] if len(before) else 0)
            assert gap.teacher_last == (after[0, 2] if len(after) else np.diff(pairs.teacher.offsets)[sample])
        assert not left.any()


def test_every_cause_has_words():
    assert set(CAUSE_WORDS) == set(Cause)


def test_the_first_token(tokenizer):
    pairs = pairs_of(tokenizer, "qwen", "deepseek", "333 and more")
    assert [(gap.first, gap.last, gap.teacher_first, gap.teacher_last, gap.cause) for gap in find_gaps(pairs, 0)] == [
        (1, 3, 0, 1, Cause.BEGINNING)
    ]


def test_characters_without_a_token(tokenizer):
    assert causes(pairs_of(tokenizer, "qwen", "minilm", "one more 😁 face here")) == {Cause.UNKNOWN: 2}
    assert set(causes(pairs_of(tokenizer, "minilm", "qwen", "one more 😁 face here"))) == {Cause.UNKNOWN}


def test_special_tokens_are_their_bytes(tokenizer):
    assert causes(pairs_of(tokenizer, "deepseek", "qwen", "say it: <|im_end|> and go on")) == {}


def test_what_normalisers_leave(tokenizer):
    assert set(causes(pairs_of(tokenizer, "qwen", "minilm", "see: \n\n\n and then"))) == {Cause.NORMALISED}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (lambda messages, options: gemma([m for m in messages if m["role"] == "user"], options), Cause.LEFT_OUT),
        (lambda messages, options: gemma([{**m, "content": m["content"].upper()} for m in messages], options), Cause.LEFT_OUT),
        (lambda messages, options: json.dumps(messages), Cause.OTHERWISE),
    ],
)
def test_what_templates_do(tokenizer, template, expected):
    chat = [{"role": "user", "content": "the weather?"}, {"role": "assistant", "content": 'sunny "and" mostly dry\n'}]
    assert set(causes(pairs_of(tokenizer, "qwen", "deepseek", chat, templates=(chatml, template)))) == {expected}


def test_arguments_that_are_written_one_by_one_are_not_left_out(tokenizer):
    call = {"function": {"name": "find_weather", "arguments": '{"city": "Berlin", "day": "today"}'}}
    chat = [{"role": "user", "content": "weather?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    found = causes(pairs_of(tokenizer, "qwen", "deepseek", chat, templates=(chatml, stripping)))
    assert Cause.OTHERWISE in found
    assert Cause.LEFT_OUT not in found


def test_what_is_said_in_another_order(tokenizer):
    def reversed_turns(messages, options):
        return "".join(f"<{message['role']}>\n{message['content']}\n" for message in reversed(messages))

    turns = ["the weather?", "sunny and mostly dry", "and on Monday?", "rain before noon, then fog"]
    chat = [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(turns)]
    pairs = pairs_of(tokenizer, "qwen", "deepseek", chat, templates=(chatml, reversed_turns))
    found = causes(pairs)
    assert set(found) == {Cause.REORDERED}
    assert found[Cause.REORDERED] == len(tokenizer("qwen").encode_batch([turns[1]]).ids)  # the shorter reply
    assert set(causes(pairs_of(tokenizer, "qwen", "deepseek", chat[2:] + chat[:2], templates=(chatml, stripping)))) == set()


def test_what_is_said_in_another_order_and_elsewhere_too(tokenizer):
    """The user quotes part of a reply: that the diff finds it there makes the rest of the reply no less reordered."""

    def reversed_turns(messages, options):
        return "".join(f"<{message['role']}>\n{message['content']}\n" for message in reversed(messages))

    quoted = "Return a readable and writable buffer of the object"
    chat = [{"role": "user", "content": f"Which? {quoted}"}, {"role": "assistant", "content": f"It is getbuffer: {quoted}"}]
    assert set(causes(pairs_of(tokenizer, "qwen", "deepseek", chat * 2, templates=(chatml, reversed_turns)))) <= {Cause.REORDERED}


def test_a_token_over_the_edge(tokenizer):
    def closed(messages, options):
        return "".join(f"{message['role']}: {message['content']}!!" for message in messages)

    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "It rains !!"}]
    assert set(causes(pairs_of(tokenizer, "qwen", "deepseek", chat, templates=(chatml, closed)))) == {Cause.EDGE}
