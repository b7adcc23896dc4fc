"""Where templates put each piece of content."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from chats import chatml, gemma, stripping

from zephon_core.xtoken import Conversation
from zephon_core.xtoken.alignment.islands import Islands, SaidPiece, composed, render_pieces, said_pieces
from zephon_core.xtoken.normalised import Fold


def found(render: Any, *messages: dict[str, Any], **options: Any) -> dict[tuple[Any, ...], str]:
    """Each piece's text in the rendering, by place."""
    rendered = render_pieces(render, Conversation(messages, options))
    assert rendered.text.decode() == render(messages, options)
    return {key: rendered.text[start:end].decode() for key, (start, end) in rendered.pieces.items()}


def test_content_without_the_blanks_around_it():
    messages = {"role": "user", "content": "  Hi Zoë \n"}, {"role": "assistant", "content": "Hi Zoë"}
    expected = {(0, "content", 0): "Hi Zoë", (1, "content", 0): "Hi Zoë"}
    for render in (chatml, gemma, stripping):
        assert found(render, *messages) == expected
    spans = [render_pieces(render, Conversation(messages, {})).pieces[1, "content", 0] for render in (chatml, gemma)]
    assert [render(messages, {}).encode().rindex("Hi Zoë".encode()) for render in (chatml, gemma)] == [start for start, _ in spans]


def test_silence_is_no_piece():
    messages = [{"role": "assistant", "content": content} for content in ("", None, " \n", "so")]
    assert found(chatml, *messages) == {(3, "content", 0): "so"}
    assert found(chatml) == {}


def test_reasoning_in_a_field_or_in_marks():
    in_field = {"role": "assistant", "content": "Four.", "reasoning_content": "two and two"}
    assert found(chatml, in_field) == {(0, "content", 0): "Four.", (0, "reasoning_content"): "two and two"}
    in_marks = {"role": "assistant", "content": "<think>\ntwo and two\n</think>\n\nFour."}
    assert found(chatml, in_marks) == {(0, "content", 2): "two and two", (0, "content", 4): "Four."}
    assert found(stripping, in_marks, {"role": "user", "content": "?"}) == {(0, "content", 4): "Four.", (1, "content", 0): "?"}


@pytest.mark.parametrize("arguments", [{"a": "x y", "b": [1, "z"]}, '{"a": "x y",  "b": [1, "z"]}'])
def test_tool_calls(arguments):
    call = {"id": "1", "function": {"name": "f", "arguments": arguments}}
    pieces = found(chatml, {"role": "assistant", "content": None, "tool_calls": [call]})
    name = {(0, "call", 0, "name"): "f"}
    if isinstance(arguments, str):
        assert pieces == {**name, (0, "call", 0, "arguments"): arguments}
        parsing = found(stripping, {"role": "assistant", "content": None, "tool_calls": [call]})
        assert parsing[0, "call", 0, "arguments", "a"] == "x y"
    else:
        assert pieces == {**name, (0, "call", 0, "arguments", "a"): "x y", (0, "call", 0, "arguments", "b", 1): "z"}


def test_what_json_escapes_is_found_as_it_is_written():
    arguments = {"text": 'say "hi"\n', "name": "é"}
    call = {"function": {"name": "f", "arguments": arguments}}
    pieces = found(chatml, {"role": "assistant", "content": "", "tool_calls": [call]})
    assert pieces[0, "call", 0, "arguments", "text"] == r"say \"hi\""

    def ascii_only(messages: Any, options: Any) -> str:
        return json.dumps([dict(message) for message in messages])

    assert found(ascii_only, {"role": "user", "content": "é"}) == {(0, "content", 0): r"\u00e9"}


def test_what_is_said_is_measured_whatever_templates_write():
    call = {"function": {"name": "find", "arguments": {"city": "Köln", "days": 3}}}
    messages = [
        {"role": "user", "content": "not this"},
        {"role": "assistant", "content": " <think>hm</think> yes! ", "reasoning_content": "so", "tool_calls": [call]},
        {"role": "assistant", "content": [{"type": "text", "text": "ok"}, {"type": "image"}]},
        {"role": "assistant", "content": None},
    ]
    assert said_pieces(Conversation(messages, {})) == {
        (1, "content", 2): SaidPiece(2, True),
        (1, "content", 4): SaidPiece(4, False),
        (1, "reasoning_content"): SaidPiece(2, True),
        (1, "call", 0, "name"): SaidPiece(4, False),
        (1, "call", 0, "arguments", "city"): SaidPiece(5, False),
        (2, "content", 0): SaidPiece(2, False),
    }


def test_parts_of_content():
    def parts(messages: Any, options: Any) -> str:
        return "".join(f"[{part.get('text', '<image>')}]" for message in messages for part in message["content"])

    content = [{"type": "text", "text": "one"}, {"type": "image"}, {"type": "text", "text": "two"}]
    assert found(parts, {"role": "user", "content": content}) == {(0, "content", 0): "one", (0, "content", 2): "two"}


