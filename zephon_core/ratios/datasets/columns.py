"""Rows of columnar formats: their content bytes and texts straight from Arrow's buffers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from zephon_core.ratios.datasets.model import payloads_or_problems
from zephon_core.readers.rows import RowProblem

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowTexts", "ColumnRows", "check_batch", "content_bytes"]


def check_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Check all offsets, sizes and indices of a batch that somebody else put together; invalid UTF-8 is let pass.

    Raises pyarrow's ArrowInvalid. Returns the batch.
    """
    import pyarrow as pa

    batch.validate()
    for number in range(batch.num_columns):
        with suppress(KeyError):  # a type that pyarrow has no Python class for: nothing looks into it
            column = batch.column(number)
            try:
                column.validate(full=True)
            except pa.ArrowInvalid:
                _check_as_bytes(_plain(column))
    return batch


def _check_as_bytes(array: pa.Array) -> None:
    """Check an array with its texts taken for bytes."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(array.type):
        indices = pa.DictionaryArray.from_arrays(array.indices, pa.nulls(len(array.dictionary)), safe=False)
        indices.validate(full=True)
        array = array.dictionary
    array.view(_with_bytes(array.type)).validate(full=True)


def _with_bytes(kind: pa.DataType) -> pa.DataType:
    """Return a type of the same layout that has bytes in the place of texts."""
    import pyarrow as pa
    from pyarrow import types

    for is_text, replaced in (
        (types.is_string, pa.binary()),
        (types.is_large_string, pa.large_binary()),
        (types.is_string_view, pa.binary_view()),
    ):
        if is_text(kind):
            return replaced
    if types.is_struct(kind):
        return pa.struct([field.with_type(_with_bytes(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_with_bytes(kind.key_type), _with_bytes(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(_with_bytes(kind.value_type), kind.list_size)
    for is_list, make in ((types.is_list, pa.list_), (types.is_large_list, pa.large_list)):
        if is_list(kind):
            return make(_with_bytes(kind.value_type))
    return kind


class ColumnRows:
    """The rows of record batches, which are checked already."""

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._batches = [batch for batch in batches if batch.num_rows]
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])
        self._row_bytes: NDArray[np.int64] | None = None

    @property
    def row_bytes(self) -> NDArray[np.int64]:
        """Content bytes of each row's decoded columns: int64 [rows]."""
        if self._row_bytes is None:
            self._row_bytes = np.zeros(int(self._starts[-1]), np.int64)
            for start, batch in zip(self._starts, self._batches, strict=False):
                for number in range(batch.num_columns):
                    with suppress(KeyError):  # a type that pyarrow has no Python class for: no text, no bytes
                        self._row_bytes[start : start + batch.num_rows] += content_bytes(batch.column(number))
        return self._row_bytes

    def payload(self, row: int) -> dict[str, Any]:
        """Return a row's columns as Python values. Raises RowProblem."""
        number = int(np.searchsorted(self._starts, row, "right")) - 1
        return _decoded(self._batches[number].slice(row - int(self._starts[number]), 1))[0]

    def payloads(self, rows: Sequence[int]) -> list[Any]:
        """Return many rows, a RowProblem in the place of each bad one."""
        wanted = np.asarray(rows, np.int64)
        owners = np.searchsorted(self._starts, wanted, "right") - 1
        found: list[Any] = [None] * len(wanted)
        for number in np.unique(owners).tolist():
            places = np.flatnonzero(owners == number)
            inside = wanted[places] - int(self._starts[number])
            for place, payload in zip(places.tolist(), self._of_batch(number, inside), strict=True):
                found[place] = payload
        return found

    def _of_batch(self, number: int, inside: NDArray[np.int64]) -> list[Any]:
        batch = self._batches[number]
        # Neighbours are decoded without being copied first.
        first, count = int(inside[0]), len(inside)
        together = np.array_equal(inside, np.arange(first, first + count))
        try:
            return _decoded(batch.slice(first, count) if together else batch.take(inside))
        except (RowProblem, NotImplementedError, OverflowError):
            return payloads_or_problems(self, (inside + int(self._starts[number])).tolist())

    def texts(self, path: tuple[str, ...]) -> ArrowTexts | None:
        """Return the texts of a column, or of a field of nested structs; None where the path leads to none."""
        import pyarrow as pa

        pieces = []
        for batch in self._batches:
            piece = _follow(batch, path)
            if piece is None:
                return None
            pieces.append(piece)
        return ArrowTexts(pa.chunked_array(pieces, pa.large_string())) if pieces else None


