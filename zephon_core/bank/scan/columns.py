"""Record batches to texts, from Arrow's buffers and without a Python object a text.

Nulls at every level, absent columns and empty texts are no texts. Offsets and indices are checked before use: a broken IPC file
may hold anything, and compiled code would follow.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from zephon_core.bank.scan.arrays import Bytes, Ints
from zephon_core.bank.scan.fields import LEAF, LIST, FieldNode, FieldTable
from zephon_core.bank.scan.parse import BadRow, ParsedBlock
from zephon_core.bank.scan.sha1 import hash_texts
from zephon_core.bank.scan.simd import PADDING
from zephon_core.bank.scan.text import bad_texts, strip_texts
from zephon_core.readers.arrow import RowBatch, arrow_errors
from zephon_core.readers.rows import RowProblem, too_long

__all__ = ["parse_batch"]


@dataclass
class _Found:
    """Texts met so far, one piece a column, and what is wrong with rows (the first thing each)."""

    fields: list[int] = field(default_factory=list)
    rows: list[Ints] = field(default_factory=list)
    starts: list[Ints] = field(default_factory=list)
    lengths: list[Ints] = field(default_factory=list)
    data: list[Bytes] = field(default_factory=list)
    problems: dict[int, RowProblem] = field(default_factory=dict)

    def add(self, number: int, rows: Ints, starts: Ints, lengths: Ints, data: Bytes) -> None:
        """Add texts of field `number`: spans of `data`, of which only the part that they cover is kept."""
        if not len(rows):
            return
        begin = int(starts.min())
        self.fields.append(number)
        self.rows.append(rows)
        self.starts.append(starts - begin)
        self.lengths.append(lengths)
        self.data.append(data[begin : int((starts + lengths).max())])


def parse_batch(part: RowBatch, table: FieldTable, max_row_bytes: int, url: str) -> ParsedBlock:
    """Collect, check, strip and hash the texts of a batch. Raises InputError where its buffers contradict each other."""
    batch = part.batch
    found = _Found()
    with arrow_errors(url):
        rows = np.arange(batch.num_rows, dtype=np.int64)
        for name, child in table.root.children.items():
            for column in _only(batch.schema.get_all_field_indices(name), name):
                try:
                    _collect(batch.column(column), child, rows, rows, name, found)
                except KeyError as error:
                    kind = batch.schema.field(column).type
                    raise pa.ArrowNotImplementedError(f"{name!r} is {kind}, of which pyarrow can't read the values") from error
    data, rows, starts, lengths, fields = _joined(found)
    _find_problems(found, table, data, rows, starts, lengths, fields, batch.num_rows, max_row_bytes)
    bad = [_bad_row(batch, row, found.problems[row], data, rows, starts, lengths) for row in sorted(found.problems)]
    if bad:
        good = ~np.isin(rows, np.array(list(found.problems)))
        starts, lengths, fields = starts[good], lengths[good], fields[good]
    count = strip_texts(data, starts, lengths, fields, len(starts))
    digests = np.empty((count, 20), np.uint8)
    hash_texts(data, starts[:count], lengths[:count], digests)
    return ParsedBlock(
        data, starts[:count], lengths[:count], fields[:count], digests, batch.num_rows, batch.num_rows, part.stored_bytes, bad
    )


def _only(indices: list[int], name: str) -> list[int]:
    if len(indices) > 1:
        raise pa.ArrowInvalid(f"{len(indices)} columns are named {name!r}")
    return indices


def _collect(array: Any, node: FieldNode, slots: Ints, rows: Ints, place: str, found: _Found) -> None:
    """Follow `node` into the elements `slots` of `array`, which belong to `rows`."""
    array, slots, rows = _without_nulls(array, slots, rows)
    if not len(slots):
        return
    kind = array.type
    if types.is_dictionary(kind):
        indices = array.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)[slots]
        _check(len(indices) == 0 or (indices.min() >= 0 and indices.max() < len(array.dictionary)), "dictionary indices")
        _collect(array.dictionary, node, indices, rows, place, found)
    elif node.kind == LEAF and _is_text(kind):
        _collect_texts(array, node.field, slots, rows, found)
    elif node.kind == LIST and _is_list(kind):
        assert node.element is not None
        begins, ends, values = _list_bounds(array, slots)
        _check(bool((begins >= 0).all() and (ends >= begins).all() and (ends <= len(values)).all()), "list offsets")
        counts = ends - begins
        inside = np.arange(counts.sum(), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
        _collect(values, node.element, np.repeat(begins, counts) + inside, np.repeat(rows, counts), f"{place}[]", found)
    elif node.kind not in (LEAF, LIST) and types.is_struct(kind):
        for name, child in node.children.items():
            for column in _only(kind.get_all_field_indices(name), name):
                _collect(array.field(column), child, slots, rows, f"{place}.{name}", found)
    else:
        reason, wanted = {LEAF: ("not text", "text"), LIST: ("not a list", "a list")}.get(node.kind, ("not an object", "an object"))
        for row in np.unique(rows).tolist():
            found.problems.setdefault(row, RowProblem(reason, f"{place!r} is {_type_name(kind)}", wanted))


def _without_nulls(array: Any, slots: Ints, rows: Ints) -> tuple[Any, Ints, Ints]:
    while isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if types.is_run_end_encoded(array.type):
        array.validate(full=True)
        array = pa.compute.run_end_decode(array)
    if types.is_null(array.type):
        return array, slots[:0], rows[:0]
    _check(not len(slots) or (slots.min() >= 0 and slots.max() < len(array)), "lengths of columns")
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)[slots]
        slots, rows = slots[valid], rows[valid]
    return array, slots, rows


def _is_text(kind: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_list(kind: Any) -> bool:
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def _list_bounds(array: Any, slots: Ints) -> tuple[Ints, Ints, Any]:
    """Return where the lists in `slots` begin and end in the array of all elements, and that array."""
    kind = array.type
    if types.is_fixed_size_list(kind):
        begins = (slots + array.offset) * kind.list_size
        return begins, begins + kind.list_size, array.values
    offsets = array.offsets.to_numpy().astype(np.int64)
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return offsets[slots], offsets[slots] + array.sizes.to_numpy().astype(np.int64)[slots], array.values
    return offsets[slots], offsets[slots + 1], array.values


def _collect_texts(array: Any, number: int, slots: Ints, rows: Ints, found: _Found) -> None:
    if types.is_string_view(array.type):
        _collect_views(array, number, slots, rows, found)
        return
    _, offset_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer or b"", np.int64 if types.is_large_string(array.type) else np.int32)
    data = np.frombuffer(data_buffer or b"", np.uint8)
    _check(array.offset + len(array) < len(offsets), "text offsets")
    starts = offsets[array.offset + slots].astype(np.int64)
    ends = offsets[array.offset + slots + 1].astype(np.int64)
    _check(bool((starts >= 0).all() and (ends >= starts).all() and (ends <= len(data)).all()), "text offsets")
    found.add(number, rows, starts, ends - starts, data)


def _collect_views(array: Any, number: int, slots: Ints, rows: Ints, found: _Found) -> None:
    """Read views of 16 bytes: the length, then up to 12 bytes of text, or its first 4, the number of a buffer and a place in it."""
    _, view_buffer, *data_buffers = array.buffers()
    view_bytes = np.frombuffer(view_buffer or b"", np.uint8)
    views = view_bytes[: len(view_bytes) // 16 * 16].view(np.int32).reshape(-1, 4)
    _check(array.offset + len(array) <= len(views), "text views")
    places = array.offset + slots
    lengths, buffers, starts = (views[places, column].astype(np.int64) for column in (0, 2, 3))
    short = lengths <= 12
    starts[short] = places[short] * 16 + 4
    _check(bool((lengths >= 0).all() and (short | ((buffers >= 0) & (buffers < len(data_buffers)))).all()), "text views")
    parts: list[Bytes] = []
    at = 0
    for inside, data in [(short, view_bytes)] + [
        (~short & (buffers == buffer), np.frombuffer(data_buffers[buffer] or b"", np.uint8))
        for buffer in np.unique(buffers[~short]).tolist()
    ]:
        if not inside.any():
            continue
        begin, end = int(starts[inside].min()), int((starts + lengths)[inside].max())
        _check(begin >= 0 and end <= len(data), "text views")
        parts.append(data[begin:end])
        starts[inside] += at - begin
        at += end - begin
    found.add(number, rows, starts, lengths, np.concatenate(parts))


def _check(consistent: bool, what: str) -> None:
    if not consistent:
        raise pa.ArrowInvalid(f"{what} contradict each other")


def _joined(found: _Found) -> tuple[Bytes, Ints, Ints, Ints, Bytes]:
    """Put the columns' texts into the order of rows and within a row of fields: data, rows, starts, lengths, fields."""
    order = sorted(range(len(found.fields)), key=lambda piece: found.fields[piece])
    data = np.empty(sum(map(len, found.data)) + PADDING, np.uint8)
    nothing = np.empty(0, np.int64)
    starts, at = [nothing], 0
    for piece in order:
        chunk = found.data[piece]
        data[at : at + len(chunk)] = chunk
        starts.append(found.starts[piece] + at)
        at += len(chunk)
    data[at:] = 0
    rows = np.concatenate([nothing, *(found.rows[piece] for piece in order)])
    lengths = np.concatenate([nothing, *(found.lengths[piece] for piece in order)])
    fields = np.repeat(np.array([found.fields[piece] for piece in order], np.uint8), [len(found.rows[piece]) for piece in order])
    by_row = np.argsort(rows, kind="stable")
    return data, rows[by_row], np.concatenate(starts)[by_row], lengths[by_row], fields[by_row]


