"""Rows of any source, one by one, as Python values with their origin: for whatever needs few rows or no speed.

What a row of JSONL is, and what is wrong with it, is decided here for everyone, by the standard library's parser.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zephon_core.errors import BadRowError
from zephon_core.readers.arrow import iter_arrow
from zephon_core.readers.jsonl import DEFAULT_MAX_ROW_BYTES, LongLine, iter_lines
from zephon_core.readers.parquet import iter_parquet
from zephon_core.readers.sources import Source

__all__ = ["MAX_DEPTH", "Origin", "Row", "RowProblem", "is_blank", "iter_rows", "parse_line", "row_error", "too_long"]

MAX_DEPTH = 512
"""How deep objects and lists may nest in a row; the standard library's own limit moves with the depth of the calling stack."""

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


class RowProblem(Exception):
    """What is wrong with one row.

    reason: one of a few names to count by. found, wanted: as in ZephonError.
    """

    def __init__(self, reason: str, found: str, wanted: str = "") -> None:
        self.reason = reason
        self.found = found
        self.wanted = wanted
        super().__init__(f"{found}, expected {wanted}" if wanted else found)


@dataclass(frozen=True)
class Origin:
    """Where a row stands: line (JSONL) or row (Parquet, Arrow) from 1, and where its bytes begin in the decompressed stream."""

    source: Source
    row: int
    byte_offset: int | None


@dataclass(frozen=True)
class Row:
    """A row as Python values: whatever JSON value the line holds, or a dictionary of the columns."""

    origin: Origin
    payload: Any


def iter_rows(source: Source, *, paths: Sequence[str] | None = None, max_row_bytes: int = DEFAULT_MAX_ROW_BYTES) -> Iterator[Row]:
    """Yield the rows of a source in order; empty lines are none.

    paths: field paths; columns of Parquet and Arrow files that none begins with are left out. None: all.
    Raises BadRowError at a row that can't be parsed, InputError for a source that is corrupt or cut short.
    """
    if source.format == "jsonl":
        yield from _iter_jsonl(source, max_row_bytes)
        return
    batches = (
        iter_parquet(source, paths=paths, max_row_bytes=max_row_bytes)
        if source.format == "parquet"
        else iter_arrow(source, paths=paths)
    )
    for part in batches:
        for number in range(part.batch.num_rows):
            origin = Origin(source, part.first_row + number, None)
            try:
                payload = part.batch.slice(number, 1).to_pylist()[0]
            except (ValueError, OverflowError, KeyError) as error:  # KeyError: a type that pyarrow has no class for
                problem = RowProblem("no Python value", f"can't be turned into Python values ({error})")
                raise row_error(origin, problem, "Fix the row.") from error
            yield Row(origin, payload)


def _iter_jsonl(source: Source, max_row_bytes: int) -> Iterator[Row]:
    for number, offset, line in iter_lines(source, max_row_bytes=max_row_bytes):
        origin = Origin(source, number, offset)
        try:
            if isinstance(line, LongLine):
                raise too_long(line.length, max_row_bytes)
            if is_blank(line):
                continue
            payload = parse_line(line)
        except RowProblem as problem:
            raw = line.head if isinstance(line, LongLine) else line
            raise row_error(origin, problem, "Fix the row.", raw) from None
        yield Row(origin, payload)


def row_error(origin: Origin, problem: RowProblem, remedy: str, raw: bytes = b"") -> BadRowError:
    """Say where a bad row stands and what is wrong with it.

    raw: how its line begins; if the very first line shows that the file is no JSONL, the remedy is another one.
    """
    where = f"{origin.source.url}:{origin.row}"
    if origin.byte_offset is not None:
        where += f" (byte {origin.byte_offset:,})"
    other = _other_format(origin.source, problem, raw) if origin.row == 1 and origin.source.format == "jsonl" else ""
    return BadRowError(where, problem.found, wanted=problem.wanted, remedy=other or remedy)


def _other_format(source: Source, problem: RowProblem, raw: bytes) -> str:
    """Say what a file is, if its name or its first line show that it isn't one row a line."""
    name = source.url.lower()
    begin = raw.lstrip()
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in raw[:64]:
        return "The file is no JSONL: it looks like UTF-16. Save it as UTF-8, one JSON object a line."
    if name.endswith((".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst")):
        return "The file is no JSONL but a table of text. Convert it: one JSON object a line, or Parquet."
    if begin.startswith(b"["):
        ends_here = source.compression == "none" and len(raw.rstrip()) + len(b"\r\n") >= source.bytes
        if problem.reason == "broken JSON" and (ends_here or not _goes_on(begin)):
            return "The file is no JSONL but one JSON array, and a broken one. Write it again: one JSON object a line."
        return (
            "The file is no JSONL but one JSON array. If that is whole, write its items one a line (jq -c '.[]' FILE > FILE.jsonl)."
        )
    if begin.strip() == b"{":
        return "The file is no JSONL: its rows go over several lines. Write each on one line (jq -c . FILE > FILE.jsonl)."
    return ""


def _goes_on(line: bytes) -> bool:
    """Tell whether broken JSON is right as far as it goes, so that the next line may complete it."""
    text = line.decode("utf-8", "replace").rstrip()
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.pos >= len(text)
    return True


def too_long(length: int, max_row_bytes: int) -> RowProblem:
    """Describe a row of `length` bytes where `max_row_bytes` are allowed."""
    return RowProblem("too long", f"is {length:,} bytes long", f"at most {max_row_bytes:,}")


def is_blank(line: bytes) -> bool:
    """Tell whether a line holds nothing but JSON's white space: such a line is no row."""
    return not line.strip(b" \t\r\n")


def parse_line(line: bytes) -> Any:
    """Parse a line as JSON: UTF-8 and nothing else, NaN and the infinities allowed, of duplicate names the last one wins.

    Integers of more digits than Python turns into int (4,300) become floats. Raises RowProblem.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RowProblem("invalid UTF-8", f"is no valid UTF-8 at byte {error.start} of the row") from None
    if _depth(line) > MAX_DEPTH:
        raise RowProblem("nested too deeply", "is nested too deeply", f"at most {MAX_DEPTH} levels")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise RowProblem("broken JSON", f"is broken JSON ({error.msg} at character {error.pos + 1} of the row)") from None
    except RecursionError:
        raise RowProblem("nested too deeply", "is nested too deeply for this call stack") from None
    except ValueError:
        return json.loads(text, parse_int=float)


def _depth(line: bytes) -> int:
    """Return how deep brackets nest outside strings."""
    if line.count(b"[") + line.count(b"{") <= MAX_DEPTH:
        return 0
    bare = np.frombuffer(_STRING.sub(b"", line), np.uint8)
    steps = np.zeros(len(bare), np.int8)
    steps[(bare == ord("[")) | (bare == ord("{"))] = 1
    steps[(bare == ord("]")) | (bare == ord("}"))] = -1
    return int(np.cumsum(steps, dtype=np.int64).max(initial=0))
