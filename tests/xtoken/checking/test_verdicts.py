"""Verdicts: what is wrong is told, with what to do about it; what isn't, is not."""

from __future__ import annotations

import json

import pytest
from chats import chatml, gemma, stripping

from zephon_core.tokenizers import Tokenizer
from zephon_core.xtoken.checking.check import check_pair
from zephon_core.xtoken.checking.gaps import Cause
from zephon_core.xtoken.checking.verdicts import Level, judge

CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "good day to you, all of you"}]


@pytest.fixture
def verdicts(tokenizer):
    """The verdicts on a pair by topic."""

    def found(student, teacher, samples, student_template=chatml, teacher_template=gemma):
        sides = [tokenizer(side) if isinstance(side, str) else side for side in (student, teacher)]
        report = check_pair(*sides, samples, student_template=student_template, teacher_template=teacher_template)
        return {verdict.topic: verdict for verdict in report.verdicts}

    return found


def changed(tokenizer: Tokenizer, **parts) -> Tokenizer:
    """The same vocabulary with other parts around it."""
    return Tokenizer(json.dumps({**json.loads(tokenizer.definition_json), **parts}).encode(), origin="changed")


def begun(tokenizer: Tokenizer, token: str) -> Tokenizer:
    """The tokenizer with a post-processor that puts a token first."""
    number = tokenizer.huggingface.token_to_id(token)
    processor = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }
    return changed(tokenizer, post_processor=processor)


def test_nothing_to_complain_of(verdicts):
    found = verdicts("qwen", "deepseek", [CHAT, "text of 3 tokens"], teacher_template=stripping)
    assert list(found) == ["coverage", "byte fallback", "normalisation", "beginning", "chat template", "special tokens"]
    assert {verdict.level for verdict in found.values()} == {Level.GOOD}
    assert found["chat template"].found == "Both templates write all that the assistant says in 1 conversation."
    assert "chat template" not in verdicts("qwen", "deepseek", ["text of 3 tokens"])


@pytest.mark.parametrize(
    ("covered", "level"), [(1000, Level.GOOD), (995, Level.GOOD), (994, Level.NOTE), (950, Level.NOTE), (949, Level.BAD)]
)
def test_coverage(tokenizer, covered, level):
    facts = check_pair(tokenizer("qwen"), tokenizer("deepseek"), []).student
    rest = {
        "texts": 1,
        "conversations": 0,
        "empty": 0,
        "inexact_chunks": 0,
        "lookalike_chunks": 0,
        "uncovered": {Cause.OTHER: 1000 - covered},
    }
    verdict = judge(facts, facts, loss_tokens=1000, covered_tokens=covered, **rest)[0]
    assert (verdict.topic, verdict.level) == ("coverage", level)
    assert bool(verdict.remedy) == (level is not Level.GOOD)


def test_nothing_to_learn(verdicts):
    for samples in ([], [""], ["one"], [CHAT[:1]]):
        found = verdicts("qwen", "deepseek", samples)["coverage"]
        assert (found.level, found.found) == (Level.BAD, "No token carries loss: there is nothing to learn.")


def test_the_same_tokenizer(verdicts):
    assert verdicts("qwen", "qwen", ["so be it"])["vocabulary"].level is Level.NOTE


def test_characters_without_a_token(verdicts):
    found = verdicts("qwen", "minilm", ["so be it", "so 😁 be 😁", "😁 me"])["byte fallback"]
    assert (found.level, found.found) == (Level.BAD, "The teacher has no token for what stands at 3 places of 2 texts.")
    found = verdicts("minilm", "qwen", ["so be it " * 100 + "😁 so be it"])["byte fallback"]
    assert (found.level, found.found) == (Level.NOTE, "The student has no token for what stands at 1 place of 1 text.")
    found = verdicts("qwen", "minilm", ["so be it"])["byte fallback"]
    assert (found.level, found.found[:36]) == (Level.NOTE, "The teacher can't spell every text, ")
    assert verdicts("qwen", "mistral", ["so be 😁"])["byte fallback"].level is Level.GOOD


def test_normalisers(verdicts):
    assert verdicts("qwen", "mistral", ["so be it"])["normalisation"].found == "Neither side changes texts: tokens are their bytes."
    found = verdicts("qwen_nfc", "deepseek", ["so be it"])["normalisation"]
    assert found.level is Level.GOOD
    assert found.found.endswith("the normaliser of the student's (composition (NFC)) changes none of them.")
    found = verdicts("qwen_nfc", "deepseek", ["one cafe\u0301 more", "so be it"])["normalisation"]
    assert (found.level, found.found) == (
        Level.NOTE,
        "The student changes 1 text (composition (NFC)); 1 chunk is the same text only once normalised.",
    )
    found = verdicts("minilm", "qwen", ["One Café more", "Two"])["normalisation"]
    assert found.found.startswith("The student changes 2 texts (lower case, no accents, no controls, no blanks); ")


