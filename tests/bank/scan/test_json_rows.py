"""The fast parser row by row: where it accepts a row it finds what the reference finds, and it accepts all that is ordinary."""

from __future__ import annotations

import itertools
import json

import pytest

from zephon_core.bank.scan.fields import FieldTable, compile_fields
from zephon_core.bank.scan.parse import Buffers, parse_lines
from zephon_core.bank.scan.reference import line_texts
from zephon_core.bank.specs import FieldSpec
from zephon_core.readers.jsonl import LineBlock
from zephon_core.readers.rows import RowProblem

TABLE = compile_fields([FieldSpec(path="query"), FieldSpec(path="candidates[].text")])
LIMIT = 1 << 20


def check(lines: list[bytes], table: FieldTable = TABLE) -> list[int]:
    """Parse lines as one block and compare with the reference line by line; return the numbers of refused lines."""
    refused = []
    content = b"\n".join(lines) + b"\n"
    buffers = Buffers()
    buffer = buffers.allocate(len(content))
    buffer[: len(content)] = content
    with pytest.MonkeyPatch.context() as patch:

        def judge(raw, *arguments):
            refused.append(raw)
            return line_texts(raw, *arguments)

        patch.setattr("zephon_core.bank.scan.parse.line_texts", judge)
        block = parse_lines(LineBlock(buffer, 0, len(content), 0, 0), table, LIMIT, buffers)
    found = [
        (int(field), block.data[start : start + length].tobytes())
        for field, start, length in zip(block.fields, block.starts, block.lengths, strict=True)
    ]
    expected, bad = [], []
    for number, line in enumerate(lines):
        try:
            expected.extend(line_texts(line, table, LIMIT) or [])
        except RowProblem as problem:
            bad.append((number + 1, problem.reason))
    assert found == expected
    assert [(row.row, row.problem.reason) for row in block.bad] == bad
    return [number for number, line in enumerate(lines) if line in refused]


def rows(values: list[str | bytes]) -> list[bytes]:
    """Each value as the query, as a value that nobody wants, and as part of a name."""
    encoded = [value if isinstance(value, bytes) else value.encode() for value in values]
    shapes = (b'{"query": "<%s>", "candidates": []}', b'{"v": "%s", "query": "x"}', b'{"v%s": 1, "query": "x"}')
    return [shape % value for value in encoded for shape in shapes]


def test_every_escape():
    values = [f"\\{chr(code)}" for code in range(0x20, 0x7F)] + [
        "\\",
        "\\u",
        "\\u12",
        "\\u00e",
        "\\u00g0",
        "\\u00e9",
        "\\U00e9",
        "\\u00E9x",
    ]
    refused = check(rows(values))
    plain = rows([f"\\{letter}" for letter in '"\\/bfnrt'] + ["\\u00e9", "\\u00E9x"])
    accepted = [line for number, line in enumerate(rows(values)) if number not in refused]
    assert set(plain) - set(accepted) == {line for line in plain if line.startswith(b'{"v\\')}


def test_surrogates():
    units = ["d7ff", "D800", "dBfF", "dc00", "DFFF", "e000", "0041"]
    values = [f"\\u{a}" for a in units] + [f"\\u{a}\\u{b}" for a, b in itertools.product(units, repeat=2)]
    values += [f"\\u{a}{rest}" for a in units for rest in ("\\n", "x", "\\\\u0041", "\\u00", "é")]
    check(rows(values))
    assert check([b'{"query": "\\ud83d\\ude00"}', b'{"v": "\\ud83d", "query": "x"}']) == []


@pytest.mark.parametrize(
    "odd", [b'\\"', b"\\\\", b"\\u00e9", "é".encode(), b"\xc3", b"\x01", b"\t", b"\x1f", b"\x7f", b'"', b"\xed\xa0\x80"]
)
def test_odd_bytes_at_every_place(odd):
    check(rows([b"a" * before + odd + b"b" * after for before in range(132) for after in (0, 1, 70)]))


def test_control_characters():
    check(rows([bytes([code]) for code in range(32) if code != 10]))


NUMBERS = "0 -0 1 -1 10 0.5 -0.25 1e5 1E+5 1e-5 0e0 1.5e10 123456789012345678901234567890"
BROKEN = (
    "- +1 01 -01 00 1. .5 -.5 1.e5 1e 1e+ 1e5.5 0x1 1_0 --1 1-1 1a \uff10 NaN -NaN Infinity -Infinity nan tru True nul nulls falsy"
)


@pytest.mark.parametrize(
    "shape", ['{"query": "x", "v": %s}', '{"v": [%s], "query": "x"}', '{"v": {"w":%s}}', '{"query": %s}', '{"candidates": [%s]}']
)
def test_numbers_and_words(shape):
    good = [shape % number for number in NUMBERS.split()]
    assert check([line.encode() for line in good]) == (
        list(range(len(good))) if 'query": %s' in shape or "candidates" in shape else []
    )
    lines = [(shape % number).encode() for number in BROKEN.split()]
    assert check(lines) == list(range(len(lines)))


