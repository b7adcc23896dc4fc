"""Islands: stretches of message content that both sides' chat templates render from the same text.

Where a template puts each piece of content is learnt by rendering the conversation a second time with a placeholder for each piece:
between the placeholders stands the template's framing, and along it the true rendering is read off from left to right. So a
reply that also stands in the user's turn is found in its own turn, and a turn without content shifts nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_core.xtoken.normalised import Fold, Folded, folded

__all__ = ["Conversation", "Islands", "Render", "RenderedPieces", "SaidPiece", "render_pieces", "said_pieces"]

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message], Mapping[str, Any]], str]
"""A chat template: messages and its other variables (tools, ...) in, one text out."""
Key = tuple[Any, ...]
"""Where a piece of content belongs: the number of its message, the field, and what leads to it there."""

_SPOKEN = 1 << 20
"""How much more a byte of the assistant's weighs than one of another's where only one of two can be matched."""

_NO_MESSAGE = 1 << 20
_MOST_CALLS = 1 << 20
_FIRST_BORDER = 3

_REASONING = ("reasoning_content", "reasoning", "thinking")
_THOUGHT = re.compile(r"(</?think(?:ing)?>)")
_OPENS_THOUGHT = re.compile(r"<think(?:ing)?>")


@dataclass(frozen=True)
class Conversation:
    """Messages, and what else a template is given: tools, documents, switches of its own."""

    messages: Sequence[Message]
    options: Mapping[str, Any]

    @staticmethod
    def of(given: Conversation | Sequence[Message]) -> Conversation:
        """Take messages alone as a conversation without options."""
        return given if isinstance(given, Conversation) else Conversation(given, {})


@dataclass(frozen=True)
class RenderedPieces:
    """A rendered conversation. pieces: from and to which byte of the text each piece stands, by its place in the messages.

    repeated: the same of pieces that the template writes several times, as often. spoken: the places of what the assistant says.
    read_off: whether all that is in no piece is known to be the template's framing.
    """

    text: bytes
    pieces: Mapping[Key, tuple[int, int]]
    repeated: Sequence[tuple[Key, tuple[int, int]]]
    spoken: frozenset[Key]
    read_off: bool


@dataclass(frozen=True)
class Islands:
    """One conversation as both sides' templates render it."""

    student: RenderedPieces
    teacher: RenderedPieces

    def between(self, student: npt.NDArray[np.uint8], teacher: npt.NDArray[np.uint8], fold: Fold) -> npt.NDArray[np.int64]:
        """Match the bytes of both sides' tokens, folded, by way of the renderings: int64 [blocks, 3] (place, place, length).

        Tokens that were sampled or cut otherwise than the template renders are matched with its rendering by a diff. So is what one
        side writes elsewhere or not at all; but words of one message are never matched with the same words of another, nor with
        the framing around messages.
        """
        from zephon_core.xtoken.alignment.difference import matching_blocks

        ours, theirs = folded(self.student.text, fold, side=1), folded(self.teacher.text, fold, side=2)
        mine = placed(student, ours.content)
        other = placed(theirs.content, teacher)
        shared = _chain(self._common(ours, theirs))
        blocks = matching_blocks(ours.content, theirs.content, shared)
        blocks = _of_one_speech(blocks, _speeches(self.student, ours, side=1), _speeches(self.teacher, theirs, side=2))
        return composed(composed(mine, blocks), other)

    def _common(self, ours: Folded, theirs: Folded) -> npt.NDArray[np.int64]:
        """Give the pieces that both sides render alike, and what a diff finds in those they render otherwise."""
        from zephon_core.xtoken.alignment.difference import matching_blocks

        found = [np.empty((0, 4), dtype=np.int64)]
        for key, (start, end) in self.student.pieces.items():
            if key not in self.teacher.pieces:
                continue
            other_start, other_end = self.teacher.pieces[key]
            i, i_end = ours.place(start), ours.place(end)
            j, j_end = theirs.place(other_start), theirs.place(other_end)
            a, b = ours.content[i:i_end], theirs.content[j:j_end]
            if np.array_equal(a, b):
                blocks = np.array([[i, j, i_end - i]], dtype=np.int64)
            else:
                blocks = matching_blocks(a, b) + np.array([i, j, 0])
            weight = blocks[:, 2:] * (_SPOKEN if key in self.student.spoken else 1)
            found.append(np.concatenate([blocks[:, :2], weight, blocks[:, 2:]], axis=1))
        return np.concatenate(found)