def test_pieces_that_are_said_twice_are_none():
    def twice(messages: Any, options: Any) -> str:
        return "".join(message["content"] + "|" for message in (*messages, messages[0]))

    assert found(twice, {"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}) == {(1, "content", 0): "hi"}


def test_a_template_whose_framing_follows_the_content():
    def counting(messages: Any, options: Any) -> str:
        return "".join(f"<{len(message['content'])}>{message['content']}</>" for message in messages)

    longer = {"role": "user", "content": "a longer message, to be found by what it says"}
    assert found(counting, longer) == {(0, "content", 0): longer["content"]}


def test_options_reach_the_template():
    assert found(chatml, {"role": "user", "content": "hi"}, tools=["zq"]) == {(0, "content", 0): "hi"}


def test_blocks_are_followed():
    first = np.array([[0, 10, 5], [8, 20, 4]])
    second = np.array([[12, 0, 10], [22, 30, 9]])
    assert composed(first, second).tolist() == [[2, 0, 3], [8, 8, 2], [10, 30, 2]]
    assert composed(first, second[:0]).tolist() == []


def matched(student: Any, teacher: Any, *messages: dict[str, Any]) -> list[tuple[Any, Any]]:
    """To which pieces the matched bytes of two renderings belong, here and there. None: to none."""
    islands = Islands(*(render_pieces(render, Conversation(messages, {})) for render in (student, teacher)))
    sides = (islands.student, islands.teacher)
    blocks = islands.between(*(np.frombuffer(side.text, dtype=np.uint8) for side in sides), Fold())

    def piece(side: Any, place: int) -> Any:
        every = [*side.pieces.items(), *side.repeated]
        return next((key for key, (start, end) in every if start <= place < end), None)

    places = [(a + n, b + n) for a, b, length in blocks.tolist() for n in range(length)]
    assert all(sides[0].text[a] == sides[1].text[b] for a, b in places)
    return sorted({(piece(sides[0], a), piece(sides[1], b)) for a, b in places}, key=repr)


SAME_WORDS = [
    {"role": "user", "content": "Paris is the capital of France."},
    {"role": "assistant", "content": "Paris is the capital of France."},
    {"role": "user", "content": "Is Paris the capital of France?"},
    {"role": "assistant", "content": "It is."},
]


def forgetful(messages: Any, options: Any) -> str:
    """Leaves earlier replies out."""
    last = len(messages) - 1
    return "".join(f"[{m['content']}]" for number, m in enumerate(messages) if m["role"] == "user" or number == last)


def backwards(messages: Any, options: Any) -> str:
    return "".join(f"[{message['content']}]" for message in reversed(messages))


def questions_twice(messages: Any, options: Any) -> str:
    return "".join(f"[{m['content']}]" * (2 if m["role"] == "user" else 0) for m in messages) + messages[-1]["content"]


@pytest.mark.parametrize("teacher", [forgetful, backwards, questions_twice])
def test_a_reply_is_never_matched_with_the_same_words_of_another_turn(teacher: Any):
    for student in (chatml, gemma):
        pairs = matched(student, teacher, *SAME_WORDS) + matched(teacher, student, *SAME_WORDS)
        assert pairs
        assert all(ours == theirs is not None for ours, theirs in pairs)  # nor with framing, nor framing with framing


def test_a_reply_is_never_matched_with_framing():
    def headed(messages: Any, options: Any) -> str:
        return "".join(f"<{m['role']}>\n\n{m['content'] if m['role'] == 'user' else '(left out)'}</>" for m in messages)

    def thinking(messages: Any, options: Any) -> str:
        return chatml(messages, options).replace("assistant\n", "assistant\n<think>\n\n</think>\n\n")

    messages = [{"role": "user", "content": "Which role are you?"}, {"role": "assistant", "content": "assistant"}]
    assert matched(thinking, headed, *messages) == [((0, "content", 0), (0, "content", 0))]
    assert matched(thinking, gemma, *messages) == [((n, "content", 0), (n, "content", 0)) for n in (0, 1)]


def test_what_two_templates_write_of_a_call_is_matched_wherever_its_pieces_end():
    call = {"function": {"name": "f", "arguments": '{"a": "x"}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}

    def by_value(messages: Any, options: Any) -> str:
        function = messages[0]["tool_calls"][0]["function"]
        arguments = json.loads(function["arguments"])
        return f'{{"name": "{function["name"]}", "arguments": {json.dumps(arguments)}}}|'

    islands = Islands(*(render_pieces(render, Conversation([message], {})) for render in (chatml, by_value)))
    places = islands.between(*(np.frombuffer(side.text, dtype=np.uint8) for side in (islands.student, islands.teacher)), Fold())
    texts = [islands.student.text[start : start + length].decode() for start, _, length in places.tolist()]
    assert texts == ['{"name": "f", "arguments": {"a": "x"}}']


def test_a_call_is_never_matched_with_the_same_words_of_another_call():
    def last_call_alone(messages: Any, options: Any) -> str:
        function = messages[-1]["tool_calls"][-1]["function"]
        return f"call {function['name']} with {function['arguments']}"

    calls = [{"function": {"name": name, "arguments": '{"city": "Paris"}'}} for name in ("weather", "population")]
    pairs = matched(chatml, last_call_alone, {"role": "assistant", "content": None, "tool_calls": calls})
    assert {(ours, theirs) for ours, theirs in pairs if ours and theirs} == {
        (key, key) for key in ((0, "call", 1, "name"), (0, "call", 1, "arguments"))
    }


def test_reasoning_that_one_side_has_in_a_field_and_the_other_in_marks_is_matched():
    both = {"role": "assistant", "content": "<think>two and two</think>Four.", "reasoning_content": "two and two"}

    def field_alone(messages: Any, options: Any) -> str:
        return f"({messages[0]['reasoning_content']}) {messages[0]['content'].split('</think>')[1]}"

    def marks_alone(messages: Any, options: Any) -> str:
        return str(messages[0]["content"])

    assert ((0, "reasoning_content"), (0, "content", 2)) in matched(field_alone, marks_alone, both)
