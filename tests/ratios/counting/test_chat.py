"""Rows of messages deliver what transformers' apply_chat_template gives, and the loss is on what the assistant says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from templates import BARE, CHATML, COUNTING, HEADED, MARKED, REASONING, REASONING_MARKED, SHOUTING, THINKING, WITH_TOOLS
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from zephon_core.errors import FatalCountError, SpecError
from zephon_core.fingerprint import canonical_json
from zephon_core.ratios.counting import ChatTokenCountingSpec
from zephon_core.ratios.datasets.model import BLANK_ROW
from zephon_core.tokenizers.chat_template import ChatTemplate


def said(*contents: str) -> dict:
    roles = ["user", "assistant"]
    return {"messages": [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]}


ONE_TURN = said("What is 3 + 4?", "It is 7, isn't it?")
TWO_TURNS = said("The quick brown fox", "jumps over", "the lazy dog?", "Straße, naïve  ")
ROWS = [ONE_TURN, TWO_TURNS, {"messages": [{"role": "system", "content": "Be brief."}, *TWO_TURNS["messages"]]}]


def plan_of(folder, template, **settings):
    return ChatTokenCountingSpec(folder, chat_template=template, **settings).build_counter().plan([])


def reference(folder: Path) -> PreTrainedTokenizerFast:
    file = str(folder / "tokenizer.json")
    return PreTrainedTokenizerFast(tokenizer_file=file, bos_token="<s>", eos_token="<|im_end|>")


def encoded(folder: Path, text: str) -> int:
    return len(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False))


def test_by_marks_all_and_loss_tokens_are_those_of_transformers(folder):
    plan = plan_of(folder, MARKED)
    assert plan.outputs == ("tokens", "loss_tokens")
    tokenizer = reference(folder)
    for row, counted in zip(ROWS, plan.count(ROWS), strict=True):
        out = tokenizer.apply_chat_template(
            row["messages"], chat_template=MARKED, return_dict=True, return_assistant_tokens_mask=True
        )
        assert counted == (len(out["input_ids"]), sum(out["assistant_masks"]))
        assert 0 < counted[1] < counted[0]


def test_by_comparing_the_loss_is_what_marks_say(folder):
    assert plan_of(folder, CHATML).count(ROWS) == plan_of(folder, MARKED).count(ROWS)


def test_without_a_header_no_prompt_is_needed(byte_level):
    plan = plan_of(byte_level, BARE)
    text = "<s>[INST] What is 3 + 4? [/INST] It is 7, isn't it?<|im_end|>"
    said = " It is 7, isn't it?<|im_end|>"
    assert plan.count([ONE_TURN]) == [(encoded(byte_level, text), encoded(byte_level, said))]
    assert plan.count([TWO_TURNS])[0][1] > 0


@pytest.mark.parametrize(
    ("template", "row", "message"),
    [
        (HEADED, ONE_TURN, "has no prompt for the assistant"),
        (COUNTING, TWO_TURNS, "renders message 2 of 4 otherwise once others follow it"),
        (SHOUTING, TWO_TURNS, "renders message 2 of 4 otherwise once others follow it"),
    ],
    ids=["headed", "counting", "shouting"],
)
def test_a_template_that_cannot_be_split_is_refused_by_name(byte_level, template, row, message):
    with pytest.raises(FatalCountError, match=rf"the given chat_template {message}.*loss_tokens: false") as caught:
        plan_of(byte_level, template).count([BLANK_ROW, row])
    assert caught.value.position == 1
    plan = plan_of(byte_level, template, loss_tokens=False)
    assert plan.outputs == ("tokens",)
    expected = reference(byte_level).apply_chat_template(row["messages"], chat_template=template)["input_ids"]
    assert plan.count([row]) == [(len(expected),)]


CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}]}
THOUGHT = "<think>\nhm\n</think>\n\nyes"


WITH_CALL = [
    {"role": "user", "content": "3 + 4?"},
    CALL,
    {"role": "tool", "content": "7"},
    *said("", "7", "sure?", "yes")["messages"][1:],
]
ITS_OWN_MARKS = said("a", "<|im_end|>\n", "<|im_end|>\n", "<|im_start|>assistant\n", "Placeholder0x", "Placeholder0x")["messages"]


@pytest.mark.parametrize(
    ("messages", "options"),
    [
        (TWO_TURNS["messages"], {}),
        (TWO_TURNS["messages"], {"enable_thinking": False}),
        (said("a", THOUGHT, "b", THOUGHT, "c", THOUGHT)["messages"], {}),
        (WITH_CALL, {}),
        (WITH_CALL, {"enable_thinking": False}),
        (ITS_OWN_MARKS, {}),
        ([*said("a", THOUGHT)["messages"], {"role": "assistant", "content": "more"}, *TWO_TURNS["messages"]], {}),
    ],
    ids=["turns", "turns, closed", "thoughts", "calls", "calls, closed", "its own marks", "twice"],
)
def test_a_thinking_template_is_split_as_its_marked_form_says(byte_level, messages, options):
    """As Qwen3's: thoughts are dropped once others follow, and a prompt may close thoughts that the conversation doesn't have."""
    row = {"messages": messages, **options}
    marked = ChatTemplate({"default": REASONING_MARKED}, {}, "marked").render_marked(messages, options)
    found = ChatTemplate({"default": REASONING}, {}, "reasoning").render_marked(messages, options)
    assert found.text == marked.text
    closing = "<think>\n\n</think>\n\n" if options else ""  # then it is of the prompt, not of what is said
    assert [found.text[start:stop] for start, stop in found.spans] == [
        marked.text[start:stop].removeprefix(closing) for start, stop in marked.spans
    ]
    assert [stop for _, stop in found.spans] == [stop for _, stop in marked.spans]
    tokens, loss = plan_of(byte_level, REASONING).count([row])[0]
    assert 0 < loss < tokens


def test_thoughts_where_the_prompt_says_there_are_none_are_refused(byte_level):
    row = {**said("a", "yes", "b", THOUGHT), "enable_thinking": False}
    with pytest.raises(FatalCountError, match="renders message 4 of 4 otherwise"):
        plan_of(byte_level, REASONING).count([row])


def test_both_ways_of_splitting_agree(byte_level):
    """What holds for templates that render every message for itself holds in the same way where they don't."""
    template = ChatTemplate({"default": CHATML}, {}, "chatml")
    for row in ROWS:
        whole, messages = template.render_marked(row["messages"], {}), row["messages"]
        spoken = [position for position, message in enumerate(messages) if message["role"] == "assistant"]
        for span, position in zip(whole.spans, spoken, strict=True):
            before = template.render(messages[:position], {}, prompt=True)
            upto = template.render(messages[: position + 1], {})
            assert template._span_among_others(whole.text, messages, position, {}, before, upto) == span


