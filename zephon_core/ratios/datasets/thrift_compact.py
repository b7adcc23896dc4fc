"""Thrift's compact protocol, as far as Parquet's metadata needs it: structs are looked into, copied in part, and put together.

Nothing is decoded before it is asked for: a struct is known by where its fields lie in the bytes, all of which are gone through
when it is made; a field that is to stay as it is gets copied with them. (https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

__all__ = [
    "BINARY",
    "FALSE",
    "I32",
    "I64",
    "LIST",
    "STRUCT",
    "Field",
    "Struct",
    "ThriftError",
    "write_int",
    "write_list",
    "write_struct",
]

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = range(1, 14)
_FIXED_BYTES = {BYTE: 1, DOUBLE: 8, UUID: 16}
_DEEPEST = 32
_LONGEST_VARINT_BITS = 63
_LONG_LIST = 15


class ThriftError(ValueError):
    """Bytes that are no Thrift, or not the Thrift that they should be."""


class Field(NamedTuple):
    """A value: what kind it is, and the bytes start:stop that it takes. Truth values are told by their kind alone."""

    kind: int
    start: int
    stop: int


class Struct:
    """The fields of a struct that begins at a byte of `data`; `stop` is where it ends. Raises ThriftError, as all methods do."""

    def __init__(self, data: bytes, start: int = 0) -> None:
        self.data = data
        self.fields: dict[int, Field] = {}
        at, number = start, 0
        with _within(data):
            while header := data[at]:
                at += 1
                if header >> 4:
                    number += header >> 4
                else:
                    number, at = _signed(data, at)
                kind = header & 15
                stop = at if kind in (TRUE, FALSE) else _skip(data, at, kind, 0)
                self.fields[number] = Field(kind, at, stop)
                at = stop
        self.stop = at + 1

    def __contains__(self, number: int) -> bool:
        """Say whether it has a field."""
        return number in self.fields

    def integer(self, number: int, default: int | None = None) -> int:
        """Return a whole number; without a default, the field must be there."""
        field = self.fields.get(number)
        if field is None:
            if default is None:
                raise ThriftError(f"field {number} is missing")
            return default
        if field.kind not in (I16, I32, I64):
            raise ThriftError(f"field {number} is no whole number")
        return _signed(self.data, field.start)[0]

    def binary(self, number: int) -> bytes:
        """Return bytes or a text's UTF-8."""
        field = self._field(number, BINARY)
        length, at = _varint(self.data, field.start)
        return self.data[at : at + length]

    def struct(self, number: int) -> Struct:
        """Return a struct."""
        return Struct(self.data, self._field(number, STRUCT).start)

    def integers(self, number: int) -> list[int]:
        """Return a list of whole numbers."""
        count, kind, at = _list_header(self.data, self._field(number, LIST).start)
        if kind not in (I16, I32, I64) and count:
            raise ThriftError(f"field {number} holds no whole numbers")
        values = []
        for _ in range(count):
            value, at = _signed(self.data, at)
            values.append(value)
        return values

    def places(self, number: int) -> list[Field]:
        """Say where the structs of a list lie, without looking into them."""
        count, kind, at = _list_header(self.data, self._field(number, LIST).start)
        if kind != STRUCT and count:
            raise ThriftError(f"field {number} holds no structs")
        found = []
        for _ in range(count):
            stop = _skip(self.data, at, STRUCT, 0)
            found.append(Field(STRUCT, at, stop))
            at = stop
        return found

    def structs(self, number: int) -> list[Struct]:
        """Return a list of structs."""
        return [Struct(self.data, place.start) for place in self.places(number)]

    def raw(self, *numbers: int) -> dict[int, tuple[int, bytes]]:
        """Return fields as `write_struct` takes them; those that it hasn't are left out."""
        found = ((number, self.fields[number]) for number in numbers if number in self.fields)
        return {number: (field.kind, self.data[field.start : field.stop]) for number, field in found}

    def _field(self, number: int, kind: int) -> Field:
        field = self.fields.get(number)
        if field is None or field.kind != kind:
            raise ThriftError(f"field {number} is missing or of another kind")
        return field


@contextmanager
def _within(data: bytes) -> Iterator[None]:
    """Name reads beyond the end."""
    try:
        yield
    except IndexError:
        raise ThriftError(f"{len(data):,} bytes are too few") from None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) >= 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > _LONGEST_VARINT_BITS:
            raise ThriftError("a number is too long")
    return value | byte << shift, at + 1


def _signed(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _list_header(data: bytes, at: int) -> tuple[int, int, int]:
    """Read how many values a list has, of what kind, and where the first one begins."""
    header = data[at]
    count, at = header >> 4, at + 1
    if count == _LONG_LIST:
        count, at = _varint(data, at)
    if count > len(data) - at:  # each takes a byte at least
        raise ThriftError("a list is longer than the bytes")
    return count, header & 15, at


def _skip(data: bytes, at: int, kind: int, depth: int) -> int:
    """Return where a value ends."""
    if kind in (I16, I32, I64):
        while data[at] >= 0x80:
            at += 1
        return at + 1
    if kind == BINARY:
        length, at = _varint(data, at)
        at += length
    elif kind in _FIXED_BYTES:
        at += _FIXED_BYTES[kind]
    elif depth > _DEEPEST:
        raise ThriftError("values lie too deep in each other")
    elif kind == STRUCT:
        while header := data[at]:
            at += 1
            if header < 16:
                _, at = _varint(data, at)
            if header & 15 not in (TRUE, FALSE):
                at = _skip(data, at, header & 15, depth + 1)
        return at + 1
    elif kind in (LIST, SET):
        count, inner, at = _list_header(data, at)
        for _ in range(count):
            at = at + 1 if inner in (TRUE, FALSE) else _skip(data, at, inner, depth + 1)
    elif kind == MAP:
        at = _skip_map(data, at, depth)
    else:
        raise ThriftError(f"there is no kind {kind}")
    if at > len(data):
        raise ThriftError("a value is longer than the bytes")
    return at


def _skip_map(data: bytes, at: int, depth: int) -> int:
    count, at = _varint(data, at)
    if count > len(data) - at:
        raise ThriftError("a map is longer than the bytes")
    if not count:
        return at
    kinds, at = (data[at] >> 4, data[at] & 15), at + 1
    for kind in kinds * count:
        at = at + 1 if kind in (TRUE, FALSE) else _skip(data, at, kind, depth + 1)
    return at


def write_int(value: int) -> bytes:
    """Write a whole number of 64 bits or fewer."""
    return _write_varint((value << 1) ^ (value >> 63))


def _write_varint(value: int) -> bytes:
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def write_list(kind: int, values: Sequence[bytes]) -> bytes:
    """Write a list of values that are written already."""
    count = len(values)
    header = bytes([count << 4 | kind]) if count < _LONG_LIST else bytes([0xF0 | kind]) + _write_varint(count)
    return header + b"".join(values)


def write_struct(fields: Mapping[int, tuple[int, bytes]]) -> bytes:
    """Write a struct of fields by number: their kinds, and their values as they are written."""
    written = []
    before = 0
    for number, (kind, value) in sorted(fields.items()):
        step = number - before
        written.append(bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + write_int(number))
        written.append(value)
        before = number
    return b"".join((*written, b"\0"))
