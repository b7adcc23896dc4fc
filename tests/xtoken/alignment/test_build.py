# ruff: noqa: RUF001
"""Plans of conversations: each reply with its own turn, whatever the two templates make of it."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from chats import Render, chatml, encode, gemma, make_datum, said, stripping, system_last

from zephon_core.errors import SpecError, TokenizerError
from zephon_core.tokenizers import Tokenizer
from zephon_core.xtoken import ChunkPlan, Conversation, TrainDatum, build_chunk_plans, tabulate, token_bytes
from zephon_core.xtoken.alignment.build import render_teacher


class Case:
    """A conversation on both sides: the student's datum, the teacher's tokens, the plan."""

    def __init__(
        self,
        messages: Sequence[dict[str, Any]],
        pieces: Sequence[str],
        student: Tokenizer,
        teacher: Tokenizer,
        template: Render,
        *,
        bare: bool = False,
        ids: Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        conversation = Conversation(messages, options or {})
        text = chatml(messages, conversation.options)
        ids = encode(student, text) if ids is None else ids
        self.student, self.teacher = student, teacher
        self.datum = make_datum(ids, said(text, pieces, student, ids))
        side = render_teacher([conversation], teacher_tokenizer=teacher, student_template=chatml, teacher_template=template)
        self.teacher_ids = side.row(0).tolist()
        given: Any = self.teacher_ids if bare else conversation
        (self.plan,) = build_chunk_plans(
            [self.datum],
            [given],
            student_tokenizer=student,
            teacher_tokenizer=teacher,
            student_template=None if bare else chatml,
            teacher_template=None if bare else template,
        )
        self.plan.validate_against(self.datum)
        assert self.plan.teacher_token_count == len(self.teacher_ids)
        self.student_bytes, self.teacher_bytes = token_bytes(student, ids), token_bytes(teacher, self.teacher_ids)
        for chunk in self.plan.chunks:
            ours, theirs = self.pair(chunk)
            assert chunk.exact == (ours == theirs)
            assert chunk.exact or normal(ours) == normal(theirs)

    def pair(self, chunk: Any) -> tuple[bytes, bytes]:
        """A chunk's bytes on both sides."""
        return (
            b"".join(self.student_bytes[chunk.student_start : chunk.student_end]),
            b"".join(self.teacher_bytes[chunk.teacher_start : chunk.teacher_end]),
        )

    @property
    def coverage(self) -> float:
        """Share of loss tokens in a chunk."""
        return self.plan.scored_student_tokens / self.datum.loss_token_count

    def missed(self) -> bytes:
        """What carries loss and is in no chunk."""
        scored = {p for chunk in self.plan.chunks for p in range(chunk.student_start, chunk.student_end)}
        return b"|".join(self.student_bytes[p] for p, value in enumerate(self.datum.loss_mask) if value and p not in scored)

    def teacher_turn(self, chunk: Any) -> bytes:
        """What the teacher has read when the chunk begins."""
        return b"".join(self.teacher_bytes[: chunk.teacher_start])


def normal(content: bytes) -> str:
    """What the normalisers here leave equal."""
    return unicodedata.normalize("NFC", content.decode()).strip()


BOTH = pytest.mark.parametrize("bare", [False, True], ids=["messages", "tokens"])


def turn(user: str, assistant: str | None, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant, **more}]


@BOTH
@pytest.mark.parametrize("template", [stripping, gemma, chatml])
@pytest.mark.parametrize("teacher", ["deepseek", "cl100k", "mistral"])
def test_turn_by_turn(bare, template, teacher, tokenizer):
    replies = ["The answer is forty-two.", "Zürich, naturellement! 🎉 中文也可以。", "def f(x):\n    return x  # twice\n\nDone."]
    messages = [message for number, reply in enumerate(replies) for message in turn(f"Question {number}?", reply)]
    case = Case(messages, replies, tokenizer("qwen"), tokenizer(teacher), template, bare=bare)
    if (teacher, template) != (
        "deepseek",
        stripping,
    ):  # its markers are plain text there: a turn's last word and one may be one token
        assert case.coverage > 0.9, case.missed()
    else:
        assert case.coverage == 1.0, case.missed()
        assert all(chunk.exact for chunk in case.plan.chunks)