def test_normalisers_of_sentencepiece(verdicts):
    found = verdicts("unigram", "qwen", ["so be  it", "so be it"])["normalisation"]
    assert found.found.startswith("The student changes 1 text (compatibility composition (NFKC), one blank for several)")


def test_beginnings(verdicts, tokenizer):
    student = begun(tokenizer("qwen"), "<|endoftext|>")
    found = verdicts(student, "deepseek", [CHAT])["beginning"]
    assert (found.level, found.found) == (
        Level.NOTE,
        "The student reads 1 conversation without <|endoftext|>, its tokenizer's beginning.",
    )

    def beginning(messages, options, times=1):
        return "<|endoftext|>" * times + chatml(messages, options)

    found = verdicts(student, "deepseek", [CHAT], beginning)["beginning"]
    assert (found.level, found.found) == (
        Level.GOOD,
        "The student's template begins conversations with <|endoftext|>, as its tokenizer would.",
    )
    found = verdicts(student, "deepseek", [CHAT, CHAT], lambda m, o: beginning(m, o, 2))["beginning"]
    assert (found.level, found.found) == (Level.BAD, "The student reads <|endoftext|> twice at the beginning of 2 conversations.")
    found = verdicts("deepseek", student, ["plain text"])["beginning"]
    assert (found.level, found.found) == (Level.GOOD, "Texts were read without the teacher's <|endoftext|>.")
    assert "teacher_tokens" in found.remedy
    found = verdicts("qwen", "deepseek", ["333"])["beginning"]
    assert (found.level, found.found) == (
        Level.NOTE,
        "100% of the loss tokens share bytes with a first token, which nothing precedes.",
    )


def test_templates(verdicts):
    def silent(messages, options):
        return gemma([message for message in messages if message["role"] == "user"], options)

    found = verdicts("qwen", "deepseek", [CHAT], teacher_template=silent)["chat template"]
    assert found.level is Level.BAD
    assert "the teacher's template doesn't write all that the assistant says (content: 1)" in found.found.replace("The", "the")
    assert "100% of the loss tokens are lost" in found.found

    def refusing(messages, options):
        raise ValueError("no")

    found = verdicts("qwen", "deepseek", [CHAT], teacher_template=refusing)["chat template"]
    assert (found.level, found.found) == (Level.BAD, "The teacher's template refuses 1 conversation (conversation 1: no).")
    thinking = [*CHAT, {"role": "user", "content": "?"}, {**CHAT[1], "content": "!", "reasoning_content": "hm, so what"}]
    found = verdicts("qwen", "deepseek", [[*thinking, *CHAT]], teacher_template=stripping)["chat template"]
    assert "reasoning_content: 1" in found.found


CALL = {"type": "function", "function": {"name": "find", "arguments": '{"city": "Berlin"}'}}
CALLING = [CHAT[0], {**CHAT[1], "tool_calls": [CALL]}]
PARTS = [CHAT[0], {"role": "assistant", "content": [{"type": "text", "text": "ten bytes."}]}, *CHAT]


def contents(messages, options):
    """A template that writes nothing but contents that are texts."""
    return "".join(f"<{message['role']}> {message['content']}\n" for message in messages if isinstance(message["content"], str))


def test_what_neither_template_writes(verdicts):
    # the reply has 27 bytes, the call 4 and 18: find, {"city": "Berlin"}
    found = verdicts("qwen", "deepseek", [CALLING], contents, contents)
    assert (found["chat template"].level, found["chat template"].found) == (
        Level.BAD,
        "The student's template doesn't write all that the assistant says (tool calls: 1), 44.90% of its bytes; "
        "the teacher's template doesn't write all that the assistant says (tool calls: 1), 44.90% of its bytes.",
    )
    assert "nothing is learnt" in found["chat template"].remedy
    assert found["coverage"].level is Level.NOTE
    assert found["coverage"].found.startswith("Chunks cover 100% of ")
    assert found["coverage"].found.endswith(
        "Not among them is 44.90% of what the assistant says, which the student's template doesn't write."
    )
    found = verdicts("qwen", "deepseek", [PARTS], contents, contents)["chat template"]
    assert (found.level, "(content: 1), 27.03% of its bytes" in found.found) == (Level.BAD, True)