def _find_problems(
    found: _Found,
    table: FieldTable,
    data: Bytes,
    rows: Ints,
    starts: Ints,
    lengths: Ints,
    fields: Bytes,
    row_count: int,
    max_row_bytes: int,
) -> None:
    row_bytes = np.bincount(rows, lengths, row_count)
    for row in np.flatnonzero(row_bytes > max_row_bytes).tolist():
        found.problems.setdefault(row, too_long(int(row_bytes[row]), max_row_bytes))
    indices = np.empty(len(starts), np.int64)
    for index in indices[: bad_texts(data, starts, lengths, indices)].tolist():
        problem = RowProblem("invalid UTF-8", f"{table.paths[fields[index]]!r} is no valid UTF-8")
        found.problems.setdefault(int(rows[index]), problem)


def _bad_row(batch: Any, row: int, problem: RowProblem, data: Bytes, rows: Ints, starts: Ints, lengths: Ints) -> BadRow:
    """Keep a bad row as the JSON of the columns that were read; as the bytes of its texts, a line each, if that is impossible."""
    try:
        raw = json.dumps(batch.slice(row, 1).to_pylist()[0], ensure_ascii=False, default=str).encode()
    except (ValueError, OverflowError):
        spans = [(starts[place], starts[place] + lengths[place]) for place in np.flatnonzero(rows == row)]
        raw = b"\n".join(data[start:end].tobytes() for start, end in spans)
    return BadRow(row + 1, None, problem, raw, len(raw))


def _type_name(kind: Any) -> str:
    if types.is_boolean(kind):
        return "true or false"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "a number"
    if _is_text(kind):
        return "text"
    return "a list" if _is_list(kind) else "an object" if types.is_struct(kind) else f"of type {kind}"
