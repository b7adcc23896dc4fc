"""Chat templates are found where transformers finds them, and render as it has them render."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from templates import BARE, CHATML, MARKED

from zephon_core.errors import ChatSplitError, ChatTemplateError, SpecError
from zephon_core.tokenizers.chat_template import ChatTemplate, load_chat_template, read_template, unnamed_specials

QUESTION = [{"role": "user", "content": "3 + 4?"}]
TURN = [*QUESTION, {"role": "assistant", "content": "7"}]


@pytest.fixture
def folder(byte_level: Callable[..., dict[str, Any]], tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(byte_level()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "<|im_end|>"}))
    return folder


def configure(folder: Path, **settings: object) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


def test_where_templates_are_found(folder):
    with pytest.raises(SpecError, match=r"has no chat template.*Set chat_template"):
        load_chat_template(str(folder), None)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": MARKED}))
    assert load_chat_template(str(folder), None).texts == {"default": MARKED}
    configure(folder, chat_template=BARE)
    assert load_chat_template(str(folder), None).texts == {"default": BARE}
    (folder / "chat_template.jinja").write_text(CHATML)
    found = load_chat_template(str(folder), None)
    assert found.texts == {"default": CHATML}
    assert found.origin == f"the chat template of {folder}"
    assert load_chat_template(str(folder / "tokenizer.json"), None) == found
    assert load_chat_template(str(folder), BARE).texts == {"default": BARE}


def test_a_template_of_its_own_for_rows_with_tools(folder):
    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "tools"},
        {"name": "rag", "template": "rag"},
    ]
    configure(folder, chat_template=named)
    template = load_chat_template(str(folder), None)
    assert set(template.texts) == {"default", "tool_use"}
    assert template.render(QUESTION, {}) == template.render(QUESTION, {"tools": []}) == "plain"
    assert template.render(QUESTION, {"tools": [{"type": "function"}]}) == "tools"
    configure(folder, chat_template=named[1:])
    with pytest.raises(SpecError, match="no chat template named default"):
        load_chat_template(str(folder), None)


def test_special_tokens_are_those_of_the_folder(folder):
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<no>", "pad_token": {"content": "<pad>"}}))
    template = load_chat_template(str(folder), "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token }}")
    assert template.special_tokens == {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<pad>"}
    assert template.render(QUESTION, {}) == "<s>|<|im_end|>|<pad>|"
    assert template.render(QUESTION, {"bos_token": "<own>"}).startswith("<own>|")


def test_a_broken_configuration_is_named(folder):
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(SpecError, match=r"tokenizer_config\.json: can't be read"):
        load_chat_template(str(folder), None)


def test_templates_are_read_from_files(tmp_path):
    assert read_template(CHATML) == CHATML
    (tmp_path / "t.jinja").write_text(CHATML)
    assert read_template(tmp_path / "t.jinja") == read_template(str(tmp_path / "t.jinja")) == CHATML
    with pytest.raises(SpecError, match=r"^chat_template: .* a Jinja template, or the file of one"):
        read_template(tmp_path / "nowhere.jinja")
    with pytest.raises(SpecError, match=r"^teacher_template: "):
        read_template(tmp_path / "nowhere.jinja", setting="teacher_template")


BROKEN = {
    "{% for %}": "line 1: TemplateSyntaxError: Expected an expression",
    "{{ bos_token }}\n{{ messages": "line 2: TemplateSyntaxError: unexpected end of template",
    "{{ messages | backwards }}": "line 1: TemplateAssertionError: No filter named 'backwards'",
    "{% break %}": "SyntaxError: 'break' outside loop",
}


@pytest.mark.parametrize("text", BROKEN)
def test_what_can_be_no_template_is_refused_before_any_row(folder, text):
    with pytest.raises(SpecError, match=r"^teacher_template: is no Jinja template \(.*\)\. Mend it, or give another\.$") as refused:
        load_chat_template(str(folder), text, setting="teacher_template")
    assert BROKEN[text] in str(refused.value)
    configure(folder, chat_template=[{"name": "default", "template": CHATML}, {"name": "tool_use", "template": text}])
    with pytest.raises(SpecError, match=rf"^{folder}: has a chat template named tool_use that is no Jinja template \("):
        load_chat_template(str(folder), None)


@pytest.mark.parametrize("text", ["{{ 1 / 0 }}", "{% for %}", "{{ messages[7].content.strip() }}", "{{ raise_exception('no!') }}"])
def test_what_a_template_raises_names_it(text):
    with pytest.raises(ChatTemplateError, match=r"is refused by the given one \(\w+: .*"):
        ChatTemplate({"default": text}, {}, "the given one").render(QUESTION, {})


def test_what_utf8_can_not_write_is_no_text():
    template = ChatTemplate({"default": CHATML}, {}, "the given one")
    with pytest.raises(ChatTemplateError, match="row: holds a lone surrogate, at character 20 of what the given one"):
        template.render([{"role": "user", "content": "ab\ud800"}], {})


def test_spans(folder):
    for text in (CHATML, MARKED):
        template = load_chat_template(str(folder), text)
        rendered = template.render_marked([*TURN, *TURN], {})
        assert [rendered.text[start:end] for start, end in rendered.spans] == ["7<|im_end|>\n"] * 2
        assert template.render_marked(QUESTION, {}).spans == ()
    assert load_chat_template(str(folder), MARKED).marked
    assert not load_chat_template(str(folder), CHATML).marked


def test_an_assistant_who_speaks_first(folder):
    template = load_chat_template(str(folder), CHATML)
    rendered = template.render_marked(TURN[1:], {})
    assert [rendered.text[start:end] for start, end in rendered.spans] == ["7<|im_end|>\n"]


def test_nothing_said_leaves_open_where_it_would_begin(folder):
    template = load_chat_template(str(folder), BARE)
    with pytest.raises(ChatSplitError, match="no prompt for the assistant"):
        template.render_marked([*QUESTION, {"role": "assistant", "content": " "}], {})


@pytest.mark.parametrize(
    "stated", [[5], [{"name": "default"}], {"name": "x"}, [{"template": "x"}], [{"name": ["default"], "template": "x"}], 7]
)
def test_a_configuration_of_another_shape_has_no_template(folder, stated):
    configure(folder, chat_template=stated)
    with pytest.raises(SpecError, match="has no chat template"):
        load_chat_template(str(folder), None)


def test_special_tokens_that_a_folder_does_not_name(folder):
    configure(folder, bos_token=None, eos_token={"content": "</s>"})
    assert unnamed_specials(str(folder), "bos_eos") == unnamed_specials(str(folder), "bos") == ["BOS"]
    assert unnamed_specials(str(folder), "eos") == unnamed_specials(str(folder), "none") == []
    assert unnamed_specials(str(folder), "tokenizer_default") == unnamed_specials(str(folder / "tokenizer.json"), "bos_eos") == []
