"""Rows of JSON to spans of wanted strings, in one pass over a block of lines.

A row is either parsed here whole, by exactly the grammar of RFC 8259 over valid UTF-8, or refused. Refused rows go to the reference
(`scan_reference`), which alone decides what is bad. Refused is whatever is rare and where engines differ: broken JSON or UTF-8,
a wanted field of another type, a wanted name that is repeated, a name spelt with escapes beside wanted ones, a lone surrogate in
a wanted string, NaN and the infinities, nesting deeper than `MAX_DEPTH`, rows that are too long.

Strings are searched 64 bytes at a time for what can end a run of plain bytes, as in Langdale & Lemire, "Parsing gigabytes of JSON
per second" (2019); there is no structural index, since most bytes of a row of texts are inside strings.
"""

from __future__ import annotations

from zephon_core.bank.scan_arrays import Bytes, Ints
from zephon_core.bank.scan_compile import compiled
from zephon_core.bank.scan_fields import LEAF, LIST, OBJECT
from zephon_core.bank.scan_simd import byte_at, copy_64, half_at, high_mask, newline_mask, string_mask, trailing_zeros
from zephon_core.bank.scan_text import valid_utf8
from zephon_core.readers.rows import MAX_DEPTH

__all__ = ["LINES", "POSITION", "REFUSED", "ROWS", "SCRATCH", "TEXTS", "parse_rows"]

POSITION, LINES, ROWS, TEXTS, REFUSED, SCRATCH = range(6)
"""Places in the state of `parse_rows`: where to go on; lines, rows, texts and refused rows so far; end of used scratch space."""

_QUOTE, _BACKSLASH, _COMMA, _COLON, _NEWLINE = 0x22, 0x5C, 0x2C, 0x3A, 0x0A
_OPEN_BRACE, _CLOSE_BRACE, _OPEN_BRACKET, _CLOSE_BRACKET = 0x7B, 0x7D, 0x5B, 0x5D
_NULL, _TRUE, _ALSE = 0x6C6C756E, 0x65757274, 0x65736C61
_REFUSE, _NO_ROOM = -1, -2


@compiled
def _skip_space(data: Bytes, i: int) -> int:
    """Pass blanks, tabs and carriage returns; a line feed ends the row and stays."""
    byte = byte_at(data, i)
    while byte == 0x20 or byte == 0x09 or byte == 0x0D:
        i += 1
        byte = byte_at(data, i)
    return i


@compiled
def _hex_digit(byte: int) -> int:
    if 0x30 <= byte <= 0x39:
        return byte - 0x30
    byte |= 0x20
    return byte - 0x57 if 0x61 <= byte <= 0x66 else -1


@compiled
def _code_unit(data: Bytes, i: int) -> int:
    """Return the value of the four hexadecimal digits at i, or -1."""
    value = 0
    for k in range(4):
        digit = _hex_digit(byte_at(data, i + k))
        if digit < 0:
            return -1
        value = value << 4 | digit
    return value


@compiled
def _string_end(data: Bytes, i: int) -> tuple[int, bool]:
    """Return where the string whose first byte is at i has its closing quote, and whether it has escapes; -1 if it is broken."""
    start = i
    high = 0
    escaped = False
    while True:
        stops = string_mask(data, i)
        if stops == 0:
            high |= high_mask(data, i)
            i += 64
            continue
        run = trailing_zeros(stops)
        high |= high_mask(data, i) & ((1 << run) - 1)
        i += run
        byte = byte_at(data, i)
        if byte == _QUOTE:
            break
        if byte != _BACKSLASH:
            return -1, False
        escaped = True
        kind = byte_at(data, i + 1)
        if kind == 0x75:
            if _code_unit(data, i + 2) < 0:
                return -1, False
            i += 6
        elif _escaped_byte(kind) < 0:
            return -1, False
        else:
            i += 2
    if high != 0 and not valid_utf8(data, start, i):
        return -1, False
    return i, escaped


@compiled
def _escaped_byte(kind: int) -> int:
    """Return the byte that backslash and `kind` stand for, or -1."""
    if kind == _QUOTE:
        return kind
    if kind == _BACKSLASH:
        return kind
    if kind == 0x2F:
        return kind
    if kind == 0x6E:
        return 0x0A
    if kind == 0x74:
        return 0x09
    if kind == 0x72:
        return 0x0D
    if kind == 0x62:
        return 0x08
    if kind == 0x66:
        return 0x0C
    return -1


@compiled
def _write_utf8(data: Bytes, at: int, code: int) -> int:
    if code < 0x80:
        data[at] = code
        return at + 1
    if code < 0x800:
        data[at] = 0xC0 | code >> 6
        data[at + 1] = 0x80 | code & 0x3F
        return at + 2
    if code < 0x10000:
        data[at] = 0xE0 | code >> 12
        data[at + 1] = 0x80 | code >> 6 & 0x3F
        data[at + 2] = 0x80 | code & 0x3F
        return at + 3
    data[at] = 0xF0 | code >> 18
    data[at + 1] = 0x80 | code >> 12 & 0x3F
    data[at + 2] = 0x80 | code >> 6 & 0x3F
    data[at + 3] = 0x80 | code & 0x3F
    return at + 4


