"""Samples from files: what is a text, what a conversation, and what neither."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from zephon_core.errors import BadRowError, InputError
from zephon_core.readers.rows import RowProblem
from zephon_core.xtoken import Conversation
from zephon_core.xtoken.alignment import samples
from zephon_core.xtoken.alignment.samples import Sample, conversation_of, named_samples, read_samples

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}]


def lines(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_rows_of_jsonl(tmp_path):
    file = lines(
        tmp_path / "a.jsonl", {"text": "one"}, {"messages": MESSAGES}, "two", {"messages": MESSAGES, "tools": [{"name": "f"}]}
    )
    assert list(read_samples(file)) == [
        Sample(f"{file}:1", "one"),
        Sample(f"{file}:2", Conversation(MESSAGES, {})),
        Sample(f"{file}:3", "two"),
        Sample(f"{file}:4", Conversation(MESSAGES, {"tools": [{"name": "f"}]})),
    ]


def test_other_fields(tmp_path):
    file = lines(tmp_path / "a.jsonl", {"body": "one"}, {"chat": MESSAGES})
    found = [sample.content for sample in read_samples(file, text_field="body", messages_field="chat")]
    assert found == ["one", Conversation(MESSAGES, {})]


def test_parquet_without_the_nulls_that_arrow_fills_in(tmp_path):
    other = [{"role": "user", "content": "x", "name": "Zoë"}]
    pq.write_table(pa.table({"messages": [MESSAGES, other], "more": [1, 2]}), tmp_path / "a.parquet")
    first, second = (sample.content for sample in read_samples(str(tmp_path / "a.parquet")))
    assert first == Conversation([MESSAGES[0], {"role": "assistant", "tool_calls": [{"name": "f"}]}], {})
    assert second == Conversation(other, {})
    pq.write_table(pa.table({"text": ["one", "two"], "more": [1, 2]}), tmp_path / "b.parquet")
    assert [sample.content for sample in read_samples(str(tmp_path / "b.parquet"))] == ["one", "two"]


def test_a_text_a_line(tmp_path):
    (tmp_path / "a.txt").write_bytes('one\r\n\n  \n{"text": 1}\nzwei é'.encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"three\n"))
    found = list(read_samples(str(tmp_path / "*.txt*")))
    assert [(Path(place).name, text) for place, text in found] == [
        ("a.txt:1", "one"),
        ("a.txt:4", '{"text": 1}'),
        ("a.txt:5", "zwei é"),
        ("b.txt.gz:1", "three"),
    ]


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"text": None}, r"has no 'messages', and 'text' is null or not there, expected a text, or messages"),
        ({"other": "x"}, r"has no 'messages', and 'text' is null or not there"),
        ({"text": 3}, r"'text' is a number"),
        ([1], r"'text' is a list"),
        ({"text": "a\ud800b"}, r"'text' holds half of a surrogate pair \('\\ud800' at character 2\)"),
        ({"messages": [{"role": "user", "content": "\udc00"}]}, r"'messages' holds half of a surrogate pair"),
        (
            {"messages": '[{"role": "user", "content": "a\\ud800"}]'},
            r"'messages' holds half .* \('\\ud800' at character 2\)",
        ),
        (
            {"messages": '[{"role": "user", "content": "a\udc00"}]'},
            r"'messages' holds half .* \('\\udc00' at",
        ),
        ({"messages": [], "tools": '[{"name": "\\udc00"}]'}, r"'tools' holds half of a surrogate pair"),
        ({"messages": {"role": "user"}}, r"'messages' is an object, expected a list of messages"),
        ({"messages": "[1"}, r"'messages' is a text that is no JSON"),
        ({"messages": '"x"'}, r"'messages' is a text, expected a list of messages"),
        ({"messages": [1]}, r"message 1 of 'messages' is a number, expected an object with role and content"),
        ({"messages": [{"role": "user"}, {"content": "x"}]}, r"message 2 of 'messages' has no role"),
        ({"messages": [], "tools": 3}, r"'tools' is a number, expected a list of tools"),
    ],
)
def test_what_is_no_sample(tmp_path, row, found):
    file = lines(tmp_path / "a.jsonl", {"text": "fine"}, row)
    with pytest.raises(BadRowError, match=rf"a\.jsonl:2 \(byte 17\): .*{found}.* Fix the row\."):
        list(read_samples(file))


def test_lines_that_are_no_text(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_bytes(b"one\ntw\xff\n")
    with pytest.raises(BadRowError, match=r"a\.txt:2 \(byte 4\): is no valid UTF-8 at byte 2 of the line"):
        list(read_samples(str(tmp_path / "a.txt")))
    monkeypatch.setattr(samples, "DEFAULT_MAX_ROW_BYTES", 5)
    (tmp_path / "long.txt").write_bytes(b"12345\n123456\n")
    with pytest.raises(BadRowError, match=r"long\.txt:2 \(byte 6\): is 6 bytes long, expected at most 5\. Fix the line\."):
        list(read_samples(str(tmp_path / "long.txt")))
    with pytest.raises(InputError, match="does not exist"):
        list(read_samples(str(tmp_path / "b.txt")))


def test_a_conversation_of_a_row():
    written = json.dumps([{"role": "user", "content": None}])
    assert conversation_of({"messages": written, "tools": "null"}) == Conversation([{"role": "user", "content": None}], {})
    filled = {"messages": [{"role": "user", "content": "x", "tool_calls": None, "more": [{"a": None, "b": 1}]}], "tools": None}
    assert conversation_of(filled) == Conversation([{"role": "user", "content": "x", "more": [{"b": 1}]}], {})
    assert conversation_of(filled, filled=False).messages == filled["messages"]
    assert conversation_of({"chat": [], "functions": '[{"name": "f"}]'}, messages_field="chat", tools_field="functions") == (
        Conversation([], {"tools": [{"name": "f"}]})
    )
    with pytest.raises(RowProblem, match="'messages' is null or not there"):
        conversation_of({})


def test_names_for_what_has_none():
    conversation = Conversation(MESSAGES, {"tools": []})
    assert list(named_samples(["one", MESSAGES, conversation, Sample("here", "two")])) == [
        Sample("text 1", "one"),
        Sample("conversation 2", Conversation(MESSAGES, {})),
        Sample("conversation 3", conversation),
        Sample("here", "two"),
    ]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_column_that_is_there_twice_and_a_source_that_is_not_there_are_told_before_any_row(tmp_path, kind):
    fine, twice = lines(tmp_path / "a.jsonl", {"text": "one"}), tmp_path / f"b.{kind}"
    column = pa.array(["two", "three"])
    for names, wrong in ((["text", "text"], True), (["text", "other"], False)):
        table = pa.Table.from_arrays([column, column], names=names)
        (pq.write_table if kind == "parquet" else feather.write_feather)(table, str(twice))
        if wrong:
            with pytest.raises(InputError, match=rf"b\.{kind}: has 2 columns named text, expected one of each name\. Rename them"):
                read_samples(fine, str(twice))
        else:
            assert [sample.content for sample in read_samples(fine, str(twice))] == ["one", "two", "three"]
    with pytest.raises(InputError, match=r"nowhere\.jsonl: does not exist"):
        read_samples(fine, str(tmp_path / "nowhere.jsonl"))
