"""Field paths, compiled into the table that the fast parser and the reference both walk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zephon_core.bank.scan.arrays import Bytes, Ints
from zephon_core.bank.specs import FieldSpec
from zephon_core.errors import SpecError

__all__ = ["LEAF", "LIST", "OBJECT", "FieldNode", "FieldTable", "compile_fields"]

OBJECT, LIST, LEAF = 0, 1, 2
_MAX_DEPTH = 64


@dataclass
class FieldNode:
    """What is wanted at one place of a row.

    kind: OBJECT (go into `children` by name), LIST (go into every element, which is `element`), or LEAF (a text of field `field`).
    """

    kind: int
    children: dict[str, FieldNode] = field(default_factory=dict)
    element: FieldNode | None = None
    field: int = -1


@dataclass(frozen=True)
class FieldTable:
    """All wanted places of a row.

    root: the same as a tree. kinds: kind of each field, as an index into kind_names. nodes: [n, 3] (kind; field of a leaf, element
    node of a list, first child of an object; number of children). children: [m, 3] (node, start and length of its name in names).
    names: UTF-8 of all names. depth: containers that the deepest path opens.
    """

    root: FieldNode
    paths: tuple[str, ...]
    kind_names: tuple[str, ...]
    kinds: Bytes
    nodes: Ints
    children: Ints
    names: Bytes
    depth: int


def compile_fields(fields: Sequence[FieldSpec]) -> FieldTable:
    """Merge field paths into one tree. Raises SpecError where one path contradicts another (`a` is text, `a.b` needs an object)."""
    root = FieldNode(OBJECT)
    for number, spec in enumerate(fields):
        _add(root, spec.path, number)
    kind_names = tuple(dict.fromkeys(spec.kind for spec in fields))
    kinds = np.array([kind_names.index(spec.kind) for spec in fields], np.uint8)
    nodes, children, names, depth = _flatten(root)
    return FieldTable(root, tuple(spec.path for spec in fields), kind_names, kinds, nodes, children, names, depth)


def _add(root: FieldNode, path: str, number: int) -> None:
    steps: list[str | None] = []
    for name in path.split("."):
        steps.append(name.removesuffix("[]"))
        if name.endswith("[]"):
            steps.append(None)
    if len(steps) >= _MAX_DEPTH:
        raise SpecError("fields", f"{path!r} goes {len(steps)} levels deep", wanted=f"fewer than {_MAX_DEPTH}")
    node = root
    for step, following in zip(steps, [*steps[1:], ""], strict=True):
        kind = LIST if following is None else LEAF if following == "" else OBJECT
        child = node.element if step is None else node.children.get(step)
        if child is None:
            child = FieldNode(kind)
            if step is None:
                node.element = child
            else:
                node.children[step] = child
        elif child.kind != kind or kind == LEAF:
            raise SpecError(
                "fields", f"{path!r} contradicts or repeats another field path", remedy="Name each place of a row once."
            )
        node = child
    node.field = number


def _flatten(root: FieldNode) -> tuple[Any, Any, Any, int]:
    nodes: list[list[int]] = []
    children: list[list[int]] = []
    names = bytearray()

    def place(node: FieldNode) -> tuple[int, int]:
        number = len(nodes)
        nodes.append([node.kind, node.field, 0])
        if node.kind == LEAF:
            return number, 0
        if node.kind == LIST:
            assert node.element is not None
            nodes[number][1], depth = place(node.element)
            return number, depth + 1
        first = len(children)
        nodes[number][1:] = [first, len(node.children)]
        children.extend([[-1, 0, 0]] * len(node.children))
        depth = 0
        for k, (name, child) in enumerate(node.children.items()):
            encoded = name.encode("utf-8", "surrogatepass")
            start = len(names)
            names.extend(encoded)
            place_number, below = place(child)
            children[first + k] = [place_number, start, len(encoded)]
            depth = max(depth, below)
        return number, depth + 1

    _, depth = place(root)
    return np.array(nodes, np.int64), np.array(children, np.int64), np.frombuffer(bytes(names), np.uint8).copy(), depth
