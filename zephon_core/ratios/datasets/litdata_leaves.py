"""Values inside a LitData item: its leaves, and the tree that puts them together (litdata 0.2.76).

Pickles are never loaded: they stay bytes, as images, audio and the like do.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon_core.ratios.datasets.json_lines import parse_quickly
from zephon_core.readers.rows import RowProblem

__all__ = ["TreeSpec", "assemble", "decode_leaf", "parse_tree", "top_fields", "wanted_leaves"]

TreeSpec = Mapping[str, Any]

# By number; bfloat16 (10) is read as its bits.
_TORCH_DTYPES: tuple[str, ...] = (
    *("<f4", "<f4", "<f8", "<f8", "<c8", "<c8", "<c16", "<c16", "<f2", "<f2", "<u2"),
    *("u1", "i1", "<i2", "<i2", "<i4", "<i4", "<i8", "<i8", "?", "<u2"),
)
_NUMPY_DTYPES = ("i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")
_JSON, _TEXTS, _INTEGERS, _FLOATS, _BOOLS, _OBJECT, _RECORDS, _TEXT, _INTEGER, _FLOAT, _BOOL, _NONE = range(12)
_FIRST_CELL = 0x10
_PLAIN_JSON = 0x20


def parse_tree(text: str | None) -> TreeSpec:
    """Read the `data_spec` of an index. Raises ValueError, KeyError or TypeError where it is none."""
    if not text:
        return {"type": None}
    version, tree = json.loads(text)
    if version != 1 or "type" not in tree:
        raise ValueError(f"a tree of version {version}")
    return dict(tree)


def top_fields(tree: TreeSpec) -> list[str]:
    """Name the fields of items, and say where their leaves are: one entry a leaf; "" for items that are no dictionaries."""
    if tree["type"] is None or not _keys(tree):
        return [""] * _count(tree)
    return [key for key, child in zip(_keys(tree), tree["children_spec"], strict=True) for _ in range(_count(child))]


def _count(tree: TreeSpec) -> int:
    return 1 if tree["type"] is None else sum(map(_count, tree["children_spec"]))


def _keys(tree: TreeSpec) -> list[str]:
    context = json.loads(tree["context"] or "null")
    return [str(key) for key in context] if "dict" in str(tree["type"]).lower() and isinstance(context, list) else []


def assemble(tree: TreeSpec, leaves: Iterator[Any]) -> Any:
    """Put leaves together, depth first: dictionaries, and lists for any other node."""
    if tree["type"] is None:
        return next(leaves)
    children = [assemble(child, leaves) for child in tree["children_spec"]]
    keys = _keys(tree)
    return dict(zip(keys, children, strict=True)) if keys else children


def decode_leaf(kind: str, value: bytes) -> Any:
    """Decode one leaf of format `kind`. Raises RowProblem."""
    name, _, argument = kind.partition(":")
    decoder = _DECODERS.get(name)
    try:
        return value if decoder is None else decoder(value, argument)
    except UnicodeDecodeError as error:
        raise RowProblem("invalid UTF-8", f"a text in it is no valid UTF-8 at byte {error.start}") from None
    except (ValueError, IndexError, KeyError, struct.error, RecursionError) as error:
        raise RowProblem("broken value", f"a value in it is no {name} ({error})") from None


def _decode_tensor(value: bytes, _: str) -> NDArray[Any]:
    dtype, axes = struct.unpack_from(">II", value)
    shape = struct.unpack_from(f">{axes}I", value, 8)
    return np.frombuffer(value, _TORCH_DTYPES[dtype], offset=8 + 4 * axes).reshape(shape)


def _decode_array(value: bytes, _: str) -> NDArray[Any]:
    dtype, axes = struct.unpack_from("<II", value)
    shape = struct.unpack_from(f"<{axes}I", value, 8)
    return np.frombuffer(value, _NUMPY_DTYPES[dtype], offset=8 + 4 * axes).reshape(shape)


_DECODERS: dict[str, Callable[[bytes, str], Any]] = {
    "str": lambda value, _: value.decode("utf-8"),
    "text": lambda value, _: value.decode("utf-8"),
    "int": lambda value, _: int(np.frombuffer(value, "<i8")[0]),
    "float": lambda value, _: float(np.frombuffer(value, "<f8")[0]),
    "bool": lambda value, _: value != b"\0",
    "json": lambda value, _: _decode_nested(value),
    "tensor": _decode_tensor,
    "numpy": _decode_array,
    "no_header_tensor": lambda value, number: np.frombuffer(value, _TORCH_DTYPES[int(number)]),
    "no_header_numpy": lambda value, number: np.frombuffer(value, _NUMPY_DTYPES[int(number)]),
}


def _decode_nested(value: bytes) -> Any:
    """Decode lists and dictionaries: as JSON, or in a binary form that begins with a small tag."""
    if not value or value[0] > _PLAIN_JSON:
        return parse_quickly(value)
    return _Nested(value).value()


class _Nested:
    """A cursor in the binary form of nested values."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0

    def value(self) -> Any:
        tag = self._byte()
        if tag == _RECORDS:
            return self._records()
        if tag == _OBJECT:
            return {self._text(): self.value() for _ in range(self._number("<I"))}
        if tag == _JSON:
            return parse_quickly(self._bytes(self._number("<I")))
        if tag == _TEXTS:
            return [self._text() for _ in range(self._number("<I"))]
        if tag in (_INTEGERS, _FLOATS, _BOOLS):
            dtype = np.dtype({_INTEGERS: "<i8", _FLOATS: "<f8", _BOOLS: "?"}[tag])
            return np.frombuffer(self._bytes(self._number("<I") * dtype.itemsize), dtype).tolist()
        return self._single(tag - _TEXT)

    def _single(self, number: int) -> Any:
        """Decode a value that holds no others: text, integer, float, bool or none."""
        match number:
            case 0:
                return self._text()
            case 1:
                return self._number("<q")
            case 2:
                return self._number("<d")
            case 3:
                return self._byte() != 0
            case 4:
                return None
        raise ValueError(f"unknown tag before byte {self._position}")

    def _records(self) -> list[dict[str, Any]]:
        count, width = self._number("<I"), self._number("<I")
        keys = [self._text() for _ in range(width)]
        return [{key: self._cell() for key in keys} for _ in range(count)]

    def _cell(self) -> Any:
        # Cells begin with none; the other four follow in the order of single values.
        number = self._byte() - _FIRST_CELL
        return self._single(number - 1) if number else None

    def _text(self) -> str:
        return self._bytes(self._number("<I")).decode("utf-8")

    def _byte(self) -> int:
        return self._bytes(1)[0]

    def _number(self, layout: str) -> Any:
        return struct.unpack(layout, self._bytes(struct.calcsize(layout)))[0]

    def _bytes(self, count: int) -> bytes:
        end = self._position + count
        if end > len(self._content):
            raise ValueError(f"it ends before byte {end}")
        content = self._content[self._position : end]
        self._position = end
        return content


def wanted_leaves(fields: Sequence[str], paths: Sequence[str] | None) -> list[bool]:
    """Tell for each leaf whether a field path begins with its field."""
    names = None if paths is None else {path.split(".")[0].removesuffix("[]") for path in paths}
    return [names is None or not field or field in names for field in fields]
