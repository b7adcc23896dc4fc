"""Both sides of samples: which piece each token belongs to, and what carries loss."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from chats import chatml, gemma, make_datum, stripping
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_core.errors import MissingExtraError, SpecError
from zephon_core.tokenizers.chat_template import ChatTemplate
from zephon_core.xtoken import Conversation, build_chunk_plans, tabulate, token_bytes
from zephon_core.xtoken.alignment.islands import render_pieces
from zephon_core.xtoken.alignment.pairs import Refusal, tokenize_samples
from zephon_core.xtoken.alignment.samples import named_samples
from zephon_core.xtoken.vocabulary import UNKNOWN

CHAT = [
    {"role": "user", "content": "How do I spell naïve?"},
    {"role": "assistant", "content": "With ï: naïve.", "reasoning_content": "a word of French origin"},
    {"role": "user", "content": "Thanks!"},
    {"role": "assistant", "content": "中文 👨‍👩‍👧 too."},
]


def tokenized(samples, student, teacher, *templates):
    return tokenize_samples(list(named_samples(samples)), student, teacher, *(templates or (None, None)))


def test_all_of_a_text_but_its_first_token_carries_loss(tokenizer):
    pairs = tokenized(["one two three", "", "four"], tokenizer("qwen"), tokenizer("deepseek"))
    assert [sample.place for sample in pairs.samples] == ["text 1", "text 2", "text 3"]
    assert pairs.student.offsets.tolist() == [0, 3, 3, 4]
    assert pairs.loss.tolist() == [False, True, True, False]
    assert pairs.chunks.offsets.tolist() == [0, 2, 2, 2]
    assert pairs.student.pieces.tolist() == [0, 0, 0, 0]
    assert not any(pairs.islands)


@pytest.mark.parametrize(("name", "template"), [("qwen", chatml), ("mistral", gemma), ("minilm", chatml)])
def test_what_the_assistant_says_carries_loss(tokenizer, name, template):
    """Every token that has a byte of a reply, and no other: also where blanks, accents or whole characters aren't in the tokens."""
    student = tokenizer(name)
    pairs = tokenized([CHAT], student, tokenizer("deepseek"), template, stripping)
    tokens = token_bytes(student, pairs.student.ids)
    spoken = b"".join(itertools.compress(tokens, pairs.loss.tolist())).decode("utf-8", "replace")
    if name == "minilm":
        assert spoken == "awordoffrenchoriginwithi:naive.中文too."
    elif name == "qwen":
        assert spoken == "a word of French originWith ï: naïve.中文 👨‍👩‍👧 too."
    else:
        assert spoken == "With ï: naïve.<中文 👨‍👩‍👧 too.<"
    assert pairs.student.piece_keys[0] == tuple(render_pieces(template, Conversation(CHAT, {})).pieces)


def test_unknown_tokens_stand_for_what_is_between_their_neighbours(tokenizer):
    minilm = tokenizer("minilm")
    chat = [{"role": "user", "content": "😁 x"}, {"role": "assistant", "content": "😁"}, {"role": "user", "content": "😁"}]
    chat += [{"role": "assistant", "content": "x 😁 😁"}]
    pairs = tokenized([chat], minilm, tokenizer("deepseek"), chatml, stripping)
    unknown = tabulate(minilm).kinds[pairs.student.ids] == UNKNOWN
    assert pairs.loss[unknown].tolist() == [False, True, False, True, True]
    assert token_bytes(minilm, pairs.student.ids[pairs.loss & ~unknown]) == [b"x"]


