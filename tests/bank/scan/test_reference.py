from __future__ import annotations

import pytest

from zephon_core.bank.scan.fields import compile_fields
from zephon_core.bank.scan.reference import line_texts
from zephon_core.bank.specs import FieldSpec
from zephon_core.readers.rows import RowProblem

TABLE = compile_fields([FieldSpec(path="query"), FieldSpec(path="candidates[].text")])


def texts(line: str | bytes) -> list[tuple[int, bytes]] | None:
    return line_texts(line.encode() if isinstance(line, str) else line, TABLE, 1 << 16)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"candidates": [{"text": "b"}, {"text": "c"}], "query": "a"}', [(0, b"a"), (1, b"b"), (1, b"c")]),
        (r'{"query": "\u001f\u3000 a \ud800 \u2028"}', [(0, b"a ?")]),
        (r'{"query": "\ud83d\ude00"}', [(0, "😀".encode())]),
        ('{"query": " \\n", "candidates": [null, {}, {"text": null}, {"text": ""}]}', []),
        ('{"query": null, "candidates": null}', []),
        ('{"query": "a", "query": "b"}', [(0, b"b")]),
        ('{"query": 1, "query": "b"}', [(0, b"b")]),
        ('{"a": NaN, "b": -Infinity, "c": ' + "9" * 5000 + "}", []),
        ("{}", []),
        ("", None),
        (" \t\r", None),
    ],
)
def test_texts_of_a_row(line, expected):
    assert texts(line) == expected


@pytest.mark.parametrize(
    ("line", "reason", "message"),
    [
        ('{"query": 7}', "not text", "'query' is a number, expected text"),
        ('{"query": true}', "not text", "'query' is true or false, expected text"),
        ('{"query": ["a"]}', "not text", "'query' is a list, expected text"),
        ('{"candidates": {"text": "a"}}', "not a list", "'candidates' is an object, expected a list"),
        ('{"candidates": [{"text": "a"}, "b"]}', "not an object", "'candidates[1]' is text, expected an object"),
        ('{"candidates": [{"text": {}}]}', "not text", "'candidates[0].text' is an object, expected text"),
        ("[]", "row is no object", "is a list, expected an object"),
        ("null", "row is no object", "is null, expected an object"),
        ('{"query": "a"', "broken JSON", "is broken JSON (Expecting ',' delimiter at character 14 of the row)"),
        ("\ufeff{}", "broken JSON", "is broken JSON (Unexpected UTF-8 BOM (decode using utf-8-sig) at character 1 of the row)"),
        (b'{"a": "\xed\xa0\x80"}', "invalid UTF-8", "is no valid UTF-8 at byte 7 of the row"),
        ('{"a": ' + "[" * 512 + "]" * 512 + "}", "nested too deeply", "is nested too deeply, expected at most 512 levels"),
        (" " * 70000, "too long", "is 70,000 bytes long, expected at most 65,536"),
    ],
)
def test_bad_rows(line, reason, message):
    with pytest.raises(RowProblem) as caught:
        texts(line)
    assert (caught.value.reason, str(caught.value)) == (reason, message)


def test_depth_is_counted_outside_strings():
    assert texts('{"a": ' + "[" * 511 + '"' + "[" * 600 + '\\"[[' + '"' + "]" * 511 + ', "query": "b"}') == [(0, b"b")]