@BOTH
def test_a_reply_that_also_stands_in_the_users_turn_matches_its_own(bare, tokenizer):
    word = "Please repeat after me, slowly."
    messages = [*turn(f"{word}", word), *turn(word, word)]
    case = Case(messages, [word, word], tokenizer("qwen"), tokenizer("deepseek"), stripping, bare=bare)
    assert case.coverage == 1.0
    turns = [case.teacher_turn(chunk).count("<｜Assistant｜>".encode()) for chunk in case.plan.chunks]
    assert turns == sorted(turns)
    assert {case.teacher_turn(chunk).count("<｜User｜>".encode()) for chunk in case.plan.chunks} == {1, 2}
    assert all(
        case.teacher_turn(chunk).count("<｜Assistant｜>".encode()) == case.teacher_turn(chunk).count("<｜User｜>".encode())
        for chunk in case.plan.chunks
    )


@BOTH
def test_a_reply_that_only_the_user_says_on_the_teachers_side_matches_nothing(bare, tokenizer):
    word = "Please repeat after me, slowly and clearly."

    def deaf(messages: Any, options: Any) -> str:
        return "<｜begin▁of▁sentence｜>" + "".join(f"<｜User｜>{m['content']}" for m in messages if m["role"] == "user")

    case = Case(turn(word, word), [word], tokenizer("qwen"), tokenizer("deepseek"), deaf, bare=bare)
    assert case.plan.chunks == ()


@BOTH
@pytest.mark.parametrize("silent", ["", None, "<think>\nhm\n</think>\n\n"])
def test_a_turn_without_visible_content_shifts_nothing(bare, silent, tokenizer):
    replies = ["First answer, in full.", "Second answer, in full.", "Third answer, in full."]
    messages = [
        *turn("One?", replies[0]),
        *turn("And?", silent),
        *turn("Two?", replies[1]),
        *turn("Now?", silent),
        *turn("Three?", replies[2]),
    ]
    case = Case(messages, replies, tokenizer("qwen"), tokenizer("deepseek"), stripping, bare=bare)
    assert case.coverage == 1.0, case.missed()
    for chunk in case.plan.chunks:
        asked = [case.teacher_turn(chunk).count(word) for word in (b"One?", b"Two?", b"Three?")]
        before = b"".join(case.student_bytes[: chunk.student_start])
        assert asked == [before.count(word) for word in (b"One?", b"Two?", b"Three?")]


def test_equal_short_replies_keep_their_turns(tokenizer):
    replies = ["Yes.", "No.", "Yes.", "", "Yes.", "No."]
    messages = [message for number, reply in enumerate(replies) for message in turn(f"Is it {number}?", reply)]
    case = Case(messages, [reply for reply in replies if reply], tokenizer("qwen"), tokenizer("deepseek"), stripping)
    assert case.coverage == 1.0
    for chunk in case.plan.chunks:
        assert case.teacher_turn(chunk).count(b"Is it") == b"".join(case.student_bytes[: chunk.student_start]).count(b"Is it")


@BOTH
def test_reasoning_that_the_teachers_template_forgets_is_left_uncovered(bare, tokenizer):
    thoughts = ["They want the sum, so two and two.", "Now the product of three and five."]
    messages = [
        *turn("2+2?", "Four.", reasoning_content=thoughts[0]),
        *turn("3*5?", "It is fifteen.", reasoning_content=thoughts[1]),
    ]
    pieces = [thoughts[0], "Four.", thoughts[1], "It is fifteen."]
    case = Case(messages, pieces, tokenizer("qwen"), tokenizer("deepseek"), stripping, bare=bare)
    covered = b"".join(case.pair(chunk)[0] for chunk in case.plan.chunks)  # the thought's last dot is one token with the line's end
    assert covered == f"Four.{thoughts[1][:-1]}It is fifteen.".encode()
    inside = Case(
        turn("2+2?", f"<think>\n{thoughts[0]}\n</think>\n\nFour."),
        [thoughts[0], "Four."],
        tokenizer("qwen"),
        tokenizer("deepseek"),
        stripping,
    )
    assert inside.missed() == b""


