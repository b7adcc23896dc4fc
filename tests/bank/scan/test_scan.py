from __future__ import annotations

import gzip
import hashlib
import json
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from zephon_core.bank.scan import pipeline, scan_texts, write_index
from zephon_core.bank.specs import ScanSpec
from zephon_core.errors import BadRowError, InputError, SourceChangedError
from zephon_core.readers.sources import resolve_sources

ROWS = [
    {"query": " one ", "candidates": [{"text": "two"}, {"text": "one"}, {"text": ""}, None, {"text": None}, {}]},
    {"candidates": [{"text": 'q"\\\n\x01é\u2028😀'}], "query": "two", "other": [1, {"x": None}]},
    {"query": "three" * 400},
]


def scan(folder: Path, *sources: str, threads: int = 2, memory_bytes: int = 1 << 20, **spec) -> tuple[dict[str, bytes], dict]:
    """Scan and return the bytes of all files, index.json included, and the statistics without the seconds."""
    checked = ScanSpec(sources=sources or (str(folder / "*.jsonl"),), **spec)
    statistics = scan_texts(checked, resolve_sources(checked.sources), folder / "out", threads=threads, memory_bytes=memory_bytes)
    del statistics["seconds"]
    files = {path.name: path.read_bytes() for path in (folder / "out").iterdir()}
    write_index(folder / "out", folder / "index.json")
    return files | {"index.json": (folder / "index.json").read_bytes()}, statistics


