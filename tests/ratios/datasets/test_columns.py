"""Content bytes and texts of Arrow columns, against a plain restatement in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.ratios.datasets.columns import ColumnRows, check_batch, content_bytes
from zephon_core.readers.rows import RowProblem


def size(value: Any, width: int = 8) -> int:
    """Content bytes of a Python value whose numbers are `width` bytes wide."""
    if value is None:
        return 0
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(size(item) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(size(item) for item in value)
    return width


TEXT = st.one_of(st.none(), st.text(max_size=8))
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "string": (pa.string(), TEXT),
    "large_string": (pa.large_string(), TEXT),
    "string_view": (pa.string_view(), st.one_of(st.none(), st.text(max_size=20))),
    "binary": (pa.binary(), st.one_of(st.none(), st.binary(max_size=8))),
    "binary_view": (pa.binary_view(), st.one_of(st.none(), st.binary(max_size=20))),
    "fixed": (pa.binary(3), st.one_of(st.none(), st.binary(min_size=3, max_size=3))),
    "int64": (pa.int64(), st.one_of(st.none(), st.integers(-5, 5))),
    "messages": (
        pa.list_(pa.struct([("role", pa.string()), ("content", pa.large_string())])),
        st.one_of(st.none(), st.lists(st.one_of(st.none(), st.fixed_dictionaries({"role": TEXT, "content": TEXT})), max_size=3)),
    ),
    "ids": (pa.large_list(pa.int64()), st.one_of(st.none(), st.lists(st.integers(0, 9), max_size=4))),
    "view": (pa.list_view(pa.string()), st.one_of(st.none(), st.lists(TEXT, max_size=4))),
    "pair": (pa.list_(pa.string(), 2), st.one_of(st.none(), st.lists(TEXT, min_size=2, max_size=2))),
    "map": (pa.map_(pa.string(), pa.string()), st.one_of(st.none(), st.lists(st.tuples(st.text(max_size=3), TEXT), max_size=3))),
    "struct": (
        pa.struct([("a", pa.struct([("b", pa.string())])), ("n", pa.int64())]),
        st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {"a": st.one_of(st.none(), st.fixed_dictionaries({"b": TEXT})), "n": st.one_of(st.none(), st.just(1))}
            ),
        ),
    ),
    "null": (pa.null(), st.none()),
}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_content_bytes(kind: str, data: st.DataObject) -> None:
    arrow_type, values = KINDS[kind]
    rows = data.draw(st.lists(values, max_size=12))
    array = pa.array(rows, arrow_type)
    start = data.draw(st.integers(0, len(rows)))
    assert content_bytes(array.slice(start)).tolist() == [size(row) for row in rows[start:]]


def test_content_bytes_of_dictionaries_and_extensions() -> None:
    encoded = pa.array(["ab", None, "é", "ab"]).dictionary_encode()
    assert content_bytes(encoded).tolist() == [2, 0, 2, 2]
    assert content_bytes(encoded.slice(2)).tolist() == [2, 2]
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((3, 2, 2), np.float32))
    assert content_bytes(tensor).tolist() == [16, 16, 16]
    assert content_bytes(pa.array([True, None])).tolist() == [1, 0]
    assert content_bytes(pa.array([None, None], pa.string()).dictionary_encode()).tolist() == [0, 0]


TEXT_TYPES = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]


@pytest.mark.parametrize("arrow_type", TEXT_TYPES, ids=str)
@given(data=st.data())
def test_texts(arrow_type: pa.DataType, data: st.DataObject) -> None:
    batches = data.draw(st.lists(st.lists(st.one_of(st.none(), st.text(max_size=20)), max_size=6), min_size=1, max_size=3))
    rows = ColumnRows([pa.record_batch([array_of(texts, arrow_type)], ["text"]) for texts in batches])
    expected = [text for batch in batches for text in batch]
    column = rows.texts(("text",))
    if not expected:
        assert column is None
        return
    assert column is not None
    assert column.lengths.tolist() == [len((text or "").encode()) for text in expected] == rows.row_bytes.tolist()
    assert column.is_null.tolist() == [text is None for text in expected]
    assert [column.text(row) for row in range(len(expected))] == [text or "" for text in expected]
    assert rows.payloads(range(len(expected))) == [{"text": text} for text in expected]


def array_of(texts: list[str | None], arrow_type: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(arrow_type):
        return pa.array(texts, pa.string()).dictionary_encode()
    return pa.array(texts, arrow_type)


def test_texts_inside_structs_and_where_there_are_none() -> None:
    documents = pa.array([{"body": "a"}, None, {"body": None}], pa.struct([("body", pa.string())]))
    rows = ColumnRows([pa.record_batch([documents, pa.array([1, 2, 3])], ["document", "number"])])
    column = rows.texts(("document", "body"))
    assert column is not None
    assert (column.lengths.tolist(), column.is_null.tolist()) == ([1, 0, 0], [False, True, True])
    for path in ((), ("number",), ("document",), ("absent",), ("document", "absent"), ("document", "body", "more")):
        assert rows.texts(path) is None


def test_invalid_utf8_costs_its_own_row() -> None:
    content = pa.array([b"ok", b"\xff\xfe", b"fine"], pa.binary())
    for arrow_type in (pa.string(), pa.large_string()):
        raw = content.cast(pa.large_binary()) if arrow_type == pa.large_string() else content
        texts = pa.Array.from_buffers(arrow_type, 3, raw.buffers())
        rows = ColumnRows([pa.record_batch([texts], ["text"])])
        first, bad, last = rows.payloads([0, 1, 2])
        assert (first, last) == ({"text": "ok"}, {"text": "fine"})
        assert isinstance(bad, RowProblem)
        assert bad.reason == "invalid UTF-8"
        column = rows.texts(("text",))
        assert column is not None
        assert column.lengths.tolist() == [2, 2, 4]
        assert column.text(2) == "fine"
        with pytest.raises(RowProblem, match="no valid UTF-8"):
            column.text(1)


def test_batches_with_wrong_offsets_or_indices_are_refused() -> None:
    strings = pa.array(["ab", "cd", "ef"])
    offsets = np.array([0, 2, 100_000, 6], np.int32)
    wrong_offsets = pa.Array.from_buffers(pa.string(), 3, [None, pa.py_buffer(offsets), strings.buffers()[2]])
    wrong_indices = pa.DictionaryArray.from_arrays(pa.array([0, 9, 1]), pa.array(["a", "b"]), safe=False)
    inside = pa.StructArray.from_arrays([wrong_indices], ["inside"])
    for array in (wrong_offsets, wrong_indices, inside):
        with pytest.raises(pa.ArrowInvalid):
            check_batch(pa.record_batch([array], ["a"]))


def test_batches_with_invalid_utf8_are_let_pass() -> None:
    texts = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff", b"ok"], pa.binary()).buffers())
    turns = pa.StructArray.from_arrays([texts, pa.array([1, 2])], ["content", "n"])
    views = texts.view(pa.binary()).cast(pa.binary_view()).view(pa.string_view())
    maps = pa.MapArray.from_arrays([0, 1, 2], pa.array(["k", "l"]), texts)
    for array in (
        *(texts, turns, views, maps, pa.ListArray.from_arrays([0, 1, 2], turns), pa.LargeListArray.from_arrays([0, 1, 2], texts)),
        *(pa.FixedSizeListArray.from_arrays(texts, 1), pa.DictionaryArray.from_arrays(pa.array([0, 1]), texts)),
    ):
        batch = pa.record_batch([array], ["a"])
        with pytest.raises(pa.ArrowInvalid):
            batch.validate(full=True)
        assert check_batch(batch) is batch