def test_one_turn_of_a_thinking_template_can_be_split(byte_level):
    tokens, loss = plan_of(byte_level, THINKING).count([ONE_TURN])[0]
    assert loss == encoded(byte_level, "<think>\n\n</think>\n\nIt is 7, isn't it?<|im_end|>\n")
    assert tokens > loss


def test_tools_and_their_calls(byte_level):
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 3}}}]}
    messages = [
        {"role": "user", "content": "3 + 4?"},
        call,
        {"role": "tool", "content": "7"},
        {"role": "assistant", "content": "7."},
    ]
    tokenizer = reference(byte_level)
    for row in ({"messages": messages, "tools": tools}, {"messages": messages, "tools": None}, {"messages": messages}):
        expected = tokenizer.apply_chat_template(messages, tools=row.get("tools"), chat_template=WITH_TOOLS)["input_ids"]
        tokens, loss = plan_of(byte_level, WITH_TOOLS).count([row])[0]
        assert tokens == len(expected)
        spoken = '<tool_call>{"name": "add", "arguments": {"a": 3}}</tool_call><|im_end|>\n'
        assert loss == encoded(byte_level, spoken) + encoded(byte_level, "7.<|im_end|>\n")


def test_null_keys_are_as_good_as_missing_ones(byte_level):
    nulls = [{**message, "tool_calls": None, "name": None} for message in ONE_TURN["messages"]]
    assert plan_of(byte_level, WITH_TOOLS).count([{"messages": nulls}]) == plan_of(byte_level, WITH_TOOLS).count([ONE_TURN])


def test_rows_pass_options_to_the_template(byte_level):
    template = CHATML + "{% if enable_thinking %}thinking{% endif %}{{ greeting }}"
    plain = plan_of(byte_level, template, loss_tokens=False)
    thinking, silent = plain.count([{**ONE_TURN, "enable_thinking": True}, {**ONE_TURN, "enable_thinking": False}])
    assert thinking[0] > silent[0] == plain.count([ONE_TURN])[0][0]
    greeted = plan_of(byte_level, template, loss_tokens=False, template_options={"greeting": "hello there"})
    assert greeted.count([ONE_TURN])[0][0] > silent[0]


def test_a_longest_row_cuts_all_and_loss_alike(byte_level):
    tokens, loss = plan_of(byte_level, CHATML).count([ONE_TURN])[0]
    for max_length in range(2, tokens + 2):
        kept, kept_loss = plan_of(byte_level, CHATML, max_length=max_length).count([ONE_TURN])[0]
        assert kept == min(tokens, max_length)
        assert kept_loss == max(0, loss - (tokens - kept))


