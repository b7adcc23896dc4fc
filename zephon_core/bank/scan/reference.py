"""Which texts a row holds, in plain Python: the meaning that the fast path must reproduce, and the judge of what it refuses."""

from __future__ import annotations

from collections.abc import Iterator

from zephon_core.bank.scan.fields import LEAF, LIST, FieldNode, FieldTable
from zephon_core.readers.rows import RowProblem, is_blank, parse_line, too_long

__all__ = ["line_texts", "row_texts", "type_name"]


def line_texts(line: bytes, table: FieldTable, max_row_bytes: int) -> list[tuple[int, bytes]] | None:
    """Return (field, UTF-8 of the stripped text) of a line's texts, in the order of fields; None for an empty line.

    line: without its line end. Raises RowProblem for a bad row, none of whose texts counts.
    """
    if len(line) > max_row_bytes:
        raise too_long(len(line), max_row_bytes)
    if is_blank(line):
        return None
    return row_texts(parse_line(line), table)


def row_texts(row: object, table: FieldTable) -> list[tuple[int, bytes]]:
    """Return (field, UTF-8 of the stripped text) of a parsed row's texts. Raises RowProblem.

    A lone surrogate becomes "?", as `str.encode(…, "replace")` has it.
    """
    if not isinstance(row, dict):
        raise RowProblem("row is no object", f"is {type_name(row)}", "an object")
    found = sorted(_texts(row, table.root, ""), key=lambda item: item[0])
    stripped = [(field, text.strip().encode("utf-8", "replace")) for field, text in found]
    return [(field, text) for field, text in stripped if text]


def _texts(value: object, node: FieldNode, place: str) -> Iterator[tuple[int, str]]:
    if value is None:
        return
    if node.kind == LEAF:
        if not isinstance(value, str):
            raise RowProblem("not text", f"{place!r} is {type_name(value)}", "text")
        yield node.field, value
    elif node.kind == LIST:
        if not isinstance(value, list):
            raise RowProblem("not a list", f"{place!r} is {type_name(value)}", "a list")
        assert node.element is not None
        for number, element in enumerate(value):
            yield from _texts(element, node.element, f"{place}[{number}]")
    else:
        if not isinstance(value, dict):
            raise RowProblem("not an object", f"{place!r} is {type_name(value)}", "an object")
        for name, child in node.children.items():
            yield from _texts(value.get(name), child, f"{place}.{name}" if place else name)


def type_name(value: object) -> str:
    """Name a JSON value's type as in "'query' is a number"."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else f"a {type(value).__name__}"