def jsonl(rows) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def test_the_files_and_their_bytes(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(jsonl(ROWS))
    files, statistics = scan(tmp_path)
    texts = ["one", "two", 'q"\\\n\x01é\u2028😀', "three" * 400]
    assert files["texts.jsonl"].decode() == "".join(json.dumps(text, ensure_ascii=False) + "\n" for text in texts)
    assert (
        files["index.json"] == json.dumps({hashlib.sha1(text.encode()).hexdigest(): row for row, text in enumerate(texts)}).encode()
    )
    assert {name: hashlib.sha256(content).hexdigest()[:16] for name, content in sorted(files.items())} == {
        "digests.npy": "8c8d01685e9023e1",
        "index.json": "ce6c96a9fd7dfa5d",
        "kinds.npy": "acf50260f1de273e",
        "rows.npy": "05b6f89c222138b2",
        "text_offsets.npy": "cfc25d04474c72f5",
        "texts.jsonl": "ce6ff58ad063ba37",
    }
    content = (tmp_path / "a.jsonl").read_bytes()
    assert statistics == {
        "rows": 3,
        "texts": 6,
        "distinct": 4,
        "duplicates": 2,
        "kinds": {"query": 2, "candidate": 2},
        "kind_names": ["query", "candidate"],
        "fields": {"query": 3, "candidates[].text": 3},
        "text_bytes": 2026,
        "distinct_bytes": 2020,
        "longest_text_bytes": 2000,
        "length_histogram": {"2": 2, "8": 1, "1024": 1},
        "bad_rows": {},
        "sources": [
            {
                "name": "",
                "sha256": hashlib.sha256(content).hexdigest(),
                "bytes": len(content),
                "rows": 3,
                "texts": 6,
                "bad_rows": 0,
                "bad_rows_by_reason": {},
            }
        ],
        "spilled_runs": 0,
    }


def test_a_single_bad_row_stops_the_scan_and_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = jsonl([{"query": str(number)} for number in range(1040)])
    Path("train.jsonl").write_bytes(good + b'{"query": 7}\n{"query": 8}\n')
    with pytest.raises(BadRowError) as caught:
        scan(tmp_path, "train.jsonl")
    message = (
        f"train.jsonl:1041 (byte {len(good):,}): 'query' is a number, expected text. "
        "Fix the row, or set on_bad_row (--on-bad-row) to quarantine."
    )
    assert str(caught.value) == message


def test_a_file_that_is_no_jsonl_is_said_to_be_none(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([{"query": "a"}], indent=2))
    with pytest.raises(BadRowError, match=r"a\.json:1 .* is broken JSON .* The file is no JSONL but one JSON array"):
        scan(tmp_path, str(tmp_path / "a.json"))


def test_quarantine_keeps_the_rows_and_counts_them(tmp_path):
    lines = [
        b'{"query": "a"}',
        b'{"query": "b", "candidates": [{"text": "c"}, 7]}\r',
        b"",
        b'{"query": "\xff"}',
        b'{"query": "' + "é".encode() * 700 + b'"}',
        b'{"query": "d"}',
        b"[",
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    (tmp_path / "b.jsonl").write_bytes(b"{}\n[]")
    files, statistics = scan(tmp_path, on_bad_row="quarantine", max_row_bytes=1024)
    assert files["texts.jsonl"] == b'"a"\n"d"\n'
    assert [json.loads(line) for line in files["bad_rows.jsonl"].splitlines()] == [
        {
            "source": 0,
            "row": 2,
            "byte_offset": 15,
            "reason": "not an object",
            "detail": "'candidates[1]' is a number, expected an object",
            "raw": '{"query": "b", "candidates": [{"text": "c"}, 7]}',
        },
        {
            "source": 0,
            "row": 4,
            "byte_offset": 66,
            "reason": "invalid UTF-8",
            "detail": "is no valid UTF-8 at byte 11 of the row",
            "raw_base64": "eyJxdWVyeSI6ICL/In0=",
        },
        {
            "source": 0,
            "row": 5,
            "byte_offset": 81,
            "reason": "too long",
            "detail": "is 1,413 bytes long, expected at most 1,024",
            "raw_bytes": 1413,
            "raw_is_cut": True,
            "raw": '{"query": "' + "é" * 506,
        },
        {
            "source": 0,
            "row": 7,
            "byte_offset": 1510,
            "reason": "broken JSON",
            "detail": "is broken JSON (Expecting value at character 2 of the row)",
            "raw": "[",
        },
        {
            "source": 1,
            "row": 2,
            "byte_offset": 3,
            "reason": "row is no object",
            "detail": "is a list, expected an object",
            "raw": "[]",
        },
    ]
    assert statistics["bad_rows"] == {
        "broken JSON": 1,
        "invalid UTF-8": 1,
        "not an object": 1,
        "row is no object": 1,
        "too long": 1,
    }
    assert [(source["rows"], source["bad_rows"]) for source in statistics["sources"]] == [(6, 4), (2, 1)]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf", b'{"query": " "}\n{}', b'{"text": "elsewhere"}\n'])
def test_no_texts_at_all_is_an_error(tmp_path, content):
    (tmp_path / "a.jsonl").write_bytes(content)
    remedy = "Look at a row" if b"{" in content else "Name a source that has rows"
    with pytest.raises(InputError, match=rf"a\.jsonl: no text at 'query', 'candidates\[\]\.text' in \d rows\. {remedy}"):
        scan(tmp_path)


def test_files_of_zero_bytes_are_fine_beside_others(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"")
    (tmp_path / "b.jsonl.gz").write_bytes(b"")
    (tmp_path / "c.jsonl").write_bytes(b'{"query": "x"}')
    files, statistics = scan(tmp_path, str(tmp_path / "?.jsonl*"))
    assert files["texts.jsonl"] == b'"x"\n'
    assert [source["rows"] for source in statistics["sources"]] == [0, 0, 1]


def test_fields_with_kinds_of_their_own(tmp_path):
    row = {"b": {"c": [{"d": "1"}, {"d": "2", "e": "3"}]}, "a": "4", "tags": ["5", None, "4"], "ä": "6"}
    (tmp_path / "a.jsonl").write_bytes(jsonl([row]))
    fields = ["a:title", "b.c[].e:second", "b.c[].d", "tags[]", "ä:title"]
    files, statistics = scan(tmp_path, fields=fields)
    assert files["texts.jsonl"].split() == [b'"4"', b'"3"', b'"1"', b'"2"', b'"5"', b'"6"']
    assert statistics["kinds"] == {"title": 2, "second": 1, "b": 2, "tag": 1}
    assert np.load(tmp_path / "out" / "kinds.npy").tolist() == [0, 1, 2, 2, 3, 0]


def test_every_kind_is_counted_even_if_there_are_none(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"query": "a", "candidates": [{"text": "a"}]}')
    assert scan(tmp_path)[1]["kinds"] == {"query": 1, "candidate": 0}


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_compressed_sources_give_the_same(tmp_path, compress):
    content = jsonl(ROWS * 50)
    (tmp_path / "a.jsonl").write_bytes(content)
    plain, _ = scan(tmp_path)
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "a").write_bytes(compress(content[:1000]) + compress(content[1000:]))
    assert scan(packed, str(packed / "a"))[0] == plain


def test_leftovers_of_another_run_do_not_disturb(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(jsonl(ROWS))
    clean, _ = scan(tmp_path)
    for name in ("texts.jsonl", "digests.npy", "bad_rows.jsonl", "rows.npy"):
        (tmp_path / "out" / name).write_bytes(b"leftover")
    (tmp_path / "out" / "scan.tmp").mkdir()
    (tmp_path / "out" / "scan.tmp" / "run-0.digests").write_bytes(b"leftover")
    assert scan(tmp_path)[0] == clean


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """Two sources of 30,000 rows, with repetitions far apart, blocks that end anywhere, and bad rows."""
    folder = tmp_path_factory.mktemp("many")
    rng = np.random.default_rng(5)
    for name in ("a", "b"):
        numbers = rng.integers(0, 60_000, (15_000, 3)).tolist()
        rows = [
            {"query": f"query {a}", "candidates": [{"text": f"text {b}\n\x01" * (b % 5)}, {"text": f"text {c}"}]}
            for a, b, c in numbers
        ]
        content = jsonl(rows).replace(b'"query 7', b'"query \xff7')
        (folder / f"{name}.jsonl").write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def many_files(many) -> dict[str, bytes]:
    return scan(many, on_bad_row="quarantine", memory_bytes=256 << 20)[0]


def test_many_rows_are_as_the_reference_has_them(many, many_files, expected_scan):
    expected = expected_scan([(many / "a.jsonl").read_bytes(), (many / "b.jsonl").read_bytes()])
    assert len(expected.bad) > 500
    assert {name: many_files[name] for name in expected.files()} == expected.files()


@pytest.mark.parametrize(
    ("threads", "block_bytes", "memory_bytes"), [(1, 1 << 20, 1 << 20), (5, 5000, 1 << 20), (3, 1 << 16, 200_000)]
)
def test_threads_blocks_and_spills_change_nothing(many, many_files, monkeypatch, threads, block_bytes, memory_bytes):
    monkeypatch.setattr(pipeline, "BLOCK_BYTES", block_bytes)
    files, statistics = scan(many, on_bad_row="quarantine", threads=threads, memory_bytes=memory_bytes)
    assert statistics["spilled_runs"] > 0
    assert files == many_files
    lines = [json.loads(line) for line in files["texts.jsonl"].splitlines()]
    lengths = [len(line.encode()) for line in lines]
    assert statistics["distinct"] == len(lines) == statistics["texts"] - statistics["duplicates"]
    assert statistics["distinct_bytes"] == sum(lengths)
    assert statistics["longest_text_bytes"] == max(lengths)
    bins = np.bincount([length.bit_length() for length in lengths])
    assert statistics["length_histogram"] == {str(1 << bit - 1): count for bit, count in enumerate(bins.tolist()) if count}
    assert statistics["kinds"] == dict(
        zip(("query", "candidate"), np.bincount(np.load(many / "out" / "kinds.npy")).tolist(), strict=True)
    )


def test_no_thread_outlives_a_scan_that_fails(many):
    before = threading.active_count()
    with pytest.raises(BadRowError):
        scan(many)
    assert threading.active_count() == before


def test_a_source_other_than_identified_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(jsonl(ROWS))
    (source,) = resolve_sources([str(tmp_path / "a.jsonl")])
    (tmp_path / "a.jsonl").write_bytes(jsonl(ROWS[:2]))
    with pytest.raises(SourceChangedError):
        scan_texts(ScanSpec(sources=("x",)), [source], tmp_path / "out", threads=1, memory_bytes=1 << 20)


def test_an_error_in_a_later_source_waits_for_the_rows_before_it(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"query": 1}\n')
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b"{}\n" * 1000)[:-1])
    with pytest.raises(BadRowError, match=r"a\.jsonl:1 "):
        scan(tmp_path, str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl.gz"))
    with pytest.raises(InputError, match="is cut short"):
        scan(tmp_path, str(tmp_path / "b.jsonl.gz"))


def test_a_text_of_megabytes(tmp_path, expected_scan):
    content = jsonl([{"query": "\x01\n" * 3_000_000 + "é"}, {"query": "b"}])
    (tmp_path / "a.jsonl").write_bytes(content)
    files, _ = scan(tmp_path)
    assert files == expected_scan([content]).files()


def test_router_files(shared_data, tmp_path, expected_scan):
    paths = sorted((shared_data / "router").glob("*.jsonl"))
    paths = [path for path in paths if ".labels" not in path.name]
    files, statistics = scan(tmp_path, *map(str, paths), memory_bytes=300_000)
    assert files == expected_scan([path.read_bytes() for path in paths]).files()
    assert statistics["texts"] > 10_000


def test_nasty_files_as_rows(shared_data, tmp_path, expected_scan):
    """Every odd file as it is, and inside rows: as a value that nobody wants, as the query, and as a candidate's text."""
    contents = []
    for path in sorted(path for path in (shared_data / "nasty").rglob("*") if path.is_file()):
        content = path.read_bytes()
        if "arrow" in str(path) or "parquet" in str(path):
            contents.append(content[:100_000])
            continue
        line = content.replace(b"\n", b" ")
        quoted = b'"' + line.replace(b'"', b"'") + b'"'
        shapes = (b'{"v": %s, "query": "x"}', b'{"query": %s}', b'{"candidates": [{"text": %s}]}')
        contents.append(
            b"\n".join([content, *(shape % value for shape in shapes for value in (line, quoted)), b'{"query": "end"}'])
        )
    for number, content in enumerate(contents):
        (tmp_path / f"{number:03}.jsonl").write_bytes(content)
    files, _ = scan(tmp_path, on_bad_row="quarantine")
    expected = expected_scan(contents)
    bad = [json.loads(line) for line in files.pop("bad_rows.jsonl").splitlines()]
    assert [(row["source"], row["row"], row["byte_offset"], row["reason"]) for row in bad] == expected.bad
    assert files == expected.files()


class Recorder:
    """A progress sink that adds up."""

    def __init__(self) -> None:
        self.totals: dict[str, float | None] = {}
        self.done: dict[str, float] = {}
        self.notes: list[str] = []

    @contextmanager
    def phase(self, label, *, total, unit):
        assert unit == "B"
        self.totals[label] = total
        self.done[label] = 0.0
        self._label = label
        yield self

    def advance(self, amount):
        self.done[self._label] += amount

    def note(self, message):
        self.notes.append(message)


def test_progress_is_in_bytes_of_the_input(tmp_path):
    content = jsonl(ROWS * 3000)
    (tmp_path / "a.jsonl").write_bytes(content)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(content))
    (tmp_path / "c.jsonl.zst").write_bytes(zstandard.compress(content))
    pq.write_table(pa.Table.from_pylist(ROWS * 3000), tmp_path / "d.parquet", row_group_size=1000)
    spec = ScanSpec(sources=(str(tmp_path / "*"),))
    recorder = Recorder()
    sources = resolve_sources(spec.sources, progress=recorder)
    scan_texts(spec, sources, tmp_path / "out", threads=2, memory_bytes=1 << 20, progress=recorder)
    assert recorder.notes == []
    size = sum(source.bytes for source in sources)
    assert recorder.totals == {"identify": size, "scan": size}
    assert recorder.done["identify"] == size
    assert size - 100 <= recorder.done["scan"] <= size
