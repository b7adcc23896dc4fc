"""Nested columns put together from arrays that hold some of their leaves each, as Parquet files give them page by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["can_be_joined", "join_columns"]


def can_be_joined(kind: pa.DataType) -> bool:
    """Say whether `join_columns` knows a type: lists and structs of leaves, no name twice."""
    import pyarrow as pa
    from pyarrow import types

    if isinstance(kind, pa.BaseExtensionType):
        return False
    if types.is_struct(kind):
        names = [field.name for field in kind]
        return len(set(names)) == len(names) and all(can_be_joined(field.type) for field in kind)
    if types.is_list(kind) or types.is_large_list(kind):
        return can_be_joined(kind.value_type)
    return not types.is_nested(kind)


def join_columns(kind: pa.DataType, arrays: Sequence[pa.Array]) -> pa.Array:
    """Put a column together.

    kind: the column's type with all leaves. arrays: the same rows of it, each with some of the leaves; together they need not have
    all. Raises pyarrow's ArrowInvalid where their lists have other lengths.
    """
    import pyarrow as pa
    from pyarrow import types

    if len(arrays) == 1:
        return arrays[0]
    first = arrays[0]
    nulls = first.is_null()
    if types.is_struct(kind):
        fields, children = [], []
        for field in kind:
            found = [array.field(field.name) for array in arrays if array.type.get_field_index(field.name) >= 0]
            if found:
                children.append(join_columns(field.type, found))
                fields.append(field.with_type(children[-1].type))
        return pa.StructArray.from_arrays(children, fields=fields, mask=nulls)
    if not (types.is_list(kind) or types.is_large_list(kind)):
        return first
    offsets = [array.offsets.to_numpy(zero_copy_only=False) for array in arrays]
    bounds = [each - each[0] for each in offsets]
    if not all(np.array_equal(each, bounds[0]) for each in bounds):
        raise pa.ArrowInvalid("leaves of a column have lists of other lengths")
    values = [array.values.slice(each[0], each[-1] - each[0]) for array, each in zip(arrays, offsets, strict=True)]
    joined = join_columns(kind.value_type, values)
    make, wrap = (pa.ListArray, pa.list_) if types.is_list(kind) else (pa.LargeListArray, pa.large_list)
    return make.from_arrays(pa.array(bounds[0]), joined, type=wrap(kind.value_field.with_type(joined.type)), mask=nulls)
