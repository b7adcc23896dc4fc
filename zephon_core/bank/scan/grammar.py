"""The grammar of JSON (RFC 8259): where strings, numbers and whole values end, and whether they are sound.

Strings are searched 64 bytes at a time for what can end a run of plain bytes, as in Langdale & Lemire, "Parsing gigabytes of JSON
per second" (2019); there is no structural index, since most bytes of a row of texts are inside strings.

All functions read uint8 buffers in which a line feed follows the last byte that matters, and PADDING bytes follow that. A line feed
is never passed: strings may not hold one, and here it is no blank.
"""

from __future__ import annotations

from zephon_core.bank.scan.arrays import Bytes
from zephon_core.bank.scan.simd import byte_at, copy_64, half_at, high_mask, string_mask, trailing_zeros
from zephon_core.bank.scan.text import valid_utf8
from zephon_core.compiled import compiled
from zephon_core.readers.rows import MAX_DEPTH

__all__ = ["NULL", "skip_space", "skip_value", "string_end", "unescape"]

NULL = 0x6C6C756E
"""The four bytes of null, as `half_at` reads them."""

_QUOTE, _BACKSLASH, _COMMA, _COLON = 0x22, 0x5C, 0x2C, 0x3A
_OPEN_BRACE, _CLOSE_BRACE, _CLOSE_BRACKET = 0x7B, 0x7D, 0x5D
_TRUE, _ALSE = 0x65757274, 0x65736C61


@compiled
def skip_space(data: Bytes, i: int) -> int:
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
def string_end(data: Bytes, i: int) -> tuple[int, bool]:
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
    i = skip_space(data, i)
    if byte_at(data, i) != _QUOTE:
        return -1
    i, _ = string_end(data, i + 1)
    if i < 0:
        return -1
    i = skip_space(data, i + 1)
    return i + 1 if byte_at(data, i) == _COLON else -1


@compiled
def skip_value(data: Bytes, i: int, depth: int, in_object: Bytes) -> int:
    """Pass one value that nobody wants, inside `depth` open containers; return where it ends, or -1 if it is broken."""
    outer = depth
    while True:
        i = skip_space(data, i)
        byte = byte_at(data, i)
        if byte == _QUOTE:
            i, _ = string_end(data, i + 1)
            if i < 0:
                return -1
            i += 1
        elif byte | 0x20 == _OPEN_BRACE:  # the bracket too
            depth += 1
            if depth > MAX_DEPTH:
                return -1
            i = skip_space(data, i + 1)
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
        elif half_at(data, i) == NULL or half_at(data, i) == _TRUE:
            i += 4
        elif byte == 0x66 and half_at(data, i + 1) == _ALSE:
            i += 5
        else:
            i = _skip_number(data, i)
            if i < 0:
                return -1
        while depth > outer:
            i = skip_space(data, i)
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
def unescape(data: Bytes, i: int, end: int, at: int) -> int:
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
