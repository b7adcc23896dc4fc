"""Texts and conversations to look at a pair of tokenizers with, from files of any size, one by one, with their place."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import orjson

from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.readers import Origin, Source, iter_rows, resolve_sources
from zephon_core.readers.arrow import iter_arrow
from zephon_core.readers.jsonl import DEFAULT_MAX_ROW_BYTES, LongLine, iter_lines
from zephon_core.readers.parquet import iter_parquet
from zephon_core.readers.rows import RowProblem, is_blank, row_error, too_long
from zephon_core.xtoken.alignment.islands import Conversation, Message
from zephon_core.xtoken.datums import check_names

__all__ = ["Sample", "SampleInput", "conversation_of", "named_samples", "read_samples"]

_PLAIN = (".txt", ".txt.gz", ".txt.zst")
_REMEDY = "Fix the row."


class Sample(NamedTuple):
    """A text or a conversation. place: where it comes from, in words."""

    place: str
    content: str | Conversation


SampleInput = Sample | str | Conversation | Sequence[Message]


def named_samples(given: Iterable[SampleInput]) -> Iterator[Sample]:
    """Give what has no place one: its number, from 1."""
    for number, content in enumerate(given, start=1):
        if isinstance(content, Sample):
            yield content
        elif isinstance(content, str):
            yield Sample(f"text {number:,}", content)
        else:
            yield Sample(f"conversation {number:,}", Conversation.of(content))


def read_samples(
    *sources: str, text_field: str = "text", messages_field: str = "messages", progress: Progress = NULL_PROGRESS
) -> Iterator[Sample]:
    """Return the rows of sources (paths, globs or fsspec URLs) that have messages as conversations, the others as texts.

    JSONL, Parquet and Arrow, or, where a name ends in .txt, one text a line. A row's `tools` are the conversation's.
    Raises InputError for a source that can't be read, at once where it isn't there or a column is there twice; the iterator raises
    BadRowError for a row that has neither, or holds what is no text.
    """
    found = resolve_sources(sources, progress=progress)
    paths = (messages_field, "tools", text_field)
    for source in found:
        if not _is_plain(source):
            _check_columns(source, paths)
    return (sample for source in found for sample in _samples(source, paths))


def _is_plain(source: Source) -> bool:
    return source.url.lower().endswith(_PLAIN)


def _check_columns(source: Source, paths: tuple[str, str, str]) -> None:
    read = iter_parquet if source.format == "parquet" else iter_arrow if source.format == "arrow" else None
    first = None if read is None else next(read(source, paths=paths), None)
    if first is not None:
        check_names(source.url, first.batch.schema.names)


def _samples(source: Source, paths: tuple[str, str, str]) -> Iterator[Sample]:
    if _is_plain(source):
        yield from _lines(source)
        return
    messages_field, _, text_field = paths
    for row in iter_rows(source, paths=paths):
        try:
            content = _content(row.payload, text_field, messages_field, filled=source.format != "jsonl")
        except RowProblem as problem:
            raise row_error(row.origin, problem, _REMEDY) from None
        yield Sample(_place(row.origin), content)


def conversation_of(
    payload: Mapping[str, Any], *, messages_field: str = "messages", tools_field: str = "tools", filled: bool = True
) -> Conversation:
    """Take the messages of a row, and its tools if it has any: lists of objects, or JSON in a text.

    filled: nulls within lists and objects are Arrow's, which gives every row the fields of all: they are left out, as trainers do.
    In JSON they stay. Raises RowProblem for what are no messages or no tools.
    """
    messages, tools = (_value(payload, field, filled=filled) for field in (messages_field, tools_field))
    wanted = "an object with role and content"
    if not _is_list(messages):
        raise RowProblem("no messages", f"{messages_field!r} is {_kind(messages)}", "a list of messages")
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, Mapping):
            raise RowProblem("no messages", f"message {number} of {messages_field!r} is {_kind(message)}", wanted)
        if not isinstance(message.get("role"), str):
            raise RowProblem("no messages", f"message {number} of {messages_field!r} has no role", wanted)
    if tools is None:
        return Conversation(messages, {})
    if not _is_list(tools):
        raise RowProblem("no tools", f"{tools_field!r} is {_kind(tools)}", "a list of tools")
    return Conversation(messages, {"tools": tools})


def _lines(source: Source) -> Iterator[Sample]:
    for number, offset, line in iter_lines(source, max_row_bytes=DEFAULT_MAX_ROW_BYTES):
        origin = Origin(source, number, offset)
        try:
            if isinstance(line, LongLine):
                raise too_long(line.length, DEFAULT_MAX_ROW_BYTES)
            if is_blank(line):
                continue
            yield Sample(_place(origin), line.decode("utf-8"))
        except UnicodeDecodeError as error:
            problem = RowProblem("invalid UTF-8", f"is no valid UTF-8 at byte {error.start} of the line")
            raise row_error(origin, problem, "Fix the line.") from None
        except RowProblem as problem:
            raise row_error(origin, problem, "Fix the line.") from None


def _place(origin: Origin) -> str:
    return f"{origin.source.url}:{origin.row}"


def _content(payload: Any, text_field: str, messages_field: str, *, filled: bool) -> str | Conversation:
    row = payload if isinstance(payload, Mapping) else {text_field: payload}
    if row.get(messages_field) is not None:
        return conversation_of(row, messages_field=messages_field, filled=filled)
    text = row.get(text_field)
    if not isinstance(text, str):
        raise RowProblem("no text", f"has no {messages_field!r}, and {text_field!r} is {_kind(text)}", "a text, or messages")
    _refuse_surrogates(text, text_field)
    return text


def _value(payload: Mapping[str, Any], field: str, *, filled: bool) -> Any:
    value = payload.get(field)
    if isinstance(value, str):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError as error:
            _refuse_surrogates(value, field)
            with suppress(ValueError, RecursionError):  # what orjson refuses for a lone surrogate only
                _refuse_surrogates(json.loads(value), field)
            raise RowProblem("broken JSON", f"{field!r} is a text that is no JSON ({error})", "a list, or one as JSON") from None
    _refuse_surrogates(value, field)
    return _without_nulls(value) if filled else value


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if _is_list(value) else value


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _kind(value: Any) -> str:
    if value is None:
        return "null or not there"
    names = {str: "a text", bool: "true or false", int: "a number", float: "a number", dict: "an object", list: "a list"}
    return names.get(type(value), f"a {type(value).__name__}")


def _refuse_surrogates(value: Any, field: str) -> None:
    """Refuse halves of surrogate pairs, which JSON can write and UTF-8 can't."""
    inside = [value]
    while inside:
        part = inside.pop()
        if isinstance(part, str):
            try:
                part.encode("utf-8")
            except UnicodeEncodeError as error:
                found = f"{field!r} holds half of a surrogate pair ({part[error.start]!a} at character {error.start + 1})"
                raise RowProblem("lone surrogate", found, "text that UTF-8 can write") from None
        elif isinstance(part, Mapping):
            inside += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple):
            inside += part
