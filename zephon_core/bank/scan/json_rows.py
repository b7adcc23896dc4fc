"""Rows of JSON to spans of wanted strings, in one pass over a block of lines.

A row is either parsed here whole, by exactly the grammar of RFC 8259 over valid UTF-8, or refused. Refused rows go to the reference
(`reference`), which alone decides what is bad. Refused is whatever is rare and where engines differ: broken JSON or UTF-8,
a wanted field of another type, a wanted name that is repeated, a name spelt with escapes beside wanted ones, a lone surrogate in
a wanted string, NaN and the infinities, nesting deeper than `MAX_DEPTH`, rows that are too long.
"""

from __future__ import annotations

from zephon_core.bank.scan.arrays import Bytes, Ints
from zephon_core.bank.scan.fields import LEAF, LIST, OBJECT
from zephon_core.bank.scan.grammar import NULL, skip_space, skip_value, string_end, unescape
from zephon_core.bank.scan.simd import byte_at, half_at, newline_mask, trailing_zeros
from zephon_core.compiled import compiled

__all__ = ["LINES", "POSITION", "REFUSED", "ROWS", "SCRATCH", "TEXTS", "parse_rows"]

POSITION, LINES, ROWS, TEXTS, REFUSED, SCRATCH = range(6)
"""Places in the state of `parse_rows`: where to go on; lines, rows, texts and refused rows so far; end of used scratch space."""

_QUOTE, _COMMA, _COLON, _NEWLINE = 0x22, 0x2C, 0x3A, 0x0A
_OPEN_BRACE, _CLOSE_BRACE, _OPEN_BRACKET, _CLOSE_BRACKET = 0x7B, 0x7D, 0x5B, 0x5D
_REFUSE, _NO_ROOM = -1, -2


@compiled
def _find_child(data: Bytes, start: int, end: int, first: int, count: int, children: Ints, names: Bytes) -> int:
    """Return the number among an object's wanted names of the name data[start:end], or -1."""
    for child in range(count):
        if children[first + child, 2] == end - start:
            name = children[first + child, 1]
            k = 0
            while k < end - start and byte_at(data, start + k) == byte_at(names, name + k):
                k += 1
            if k == end - start:
                return child
    return -1


@compiled
def _parse_row(
    data: Bytes,
    i: int,
    nodes: Ints,
    children: Ints,
    names: Bytes,
    stack: Ints,
    in_object: Bytes,
    starts: Ints,
    lengths: Ints,
    fields: Bytes,
    state: Ints,
) -> int:
    """Parse the row whose first byte is at i and note its wanted strings; return its end, `_REFUSE` or `_NO_ROOM`."""
    texts = state[TEXTS]
    scratch = state[SCRATCH]
    node = 0
    depth = 0
    if byte_at(data, i) != _OPEN_BRACE:
        return _REFUSE
    while True:
        # The value of a wanted node is next.
        i = skip_space(data, i)
        byte = byte_at(data, i)
        kind = nodes[node, 0]
        at_name = False
        if half_at(data, i) == NULL:
            i += 4
        elif kind == LEAF:
            if byte != _QUOTE:
                return _REFUSE
            start = i + 1
            end, escaped = string_end(data, start)
            if end < 0:
                return _REFUSE
            if texts == len(starts):
                return _NO_ROOM
            i = end + 1
            if escaped:
                end = unescape(data, start, end, scratch)
                if end < 0:
                    return _REFUSE
                start = scratch
                scratch = end
            starts[texts] = start
            lengths[texts] = end - start
            fields[texts] = nodes[node, 1]
            texts += 1
        else:
            if byte != (_OPEN_BRACE if kind == OBJECT else _OPEN_BRACKET):
                return _REFUSE
            depth += 1
            stack[depth, 0] = node
            stack[depth, 1] = 0
            i = skip_space(data, i + 1)
            if byte_at(data, i) == byte + 2:
                depth -= 1
                i += 1
            elif kind == LIST:
                node = nodes[node, 1]
                continue
            else:
                at_name = True
        # Either a name of the innermost object is next, or what follows a value.
        while True:
            if at_name:
                if byte_at(data, i) != _QUOTE:
                    return _REFUSE
                start = i + 1
                i, escaped = string_end(data, start)
                if i < 0 or escaped:
                    return _REFUSE
                parent = stack[depth, 0]
                child = _find_child(data, start, i, nodes[parent, 1], nodes[parent, 2], children, names)
                i = skip_space(data, i + 1)
                if byte_at(data, i) != _COLON:
                    return _REFUSE
                i += 1
                if child >= 0:
                    if stack[depth, 1] >> child & 1:
                        return _REFUSE
                    stack[depth, 1] |= 1 << child
                    node = children[nodes[parent, 1] + child, 0]
                    break
                at_name = False
                i = skip_value(data, i, depth, in_object)
                if i < 0:
                    return _REFUSE
            if depth == 0:
                state[TEXTS] = texts
                state[SCRATCH] = scratch
                return i
            i = skip_space(data, i)
            byte = byte_at(data, i)
            parent = stack[depth, 0]
            is_list = nodes[parent, 0] == LIST
            if byte == _COMMA:
                i += 1
                if is_list:
                    node = nodes[parent, 1]
                    break
                i = skip_space(data, i)
                at_name = True
            elif byte == (_CLOSE_BRACKET if is_list else _CLOSE_BRACE):
                depth -= 1
                i += 1
            else:
                return _REFUSE


