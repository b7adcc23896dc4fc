"""A bad row is named; where the first line shows that the file is none of rows, that is said instead."""

from __future__ import annotations

import json

import pytest

from zephon_core.errors import BadRowError
from zephon_core.readers.rows import iter_rows
from zephon_core.readers.sources import resolve_sources

ROWS = [{"query": "a"}, {"query": "b"}]


def complaint(path):
    with pytest.raises(BadRowError) as caught:
        list(iter_rows(resolve_sources([str(path)])[0]))
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "hint"),
    [
        ("a.jsonl", json.dumps(ROWS, indent=2).encode(), "no JSONL but one JSON array"),
        ("a.json", b"\xef\xbb\xbf" + json.dumps(ROWS, indent=2).encode(), "no JSONL but one JSON array"),
        ("a.json", json.dumps(ROWS[0], indent=2).encode(), "its rows go over several lines"),
        ("a.jsonl", json.dumps(ROWS[0]).encode("utf-16"), "looks like UTF-16"),
        ("a.jsonl", json.dumps(ROWS[0]).encode("utf-16-be"), "looks like UTF-16"),
        ("a.csv", b"query,text\na,b\n", "a table of text"),
    ],
)
def test_what_is_no_jsonl_is_said(tmp_path, name, content, hint):
    (tmp_path / name).write_bytes(content)
    assert hint in complaint(tmp_path / name)


def test_an_array_that_is_whole_can_be_written_line_by_line(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(ROWS, indent=2))
    assert "(jq -c '.[]' FILE > FILE.jsonl)" in complaint(tmp_path / "a.json")


@pytest.mark.parametrize(
    "content",
    [
        b'[{"query": "a"}, {"query" "b"}]',
        b'[{"query": "a"}, {"query": "b"}\n',
        b'[{"query": "a"}, {"que',
        b'[{"query": tru,\n"a": 1}]',
        b"[",
        b'[{"query": "a"}, {"query": "b"}]]\n{}\n',
    ],
)
def test_for_a_broken_array_no_remedy_is_named_that_needs_a_whole_one(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    message = complaint(tmp_path / "a.json")
    assert message.endswith("The file is no JSONL but one JSON array, and a broken one. Write it again: one JSON object a line.")
    assert "jq" not in message


@pytest.mark.parametrize("content", [b'{"query": "a"}\n[\n', b'{"query": \n', b"query\n"])
def test_a_row_that_is_merely_broken_is_to_be_fixed(tmp_path, content):
    (tmp_path / "a.jsonl").write_bytes(content)
    message = complaint(tmp_path / "a.jsonl")
    assert message.endswith("Fix the row.")
    assert "no JSONL" not in message