def _speeches(rendered: RenderedPieces, text: Folded, *, side: int) -> npt.NDArray[np.int64]:
    """Mark what each byte of a folded rendering belongs to: int64 [bytes]. Where two marks differ, nothing is matched.

    Positive for a message or call, and for what stands between its pieces. Negative for the framing between messages: beside a
    call, where one template writes what another gets with its JSON, by the messages' numbers; elsewhere by `side`, 1 or 2.
    0 where it isn't known, which goes with everything.
    """
    marks = np.zeros(len(text.content), dtype=np.int64)
    before, done = (-1, 0), 0
    found = sorted([*rendered.pieces.items(), *rendered.repeated], key=lambda item: item[1])
    for key, (start, end) in found:
        begin, stop = text.place(start), text.place(end)
        here = (int(key[0]), 1 + int(key[2]) if key[1] == "call" else 0)
        if rendered.read_off:
            marks[done:begin] = _between(before, here, side)
        marks[begin:stop] = _mark(here)
        before, done = here, stop
    if rendered.read_off:
        marks[done:] = _between(before, (_NO_MESSAGE, 0), side)
    return marks


def _mark(speech: tuple[int, int]) -> int:
    return 1 + speech[0] * _MOST_CALLS + speech[1]


def _between(before: tuple[int, int], after: tuple[int, int], side: int) -> int:
    if before[0] == after[0]:
        return _mark(before if before == after else (before[0], 0))
    if before[1] or after[1]:
        return -(_FIRST_BORDER + (before[0] + 1) * (_NO_MESSAGE + 2) + after[0] + 1)
    return -side