@pytest.mark.parametrize("part", [{"type": "text", "text": "ten bytes."}, {"text": "it's fine", "type": "text"}])
def test_parts_that_a_template_takes_for_a_text(verdicts, part):
    def shown(messages, options):
        return "".join(f"<{message['role']}> {message['content']}\n" for message in messages)

    def joined(messages, options):
        texts = [{**each, "content": "".join(part["text"] for part in each["content"])} for each in messages]
        return contents(texts, options)

    chat = [{"role": role, "content": [part]} for role in ("user", "assistant")]
    found = verdicts("qwen", "deepseek", [chat], joined, shown)["chat template"]
    assert (found.level, found.found) == (
        Level.NOTE,
        "The teacher's template writes content that is a list of parts as Python shows a list, in 1 conversation.",
    )
    assert verdicts("qwen", "deepseek", [chat], joined, joined)["chat template"].level is Level.GOOD


def test_a_little_that_neither_template_writes(verdicts):
    long = [CHAT[0], {**CHAT[1], "content": "word " * 1000, "tool_calls": [CALL]}]
    found = verdicts("qwen", "deepseek", [long], contents, contents)
    assert found["chat template"].level is found["coverage"].level is Level.NOTE
    assert "(tool calls: 1), 0.44% of its bytes" in found["chat template"].found


def test_reasoning_that_templates_forget_is_no_reason_to_stop(verdicts):
    thinking = [CHAT[0], {**CHAT[1], "reasoning_content": "hm, so what to say to that"}]
    inline = [CHAT[0], {"role": "assistant", "content": f"<think>hm, so what to say</think>{CHAT[1]['content']}"}]

    def forgetting(messages, options):
        return contents([{**each, "content": each["content"].split("</think>")[-1]} for each in messages], options)

    for chat in (thinking, inline):
        found = verdicts("qwen", "deepseek", [chat], forgetting, forgetting)
        assert found["chat template"].level is found["coverage"].level is Level.NOTE
        assert "% of what the assistant says" in found["coverage"].found


def test_turns_in_another_order(verdicts):
    found = verdicts("qwen", "deepseek", [CHAT * 2], teacher_template=lambda m, o: contents(m[::-1], o))["chat template"]
    assert found.level is Level.BAD
    assert found.found.startswith("The teacher's template writes what is said in another order; ")
    assert "of the loss tokens are lost" in found.found


def test_nothing_to_judge_by(verdicts):
    found = verdicts("qwen", "deepseek", [])
    for topic in ("normalisation", "special tokens"):
        assert (found[topic].level, found[topic].found) == (Level.NOTE, "There is no text: nothing to judge by.")
    assert "chat template" not in found
    for chat in (CHAT[:1], [CHAT[0], {"role": "assistant", "content": ""}]):
        found = verdicts("qwen", "deepseek", [chat, chat], teacher_template=stripping)["chat template"]
        assert (found.level, found.found) == (Level.NOTE, "The assistant says nothing in 2 conversations: nothing to judge by.")


def test_marks_that_are_no_tokens(verdicts):
    found = verdicts("deepseek", "qwen", [CHAT], chatml, chatml)["chat template"]
    assert found.level is Level.NOTE
    assert "the student's template writes <|im_" in found.found.replace("The", "the")
    assert "teacher's" not in found.found
    assert found.remedy == "It seems to be another model's template."


def test_special_tokens_in_texts(verdicts):
    found = verdicts("qwen", "deepseek", ["so <|im_end|> be <|im_end|> it", "fine"])["special tokens"]
    assert (found.level, found.found) == (
        Level.NOTE,
        "The student reads <|im_end|> (2) within the texts as special tokens; "
        "2 chunks pair one with the other side's plain spelling of it.",
    )
    same = verdicts("qwen", "qwen", ["so <|im_end|> be it"])["special tokens"]
    assert (
        same.found
        == "The student reads <|im_end|> (1) within the texts as special tokens; the teacher reads <|im_end|> (1) "
        + ("within the texts as special tokens.")
    )
    found = verdicts("deepseek", "qwen", ["so <|im_end|> be it"])["special tokens"]
    assert "1 chunk pairs one with the other side's plain spelling of it." in found.found
    many = "".join(f" <|im_{word}|>" for word in ("start", "end")) + " <|endoftext|>"
    said = [CHAT[0], {"role": "assistant", "content": f"so{many}{many} it"}]
    found = verdicts("qwen", "deepseek", [said], teacher_template=stripping)["special tokens"]
    assert all(f"{token} (2)" in found.found for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"))
