from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest

from zephon_core.bank.scan import scan_texts
from zephon_core.bank.scan.columns import parse_batch
from zephon_core.bank.scan.fields import compile_fields
from zephon_core.bank.specs import FieldSpec, ScanSpec
from zephon_core.errors import BadRowError, InputError
from zephon_core.readers.arrow import RowBatch
from zephon_core.readers.sources import Source, resolve_sources

ROWS = [
    {"query": " one ", "candidates": [{"text": "two"}, {"text": "  "}, {"text": "one"}]},
    {"query": None, "candidates": None},
    {"query": "", "candidates": []},
    {"query": "three", "candidates": [None, {"text": None}, {"text": "a text that is longer than twelve bytes"}, {"text": "four"}]},
    {
        "query": "\u3000five\x1c",
        "candidates": [{"text": "é" * 40}, {"text": "another text of more than twelve bytes"}, {"text": "short"}],
    },
] * 3
TEXTS = [
    "one",
    "two",
    "three",
    ROWS[3]["candidates"][2]["text"],
    "four",
    "five",
    "é" * 40,
    "another text of more than twelve bytes",
    "short",
]


def scan(path: Path, **spec) -> tuple[list[str], dict]:
    checked = ScanSpec(sources=(str(path),), **spec)
    statistics = scan_texts(checked, resolve_sources(checked.sources), path.parent / "out", threads=2, memory_bytes=1 << 20)
    return [json.loads(line) for line in (path.parent / "out" / "texts.jsonl").read_bytes().splitlines()], statistics


def table(text: pa.DataType, candidates) -> pa.Table:
    return pa.table(
        {
            "query": pa.array([row["query"] for row in ROWS], text),
            "candidates": pa.array([row["candidates"] for row in ROWS], candidates),
        }
    )


STRUCT = pa.struct({"text": pa.string()})
PHYSICAL = {
    "string": table(pa.string(), pa.list_(STRUCT)),
    "large": table(pa.large_string(), pa.large_list(pa.struct({"id": pa.int8(), "text": pa.large_string()}))),
    "view": table(pa.string_view(), pa.list_view(pa.struct({"text": pa.string_view()}))),
    "large view": table(pa.string_view(), pa.large_list_view(STRUCT)),
    "dictionary": table(
        pa.dictionary(pa.int8(), pa.string()), pa.list_(pa.struct({"text": pa.dictionary(pa.int32(), pa.large_string())}))
    ),
}
PHYSICAL["run-end"] = PHYSICAL["string"].set_column(
    0, "query", pa.compute.run_end_encode(PHYSICAL["string"]["query"].combine_chunks())
)
NULLS_IN_DICTIONARY = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2] * 4)[: len(ROWS)], pa.array([" one", None, "x"]))


def write_ipc(stored: pa.Table, path: Path) -> Path:
    with pa.ipc.new_file(path, stored.schema) as writer:
        writer.write_table(stored, max_chunksize=4)
    return path


def texts_of(batch: pa.RecordBatch, *paths: str) -> list[str]:
    """The texts of a batch as it lies in memory, repeated ones included."""
    fields = compile_fields([FieldSpec(path=path) for path in paths])
    block = parse_batch(RowBatch(batch, 1, 0), fields, 1 << 20, "x")
    spans = zip(block.starts.tolist(), block.lengths.tolist(), strict=True)
    return [block.data[start : start + length].tobytes().decode() for start, length in spans]


@pytest.mark.parametrize("name", PHYSICAL)
def test_every_physical_type_gives_the_same(tmp_path, name):
    texts, statistics = scan(write_ipc(PHYSICAL[name], tmp_path / "a.arrow"))
    assert texts == TEXTS
    assert statistics["rows"] == len(ROWS)
    assert statistics["kinds"] == {"query": 3, "candidate": 6}


@pytest.mark.parametrize("name", PHYSICAL)
def test_a_piece_of_a_batch_begins_anywhere_in_its_buffers(name):
    (batch,) = PHYSICAL[name].combine_chunks().to_batches()
    for start in range(len(ROWS)):
        for count in (1, 2, 7):
            expected = []
            for row in ROWS[start : start + count]:
                found = [row["query"], *((candidate or {}).get("text") for candidate in row["candidates"] or ())]
                expected += [text.strip() for text in found if text and text.strip()]
            assert texts_of(batch.slice(start, count), "query", "candidates[].text") == expected


