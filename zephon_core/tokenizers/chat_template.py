"""A chat template: messages in, one text out, with the stretches of it that the assistant said."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from zephon_core.errors import ChatSplitError, ChatTemplateError, MissingExtraError, SpecError
from zephon_core.words import in_words

__all__ = ["ChatTemplate", "Rendered", "load_chat_template", "named_specials", "read_template", "unnamed_specials"]

Message = Mapping[str, Any]

_MAP, _CONFIG = "special_tokens_map.json", "tokenizer_config.json"
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_DEFAULT, _WITH_TOOLS = "default", "tool_use"
_WAY_OUT = "Give a chat template with {% generation %} marks around what the assistant says."


@dataclass(frozen=True)
class Rendered:
    """A conversation as text. spans: from and to which characters the assistant speaks, in order; empty where that wasn't asked."""

    text: str
    spans: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class ChatTemplate:
    """A template as transformers renders it.

    texts: by name; "tool_use", if there, is for rows with tools. special_tokens: what templates know as bos_token and so on.
    origin: its name in messages.
    """

    texts: Mapping[str, str]
    special_tokens: Mapping[str, str]
    origin: str

    @property
    def marked(self) -> bool:
        """Whether each of its texts marks what the assistant says."""
        return all(_GENERATION.search(text) for text in self.texts.values())

    def render(self, messages: Sequence[Message], options: Mapping[str, Any], *, prompt: bool = False) -> str:
        """Render a conversation. prompt: with what makes the assistant speak next at its end.

        Raises ChatTemplateError for one that the template refuses or fails on: so it would in a training.
        """
        return self._render(messages, options, prompt=prompt)[0]

    def render_marked(self, messages: Sequence[Message], options: Mapping[str, Any]) -> Rendered:
        """Render a conversation, and tell what the assistant says: by marks, else by rendering its beginnings and comparing.

        A message of the assistant begins where the conversation before it, with the prompt for it, ends, and ends where the
        conversation up to it does. Templates that drop earlier thoughts render it otherwise once others follow: then it ends where,
        with a plain message in its place, what follows begins. Where neither rendering fits the whole, or where there is no prompt
        and the message doesn't begin with its content (so that a header would count for said), ChatSplitError names the template.
        """
        if _GENERATION.search(self._text(options)):
            text, spans = self._render(messages, options, marks=True)
            return Rendered(text, tuple((start, end) for start, end in spans))
        whole = self.render(messages, options)
        spoken = [position for position, message in enumerate(messages) if message.get("role") == "assistant"]
        return Rendered(whole, tuple(self._span(whole, messages, position, options) for position in spoken))

    def _span(self, whole: str, messages: Sequence[Message], position: int, options: Mapping[str, Any]) -> tuple[int, int]:
        before = self.render(messages[:position], options, prompt=True)
        upto = self.render(messages[: position + 1], options)
        if not (whole.startswith(upto) and upto.startswith(before)):
            span = self._span_among_others(whole, messages, position, options, before, upto)
            if span is None:
                raise self._refused(f"renders message {position + 1} of {len(messages)} otherwise once others follow it")
            return span
        if not self._prompts and before == self.render(messages[:position], options):
            content = messages[position].get("content")
            said = upto[len(before) :].lstrip()
            if not isinstance(content, str) or not content.strip() or not said.startswith(content.strip()):
                raise self._refused("has no prompt for the assistant, so where its messages begin can't be told")
        return len(before), len(upto)

    def _span_among_others(
        self, whole: str, messages: Sequence[Message], position: int, options: Mapping[str, Any], before: str, upto: str
    ) -> tuple[int, int] | None:
        """Find a message by what surrounds a plain one in its place, which says a word of its own; None where the whole differs.

        It begins after the prompt. Where that goes on to close thoughts which the whole leaves out, it begins where the plain one
        does. What ends the plain message must end the real one as well, here and as the last of a conversation.
        """
        word = next(word for number in itertools.count() if (word := f"Placeholder{number}x") not in whole)
        plain = {"role": messages[position]["role"], "content": word}
        try:
            head, *rest = self.render([*messages[:position], plain, *messages[position + 1 :]], options).split(word)
            end = self.render([*messages[:position], plain], options).split(word)[-1]
            prompt = before.removeprefix(self.render(messages[:position], options))
        except ChatTemplateError:  # the template wants something else in its place
            return None
        if not self._prompts or len(rest) != 1 or not rest[0].startswith(end) or not whole.startswith(head):
            return None
        following = rest[0][len(end) :]
        start = len(before) if whole.startswith(before) else len(head)
        begins = whole.startswith(before) or head.endswith(prompt) or before.startswith(head)
        stop = len(whole) - len(following)
        ends = whole.endswith(following) and start <= stop and whole[start:stop].endswith(end) and upto.endswith(end)
        return (start, stop) if begins and ends else None

    def _refused(self, what: str) -> ChatSplitError:
        found = f"can't be split into what the assistant says and the rest: {self.origin} {what}"
        return ChatSplitError("row", found, remedy=_WAY_OUT)

    @cached_property
    def _prompts(self) -> bool:
        """Whether the template is known to set a prompt before what the assistant says."""
        probe = [{"role": "user", "content": "?"}]
        try:
            return self.render(probe, {}) != self.render(probe, {}, prompt=True)
        except ChatTemplateError:  # it asks for more than a question; then each row is looked at
            return False

    def _text(self, options: Mapping[str, Any]) -> str:
        name = _WITH_TOOLS if options.get("tools") and _WITH_TOOLS in self.texts else _DEFAULT
        return self.texts[name]

    def _render(
        self, messages: Sequence[Message], options: Mapping[str, Any], *, prompt: bool = False, marks: bool = False
    ) -> tuple[str, list[tuple[int, int]]]:
        render = _renderer()
        # As transformers' apply_chat_template does: a key that is null (a column of Arrow's) is as good as not there.
        conversation = [{key: value for key, value in message.items() if value is not None} for message in messages]
        try:
            texts, spans = render(
                conversations=[conversation],
                chat_template=self._text(options),
                add_generation_prompt=prompt,
                return_assistant_tokens_mask=marks,
                **{**self.special_tokens, **options},
            )
        except Exception as error:  # a template is a program of somebody else's: whatever it raises, it raises in the training
            found = f"is refused by {self.origin} ({in_words(error)})"
            raise ChatTemplateError("row", found, remedy="Fix or drop the row, or give another chat template.") from error
        try:
            texts[0].encode("utf-8")
        except UnicodeEncodeError as error:
            found = f"holds a lone surrogate, at character {error.start + 1:,} of what {self.origin} makes of it"
            raise ChatTemplateError("row", found, wanted="text that UTF-8 can write", remedy="Fix or drop the row.") from error
        return texts[0], spans[0] if marks else []