def _of_one_speech(
    blocks: npt.NDArray[np.int64], ours: npt.NDArray[np.int64], theirs: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Leave those bytes of the blocks out that belong to one message, call or border here and to another there."""
    out: list[npt.NDArray[np.int64]] = []
    for a, b, length in blocks.tolist():
        mine, other = ours[a : a + length], theirs[b : b + length]
        fits = (mine == other) | (mine == 0) | (other == 0) | _call_at_border(mine, other) | _call_at_border(other, mine)
        if fits.all():
            out.append(np.array([[a, b, length]], dtype=np.int64))
        else:
            edges = np.flatnonzero(np.diff(fits, prepend=False, append=False))
            starts, ends = edges[::2], edges[1::2]
            out.append(np.stack([a + starts, b + starts, ends - starts], axis=1))
    return np.concatenate(out) if out else blocks


def _call_at_border(speech: npt.NDArray[np.int64], border: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Tell where a call stands here and the border of its message there: what one template gets as JSON, another writes itself."""
    message, call = np.divmod(speech - 1, _MOST_CALLS)
    before, after = np.divmod(-border - _FIRST_BORDER, _NO_MESSAGE + 2)
    met: npt.NDArray[np.bool_] = (
        (speech > 0) & (call > 0) & (border <= -_FIRST_BORDER) & ((before - 1 == message) | (after - 1 == message))
    )
    return met


def placed(tokens: npt.NDArray[np.uint8], text: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Match two renderings of one side, which mostly are the same."""
    from zephon_core.xtoken.alignment.difference import matching_blocks

    if np.array_equal(tokens, text):
        return np.array([[0, 0, len(text)]], dtype=np.int64)
    blocks: npt.NDArray[np.int64] = matching_blocks(tokens, text)
    return blocks


def _chain(pieces: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Keep the heaviest pieces that are in order on both sides. pieces: int64 [., 4], place, place, weight, length."""
    from zephon_core.xtoken.alignment.difference import heaviest_chain

    pieces = pieces[pieces[:, 3] > 0]
    pieces = pieces[np.argsort(pieces[:, 0], kind="stable")]
    if len(pieces) > 1:
        pieces = heaviest_chain(pieces)
    blocks = pieces[:, [0, 1, 3]]
    fits = np.ones(len(blocks), dtype=np.bool_)
    fits[1:] = (blocks[1:, :2] >= blocks[:-1, :2] + blocks[:-1, 2:]).all(axis=1)
    return blocks[fits]


def composed(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Follow blocks from a to b and blocks from b to c: blocks from a to c."""
    out: list[tuple[int, int, int]] = []
    left, right = first.tolist(), second.tolist()
    i = j = 0
    while i < len(left) and j < len(right):
        a, b, length = left[i]
        b_other, c, length_other = right[j]
        start, end = max(b, b_other), min(b + length, b_other + length_other)
        if start < end:
            out.append((a + start - b, c + start - b_other, end - start))
        if b + length <= b_other + length_other:
            i += 1
        else:
            j += 1
    return np.array(out, dtype=np.int64).reshape(-1, 3)


def render_pieces(render: Render, conversation: Conversation) -> RenderedPieces:
    """Render a conversation and find its pieces of content. What the template raises is raised."""
    text = render(conversation.messages, conversation.options)
    token = _placeholder_token(text, conversation)
    pieces: list[_Piece] = []
    framing, probed = [text], False
    for parsed in (False, True):
        pieces = []
        probe = [
            dict(_Prober(token, number, parsed, pieces).fields(message)) for number, message in enumerate(conversation.messages)
        ]
        try:
            framing = re.split(rf"{token}x(\d+)z", render(probe, conversation.options)) if pieces else [text]
            probed = True
            break
        except Exception:  # a template is somebody else's program: where it refuses placeholders, a diff must do
            continue
    order = [int(number) for number in framing[1::2]]
    cores = [piece.core for piece in pieces]
    found = _read_off(text, framing[::2], order, cores)
    read_off = probed and found is not None
    if found is None:
        found = _searched(text, framing[::2], order, cores)
    times = Counter(order)
    all_found = [(pieces[number].key, times[number], found[place]) for place, number in enumerate(order) if place in found]
    spans = {key: span for key, often, span in all_found if often == 1}
    repeated = [(key, span) for key, often, span in all_found if often > 1]
    spoken = {piece.key for piece in pieces if conversation.messages[piece.key[0]].get("role") == "assistant"}
    return RenderedPieces(text.encode("utf-8"), spans, repeated, frozenset(spoken), read_off)


class SaidPiece(NamedTuple):
    """A piece of what the assistant says, whatever a template makes of it. thought: reasoning, which templates tend to forget."""

    size: int
    thought: bool


def said_pieces(conversation: Conversation) -> dict[Key, SaidPiece]:
    """Measure what the assistant says, in bytes without the white space around, by its place in the messages."""
    pieces: list[_Piece] = []
    thoughts: set[Key] = set()
    for number, message in enumerate(conversation.messages):
        if message.get("role") == "assistant":
            dict(_Prober("", number, False, pieces).fields(message))
            content = message.get("content")
            parts = _THOUGHT.split(content) if isinstance(content, str) else []
            thoughts |= {(number, "content", place + 1) for place, part in enumerate(parts) if _OPENS_THOUGHT.fullmatch(part)}
    return {key: SaidPiece(len(core.encode()), key in thoughts or key[1] in _REASONING) for key, core in pieces}


def _placeholder_token(text: str, conversation: Conversation) -> str:
    """Make letters up that the conversation has nowhere; templates neither trim nor escape them."""
    content = text + json.dumps(list(map(dict, conversation.messages)), default=str, ensure_ascii=False)
    attempt = 0
    while True:
        token = "zq" + hashlib.sha256(f"{attempt}".encode()).hexdigest()[:12]
        if token not in content:
            return token
        attempt += 1


class _Piece(NamedTuple):
    """A piece of content, without the white space around it, and where in the conversation it belongs."""

    key: Key
    core: str


class _Prober:
    """Puts placeholders in the place of a message's pieces. parsed: arguments that are JSON in a text get one for each value."""

    def __init__(self, token: str, message: int, parsed: bool, pieces: list[_Piece]) -> None:
        self._token = token
        self._message = message
        self._parsed = parsed
        self._pieces = pieces

    def fields(self, message: Message) -> Iterator[tuple[str, Any]]:
        """Yield the message's fields, and append its pieces."""
        for name, value in message.items():
            if name == "content" and isinstance(value, str):
                parts = enumerate(_THOUGHT.split(value))
                yield (
                    name,
                    "".join(part if _THOUGHT.fullmatch(part) else self._placed(part, name, number) for number, part in parts),
                )
            elif name == "content" and isinstance(value, list | tuple):
                yield name, [self._part(part, number) for number, part in enumerate(value)]
            elif name in _REASONING and isinstance(value, str):
                yield name, self._placed(value, name)
            elif name == "tool_calls" and isinstance(value, list | tuple):
                yield name, [self._call(call, number) for number, call in enumerate(value)]
            else:
                yield name, value

    def _placed(self, text: str, *where: str | int) -> str:
        core = text.strip()
        if not core:
            return text
        start = text.index(core)
        self._pieces.append(_Piece((self._message, *where), core))
        return f"{text[:start]}{self._token}x{len(self._pieces) - 1}z{text[start + len(core) :]}"

    def _part(self, part: Any, number: int) -> Any:
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            return {**part, "text": self._placed(part["text"], "content", number)}
        return part

    def _call(self, call: Any, number: int) -> Any:
        if not isinstance(call, Mapping):
            return call
        if isinstance(call.get("function"), Mapping):
            return {**call, "function": self._call(call["function"], number)}
        probed = dict(call)
        if isinstance(call.get("name"), str):
            probed["name"] = self._placed(call["name"], "call", number, "name")
        if "arguments" in call:
            probed["arguments"] = self._arguments(call["arguments"], "call", number, "arguments")
        return probed

    def _arguments(self, arguments: Any, *where: str | int) -> Any:
        if not (self._parsed and isinstance(arguments, str)):
            return self._leaves(arguments, *where)
        try:
            return json.dumps(self._leaves(json.loads(arguments), *where), ensure_ascii=False)
        except ValueError:
            return arguments

    def _leaves(self, value: Any, *where: str | int) -> Any:
        if isinstance(value, str):
            return self._placed(value, *where)
        if isinstance(value, Mapping):
            return {key: self._leaves(item, *where, str(key)) for key, item in value.items()}
        return (
            [self._leaves(item, *where, number) for number, item in enumerate(value)] if isinstance(value, list | tuple) else value
        )


def _read_off(text: str, framing: list[str], order: list[int], pieces: list[str]) -> dict[int, tuple[int, int]] | None:
    """Read a rendering along its framing: from and to of each piece in bytes, by position. None where it doesn't fit."""
    if not text.startswith(framing[0]):
        return None
    found: dict[int, tuple[int, int]] = {}
    place = len(framing[0])
    for position, number in enumerate(order):
        after = framing[position + 1]
        for written in _written(pieces[number]):
            end = place + len(written)
            if text.startswith(written, place) and text.startswith(after, end):
                found[position] = (place, end)
                place = end + len(after)
                break
        else:
            return None
    return _in_bytes(text, found) if place == len(text) else None


def _searched(text: str, framing: list[str], order: list[int], pieces: list[str]) -> dict[int, tuple[int, int]]:
    """Find the pieces by a diff with what the template would have rendered if content changed nothing about the framing."""
    from zephon_core.xtoken.alignment.difference import matching_blocks

    parts, spans, place = [framing[0]], {}, len(framing[0].encode())
    for position, number in enumerate(order):
        end = place + len(pieces[number].encode())
        spans[position] = (place, end)
        parts += [pieces[number], framing[position + 1]]
        place = end + len(framing[position + 1].encode())
    expected = "".join(parts)
    a, b = (np.frombuffer(side.encode(), dtype=np.uint8) for side in (expected, text))
    blocks = matching_blocks(a, b)
    found: dict[int, tuple[int, int]] = {}
    block = 0
    for position, (start, end) in spans.items():
        while block < len(blocks) and blocks[block, 0] + blocks[block, 2] <= start:
            block += 1
        if block < len(blocks) and blocks[block, 0] <= start and end <= blocks[block, 0] + blocks[block, 2]:
            moved = int(blocks[block, 1] - blocks[block, 0])
            found[position] = (start + moved, end + moved)
    return found


def _written(piece: str) -> Iterator[str]:
    """Yield the ways in which templates write a piece: as it is, or as JSON would."""
    yield piece
    yield json.dumps(piece, ensure_ascii=False)[1:-1]
    yield json.dumps(piece)[1:-1]


def _in_bytes(text: str, spans: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Turn places in characters into places in UTF-8."""
    if text.isascii():
        return dict(spans)
    characters = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    widths = 1 + (characters > 0x7F).astype(np.int64) + (characters > 0x7FF) + (characters > 0xFFFF)
    ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(widths)])
    return {number: (int(ends[start]), int(ends[end])) for number, (start, end) in spans.items()}