@pytest.mark.parametrize("name", ["string", "large", "dictionary"])
@pytest.mark.parametrize("options", [{}, {"data_page_version": "2.0", "compression": "zstd", "use_dictionary": False}])
def test_parquet_gives_the_same(tmp_path, name, options):
    pq.write_table(PHYSICAL[name], tmp_path / "a.parquet", row_group_size=4, **options)
    texts, statistics = scan(tmp_path / "a.parquet")
    assert texts == TEXTS
    assert statistics["sources"][0]["rows"] == len(ROWS)


def test_json_lines_give_the_same(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert scan(tmp_path / "a.jsonl")[0] == TEXTS


def test_fixed_size_lists_and_lists_of_texts(tmp_path):
    tags = pa.array([["a", "b"], None, ["c", None], ["", "a"]], pa.list_(pa.string(), 2))
    stored = pa.table({"tags": tags, "deep": pa.array([{"x": {"y": "d"}}, {"x": None}, None, {"x": {"y": None}}])}).slice(0)
    assert scan(write_ipc(stored, tmp_path / "a.arrow"), fields=["deep.x.y", "tags[]"])[0] == ["d", "a", "b", "c"]
    (batch,) = stored.combine_chunks().to_batches()
    assert texts_of(batch.slice(1), "tags[]") == ["c", "a"]
    assert texts_of(batch.slice(2, 1), "tags[]", "deep.x.y") == ["c"]


def test_dictionaries_whose_values_are_null(tmp_path):
    stored = pa.table({"query": NULLS_IN_DICTIONARY})
    assert scan(write_ipc(stored, tmp_path / "a.arrow"))[0] == ["one", "x"]


def test_columns_of_nothing_and_absent_columns(tmp_path):
    stored = pa.table({"query": pa.array(["a", "b"]), "candidates": pa.nulls(2)})
    assert scan(write_ipc(stored, tmp_path / "a.arrow"))[1]["kinds"] == {"query": 2, "candidate": 0}
    assert scan(write_ipc(stored.select(["query"]), tmp_path / "b.arrow"))[1]["kinds"] == {"query": 2, "candidate": 0}
    with pytest.raises(InputError, match="no text at 'nowhere' in 2 rows"):
        scan(tmp_path / "a.arrow", fields=["nowhere"])


@pytest.mark.parametrize(
    ("column", "found"),
    [
        (pa.array([None, 7]), "'query' is a number, expected text"),
        (pa.array([None, True]), "'query' is true or false, expected text"),
        (pa.array([None, b"bytes"]), "'query' is of type binary, expected text"),
        (pa.array([None, ["a"]]), "'query' is a list, expected text"),
        (pa.array([None, {"a": 1}]), "'query' is an object, expected text"),
        (
            pa.array([None, [("a", "b")]], pa.map_(pa.string(), pa.string())),
            "'query' is of type map<string, string>, expected text",
        ),
    ],
)
def test_columns_of_other_types(tmp_path, column, found):
    stored = pa.table({"query": column, "other": ["x", "y"]})
    path = write_ipc(stored, tmp_path / "a.arrow")
    with pytest.raises(BadRowError) as caught:
        scan(path)
    assert str(caught.value) == f"{path}:2: {found}. Fix the row, or set on_bad_row (--on-bad-row) to quarantine."
    _, statistics = scan(path, fields=["other", "query"], on_bad_row="quarantine")
    assert (statistics["distinct"], statistics["bad_rows"]) == (1, {"not text": 1})


def test_candidates_of_other_types(tmp_path):
    lists = pa.table({"candidates": pa.array([["a"], [], None, [None]])})
    with pytest.raises(BadRowError, match=r"a\.arrow:1: 'candidates\[\]' is text, expected an object"):
        scan(write_ipc(lists, tmp_path / "a.arrow"))
    texts = pa.table({"candidates": pa.array([None, "a"])})
    with pytest.raises(BadRowError, match=r"a\.arrow:2: 'candidates' is text, expected a list"):
        scan(write_ipc(texts, tmp_path / "a.arrow"))


def test_invalid_utf8_and_long_rows_are_bad_rows(tmp_path):
    binary = pa.array([b"fine", b"\xff\xfe", b"x" * 900, b"last", b"\xed\xa0\x80"], pa.binary())
    query = pa.StringArray.from_buffers(5, *binary.buffers()[1:])
    stored = pa.table({"query": query, "candidates": [[{"text": "y" * 200}]] * 5})
    texts, statistics = scan(write_ipc(stored, tmp_path / "a.arrow"), on_bad_row="quarantine", max_row_bytes=1024)
    assert texts == ["fine", "y" * 200, "last"]
    assert statistics["bad_rows"] == {"invalid UTF-8": 2, "too long": 1}
    records = [json.loads(line) for line in (tmp_path / "out" / "bad_rows.jsonl").read_text().splitlines()]
    assert [(record["row"], record["byte_offset"], record["detail"]) for record in records] == [
        (2, None, "'query' is no valid UTF-8"),
        (3, None, "is 1,100 bytes long, expected at most 1,024"),
        (5, None, "'query' is no valid UTF-8"),
    ]
    assert "raw_base64" in records[0]
    assert records[1]["raw"].startswith('{"query": "xxx')
    assert records[1]["raw_bytes"] > 1100


def test_two_columns_of_one_name_are_refused(tmp_path):
    stored = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["query", "query"])
    with pytest.raises(InputError, match="2 columns are named 'query'"):
        scan(write_ipc(stored, tmp_path / "a.arrow"))