@pytest.mark.parametrize("as_text", [True, False])
def test_tool_calls(as_text, tokenizer):
    arguments: Any = {"city": "Zürich, Altstadt", "note": 'say "hi"', "days": 3}
    if as_text:
        arguments = '{"city": "Zürich, Altstadt", "days": 3}'
    call = {"type": "function", "function": {"name": "forecast_weather", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "Let me look that up.", "tool_calls": [call]},
        {"role": "tool", "content": "sunny, 20 degrees"},
        {"role": "assistant", "content": "It will be sunny, with 20 degrees."},
    ]
    pieces = ["Let me look that up.", "forecast_weather", "It will be sunny, with 20 degrees."]
    for template in (stripping, chatml):
        case = Case(
            messages, pieces, tokenizer("qwen"), tokenizer("deepseek"), template, options={"tools": [{"name": "forecast_weather"}]}
        )
        # One template puts a blank before the name, which is in its token; the other's marker is plain text for this teacher.
        assert case.missed() == (b"forecast" if template is stripping else b".")
    whole = make_datum(case.datum.model_input_tokens, [0.0, *[1.0] * (len(case.datum.model_input_tokens) - 1)])
    (plan,) = build_chunk_plans(
        [whole],
        [Conversation(messages, {})],
        student_tokenizer=tokenizer("qwen"),
        teacher_tokenizer=tokenizer("deepseek"),
        student_template=chatml,
        teacher_template=stripping,
    )
    covered = b"".join(b"".join(case.student_bytes[c.student_start : c.student_end]) for c in plan.chunks)
    assert b"ich, Altstadt" in covered  # a quote before it is in one token with its first letter on one side
    assert b", 20 degrees" in covered


def test_a_template_that_reorders_pairs_only_what_is_in_order(tokenizer):
    replies = ["Good morning to you.", "And good night to you."]
    system = "Always be polite, whatever anybody says to you."
    messages = [{"role": "system", "content": system}, *turn("Hello?", replies[0]), *turn("Bye!", replies[1])]
    case = Case(messages, replies, tokenizer("qwen"), tokenizer("deepseek"), system_last)
    assert case.coverage == 1.0, case.missed()


@BOTH
def test_four_hundred_turns_are_covered_as_well_as_four(bare, tokenizer):
    replies = [f"Reply number {number}, which is about {'cats' if number % 3 else 'dogs'}." for number in range(400)]
    replies[7::10] = ["Yes."] * len(replies[7::10])
    messages = [message for number, reply in enumerate(replies) for message in turn(f"Tell me about {number}.", reply)]
    case = Case(messages, replies, tokenizer("qwen"), tokenizer("deepseek"), stripping, bare=bare)
    assert case.coverage == 1.0, case.missed()