@compiled
def _order_by_field(starts: Ints, lengths: Ints, fields: Bytes, first: int, end: int) -> bool:
    """Sort a row's texts by field, keeping the order within each; False if there is no room beyond `end` to do it in."""
    ordered = True
    last = 0
    for k in range(first + 1, end):
        ordered &= fields[k - 1] <= fields[k]
    if ordered:
        return True
    if 2 * end - first > len(starts):
        return False
    for k in range(first, end):
        last = max(last, fields[k])
        starts[end + k - first] = starts[k]
        lengths[end + k - first] = lengths[k]
        fields[end + k - first] = fields[k]
    at = first
    for field in range(last + 1):
        for k in range(end, 2 * end - first):
            if fields[k] == field:
                starts[at] = starts[k]
                lengths[at] = lengths[k]
                fields[at] = field
                at += 1
    return True


@compiled
def parse_rows(
    data: Bytes,
    end: int,
    nodes: Ints,
    children: Ints,
    names: Bytes,
    stack: Ints,
    in_object: Bytes,
    max_row_bytes: int,
    starts: Ints,
    lengths: Ints,
    fields: Bytes,
    refused: Ints,
    state: Ints,
) -> bool:
    """Parse the lines of data[state[POSITION]:end]; False if an output is full: enlarge it and call again, with the same state.

    data: whole lines, then PADDING line feeds at `end`, then as many bytes of scratch space as there are bytes of lines, and
    PADDING more; state[SCRATCH] is where the scratch space begins. nodes, children, names: a `FieldTable`. stack: [depth + 1, 2]
    and in_object: [MAX_DEPTH + 1], for use in here. starts, lengths, fields: the wanted strings, unescaped but not stripped, as
    spans of `data`, in the order of rows and within a row of fields. refused: [rows, 4], start and end in `data`, line in the
    block, texts before it.
    """
    i = state[POSITION]
    while i < end:
        texts = state[TEXTS]
        scratch = state[SCRATCH]
        first = skip_space(data, i)
        if byte_at(data, first) == _NEWLINE and first - i <= max_row_bytes:
            state[LINES] += 1
            i = first + 1
            state[POSITION] = i
            continue
        stop = _parse_row(data, first, nodes, children, names, stack, in_object, starts, lengths, fields, state)
        if stop >= 0:
            stop = skip_space(data, stop)
            if byte_at(data, stop) != _NEWLINE or stop - i - (byte_at(data, stop - 1) == 0x0D) > max_row_bytes:
                stop = _REFUSE
            elif not _order_by_field(starts, lengths, fields, texts, state[TEXTS]):
                stop = _NO_ROOM
        if stop == _NO_ROOM or (stop == _REFUSE and state[REFUSED] == len(refused)):
            state[TEXTS] = texts
            state[SCRATCH] = scratch
            return False
        if stop == _REFUSE:
            state[TEXTS] = texts
            state[SCRATCH] = scratch
            stop = first
            ends = newline_mask(data, stop)
            while ends == 0:
                stop += 64
                ends = newline_mask(data, stop)
            stop += trailing_zeros(ends)
            row = state[REFUSED]
            refused[row, 0] = i
            refused[row, 1] = stop
            refused[row, 2] = state[LINES]
            refused[row, 3] = texts
            state[REFUSED] += 1
        state[LINES] += 1
        state[ROWS] += 1
        i = stop + 1
        state[POSITION] = i
    return True