@compiled
def _unescape(data: Bytes, i: int, end: int, at: int) -> int:
    """Write the string data[i:end], whose escapes are well formed, to `at` on; return its end there, or -1 at a lone surrogate."""
    while i < end:
        copy_64(data, at, data, i)
        run = min(trailing_zeros(string_mask(data, i)), end - i)
        i += run
        at += run
        if run == 64 or i == end:
            continue
        kind = byte_at(data, i + 1)
        if kind != 0x75:
            data[at] = _escaped_byte(kind)
            at += 1
            i += 2
            continue
        code = _code_unit(data, i + 2)
        i += 6
        if 0xD800 <= code < 0xE000:
            if code >= 0xDC00 or half_at(data, i) & 0xFFFF != 0x755C:
                return -1
            low = _code_unit(data, i + 2)
            if low < 0xDC00 or low >= 0xE000:
                return -1
            code = 0x10000 + ((code & 0x3FF) << 10) + (low & 0x3FF)
            i += 6
        at = _write_utf8(data, at, code)
    return at


@compiled
def _skip_number(data: Bytes, i: int) -> int:
    if byte_at(data, i) == 0x2D:
        i += 1
    if byte_at(data, i) == 0x30:
        i += 1
    else:
        first = i
        while 0x30 <= byte_at(data, i) <= 0x39:
            i += 1
        if i == first:
            return -1
    if byte_at(data, i) == 0x2E:
        i += 1
        first = i
        while 0x30 <= byte_at(data, i) <= 0x39:
            i += 1
        if i == first:
            return -1
    if byte_at(data, i) | 0x20 == 0x65:
        i += 1
        if byte_at(data, i) == 0x2B or byte_at(data, i) == 0x2D:
            i += 1
        first = i
        while 0x30 <= byte_at(data, i) <= 0x39:
            i += 1
        if i == first:
            return -1
    return i


@compiled
def _skip_name(data: Bytes, i: int) -> int:
    """Pass blanks, a name and its colon; -1 if something else is there."""
    i = _skip_space(data, i)
    if byte_at(data, i) != _QUOTE:
        return -1
    i, _ = _string_end(data, i + 1)
    if i < 0:
        return -1
    i = _skip_space(data, i + 1)
    return i + 1 if byte_at(data, i) == _COLON else -1


@compiled
def _skip_value(data: Bytes, i: int, depth: int, in_object: Bytes) -> int:
    """Pass one value that nobody wants, inside `depth` open containers; return where it ends, or -1 if it is broken."""
    outer = depth
    while True:
        i = _skip_space(data, i)
        byte = byte_at(data, i)
        if byte == _QUOTE:
            i, _ = _string_end(data, i + 1)
            if i < 0:
                return -1
            i += 1
        elif byte | 0x20 == _OPEN_BRACE:  # the bracket too
            depth += 1
            if depth > MAX_DEPTH:
                return -1
            i = _skip_space(data, i + 1)
            if byte_at(data, i) == byte + 2:
                i += 1
                depth -= 1
            elif byte == _OPEN_BRACE:
                in_object[depth] = 1
                i = _skip_name(data, i)
                if i < 0:
                    return -1
                continue
            else:
                in_object[depth] = 0
                continue
        elif half_at(data, i) == _NULL or half_at(data, i) == _TRUE:
            i += 4
        elif byte == 0x66 and half_at(data, i + 1) == _ALSE:
            i += 5
        else:
            i = _skip_number(data, i)
            if i < 0:
                return -1
        while depth > outer:
            i = _skip_space(data, i)
            byte = byte_at(data, i)
            if byte == _COMMA:
                i = _skip_name(data, i + 1) if in_object[depth] else i + 1
                if i < 0:
                    return -1
                break
            if byte != (_CLOSE_BRACE if in_object[depth] else _CLOSE_BRACKET):
                return -1
            i += 1
            depth -= 1
        if depth == outer:
            return i


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
        i = _skip_space(data, i)
        byte = byte_at(data, i)
        kind = nodes[node, 0]
        at_name = False
        if half_at(data, i) == _NULL:
            i += 4
        elif kind == LEAF:
            if byte != _QUOTE:
                return _REFUSE
            start = i + 1
            end, escaped = _string_end(data, start)
            if end < 0:
                return _REFUSE
            if texts == len(starts):
                return _NO_ROOM
            i = end + 1
            if escaped:
                end = _unescape(data, start, end, scratch)
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
            i = _skip_space(data, i + 1)
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
                i, escaped = _string_end(data, start)
                if i < 0 or escaped:
                    return _REFUSE
                parent = stack[depth, 0]
                child = _find_child(data, start, i, nodes[parent, 1], nodes[parent, 2], children, names)
                i = _skip_space(data, i + 1)
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
                i = _skip_value(data, i, depth, in_object)
                if i < 0:
                    return _REFUSE
            if depth == 0:
                state[TEXTS] = texts
                state[SCRATCH] = scratch
                return i
            i = _skip_space(data, i)
            byte = byte_at(data, i)
            parent = stack[depth, 0]
            is_list = nodes[parent, 0] == LIST
            if byte == _COMMA:
                i += 1
                if is_list:
                    node = nodes[parent, 1]
                    break
                i = _skip_space(data, i)
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
        first = _skip_space(data, i)
        if byte_at(data, first) == _NEWLINE and first - i <= max_row_bytes:
            state[LINES] += 1
            i = first + 1
            state[POSITION] = i
            continue
        stop = _parse_row(data, first, nodes, children, names, stack, in_object, starts, lengths, fields, state)
        if stop >= 0:
            stop = _skip_space(data, stop)
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
