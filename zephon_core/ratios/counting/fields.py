"""Which field of a data set's rows is counted, found by a vote of its first rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from zephon_core.errors import SpecError

__all__ = [
    "MISSING",
    "FieldPath",
    "Vote",
    "as_text",
    "kind_of",
    "label",
    "look_up",
    "names_of",
    "parse_path",
    "token_array_length",
    "vote",
]

FieldPath = tuple[str, ...]
"""Names that lead into a row, one a level; () is the row itself."""

TEXT_KEYS = ("text", "content", "document", "body", "markdown", "raw_content")
TOKEN_KEYS = ("input_ids", "tokens", "token_ids")
_VOTERS = 8
_DEEPEST = 3


class _Missing:
    """The answer where a path leads nowhere."""


MISSING = _Missing()


class Vote(NamedTuple):
    """What the first rows agreed on. tokens: it is an array of ids rather than a text. path: None where no row had either."""

    tokens: bool
    path: FieldPath | None


def parse_path(path: str, *, where: str = "field") -> FieldPath:
    """Split a dotted path. Raises SpecError for one with an empty name."""
    names = tuple(path.split(".")) if isinstance(path, str) else ()
    if not names or not all(names):
        raise SpecError(where, f"is {path!r}", wanted="names joined by dots, such as meta.body")
    return names


def look_up(payload: Any, path: FieldPath) -> Any:
    """Follow a path into a row; MISSING where it leads nowhere, None where a null is on the way."""
    value = payload
    for name in path:
        if value is None:
            return None
        if not isinstance(value, Mapping) or name not in value:
            return MISSING
        value = value[name]
    return value


def as_text(value: Any) -> str | None:
    """Return a text, or bytes that are UTF-8, as a text; None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(value).decode("utf-8")
        except UnicodeDecodeError:
            return None
    return None


def token_array_length(value: Any) -> int | None:
    """Return how many ids an array of whole numbers holds; None for anything else.

    A list is told by its first item, so an empty one is none. Arrays and tensors of any library are told by their type.
    """
    if isinstance(value, list | tuple):
        return len(value) if value and isinstance(value[0], int | np.integer) and not isinstance(value[0], bool) else None
    if isinstance(value, np.ndarray):
        return int(value.size) if value.ndim and value.dtype.kind in "iu" else None
    dtype, numel = getattr(value, "dtype", None), getattr(value, "numel", None)
    if callable(numel) and str(dtype).removeprefix("torch.").startswith(("int", "uint")):
        return int(numel())
    return None


def label(path: FieldPath) -> str:
    """Name a path in messages."""
    return f"field: {'.'.join(path)}" if path else "the row itself"


def kind_of(value: Any) -> str:
    """Say what a value is, with its article, as JSON calls it."""
    if isinstance(value, bool | np.bool_):
        return "true or false"
    if isinstance(value, int | float | np.number):
        return "a number"
    if isinstance(value, list | tuple | np.ndarray):
        return "a list"
    if isinstance(value, str):
        return "a text"
    return "an object" if isinstance(value, Mapping) else f"of type {type(value).__name__}"


def names_of(prefix: Sequence[Any]) -> list[str]:
    """List the paths to values in the first rows, the first eight of them in alphabetical order."""
    return sorted({path for payload in prefix if isinstance(payload, Mapping) for path in _paths(payload, _DEEPEST)})[:8]


def _paths(payload: Mapping[Any, Any], depth: int) -> Iterator[str]:
    for key, value in payload.items():
        if isinstance(value, Mapping) and value and depth:
            yield from (f"{key}.{path}" for path in _paths(value, depth - 1))
        else:
            yield str(key)


def vote(prefix: Sequence[Any], path: FieldPath | None) -> Vote:
    """Let the first rows say which field holds what is counted, so that a single odd one can't steer.

    path: the configured one, which leaves open only whether it holds texts or ids; None: any.
    A row votes for its first array among `TOKEN_KEYS`, else its first text among `TEXT_KEYS`, else its longest text. Arrays win a
    tie against texts; among texts the order of `TEXT_KEYS` breaks one, then the name. Rows with nulls vote if no others do.
    """
    voters = prefix[:_VOTERS]
    arrays: Counter[FieldPath] = Counter()
    texts: Counter[FieldPath] = Counter()
    for payload in voters:
        if (array := _array_path(payload, path)) is not None:
            arrays[array] += 1
        elif (text := _text_path(payload, path)) is not None:
            texts[text] += 1
    if arrays and arrays.total() >= texts.total():
        return Vote(True, _winner(arrays, TOKEN_KEYS))
    if path is not None:
        return Vote(False, path)
    if not texts:
        texts.update((key,) for row in voters if isinstance(row, Mapping) for key in TEXT_KEYS if key in row and row[key] is None)
    return Vote(False, _winner(texts, TEXT_KEYS) if texts else None)


def _winner(votes: Counter[FieldPath], keys: Sequence[str]) -> FieldPath:
    ranks: dict[FieldPath, int] = {(key,): rank for rank, key in enumerate(keys)}
    return min(votes, key=lambda path: (-votes[path], ranks.get(path, len(keys)), path))


def _array_path(payload: Any, path: FieldPath | None) -> FieldPath | None:
    candidates = [path] if path is not None else [(), *((key,) for key in TOKEN_KEYS)]
    return next((found for found in candidates if token_array_length(look_up(payload, found)) is not None), None)


def _text_path(payload: Any, path: FieldPath | None) -> FieldPath | None:
    if path is not None:
        return path if as_text(look_up(payload, path)) is not None else None
    if not isinstance(payload, Mapping):
        return () if as_text(payload) is not None else None
    texts = {key: text for key, value in payload.items() if isinstance(key, str) and (text := as_text(value)) is not None}
    if known := next((key for key in TEXT_KEYS if key in texts), None):
        return (known,)
    return (min(texts, key=lambda key: (-len(texts[key]), key)),) if texts else None
