"""One block of rows to its texts and their digests: the work of a scan that runs in parallel, whatever the format."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from zephon_core.bank.scan.arrays import Bytes, Ints
from zephon_core.bank.scan.fields import FieldTable
from zephon_core.bank.scan.json_rows import LINES, POSITION, REFUSED, ROWS, SCRATCH, TEXTS, parse_rows
from zephon_core.bank.scan.reference import line_texts
from zephon_core.bank.scan.sha1 import hash_texts
from zephon_core.bank.scan.simd import PADDING
from zephon_core.bank.scan.text import strip_texts
from zephon_core.readers.jsonl import LineBlock, LongLine
from zephon_core.readers.rows import MAX_DEPTH, RowProblem, too_long

__all__ = ["BadRow", "Buffers", "ParsedBlock", "parse_lines", "parse_long_line"]

_KEPT_TEXTS = 1 << 17


@dataclass(frozen=True)
class BadRow:
    """A row that is set aside. row: from 1 in its block. raw: its bytes, or the first of them. length: of all of them."""

    row: int
    byte_offset: int | None
    problem: RowProblem
    raw: bytes
    length: int


@dataclass
class ParsedBlock:
    """The texts of some rows, in order.

    data: uint8, with PADDING bytes beyond the last text. starts, lengths: int64 [n], spans of stripped, non-empty UTF-8.
    fields: uint8 [n]. digests: uint8 [n, 20]. rows: how many, bad ones included. lines: how far row numbers advance.
    """

    data: Bytes
    starts: Ints
    lengths: Ints
    fields: Bytes
    digests: Bytes
    rows: int
    lines: int
    stored_bytes: int
    bad: list[BadRow] = field(default_factory=list)
    release: tuple[bytearray, _Records] | None = None


class _Records:
    """Room for the texts of one block."""

    def __init__(self, texts: int) -> None:
        self.starts = np.empty(texts, np.int64)
        self.lengths = np.empty(texts, np.int64)
        self.fields = np.empty(texts, np.uint8)
        self.digests = np.empty((texts, 20), np.uint8)
        self.refused = np.empty((64, 4), np.int64)
        self.in_object = np.empty(MAX_DEPTH + 1, np.uint8)


class Buffers:
    """Memory of blocks that are done with, to be used again; safe to use from several threads."""

    def __init__(self) -> None:
        self._buffers: deque[bytearray] = deque()
        self._records: deque[_Records] = deque()

    def allocate(self, line_bytes: int) -> bytearray:
        """Return a buffer for `line_bytes` bytes of lines, padding, and as much scratch space."""
        needed = 2 * (line_bytes + PADDING)
        try:
            buffer = self._buffers.pop()
        except IndexError:
            return bytearray(needed)
        # A row of megabytes must not leave all later blocks with a buffer for megabytes.
        return buffer if needed <= len(buffer) <= 4 * needed else bytearray(needed)

    def records(self) -> _Records:
        """Return room for the texts of a block."""
        try:
            return self._records.pop()
        except IndexError:
            return _Records(1 << 12)

    def give_back(self, block: ParsedBlock) -> None:
        """Take back what a block held; it must not be looked at again."""
        if block.release is not None:
            buffer, records = block.release
            self._buffers.append(buffer)
            if len(records.starts) <= _KEPT_TEXTS:
                self._records.append(records)


def parse_long_line(line: LongLine, max_row_bytes: int) -> ParsedBlock:
    """Make a block of a single row that is too long."""
    bad = BadRow(1, line.byte_offset, too_long(line.length, max_row_bytes), line.head, line.length)
    nothing = np.empty(0, np.int64)
    digests = np.empty((0, 20), np.uint8)
    return ParsedBlock(np.empty(0, np.uint8), nothing, nothing, np.empty(0, np.uint8), digests, 1, 1, line.stored_bytes, [bad])


def parse_lines(block: LineBlock, table: FieldTable, max_row_bytes: int, buffers: Buffers) -> ParsedBlock:
    """Parse the lines of a block whose buffer `buffers` allocated; rows that the fast parser refuses go to the reference."""
    data = np.frombuffer(block.buffer, np.uint8)
    end = block.end
    data[end : end + PADDING] = 0x0A
    state = np.zeros(6, np.int64)
    state[POSITION] = block.begin
    state[SCRATCH] = end + PADDING
    records = buffers.records()
    stack = np.empty((table.depth + 1, 2), np.int64)
    while not parse_rows(
        data,
        end,
        table.nodes,
        table.children,
        table.names,
        stack,
        records.in_object,
        max_row_bytes,
        records.starts,
        records.lengths,
        records.fields,
        records.refused,
        state,
    ):
        _enlarge(records, int(state[TEXTS]), int(state[REFUSED]))
    parsed = ParsedBlock(
        data,
        records.starts,
        records.lengths,
        records.fields,
        records.digests,
        int(state[ROWS]),
        int(state[LINES]),
        block.stored_bytes,
        release=(block.buffer, records),
    )
    count = int(state[TEXTS])
    if state[REFUSED]:
        count = _judge_refused(parsed, records, block, table, max_row_bytes, state)
    count = strip_texts(data, records.starts, records.lengths, records.fields, count)
    parsed.starts = records.starts[:count]
    parsed.lengths = records.lengths[:count]
    parsed.fields = records.fields[:count]
    parsed.digests = records.digests[:count]
    hash_texts(data, parsed.starts, parsed.lengths, parsed.digests)
    return parsed


def _enlarge(records: _Records, texts: int, refused: int) -> None:
    """Double what is full. Texts are full before they are: sorting a row's texts takes room beside them."""
    if refused == len(records.refused):
        larger = np.empty((2 * refused, 4), np.int64)
        larger[:refused] = records.refused
        records.refused = larger
        return
    wider = _Records(2 * len(records.starts))
    wider.starts[:texts] = records.starts[:texts]
    wider.lengths[:texts] = records.lengths[:texts]
    wider.fields[:texts] = records.fields[:texts]
    records.starts, records.lengths, records.fields, records.digests = wider.starts, wider.lengths, wider.fields, wider.digests


def _judge_refused(
    parsed: ParsedBlock, records: _Records, block: LineBlock, table: FieldTable, max_row_bytes: int, state: Ints
) -> int:
    """Give refused rows to the reference and put the texts that it finds in their places; return how many texts there are now."""
    count = int(state[TEXTS])
    scratch = int(state[SCRATCH])
    places: list[int] = []
    found: list[tuple[int, int, int]] = []
    for start, stop, line, texts_before in records.refused[: state[REFUSED]].tolist():
        raw = bytes(block.buffer[start:stop])
        if stop < block.end:
            raw = raw.removesuffix(b"\r")
        try:
            texts = line_texts(raw, table, max_row_bytes)
        except RowProblem as problem:
            parsed.bad.append(BadRow(line + 1, block.byte_offset + start - block.begin, problem, raw, len(raw)))
            continue
        for number, text in texts or ():
            block.buffer[scratch : scratch + len(text)] = text
            found.append((scratch, len(text), number))
            places.append(texts_before)
            scratch += len(text)
    if found:
        starts, lengths, fields = (np.array(column, np.int64) for column in zip(*found, strict=True))
        total = count + len(found)
        while len(records.starts) < total:
            _enlarge(records, count, 0)
        records.starts[:total] = np.insert(records.starts[:count], places, starts)
        records.lengths[:total] = np.insert(records.lengths[:count], places, lengths)
        records.fields[:total] = np.insert(records.fields[:count], places, fields)
    return count + len(found)
