# ruff: noqa: RUF001
"""Chat templates of the well-known shapes, as plain functions, and datums made by them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from zephon_core.tokenizers import Tokenizer
from zephon_core.xtoken import TrainDatum, tabulate

Message = Mapping[str, Any]


def chatml(messages: Sequence[Message], options: Mapping[str, Any]) -> str:
    """As Qwen's: reasoning in marks, kept in every turn; tool calls as JSON; what tools say is a user's turn."""
    text = f"<|im_start|>system\n{json.dumps(options['tools'])}<|im_end|>\n" if options.get("tools") else ""
    for message in messages:
        role = "user" if message["role"] == "tool" else message["role"]
        text += f"<|im_start|>{role}\n"
        if message.get("reasoning_content"):
            text += f"<think>\n{message['reasoning_content'].strip()}\n</think>\n\n"
        content = message.get("content") or ""
        text += f"<tool_response>\n{content}\n</tool_response>" if message["role"] == "tool" else content
        for call in message.get("tool_calls") or []:
            function = call["function"]
            arguments = function["arguments"]
            if not isinstance(arguments, str):
                arguments = json.dumps(arguments, ensure_ascii=False)
            text += f'\n<tool_call>\n{{"name": "{function["name"]}", "arguments": {arguments}}}\n</tool_call>'
        text += "<|im_end|>\n"
    return text


def stripping(messages: Sequence[Message], options: Mapping[str, Any]) -> str:
    """As those that trim content, forget earlier reasoning, leave silent turns out and write arguments one by one."""
    text = "<｜begin▁of▁sentence｜>"
    for number, message in enumerate(messages):
        content = (message.get("content") or "").strip()
        calls = message.get("tool_calls") or []
        if message["role"] == "assistant":
            reasoning = message.get("reasoning_content") or ""
            if "</think>" in content:
                reasoning, content = (part.strip() for part in content.removeprefix("<think>").split("</think>", 1))
            if not content and not calls:
                continue
            text += "<｜Assistant｜>"
            if number == len(messages) - 1 and reasoning:
                text += f"<think>{reasoning}</think>"
            text += content
            for call in calls:
                arguments = call["function"]["arguments"]
                arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
                text += f"\ncall {call['function']['name']}\n" + "".join(f"[{key}] {value}\n" for key, value in arguments.items())
            text += "<｜end▁of▁sentence｜>"
        else:
            text += {"user": "<｜User｜>", "tool": "Result: "}.get(message["role"], "") + content
    return text


def gemma(messages: Sequence[Message], options: Mapping[str, Any]) -> str:
    """Another role's name and other markers, all plain text."""
    turns = [(("model" if m["role"] == "assistant" else m["role"]), (m.get("content") or "").strip()) for m in messages]
    return "<bos>" + "".join(f"<start_of_turn>{role}\n{content}<end_of_turn>\n" for role, content in turns)


def system_last(messages: Sequence[Message], options: Mapping[str, Any]) -> str:
    """Reorders: the system's message goes to the end of the last user's turn."""
    system = "".join(m["content"] for m in messages if m["role"] == "system")
    rest = [dict(m) for m in messages if m["role"] != "system"]
    last = max(number for number, m in enumerate(rest) if m["role"] == "user")
    rest[last]["content"] += f"\n\n{system}"
    return stripping(rest, {})


def said(text: str, pieces: Sequence[str], tokenizer: Tokenizer, ids: Sequence[int]) -> list[float]:
    """The loss mask: 1.0 on tokens within the pieces, which the assistant says in this order, several in one turn or not."""
    spans, place = [], 0
    for piece in pieces:
        here = text.find(piece, place, text.index("<|im_end|>", place)) if place else -1
        start = here if here >= 0 else text.index(piece, text.index("<|im_start|>assistant", place))
        place = start + len(piece)
        spans.append((len(text[:start].encode()), len(text[:place].encode())))
    starts = tabulate(tokenizer).spans(np.asarray(ids)).starts.tolist()
    return [float(any(a <= i and j <= b and i < j for a, b in spans)) for i, j in itertools.pairwise(starts)]


def make_datum(ids: Sequence[int], mask: Sequence[float]) -> TrainDatum:
    """A datum of these tokens."""
    return TrainDatum(
        trial_name="chat",
        fragment_index=0,
        model_input_tokens=list(ids),
        loss_mask=list(mask),
        sampled_logprobs=[-0.5 * value for value in mask],
    )


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text."""
    ids: list[int] = tokenizer.encode_batch([text]).ids.tolist()
    return ids


Render = Callable[[Sequence[Message], Mapping[str, Any]], str]
