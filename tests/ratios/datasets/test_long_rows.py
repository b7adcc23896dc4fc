"""Long rows: found by the survey, looked into through windows, and never read whole."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zephon_core.errors import SourceChangedError
from zephon_core.ratios.counting.fields import MISSING, look_up
from zephon_core.ratios.datasets import Dataset, json_strings, jsonl, long_rows
from zephon_core.ratios.datasets.files import FoundFile, Tally, local_stamp
from zephon_core.ratios.datasets.formats import ShardPlace, Survey
from zephon_core.ratios.datasets.jsonl import JsonlReader
from zephon_core.ratios.datasets.model import LocatedWindow
from zephon_core.readers.rows import RowProblem

Write = Callable[[str, bytes], Path]


@pytest.fixture
def short_is_long() -> Iterator[None]:
    """Let some dozen bytes be long, so that all of them can be tried."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_rows, "LONG_ROW_BYTES", 60)
        patch.setattr(long_rows, "LONG_STRING_BYTES", 30)
        patch.setattr(long_rows, "CELL_BYTES", 16)
        patch.setattr(long_rows, "_CONTEXT_BYTES", 20)
        patch.setattr(json_strings, "_PIECE_BYTES", 50)
        patch.setattr(json_strings, "_PARSED_BYTES", 7)
        patch.setattr(jsonl, "_CHUNK_BYTES", 100)
        patch.setattr(jsonl, "WINDOW_BYTES", 16)
        yield


def found_file(path: Path) -> FoundFile:
    status = path.stat()
    return FoundFile(str(path), status.st_size, local_stamp(status))


def surveyed(path: Path) -> tuple[Survey, JsonlReader]:
    found = found_file(path)
    survey = jsonl.probe(ShardPlace(str(path), "jsonl", "none", (found,)), Tally())
    return survey, JsonlReader(ShardPlace(str(path), "jsonl", "none", (found,), {}, survey.where), Tally())


CHARACTERS = st.one_of(
    st.sampled_from(
        ["\\", '"', "/", "a", "\n", "\x00", "é", "中", "😀", "\U0010ffff", "\\\\\\", "u", "d", "\\u", "\\ud83d", "\x7f"]
    ),
    st.characters(exclude_categories=["Cs"]),
)
LONG = st.lists(CHARACTERS, min_size=15, max_size=120).map("".join)
NAMES = st.sampled_from(["text", "a", "b", "", "é", '"', "\\", "text\\"])


@st.composite
def escaped(draw: st.DrawFn, text: str) -> str:
    """Write a JSON string, each character in one of the ways that there are."""
    pieces = []
    for character in text:
        units = character.encode("utf-16-be")
        ways = ["".join(f"\\u{int.from_bytes(units[i : i + 2], 'big'):04x}" for i in range(0, len(units), 2))]
        ways.append(ways[0].replace("\\u", "\0").upper().replace("\0", "\\u"))
        ways.append(json.dumps(character, ensure_ascii=False)[1:-1])
        if character == "/":
            ways.append("\\/")
        pieces.append(draw(st.sampled_from(ways)))
    return '"' + "".join(pieces) + '"'


BLANKS = st.sampled_from(["", "", " ", "\t ", "\r"])
SCALARS = st.sampled_from(["null", "1", "-2.5e3", "true", "[]", "{}", '"short"', "NaN"])
STRINGS = LONG.flatmap(escaped)


def objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.lists(st.tuples(NAMES, BLANKS, values, BLANKS), max_size=4)
    return members.map(lambda each: "{" + ",".join(f"{json.dumps(n)}:{a}{v}{b}" for n, a, v, b in each) + "}")