TEXT = pa.py_buffer(b"text of more than twelve bytes")
CHILD = pa.array(["some", "text"])
BUILD = {
    "texts": lambda buffer: pa.Array.from_buffers(pa.string(), 2, [None, buffer, TEXT]),
    "views": lambda buffer: pa.Array.from_buffers(pa.string_view(), 1, [None, buffer, TEXT]),
    "list": lambda buffer: pa.Array.from_buffers(pa.list_(pa.string()), 2, [None, buffer], children=[CHILD]),
    "list view": lambda buffer: pa.Array.from_buffers(
        pa.list_view(pa.string()), 1, [None, buffer.slice(0, 4), buffer.slice(4, 4)], children=[CHILD]
    ),
    "dictionary": lambda buffer: pa.DictionaryArray.from_arrays(pa.Array.from_buffers(pa.int32(), 2, [None, buffer]), CHILD),
}


@pytest.mark.parametrize(
    ("kind", "good", "texts", "broken"),
    [
        ("texts", [0, 4, 9], 2, [[0, 4, 31], [0, -1, 9], [5, 2, 9], [0, 2**31 - 1, 9]]),
        (
            "views",
            [20, 0, 0, 5],
            1,
            [[20, 0, 0, 11], [20, 0, 1, 5], [20, 0, -1, 5], [20, 0, 0, -1], [-1, 0, 0, 0], [2**31 - 1, 0, 0, 0]],
        ),
        ("list", [0, 2, 2], 2, [[0, 3, 3], [-1, 1, 2], [2, 1, 2], [0, 0, 2**31 - 1]]),
        ("list view", [1, 1], 1, [[1, 2], [-1, 1], [1, -1], [2**31 - 1, 1]]),
        ("dictionary", [1, 0], 2, [[1, 2], [-1, 0], [2**31 - 1, 0]]),
    ],
)
def test_offsets_that_lead_elsewhere_are_refused(kind, good, texts, broken):
    """Compiled code follows these numbers: none may be believed, whatever pyarrow checked before."""
    fields = compile_fields([FieldSpec(path="x[]" if "list" in kind else "x")])
    entries = np.array(good, np.int32)
    column = BUILD[kind](pa.py_buffer(entries))
    part = RowBatch(pa.RecordBatch.from_arrays([column], ["x"]), 1, 0)
    assert len(parse_batch(part, fields, 1 << 20, "a.arrow").starts) == texts
    for tampered in broken:
        entries[:] = tampered
        with pytest.raises(InputError, match=r"a\.arrow: can't be decoded \(.* contradict each other\)"):
            parse_batch(part, fields, 1 << 20, "a.arrow")