@BOTH
def test_the_same_turn_four_hundred_times(bare, tokenizer):
    case = Case(turn("Again?", "Again.") * 400, ["Again."] * 400, tokenizer("qwen"), tokenizer("deepseek"), stripping, bare=bare)
    assert case.coverage == 1.0, case.missed()
    for chunk in case.plan.chunks[:: len(case.plan.chunks) // 50]:
        assert case.teacher_turn(chunk).count(b"Again?") == b"".join(case.student_bytes[: chunk.student_start]).count(b"Again?")


@BOTH
def test_an_nfc_teacher_on_decomposed_text_gives_inexact_islands(bare, tokenizer):
    reply = "Le cafe\u0301 est tre\u0300s fort, n'est-ce pas?"
    case = Case(turn("Alors?", reply), [reply], tokenizer("qwen"), tokenizer("qwen_nfc"), gemma, bare=bare)
    assert case.coverage > 0.9, case.missed()
    inexact = [case.pair(chunk) for chunk in case.plan.chunks if not chunk.exact]
    assert inexact
    assert all(chunk.exact for chunk in case.plan.chunks if b"\xcc" not in case.pair(chunk)[0])


@BOTH
def test_a_split_character_costs_no_more_than_itself(bare, tokenizer):
    reply = "before \U000e0fff\U0001f9ff after it all"
    case = Case(turn("?", reply), [reply], tokenizer("qwen"), tokenizer("deepseek"), stripping, bare=bare)
    assert case.coverage == 1.0, case.missed()


@BOTH
def test_a_non_canonical_segmentation_aligns_as_well(bare, tokenizer):
    student = tokenizer("qwen")
    reply = "Solver results, internationalisation and 12345."
    ids = encode(student, chatml(turn("Which?", reply), {}))
    single = {part[0]: number for number, part in enumerate(token_bytes(student, np.arange(256)))}
    pieces = [[single[byte] for byte in part] if part.isascii() and number % 2 and not part.startswith(b"<|") else [ids[number]]
              for number, part in enumerate(token_bytes(student, ids))]  # fmt: skip
    split = [number for piece in pieces for number in piece]
    assert len(split) > len(ids)
    case = Case(turn("Which?", reply), [reply], student, tokenizer("deepseek"), stripping, bare=bare, ids=split)
    assert case.coverage == 1.0, case.missed()


def test_tokens_that_were_cut_short_or_framed_otherwise(tokenizer):
    replies = ["The first reply, quite long.", "The second reply, longer still."]
    messages = [*turn("One?", replies[0]), *turn("Two?", replies[1])]
    text = chatml(messages, {})
    for changed in (
        text[: text.index("still")],
        "<|im_start|>system\nYou are kind.<|im_end|>\n" + text,
        text.replace("user\n", "human\n"),
    ):
        ids = encode(tokenizer("qwen"), changed)
        datum = make_datum(ids, [0.0, *[1.0] * (len(ids) - 1)])
        (plan,) = build_chunk_plans(
            [datum],
            [messages],
            student_tokenizer=tokenizer("qwen"),
            teacher_tokenizer=tokenizer("deepseek"),
            student_template=chatml,
            teacher_template=stripping,
        )
        parts = token_bytes(tokenizer("qwen"), ids)
        covered = b"".join(b"".join(parts[c.student_start : c.student_end]) for c in plan.chunks)
        assert b"The first reply, quite long." in covered
        assert b"The second reply, longer" in covered


def test_placeholders_that_a_template_refuses_cost_only_the_pieces(tokenizer):
    def picky(messages: Any, options: Any) -> str:
        if any("zq" in (message["content"] or "") for message in messages):
            raise ValueError("no such letters")
        return stripping(messages, options)

    case = Case(turn("How?", "Like this, and so on."), ["Like this, and so on."], tokenizer("qwen"), tokenizer("deepseek"), picky)
    assert case.coverage == 1.0


def test_what_cannot_be_planned_is_refused(tokenizer):
    both = {"student_tokenizer": tokenizer("qwen"), "teacher_tokenizer": tokenizer("deepseek")}
    datum = make_datum([1, 2], [0.0, 1.0])
    with pytest.raises(SpecError, match="teacher: are 0 for 1 datums"):
        build_chunk_plans([datum], [], **both)
    with pytest.raises(SpecError, match="teacher_template: is missing, and the teacher is given messages"):
        build_chunk_plans([datum], [turn("a", "b")], **both)
    with pytest.raises(TokenizerError, match="has no token 999999"):
        build_chunk_plans([datum], [[1, 999999]], **both)
    with pytest.raises(SpecError, match="which can't encode"):
        build_chunk_plans(
            [datum],
            [turn("a", "b")],
            student_tokenizer=tokenizer("qwen"),
            teacher_tokenizer=tabulate(tokenizer("deepseek")),
            teacher_template=chatml,
        )
    assert build_chunk_plans([], [], **both) == []


def test_tokens_and_messages_side_by_side_and_nothing_at_all(tokenizer):
    reply = "A reply that is long enough."
    text = chatml(turn("So?", reply), {})
    datum = make_datum(encode(tokenizer("qwen"), text), said(text, [reply], tokenizer("qwen"), encode(tokenizer("qwen"), text)))
    plans: list[ChunkPlan] = build_chunk_plans(
        [datum, datum, datum, make_datum([], [])],
        [encode(tokenizer("deepseek"), stripping(turn("So?", reply), {})), turn("So?", reply), [], []],
        student_tokenizer=tokenizer("qwen"),
        teacher_tokenizer=tokenizer("deepseek"),
        student_template=chatml,
        teacher_template=stripping,
    )
    assert plans[0] == plans[1]
    assert plans[0].scored_student_tokens == datum.loss_token_count
    assert plans[2].chunks == plans[3].chunks == ()
    assert isinstance(datum, TrainDatum)
