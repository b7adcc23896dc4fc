"""Rows of messages: what the chat template makes of them, and how much of it the assistant says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from zephon_core.errors import ChatSplitError, ChatTemplateError, FatalCountError, SpecError
from zephon_core.fingerprint import canonical_json
from zephon_core.ratios.counting.fields import MISSING, kind_of, label, look_up, parse_path
from zephon_core.ratios.counting.lengths import refuse_surrogates
from zephon_core.ratios.counting.plans import COUNTED, WITH_LOSS, Count, NotTexts
from zephon_core.ratios.counting.tokenizer import check_length, check_switch, checked_tokenizer, tokenizer_of, tokenizer_sha256
from zephon_core.ratios.datasets.model import BLANK_ROW
from zephon_core.store import ArtifactStore
from zephon_core.tokenizers import Tokenizer, TokenizerBackend
from zephon_core.tokenizers.chat_template import ChatTemplate, Rendered, load_chat_template, read_template
from zephon_core.tokenizers.huggingface import small_batches

__all__ = ["ChatCounter", "ChatPlan", "ChatTokenCountingSpec", "Delivery"]

Delivery = Literal["template", "zephon"]

_THINKING = "enable_thinking"
_RESERVED = {"messages", "conversations", "tools", "documents", "chat_template", "add_generation_prompt", "continue_final_message"}


@dataclasses.dataclass(frozen=True)
class ChatTokenCountingSpec:
    """What the training delivers of a row of messages.

    tokenizer: folder or file. field: dotted path of the messages. tools_field: that of a row's tools, if it has any; a row's
    `enable_thinking` goes to the template as well.
    chat_template: a Jinja template, or the file of one; None: the tokenizer's own. template_options: more variables for it.
    max_length: longest row in tokens; the rest of a longer one is lost. None: no limit.
    loss_tokens: also count the tokens the assistant says, those that carry loss; only for templates that tell them.
    delivery: template: every row, as the template renders it. zephon: as zephon's TokenizeChat, which ends a row with EOS unless
    it ends so already, and drops rows of under two tokens or without a token that carries loss: they deliver nothing.

    Raises SpecError for settings that can't be.
    """

    tokenizer: str | Path
    field: str = "messages"
    tools_field: str = "tools"
    chat_template: str | Path | None = None
    template_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_length: int | None = None
    loss_tokens: bool = True
    delivery: Delivery = "template"

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokenizer", checked_tokenizer(self.tokenizer))
        parse_path(self.field)
        parse_path(self.tools_field, where="tools_field")
        if self.chat_template is not None:
            object.__setattr__(self, "chat_template", read_template(self.chat_template))
        check_switch("loss_tokens", self.loss_tokens)
        if not isinstance(self.template_options, Mapping):
            raise SpecError("template_options", f"are {self.template_options!r}", wanted="a mapping {variable: value}")
        if reserved := sorted(_RESERVED.intersection(self.template_options)):
            raise SpecError("template_options", f"set {', '.join(reserved)}", wanted="only variables of the template's own")
        try:
            canonical_json(dict(self.template_options))
        except TypeError as error:
            raise SpecError("template_options", f"hold a value that JSON has not ({error})") from error
        check_length(self.max_length, least=2)
        if self.delivery not in get_args(Delivery):
            raise SpecError("delivery", f"is {self.delivery!r}", wanted=" or ".join(get_args(Delivery)))
        if self.delivery == "zephon" and not self.loss_tokens:
            raise SpecError("loss_tokens", "is off", wanted="on, where rows without loss are dropped (delivery: zephon)")

    def identity(self, *, store: ArtifactStore | None = None) -> dict[str, Any]:
        """See `CountingSpec.identity`."""
        template = self._template()
        return {
            "kind": "chat",
            "tokenizer": tokenizer_sha256(str(self.tokenizer), store),
            "template": dict(template.texts),
            "special_tokens": dict(template.special_tokens),
            "template_options": dict(self.template_options),
            "field": self.field,
            "tools_field": self.tools_field,
            "max_length": self.max_length,
            "loss_tokens": self.loss_tokens,
            "delivery": self.delivery,
        }

    def build_counter(self, *, text_bytes: int = 0, threads: int = 1, store: ArtifactStore | None = None) -> ChatCounter:
        """See `CountingSpec.build_counter`. Raises SpecError for a tokenizer without template."""
        return ChatCounter(self, tokenizer_of(str(self.tokenizer)), self._template())

    def _template(self) -> ChatTemplate:
        return load_chat_template(str(self.tokenizer), None if self.chat_template is None else str(self.chat_template))


class ChatCounter:
    """See `TokenCounter`."""

    encoder = TokenizerBackend.HUGGINGFACE.value

    def __init__(self, spec: ChatTokenCountingSpec, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._spec = spec
        self._tokenizer = tokenizer
        self._template = template

    def plan(self, prefix: Sequence[Any]) -> ChatPlan:
        """See `TokenCounter.plan`. There is nothing to vote on."""
        return ChatPlan(self._spec, self._tokenizer, self._template)


class ChatPlan(NotTexts):
    """Counts rendered conversations. A row whose messages are null delivers nothing, and so does one without any message."""

    def __init__(self, spec: ChatTokenCountingSpec, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._spec = spec
        self._path = parse_path(spec.field)
        self._tools_path = parse_path(spec.tools_field, where="tools_field")
        self._huggingface = tokenizer.huggingface
        self._template = template
        self._eos = self._eos_id() if spec.delivery == "zephon" else None
        self.outputs = WITH_LOSS if spec.loss_tokens else COUNTED
        self.paths = (spec.field, spec.tools_field, _THINKING)
        self.description = f"chat, {label(self._path)}" + (f", loss by {self._loss_rule()}" if spec.loss_tokens else "")

    def count(self, payloads: Sequence[Any]) -> list[Count | None]:
        """See `CountPlan.count`."""
        counts: list[Count | None] = [(0,) * len(self.outputs) for _ in payloads]
        rendered, rows = [], []
        for row, payload in enumerate(payloads):
            try:
                conversation = self._render(payload)
            except FatalCountError as error:
                error.position = row
                raise
            if conversation is not None:
                refuse_surrogates(conversation.text, row)
                rendered.append(conversation)
                rows.append(row)
        done = 0
        for batch in small_batches([conversation.text for conversation in rendered]):
            for encoding in self._huggingface.encode_batch(batch, add_special_tokens=False):
                counts[rows[done]] = self._delivered(encoding, rendered[done])
                done += 1
        return counts

    def _render(self, payload: Any) -> Rendered | None:
        messages = None if payload is BLANK_ROW else look_up(payload, self._path)
        if messages is None or (isinstance(messages, Sequence) and not messages):
            return None
        name = self._spec.field
        remedy = "Fix the row, or name another field."
        if messages is MISSING:
            raise FatalCountError("row", f"has no {name!r}", wanted="a list of messages", remedy=remedy)
        if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
            raise FatalCountError("row", f"{name!r} is {kind_of(messages)}", wanted="a list of messages", remedy=remedy)
        for position, message in enumerate(messages):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                found = f"message {position + 1} of {name!r} has no role"
                raise FatalCountError("row", found, wanted="an object with role and content", remedy=remedy)
        options = self._options(payload)
        try:
            if self._spec.loss_tokens:
                return self._template.render_marked(messages, options)
            return Rendered(self._template.render(messages, options))
        except ChatTemplateError as error:  # so it would in the training
            way_out = f"{error.remedy} Or set loss_tokens: false." if isinstance(error, ChatSplitError) else error.remedy
            raise FatalCountError(error.where, error.found, wanted=error.wanted, remedy=way_out) from error

    def _options(self, payload: Any) -> dict[str, Any]:
        options = dict(self._spec.template_options)
        for name, path in (("tools", self._tools_path), (_THINKING, (_THINKING,))):
            value = look_up(payload, path)
            if value is not MISSING and value is not None:
                options[name] = value
        return options

    def _delivered(self, encoding: Any, conversation: Rendered) -> Count:
        """Count an encoded conversation. A token that a span of the assistant's reaches into carries loss."""
        tokens = len(encoding)
        kept = tokens if self._spec.max_length is None else min(tokens, self._spec.max_length)
        if not self._spec.loss_tokens:
            return (kept,)
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)[:kept]
        carries_loss = np.zeros(kept, dtype=np.bool_)
        for start, end in conversation.spans:
            carries_loss |= (offsets[:, 0] < end) & (offsets[:, 1] > start)
        loss = int(carries_loss.sum())
        if self._eos is None:
            return kept, loss
        if kept and encoding.ids[kept - 1] != self._eos and kept != self._spec.max_length:
            loss += int(carries_loss[-1])
            kept += 1
        return (kept, loss) if kept >= 2 and loss else (0, 0)

    def _eos_id(self) -> int:
        token = self._template.special_tokens.get("eos_token")
        token_id: int | None = None if token is None else self._huggingface.token_to_id(token)
        if token_id is None:
            raise SpecError(
                "delivery", "is zephon, which ends rows with EOS, and the tokenizer names none", wanted="delivery: template"
            )
        return token_id

    def _loss_rule(self) -> str:
        return "{% generation %} marks" if self._template.marked else "comparing renderings"