def _decoded(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        decoded: list[dict[str, Any]] = batch.to_pylist()
    except UnicodeDecodeError as error:
        raise RowProblem("invalid UTF-8", f"is no valid UTF-8 ({error.reason})") from None
    except (ValueError, OverflowError, KeyError) as error:
        raise RowProblem("no Python value", f"can't be turned into Python values ({error})") from None
    return decoded


class ArrowTexts:
    """A column of texts of any Arrow type that holds them."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        pieces = [_lengths_and_nulls(piece) for piece in column.chunks]
        self._column = column
        self._lengths = np.concatenate([lengths for lengths, _ in pieces])
        self._is_null = np.concatenate([is_null for _, is_null in pieces])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """UTF-8 bytes of each text: int64 [rows], 0 for null."""
        return self._lengths

    @property
    def is_null(self) -> NDArray[np.bool_]:
        """Whether there is no text: bool [rows]."""
        return self._is_null

    def text(self, row: int) -> str:
        """Return one text, "" for null. Raises RowProblem where it is no valid UTF-8."""
        try:
            return self._column[row].as_py() or ""
        except UnicodeDecodeError as error:
            raise RowProblem("invalid UTF-8", f"is no valid UTF-8 at byte {error.start} of the text") from None


def _follow(batch: pa.RecordBatch, path: tuple[str, ...]) -> pa.Array | None:
    """Return the array at the end of a path as large_string, None where there is none or where it holds no texts."""
    import pyarrow.compute as pc
    from pyarrow import types

    if not path or batch.schema.names.count(path[0]) != 1:
        return None
    array = _plain(batch.column(path[0]))
    for name in path[1:]:
        if not types.is_struct(array.type) or array.type.get_all_field_indices(name).__len__() != 1:
            return None
        array = _plain(pc.struct_field(array, [name]))
    return _as_large_string(array)


def _as_large_string(array: pa.Array) -> pa.Array | None:
    """Turn texts of whatever layout into large_string; their bytes are not looked at, so that bad UTF-8 costs its own row only."""
    import pyarrow as pa
    from pyarrow import types

    kind = array.type
    if types.is_dictionary(kind):
        values = _as_large_string(array.dictionary)
        return None if values is None else values.take(array.indices)
    if types.is_large_string(kind):
        return array
    if types.is_string(kind):
        return _view_text(array.cast(pa.binary(), safe=False).cast(pa.large_binary()))
    if types.is_string_view(kind):
        return _view_text(array.cast(pa.binary_view(), safe=False).cast(pa.large_binary()))
    return None


def _view_text(array: pa.Array) -> pa.Array:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.large_string(), len(array), array.buffers(), null_count=array.null_count, offset=array.offset)


def _plain(array: pa.Array) -> pa.Array:
    """Take the storage of an extension type."""
    import pyarrow as pa

    return array.storage if isinstance(array.type, pa.BaseExtensionType) else array


def _lengths_and_nulls(texts: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Measure a large_string (or large_binary) array."""
    is_null = texts.is_null().to_numpy(zero_copy_only=False)
    offsets = np.frombuffer(texts.buffers()[1] or b"", np.int64)[texts.offset : texts.offset + len(texts) + 1]
    lengths = np.diff(offsets) if len(offsets) else np.zeros(len(texts), np.int64)
    return np.where(is_null, 0, lengths), np.asarray(is_null, np.bool_)


def content_bytes(array: pa.Array) -> NDArray[np.int64]:
    """Return the content bytes of each row of an array: int64 [rows].

    Texts count their UTF-8, bytes and single numbers their width, lists and structs what they hold; names and nulls count nothing.
    """
    import pyarrow as pa
    from pyarrow import types

    array = _plain(array)
    kind = array.type
    rows = len(array)
    if rows == 0 or types.is_null(kind):
        return np.zeros(rows, np.int64)
    if types.is_dictionary(kind):
        return _of_dictionary(array)
    if types.is_struct(kind):
        sums = np.zeros(rows, np.int64)
        for number in range(kind.num_fields):
            sums += content_bytes(array.field(number))
        return _without_nulls(array, sums)
    if types.is_map(kind):
        return _of_lists(array, pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"]), array.offsets)
    if types.is_list(kind) or types.is_large_list(kind):
        return _of_lists(array, array.values, array.offsets)
    if types.is_fixed_size_list(kind):
        inner = content_bytes(array.flatten()) if not array.null_count else content_bytes(array.drop_null().flatten())
        sums = np.zeros(rows, np.int64)
        sums[~_nulls(array)] = inner.reshape(-1, kind.list_size).sum(axis=1) if kind.list_size else 0
        return sums
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return _of_list_views(array)
    if types.is_union(kind):
        return np.full(rows, 8, np.int64)
    lengths = _binary_lengths(array)
    if lengths is None:
        lengths = np.full(rows, max(1, kind.bit_width // 8), np.int64)
    return _without_nulls(array, lengths)


def _binary_lengths(array: pa.Array) -> NDArray[np.int64] | None:
    """Measure texts and bytes; None for other types."""
    from pyarrow import types

    kind = array.type
    if types.is_string(kind) or types.is_binary(kind):
        width: type[np.signedinteger[Any]] = np.int32
    elif types.is_large_string(kind) or types.is_large_binary(kind):
        width = np.int64
    elif types.is_string_view(kind) or types.is_binary_view(kind):
        views = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, 4)
        return views[array.offset : array.offset + len(array), 0].astype(np.int64)
    else:
        return None
    offsets = np.frombuffer(array.buffers()[1] or b"", width)[array.offset : array.offset + len(array) + 1]
    wide: NDArray[np.int64] = offsets.astype(np.int64)
    return wide[1:] - wide[:-1] if len(wide) else np.zeros(len(array), np.int64)


def _of_dictionary(array: pa.DictionaryArray) -> NDArray[np.int64]:
    values = content_bytes(array.dictionary)
    is_null = _nulls(array)
    indices = array.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return np.where(is_null, 0, values[indices] if len(values) else 0)


def _of_lists(array: pa.Array, values: pa.Array, offsets: pa.Array) -> NDArray[np.int64]:
    # Values are counted from the list array's own offset on; `offsets` knows about slices.
    bounds = offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    below = np.concatenate([np.zeros(1, np.int64), np.cumsum(content_bytes(values))])
    return _without_nulls(array, below[bounds[1:]] - below[bounds[:-1]])


def _of_list_views(array: pa.Array) -> NDArray[np.int64]:
    starts = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    sizes = array.sizes.to_numpy(zero_copy_only=False).astype(np.int64)
    below = np.concatenate([np.zeros(1, np.int64), np.cumsum(content_bytes(array.values))])
    return _without_nulls(array, below[starts + sizes] - below[starts])


def _nulls(array: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), np.bool_)


def _without_nulls(array: pa.Array, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(_nulls(array), 0, sizes) if array.null_count else sizes