VALUES = st.recursive(
    st.one_of(STRINGS, SCALARS),
    lambda inner: st.one_of(objects(inner), st.lists(inner, max_size=3).map(lambda each: "[" + ",".join(each) + "]")),
    max_leaves=5,
)
ROWS = st.one_of(objects(VALUES), objects(STRINGS), STRINGS, VALUES)
BROKEN = st.sampled_from(
    [
        "{",
        '"',
        "\\",
        '{"text": "' + "x" * 80,
        '"\\ud83d' + "x" * 80 + '"',
        '"' + "x" * 80 + '\\q"',
        '"\x01' + "x" * 80 + '"',
        '{"text": "' + "\\\\" * 150 + '"}',
        "[" * 600 + "]" * 600,
    ]
)
LINES = st.lists(st.one_of(st.one_of(ROWS), st.one_of(ROWS), BROKEN, st.just("")), min_size=1, max_size=4)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=120, deadline=None)
@given(lines=LINES, ended=st.booleans(), marked=st.booleans())
def test_the_windows_of_all_bytes_of_a_row_are_its_text(
    lines: list[str], ended: bool, marked: bool, short_is_long: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = b"\xef\xbb\xbf" * marked + "\n".join(lines).encode() + b"\n" * ended
    path = tmp_path_factory.mktemp("rows") / "a.jsonl"
    path.write_bytes(content)
    survey, reader = surveyed(path)
    assert survey.raw_bytes == len(content)
    offset = 0
    while offset < len(content):
        row = reader.read_at(0, len(content), offset)
        line = content[offset : offset + row.length]
        for text_path in all_paths(row.payload):
            check_windows(reader, row.start, line, row.payload, text_path)
        check_abridged(reader, row.start, row.length, row.payload)
        offset += row.length
    reader.close()


def all_paths(payload: Any) -> set[tuple[str, ...]]:
    paths = {(), ("text",), ("text", "a")}
    waiting = [((), payload)]
    while waiting:
        path, value = waiting.pop()
        paths.add(path)
        if isinstance(value, dict):
            waiting += [((*path, name), item) for name, item in value.items()]
    return paths


def check_windows(reader: JsonlReader, start: int, line: bytes, payload: Any, path: tuple[str, ...]) -> None:
    """Over all bytes of a row, windows give each character of the text in the right place, and with a weight of one."""
    text = payload if isinstance(payload, str) else MISSING if isinstance(payload, RowProblem) else look_up(payload, path)
    windows = [reader.window_at(0, byte, path) for byte in range(start, start + len(line))]
    if windows[0] is None:
        assert not any(windows)
        assert not isinstance(text, str) or len(text) < long_rows.LONG_STRING_BYTES or not is_long(line)
        return
    assert isinstance(text, str)
    weights: list[tuple[LocatedWindow, Fraction]] = []
    for window in windows:
        assert window is not None
        assert (window.start, window.length) == (start, len(line))
        before = weights.pop()[1] if weights and weights[-1][0] == window else Fraction()
        weights.append((window, before + Fraction(1, window.shared)))
    assert all(weight.denominator == 1 for _, weight in weights)
    cells = [window for window, weight in weights for _ in range(int(weight))]  # several only where they look the same
    assert "".join(cell.text[cell.begin : cell.end] for cell in cells) == text
    done = 0
    for cell in cells:
        assert text[: done + cell.end - cell.begin].endswith(cell.text[: cell.end])
        assert text[done:].startswith(cell.text[cell.begin :])
        done += cell.end - cell.begin


def is_long(line: bytes) -> bool:
    """Tell whether the survey notes a line's long strings: not where it is broken, or backslashes run on and on."""
    if len(line) <= long_rows.LONG_ROW_BYTES or b"\\" * 250 in line:
        return False
    try:
        orjson.loads(line.removeprefix(b"\xef\xbb\xbf").replace(b"NaN", b"0"))
    except orjson.JSONDecodeError:
        return False
    return True


def check_abridged(reader: JsonlReader, start: int, length: int, payload: Any) -> None:
    """But for its long strings, an abridged row is the row; filled, those that names lead to are as long."""
    for filled in (False, True):
        row = reader.abridged_at(0, start, filled=filled)
        assert row is None or (row.start, row.length) == (start, length)
        if row is not None:
            assert same_but_for_long(row.payload, payload, filled)


def same_but_for_long(short: Any, whole: Any, filled: bool) -> bool:
    if isinstance(whole, dict):
        return list(short) == list(whole) and all(same_but_for_long(short[name], whole[name], filled) for name in whole)
    if isinstance(whole, list):
        return len(short) == len(whole) and all(same_but_for_long(a, b, False) for a, b in zip(short, whole, strict=True))
    if isinstance(whole, str):
        return short == whole or short == ("x" * len(whole) if filled else "")
    return repr(short) == repr(whole)


def test_a_window_reads_little(write: Write, opened: Callable[..., Dataset]) -> None:
    texts = ["x" * 3_000_000, "é\n\t" * 100_000, "\U0001f600 " * 50_000]
    rows = [{"id": 7, "meta": {"body": text, "note": "n" * 9_000}, "list": ["y" * 10_000]} for text in texts]
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    path = write("a.jsonl", content)
    others = [opened(path), opened(path), opened([path, write("empty.jsonl", b"")])]  # surveyed, attached, surveyed in part
    for dataset in others:
        with dataset.open() as reader:
            for offset in range(0, len(content), len(content) // 60):
                assert reader.window_at(0, offset, ("meta", "body")) is not None
                assert reader.window_at(0, offset, ("meta",)) is None
            assert reader.bytes_read <= 61 * 3600
            row = reader.abridged_at(0, len(content) - 1)
            assert row is not None
            assert row.payload == {"id": 7, "meta": {"body": "", "note": ""}, "list": [""]}
            filled = reader.abridged_at(0, 0, filled=True)
            assert filled is not None
            assert [len(filled.payload["meta"][name]) for name in ("body", "note")] == [3_000_000, 9_000]
            assert reader.bytes_read <= 61 * 3600 + 500


def test_a_row_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    finder = long_rows.LongRowFinder(max_row_bytes=40_000)
    content = b"1\n" + b'"' + b"x" * 50_000 + b'"\n2\n'
    for begin in range(0, len(content), 4096):
        finder.feed(content[begin : begin + 4096])
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    tally = Tally()
    place = ShardPlace(str(path), "jsonl", "none", (found_file(path),), {}, {"long_rows": finder.finish()})
    reader = JsonlReader(place, tally, max_row_bytes=40_000)
    for offset in (2, 30_000, 50_004):
        for row in (reader.read_at(0, len(content), offset), reader.abridged_at(0, offset, filled=False)):
            assert row is not None
            assert (row.start, row.length, row.payload.reason) == (2, 50_003, "too long")
    assert tally.bytes_read == 0
    assert reader.read_at(0, len(content), 0).payload == 1
    assert reader.read_at(0, len(content), len(content) - 1).payload == 2
    reader.close()


def test_a_file_that_is_written_to_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "\\" * 20 + "x" * 40_000}) + "\n")
    age(path)
    _, reader = surveyed(path)
    size = path.stat().st_size
    assert reader.window_at(0, size // 2, ("text",)) is not None
    with path.open("r+b") as file:
        file.write(b'"' * size)
    for look in (lambda: reader.window_at(0, 0, ("text",)), lambda: reader.abridged_at(0, 0, filled=True)):
        with pytest.raises(SourceChangedError, match="is not what the catalog says"):
            look()
    reader.close()


def age(path: Path) -> None:
    """Set a file's time back by an hour."""
    then = path.stat().st_mtime_ns - 3600 * 10**9
    os.utime(path, ns=(then, then))
