"""The fast path is the reference: same texts, same bad rows, same bytes, whatever the rows, the blocks and the threads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_core.bank.scan import pipeline, scan_texts, write_index
from zephon_core.bank.specs import ScanSpec
from zephon_core.errors import InputError
from zephon_core.readers.sources import resolve_sources

SPACES = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())
LETTERS = st.sampled_from([*"abé中😀\"\\/\0\x7f\x1b'", "\u200b", "\u2028", "\ufeff", "\u180e", "\x85", *SPACES])
TEXTS = st.text(LETTERS | st.characters(exclude_categories=["Cs"]), max_size=90)
LONE = st.text(st.sampled_from("a \ud800\udfff\udc00\ud83d"), max_size=6)


class Literal(str):
    """JSON as it stands."""


class Pairs(list):
    """An object as pairs, so that names can repeat."""


NUMBERS = [
    "0",
    "-0",
    "1.5e-7",
    "1E+9",
    "1e999",
    "-12",
    "NaN",
    "Infinity",
    "-Infinity",
    "1" * 5000,
    "01",
    "1.",
    ".5",
    "+1",
    "1e",
    "--1",
]
ODD = st.one_of(
    st.none(), st.booleans(), st.sampled_from([Literal(text) for text in NUMBERS[:10] * 6 + NUMBERS]), st.just([]), TEXTS
)
NESTED = st.recursive(ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=8)


def encode(value: object, draw: st.DrawFn) -> str:
    """Write a value as JSON with escapes, blanks and spellings that vary."""
    blank = draw(st.sampled_from(["", "", "", " ", "\t", "\r ", "  "]))
    if isinstance(value, Literal):
        return value + blank
    if isinstance(value, str):
        return encode_text(value, draw(st.integers(0, 3)))
    if isinstance(value, dict):
        value = Pairs(value.items())
    if isinstance(value, Pairs):
        members = (f"{blank}{encode(name, draw)}{blank}:{encode(item, draw)}" for name, item in value)
        return "{" + ",".join(members) + blank + "}"
    if isinstance(value, list):
        return "[" + blank + ("," + blank).join(encode(item, draw) for item in value) + blank + "]"
    return json.dumps(value) + blank


def encode_text(text: str, how: int) -> str:
    """Escape everything that isn't ASCII (0), or only what must be (1, 2), or some of the rest too (3)."""
    if how == 0:
        return json.dumps(text)
    pieces = []
    for place, letter in enumerate(text):
        needed = letter < " " or letter in '"\\' or "\ud800" <= letter <= "\udfff"
        pieces.append(json.dumps(letter)[1:-1] if needed or (how == 3 and place % 3 == 0) else letter)
    return '"' + "".join(pieces).replace("/", "\\/" if how == 3 else "/") + '"'


@st.composite
def rows(draw: st.DrawFn) -> bytes:
    """One line: mostly a proper row, else something odd or broken."""
    shape = draw(st.integers(0, 19))
    text = st.one_of(TEXTS, TEXTS, TEXTS, LONE, st.none()) if shape > 3 else st.one_of(TEXTS, ODD)
    candidate = st.builds(lambda text, more: Pairs([("text", text), *more]), text, st.lists(st.tuples(TEXTS, NESTED), max_size=2))
    if shape <= 3:
        candidate = st.one_of(candidate, NESTED)
    pairs = Pairs()
    if draw(st.integers(0, 9)):
        pairs.append(("query", draw(text)))
    if draw(st.integers(0, 9)):
        pairs.append(("candidates", draw(st.lists(candidate, max_size=4) if shape > 2 else st.one_of(NESTED, st.lists(candidate)))))
    pairs.extend(draw(st.lists(st.tuples(TEXTS, NESTED), max_size=2)))
    if shape in (4, 5):
        pairs = Pairs(draw(st.permutations(pairs)))
    if shape == 6:
        pairs.append(("query", draw(text)))
    if shape == 7 and pairs:
        pairs.insert(0, ("candidates", [Pairs([("text", "first"), ("text", draw(text))])]))
    line = encode(pairs, draw)
    if shape == 8:
        line = draw(
            st.sampled_from(["", " ", "\t\r", "[]", "null", '"query"', "7", "{", "{}", "\x00", "\ufeff{}", '{"query": NaN}'])
        )
    if shape == 9:
        line = line.replace("query", "que\\u0072y").replace("true", "NaN")
    encoded = line.encode("utf-8", "surrogatepass")
    if shape in (0, 10) and encoded:
        at = draw(st.integers(0, len(encoded)))
        encoded = (
            encoded[:at]
            + draw(st.sampled_from([b"\xff", b"\xc3", b"\xed\xa0\x80", b",", b'"', b"\\", b"\x01", b""]))
            + encoded[at + draw(st.integers(0, 2)) :]
        )
    return encoded.replace(b"\n", b" ")


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A whole file: rows, line ends of both kinds, perhaps a byte order mark, perhaps no last line end."""
    lines = draw(st.lists(rows(), min_size=1, max_size=12))
    ends = draw(st.lists(st.sampled_from([b"\n", b"\n", b"\r\n"]), min_size=len(lines), max_size=len(lines)))
    content = b"".join(line + end for line, end in zip(lines, ends, strict=True))
    if draw(st.booleans()):
        content = content.removesuffix(b"\n")
    return (b"\xef\xbb\xbf" if draw(st.integers(0, 5)) == 0 else b"") + content


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@settings(max_examples=300)
@given(
    contents=st.lists(files(), min_size=1, max_size=3),
    block_bytes=st.sampled_from([1, 7, 64, 300, 1 << 20]),
    threads=st.integers(1, 3),
)
def test_fast_path_is_the_reference(tmp_path_factory, expected_scan, contents, block_bytes, threads):
    folder = tmp_path_factory.mktemp("scan")
    for number, content in enumerate(contents):
        (folder / f"{number}.jsonl").write_bytes(content)
    spec = ScanSpec(sources=(str(folder / "*.jsonl"),), on_bad_row="quarantine", max_row_bytes=1024)
    expected = expected_scan(contents, max_row_bytes=1024)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "BLOCK_BYTES", block_bytes)
        scan = lambda: scan_texts(spec, resolve_sources(spec.sources), folder / "out", threads=threads, memory_bytes=1 << 20)  # noqa: E731
        if not expected.texts:
            with pytest.raises(InputError, match="no text"):
                scan()
            return
        statistics = scan()
    write_index(folder / "out", folder / "out" / "index.json")
    found = written(folder / "out")
    bad = [json.loads(line) for line in found.pop("bad_rows.jsonl", b"").splitlines()]
    assert [(row["source"], row["row"], row["byte_offset"], row["reason"]) for row in bad] == expected.bad
    assert found == expected.files()
    assert (statistics["rows"], statistics["texts"], statistics["distinct"]) == (expected.rows, expected.total, len(expected.texts))