def text_paths(kind: pa.DataType, path: str) -> list[str]:
    """The field paths of all texts below a column."""
    if pa.types.is_struct(kind):
        return [found for child in kind for found in text_paths(child.type, f"{path}.{child.name}")]
    if pa.types.is_list(kind) and not path.endswith("[]"):
        return text_paths(kind.value_type, f"{path}[]")
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return [path] if pa.types.is_string(kind) or pa.types.is_string_view(kind) else []


def fields_of(path: Path, kind: str) -> list[str]:
    """The text columns of a file as far as pyarrow can say, and one other."""
    try:
        if kind == "parquet":
            schema = pq.read_schema(path)
        else:
            schema = (pa.ipc.open_file if path.read_bytes()[:6] == b"ARROW1" else pa.ipc.open_stream)(str(path)).schema
        paths = [found for column in schema for found in text_paths(column.type, column.name)]
        ScanSpec(sources=("x",), fields=paths or [schema.names[0]])
    except (pa.ArrowException, OSError, ValueError, IndexError):
        return ["text"]
    return paths or [schema.names[0]]


@pytest.mark.parametrize(
    ("folder", "texts"),
    [
        ("arrow-testing/data/arrow-ipc-file", 0),
        ("arrow-testing/data/arrow-ipc-stream", 10),
        ("arrow-testing/data/parquet", 5),
        ("parquet-testing", 90),
    ],
)
def test_nasty_files_through_the_scan(shared_data, tmp_path, folder, texts):
    kind = "parquet" if "parquet" in folder else "arrow"
    read = 0
    for path in sorted(path for path in (shared_data / "nasty" / folder).rglob("*") if path.is_file()):
        source = Source("", str(path), kind, "none", path.stat().st_size, "")
        spec = ScanSpec(sources=("x",), fields=fields_of(path, kind), on_bad_row="quarantine")
        try:
            read += scan_texts(spec, [source], tmp_path, threads=1, memory_bytes=1 << 20)["texts"]
        except InputError as error:
            assert "\n" not in str(error)
    assert read >= texts


@pytest.mark.parametrize("folder", ["arrow-testing/data", "parquet-testing"])
def test_any_column_of_nasty_files_is_read_or_refused_in_one_line(shared_data, tmp_path, folder):
    """Also those of types that pyarrow has no class for, as intervals of months."""
    refused = []
    for path in sorted(path for path in (shared_data / "nasty" / folder).rglob("*") if path.is_file()):
        kind = "parquet" if "parquet" in str(path.relative_to(shared_data)) else "arrow"
        source = Source("", str(path), kind, "none", path.stat().st_size, "")
        for name in names_of(path, kind)[:8]:
            try:
                spec = ScanSpec(sources=("x",), fields=(name,), on_bad_row="quarantine")
                scan_texts(spec, [source], tmp_path, threads=1, memory_bytes=1 << 20)
            except InputError as error:
                refused.append(str(error))
            except ValueError:  # a name that is no path
                continue
    assert refused and not any("\n" in message for message in refused)
    assert kind == "parquet" or any("month_interval" in message for message in refused)


def names_of(path: Path, kind: str) -> list[str]:
    try:
        if kind == "parquet":
            return list(pq.read_schema(path).names)
        return list((pa.ipc.open_file if path.read_bytes()[:6] == b"ARROW1" else pa.ipc.open_stream)(str(path)).schema.names)
    except (pa.ArrowException, OSError, ValueError):
        return []


def test_a_page_whose_checksum_is_wrong_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    texts = pa.table({"text": [f"a text with the number {number}" for number in range(50)]})
    pq.write_table(texts, path, compression="none", use_dictionary=False, write_page_checksum=True)
    assert len(scan(path, fields=("text",))[0]) == 50
    content = bytearray(path.read_bytes())
    content[content.index(b"number 20")] = ord("N")
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match="CRC checksum verification failed"):
        scan(path, fields=("text",))