def test_structure():
    values = [
        "1",
        '"a"',
        "null",
        "[]",
        "{}",
        "",
        ",",
        ":",
        "[",
        "]",
        "{",
        "}",
        "}}",
        "]]",
        '{"b"}',
        '{"b":}',
        '{"b":1,}',
        "{,}",
        "[1,]",
        "[,1]",
        "[1 2]",
    ]
    values += [
        '{"b":1 "c":2}',
        "[[]]",
        "[{}]",
        '{"b":[{"c":[]}]}',
        "[}",
        "{]",
        '{"b":[}',
        "[{]}",
        "[1}",
        '{"b":1]',
        "{1:2}",
        "{null:1}",
        '{"b" 1}',
    ]
    shapes = [
        '{"v": %s}',
        '{"v": [%s, %s]}',
        '{"query": "x", "v": {"w": %s}}',
        '{"candidates": %s}',
        '{"candidates": [%s]}',
        "%s",
        '{"v": 1}%s',
        "[%s]",
    ]
    check([(shape.replace("%s", value)).encode() for shape in shapes for value in values])


def test_blanks_between_everything():
    tokens = [
        "{",
        '"query"',
        ":",
        '"x"',
        ",",
        '"v"',
        ":",
        "[",
        "1",
        ",",
        "{",
        '"a"',
        ":",
        "null",
        "}",
        "]",
        ",",
        '"candidates"',
        ":",
        "[",
        "{",
    ]
    tokens += ['"text"', ":", '"y"', "}", ",", "null", "]", "}"]
    good = [blank.join(["", *tokens, ""]).encode() for blank in ("", " ", "\t", "\r", "  \t\r ")]
    assert check(good) == []
    odd = [blank.join(tokens).encode() for blank in ("\x0b", "\x0c", "\xa0", "\u2028", "\ufeff", "\0", "//", "\x85")]
    assert check(odd) == list(range(len(odd)))


def test_depth():
    lines = [b'{"v": ' + b"[" * depth + b"]" * depth + b', "query": "x"}' for depth in (1, 63, 64, 65, 510, 511, 512, 513, 600)]
    lines += [b'{"a": ' * depth + b"1" + b"}" * depth for depth in (1, 511, 512, 513)]
    lines += [b'{"candidates": [{"v": ' + b"[" * depth + b"]" * depth + b"}]}" for depth in (508, 509, 510, 511)]
    assert check(lines) == [6, 7, 8, 12, 15, 16]


def test_names():
    lines = [
        b'{"query": "a", "query": "b"}',
        b'{"v": 1, "v": 2, "query": "b"}',
        b'{"candidates": [{"text": "a", "text": "b"}]}',
        b'{"candidates": [{"text": "a"}], "candidates": []}',
        b'{"qu\\u0065ry": "a"}',
        b'{"v": {"qu\\u0065ry": "a"}, "query": "b"}',
        b'{"quer": "a", "queryy": "b", "Query": "c", "": "d", "text": "e"}',
        b'{"v": {"query": "a"}, "candidates": [{"query": "b", "text": "c"}]}',
        b'{"\xff": 1, "query": "a"}',
    ]
    assert check(lines) == [0, 2, 3, 4, 8]


def test_texts_of_a_row_come_in_the_order_of_fields():
    table = compile_fields([FieldSpec(path=path) for path in ("z", "a[].y", "a[].x", "m.n")])
    row = {"m": {"n": "1"}, "a": [{"x": "2", "y": "3"}, {"y": "4"}, {"x": "5"}, {"x": "6", "y": "7"}], "z": "8"}
    many = {"a": [{"x": f"x{number}", "y": f"y{number}"} for number in range(5000)], "z": "9"}
    assert check([json.dumps(value).encode() for value in (row, many, row, {"z": "10"}, many)], table) == []


def test_more_texts_and_bad_rows_than_there_is_room_for():
    lines = [b'{"candidates": [' + b",".join([b'{"text":"a"}'] * 3000) + b"]}"] * 3
    lines += [b'{"query": %d}' % number for number in range(300)] + [b'{"query": "end"}']
    assert check(lines) == list(range(3, 303))


def test_blank_lines_and_rows_of_just_the_longest_length():
    lines = [
        b" " * LIMIT,
        b" " * (LIMIT + 1),
        b'{"query": "%s"}' % (b"x" * (LIMIT - 13)),
        b'{"query": "%s"}' % (b"x" * (LIMIT - 12)),
    ]
    assert check(lines) == [1, 3]