def test_chunks_are_those_of_a_plan(tokenizer):
    student, teacher = tokenizer("qwen"), tokenizer("deepseek")
    pairs = tokenized(["plain text", CHAT, CHAT[:2]], student, teacher, chatml, stripping)
    datums = [
        make_datum(pairs.student.ids[pairs.student.of(n)].tolist(), pairs.loss[pairs.student.of(n)].astype(float)) for n in range(3)
    ]
    given = [pairs.teacher.ids[: pairs.teacher.offsets[1]], Conversation(CHAT, {}), Conversation(CHAT[:2], {})]
    plans = build_chunk_plans(
        datums,
        given,
        student_tokenizer=student,
        teacher_tokenizer=teacher,
        student_template=chatml,
        teacher_template=stripping,
    )
    assert np.array_equal(np.concatenate([plan.arrays.ranges for plan in plans]), pairs.chunks.ranges)
    assert [plan.teacher_token_count for plan in plans] == np.diff(pairs.teacher.offsets).tolist()


def test_a_refused_conversation_is_told_and_left_out(tokenizer):
    def refusing(messages, options):
        if len(messages) == 1:
            raise ValueError("only\n  pairs")
        return gemma(messages, options)

    qwen, deepseek = tokenizer("qwen"), tokenizer("deepseek")
    pairs = tokenized([CHAT, CHAT[:1], "text"], qwen, deepseek, chatml, refusing)
    assert pairs.refused == [Refusal("conversation 2", "teacher", "only pairs")]
    assert [sample.place for sample in pairs.samples] == ["conversation 1", "text 3"]
    pairs = tokenized([CHAT[:1]], qwen, deepseek, refusing, gemma)
    assert [(side, reason) for _, side, reason in pairs.refused] == [("student", "only pairs")]
    assert len(pairs.student.ids) == len(pairs.chunks.ranges) == 0


def test_a_refusal_by_a_chat_template_is_told_without_its_row(tokenizer):
    template = ChatTemplate({"default": "{{ raise_exception('roles must alternate') }}"}, {}, "the given chat_template")
    pairs = tokenized([CHAT], tokenizer("qwen"), tokenizer("deepseek"), chatml, template.render)
    (refusal,) = pairs.refused
    assert refusal.reason == "is refused by the given chat_template (TemplateError: roles must alternate)"


@pytest.mark.parametrize(
    "error", [MissingExtraError("chat rows", "need jinja2", remedy="pip install it."), SpecError("folder", "has no chat template")]
)
def test_what_is_no_refusal(tokenizer, error):
    def lacking(messages, options):
        raise error

    qwen = tokenizer("qwen")
    with pytest.raises(type(error)):
        tokenized([CHAT], qwen, qwen, lacking, gemma)
    with pytest.raises(SpecError, match="teacher_template: is missing, and conversation 1 is a conversation"):
        tokenized([CHAT], qwen, qwen, chatml, None)


CONTENT = st.text(st.sampled_from("ab é\u0301中\n\t👍🏽<|>Ạ "), max_size=12)


@settings(max_examples=40)
@given(turns=st.lists(st.tuples(CONTENT, CONTENT), min_size=1, max_size=4), name=st.sampled_from(["qwen", "qwen_nfc", "minilm"]))
def test_loss_lies_where_the_replies_are(tokenizer, turns, name):
    """Against the plain way, for a tokenizer whose tokens are the text's bytes; for the others, at least in as many replies."""
    messages = [{"role": role, "content": text} for pair in turns for role, text in zip(("user", "assistant"), pair, strict=True)]
    student = tokenizer(name)
    pairs = tokenized([messages], student, tokenizer("deepseek"), chatml, gemma)
    rendered = render_pieces(chatml, Conversation(messages, {}))
    tokens = token_bytes(student, pairs.student.ids)
    if b"".join(tokens) == rendered.text:
        ends = np.cumsum([0, *map(len, tokens)]).tolist()
        ranges = [rendered.pieces[key] for key in rendered.spoken if key in rendered.pieces]
        expected = [any(a < end and start < b for start, end in ranges) for a, b in itertools.pairwise(ends)]
        assert pairs.loss.tolist() == [False, *expected[1:]]
    else:
        unknown = tabulate(student).kinds[pairs.student.ids] == UNKNOWN  # these stand for text and have no bytes
        said = zip(tokens, unknown.tolist(), pairs.loss.tolist(), strict=True)
        assert pairs.loss.any() == any(token or lacking for token, lacking, loss in said if loss)