def _check_syntax(text: str, where: str, found: str) -> None:
    """Raise SpecError for what can't be a template, whatever it is given: that is no fault of any row."""
    try:
        from jinja2 import TemplateError, TemplateSyntaxError
        from transformers.utils.chat_template_utils import _compile_jinja_template
    except ImportError:  # rendering says what is missing
        return
    try:
        _compile_jinja_template(text)
    except (TemplateError, SyntaxError) as error:
        line = f"line {error.lineno}: " if isinstance(error, TemplateSyntaxError) else ""
        raise SpecError(where, f"{found} ({line}{in_words(error)})", remedy="Mend it, or give another.") from error


def _renderer() -> Any:
    try:
        import jinja2  # noqa: F401
        from transformers.utils.chat_template_utils import render_jinja_template
    except ImportError as error:
        raise MissingExtraError(
            "chat rows", f"need {error.name or 'transformers'}", remedy="pip install 'zephon-flows[encode]'."
        ) from error
    return render_jinja_template


def read_template(template: str | Path, *, setting: str = "chat_template") -> str:
    """Return a template given as text, or in a file. Raises SpecError, which names the setting, for a file that isn't there."""
    if isinstance(template, str) and "{" in template:
        return template
    try:
        return Path(template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        found = f"names {template}, which can't be read ({error})"
        raise SpecError(setting, found, wanted="a Jinja template, or the file of one") from error


def load_chat_template(tokenizer: str, given: str | None, *, setting: str = "chat_template") -> ChatTemplate:
    """Find a tokenizer's template and special tokens in its folder.

    given: the text of another template to use instead. setting: what gives one, in messages.

    Raises SpecError where there is none, where it is no template, or where the folder's files can't be read.
    """
    folder = _folder(tokenizer)
    config = _json_object(folder / _CONFIG)
    special = named_specials(tokenizer)
    if given is not None:
        _check_syntax(given, setting, "is no Jinja template")
        return ChatTemplate({_DEFAULT: given}, special, f"the given {setting}")
    texts = _templates(folder, config)
    if _DEFAULT not in texts:
        found = f"has no chat template{' named default' if texts else ''}"
        raise SpecError(str(folder), found, wanted="chat_template.jinja, or one in tokenizer_config.json", remedy=f"Set {setting}.")
    for name, text in texts.items():
        _check_syntax(text, str(folder), f"has a chat template named {name} that is no Jinja template")
    return ChatTemplate(texts, special, f"the chat template of {folder}")


def named_specials(tokenizer: str) -> dict[str, str]:
    """Return the special tokens that a tokenizer's folder names, by what they are for: {"eos_token": "</s>"}."""
    folder = _folder(tokenizer)
    tokens = {**_json_object(folder / _MAP), **_json_object(folder / _CONFIG)}
    return {name: token for name in _SPECIAL_TOKENS if (token := _content(tokens.get(name))) is not None}


def unnamed_specials(tokenizer: str, mode: str) -> list[str]:
    """List what `special_tokens: mode` adds to rows and a tokenizer's folder names none for; empty where nothing can tell."""
    folder = Path(tokenizer)
    if not any((folder / name).is_file() for name in (_MAP, _CONFIG)):
        return []
    named = named_specials(tokenizer)
    return [part.upper() for part in ("bos", "eos") if part in mode.split("_") and f"{part}_token" not in named]


def _folder(tokenizer: str) -> Path:
    path = Path(tokenizer)
    return path if path.is_dir() else path.parent


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return {_DEFAULT: read_template(file)}
    stated = config.get("chat_template") or _json_object(folder / "chat_template.json").get("chat_template")
    if isinstance(stated, str):
        return {_DEFAULT: stated}
    entries = [entry for entry in stated if isinstance(entry, dict)] if isinstance(stated, list) else []
    texts = {name: entry.get("template") for entry in entries if (name := entry.get("name")) in (_DEFAULT, _WITH_TOOLS)}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _json_object(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise SpecError(str(file), f"can't be read ({error})", wanted="a JSON object") from error
    return value if isinstance(value, dict) else {}


def _content(token: Any) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None