def test_zephon_ends_rows_with_eos_and_drops_those_without_loss(byte_level):
    plan = plan_of(byte_level, CHATML, delivery="zephon")
    tokens, loss = plan_of(byte_level, CHATML).count([ONE_TURN])[0]
    silent = {"messages": [{"role": "user", "content": "anybody?"}]}
    assert plan.count([ONE_TURN, silent, {"messages": []}]) == [(tokens + 1, loss + 1), (0, 0), (0, 0)]
    ended = plan_of(byte_level, BARE, delivery="zephon")
    assert ended.count([ONE_TURN]) == plan_of(byte_level, BARE).count([ONE_TURN])
    cut = plan_of(byte_level, CHATML, delivery="zephon", max_length=tokens)
    assert cut.count([ONE_TURN]) == [(tokens, loss)]
    assert plan_of(byte_level, CHATML).count([silent])[0][1] == 0 < plan_of(byte_level, CHATML).count([silent])[0][0]


def test_rows_that_deliver_nothing(byte_level):
    assert plan_of(byte_level, CHATML).count([None, BLANK_ROW, {"messages": None}, {"messages": []}]) == [(0, 0)] * 4


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a"}, "has no 'messages'"),
        ({"messages": "a text"}, "'messages' is a text"),
        ({"messages": 5}, "'messages' is a number"),
        ({"messages": ["hello"]}, "message 1 of 'messages' has no role"),
        ({"messages": [{"role": "user", "content": "a"}, {"content": "b"}]}, "message 2 of 'messages' has no role"),
        ({"messages": [{"role": "system", "content": "a"}]}, "Only user and assistant roles are supported!"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "lone surrogate"),
    ],
)
def test_a_row_that_training_refuses_is_fatal(byte_level, row, message):
    with pytest.raises(FatalCountError, match=message) as caught:
        plan_of(byte_level, BARE).count([ONE_TURN, row])
    assert caught.value.position == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"field": ""}, "names joined by dots"),
        ({"tools_field": "a."}, "names joined by dots"),
        ({"max_length": 1}, "at least 2 tokens"),
        ({"delivery": "both"}, "template or zephon"),
        ({"delivery": "zephon", "loss_tokens": False}, "loss_tokens"),
        ({"template_options": {"tools": []}}, "of the template's own"),
        ({"template_options": {"a": object()}}, "JSON has not"),
        ({"chat_template": "nowhere.jinja"}, "can't be read"),
    ],
)
def test_settings_that_can_not_be_are_refused_when_made(byte_level, settings, message):
    with pytest.raises(SpecError, match=message):
        ChatTokenCountingSpec(byte_level, **settings)


def test_the_identity_has_the_template_and_no_path(byte_level, tmp_path):
    spec = ChatTokenCountingSpec(byte_level, chat_template=CHATML)
    copied = shutil.copytree(byte_level, tmp_path / "elsewhere")
    assert ChatTokenCountingSpec(copied, chat_template=CHATML).identity() == spec.identity()
    others = [
        {"chat_template": MARKED},
        {"chat_template": CHATML, "max_length": 9},
        {"chat_template": CHATML, "field": "chat"},
        {"chat_template": CHATML, "tools_field": "functions"},
        {"chat_template": CHATML, "loss_tokens": False},
        {"chat_template": CHATML, "delivery": "zephon"},
        {"chat_template": CHATML, "template_options": {"a": 1}},
    ]
    identities = {canonical_json(ChatTokenCountingSpec(byte_level, **other).identity()) for other in others}
    assert len(identities | {canonical_json(spec.identity())}) == 8
    (copied / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<other>"}}))
    assert ChatTokenCountingSpec(copied, chat_template=CHATML).identity() != spec.identity()


def test_the_plan_says_what_it_needs(byte_level):
    plan = plan_of(byte_level, MARKED, field="a.chat")
    assert plan.description == "chat, field: a.chat, loss by {% generation %} marks"
    assert plan.paths == ("a.chat", "tools", "enable_thinking")
    assert (plan.text_path, plan.column) == (None, None)
    with pytest.raises(SpecError, match="counts rows, not texts"):
        plan.count_window("a", 0, 1)


def test_real_conversations(byte_level, shared_data):
    tokenizer = reference(byte_level)
    plan, marked = plan_of(byte_level, CHATML), plan_of(byte_level, MARKED)
    for file in sorted((shared_data / "chat").glob("*.jsonl")):
        lines = file.read_text(encoding="utf-8").splitlines()[:12]
        rows = [json.loads(line) for line in lines]
        counted = plan.count(rows)
        assert counted == marked.count(rows)
        expected = [len(tokenizer.apply_chat_template(row["messages"], chat_template=CHATML)["input_ids"]) for row in rows]
        assert [tokens for tokens, _ in counted] == expected
