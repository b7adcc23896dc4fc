from __future__ import annotations

import gzip
import hashlib
import os

import pytest

from zephon_core.errors import InputError, SourceChangedError
from zephon_core.fingerprint import FileMemo
from zephon_core.readers.sources import Source, check_unchanged, detect_format, expand_source, open_source, resolve_sources


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.jsonl", "a.jsonl", "c.parquet", "year=2024.jsonl"):
        (tmp_path / name).write_text(name)
    (tmp_path / "year=2025").mkdir()
    (tmp_path / "year=2025" / "d.jsonl").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.jsonl", [("", "a.jsonl")]),
        ("train=a.jsonl", [("train", "a.jsonl")]),
        ("train=*.jsonl", [("train", "a.jsonl"), ("train", "b.jsonl"), ("train", "year=2024.jsonl")]),
        ("year=2024.jsonl", [("", "year=2024.jsonl")]),
        ("eval=year=2024.jsonl", [("eval", "year=2024.jsonl")]),
        ("year=2025/*.jsonl", [("", "year=2025/d.jsonl")]),
        ("./year=2025/d.jsonl", [("", "./year=2025/d.jsonl")]),
        ("**/*.jsonl", [("", "a.jsonl"), ("", "b.jsonl"), ("", "year=2024.jsonl"), ("", "year=2025/d.jsonl")]),
    ],
)
def test_names_and_globs(here, text, expected):
    assert expand_source(text) == expected


def test_a_name_with_glob_letters_that_exists_is_taken_as_it_is(here):
    (here / "[a].jsonl").write_text("{}")
    assert expand_source("[a].jsonl") == [("", "[a].jsonl")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("absent.jsonl", "absent.jsonl: does not exist"),
        ("train=absent.jsonl", "absent.jsonl: does not exist"),
        ("not a name=a.jsonl", "not a name=a.jsonl: does not exist"),
        ("*.absent", r"\*.absent: matches no file"),
        ("year=2025", "is a directory, expected files. Name them, or write year=2025/"),
        ("memory://nowhere/*.jsonl", "matches no file"),
        ("memory://nowhere.jsonl", "does not exist"),
        (
            "nosuchscheme://a.jsonl",
            r"is in a file system that fsspec doesn't know \(nosuchscheme://\), expected a path or one of s3://",
        ),
        ("http://127.0.0.1:9/a.jsonl", "can't be read|does not exist"),
        ("a\0b.jsonl", "does not exist"),
        ("x" * 300, "does not exist"),
        ("absent.jsonl", r"Check the path .* globs .* and URLs .* are allowed\."),
        ("*.absent", r"Check the path .* globs .* and URLs .* are allowed\."),
        ("", "source: is empty, expected a path"),
        ("  ", "source: is empty"),
        ("simplecache::foo://x", r"doesn't know \(foo://\)"),
    ],
)
def test_what_is_not_there_is_named(here, text, message):
    with pytest.raises(InputError, match=message):
        resolve_sources([text])


def test_a_pipe_is_refused(here):
    os.mkfifo(here / "pipe.jsonl")
    with pytest.raises(InputError, match="is no regular file"):
        resolve_sources(["pipe.jsonl"])


def test_an_unreadable_file_is_named(here):
    with pytest.raises(InputError, match="can't be read"), open_source("a.jsonl") as handle:
        handle.read()
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize(
    ("name", "head", "expected"),
    [
        ("a.jsonl", b"", ("jsonl", "none")),
        ("a.NDJSON", b"", ("jsonl", "none")),
        ("a.json.gz", b"", ("jsonl", "gzip")),
        ("a.gz", b"", ("jsonl", "gzip")),
        ("a.b.jsonl.zst", b"", ("jsonl", "zstd")),
        ("a.pq", b"", ("parquet", "none")),
        ("a.feather", b"", ("arrow", "none")),
        ("s3://bucket/a.parquet", b"", ("parquet", "none")),
        ("a", b"PAR1....", ("parquet", "none")),
        ("a", b"ARROW1\0\0", ("arrow", "none")),
        ("a", b"\xff\xff\xff\xff\x10", ("arrow", "none")),
        ("a", b"\x1f\x8b\x08", ("jsonl", "gzip")),
        ("a.txt", b"\x28\xb5\x2f\xfd", ("jsonl", "zstd")),
        ("a", b"\x5a\x2a\x4d\x18", ("jsonl", "zstd")),
        ("a", b"", ("jsonl", "none")),
        ("a.v2", b"\xef\xbb\xbf{}", ("jsonl", "none")),
    ],
)
def test_formats(name, head, expected):
    assert detect_format(name, head) == expected


@pytest.mark.parametrize(("name", "head"), [("a", b"\x7fELF\0\0"), ("a.parquet.gz", b"\x1f\x8b")])
def test_unknown_formats_are_refused_with_what_to_do(name, head):
    with pytest.raises(InputError) as caught:
        detect_format(name, head)
    assert caught.value.remedy


def test_identity_is_of_the_stored_bytes(here):
    content = gzip.compress(b'{"query": "a"}\n')
    (here / "a.jsonl.gz").write_bytes(content)
    assert resolve_sources(["x=a.jsonl.gz"]) == (
        Source("x", "a.jsonl.gz", "jsonl", "gzip", len(content), hashlib.sha256(content).hexdigest()),
    )


def test_fsspec_urls(here):
    import fsspec

    with fsspec.open("memory://bank/b.jsonl", "wb") as file:
        file.write(b"{}\n")
    with fsspec.open("memory://bank/a.jsonl", "wb") as file:
        file.write(b"[]\n")
    found = resolve_sources(["m=memory://bank/*.jsonl", f"file://{here}/a.jsonl"])
    assert [(source.name, source.bytes, source.sha256) for source in found] == [
        ("m", 3, hashlib.sha256(b"[]\n").hexdigest()),
        ("m", 3, hashlib.sha256(b"{}\n").hexdigest()),
        ("", 7, hashlib.sha256(b"a.jsonl").hexdigest()),
    ]


def test_changes_are_noticed(here, tmp_path):
    memo = FileMemo(tmp_path / "memo")
    (source,) = resolve_sources(["a.jsonl"], memo=memo)
    check_unchanged(source, memo=memo)
    (here / "a.jsonl").write_text("A.jsonl")
    with pytest.raises(SourceChangedError, match="was changed"):
        check_unchanged(source, memo=memo)
    (here / "a.jsonl").write_text("a.jsonl and more")
    with pytest.raises(SourceChangedError, match="was changed"):
        check_unchanged(source)
    (here / "a.jsonl").unlink()
    with pytest.raises(InputError, match="can't be read"):
        check_unchanged(source, memo=memo)
