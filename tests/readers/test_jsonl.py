from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.errors import BadRowError, InputError, SourceChangedError
from zephon_core.readers.jsonl import LineBlock, LongLine, iter_blocks, iter_lines
from zephon_core.readers.rows import iter_rows
from zephon_core.readers.sources import resolve_sources

LINES = [b'{"a": 1}', b"", b'{"b": "\xe2\x80\xa8\r inside"}', b"[3]"]


def store(path: Path, content: bytes, pieces: int = 3) -> Path:
    """Write content, compressed as the name says, in several members or frames."""
    step = -(-len(content) // pieces) or 1
    parts = [content[start : start + step] for start in range(0, len(content), step)] or [b""]
    compress = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}.get(path.suffix, bytes)
    path.write_bytes(b"".join(map(compress, parts)))
    return path


def lines_of(path: Path, **options) -> list[tuple[int, int, bytes | LongLine]]:
    (source,) = resolve_sources([str(path)])
    return list(iter_lines(source, **options))


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_lines_with_their_origins(tmp_path, suffix, end, last):
    content = b"\xef\xbb\xbf" + end.join(LINES) + end * last
    expected, offset = [], 3
    for number, line in enumerate(LINES):
        expected.append((number + 1, offset, line))
        offset += len(line) + len(end)
    assert lines_of(store(tmp_path / f"a.{suffix}", content)) == expected


@given(
    st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")), max_size=12),
    st.integers(1, 50),
    st.integers(1, 60),
    st.booleans(),
)
def test_blocks_hold_every_line_once(tmp_path_factory, lines, block_bytes, max_row_bytes, last):
    content = b"".join(line + b"\n" for line in lines)
    content = content if last else content.removesuffix(b"\n")
    bom = 3 if content.startswith(b"\xef\xbb\xbf") else 0
    path = store(tmp_path_factory.mktemp("jsonl") / "a.jsonl", content)
    (source,) = resolve_sources([str(path)])
    place, rebuilt, stored = bom, b"", 0
    for block in iter_blocks(source, block_bytes=block_bytes, max_row_bytes=max_row_bytes):
        assert block.byte_offset == place
        stored += block.stored_bytes
        if isinstance(block, LineBlock):
            piece = bytes(block.buffer[block.begin : block.end])
            assert max(map(len, piece.split(b"\n"))) <= max_row_bytes + 1 + block_bytes
        else:
            piece = content[place:].split(b"\n")[0]
            piece += content[place + len(piece) : place + len(piece) + 1]
            line = piece.removesuffix(b"\n")
            assert block.length == len(line.removesuffix(b"\r") if piece.endswith(b"\n") else line) > max_row_bytes
            assert line.startswith(block.head)
            assert len(block.head) == min(block.length, 1024)
        rebuilt += piece
        place += len(piece)
    assert rebuilt == content[bom:]
    assert stored == len(content) or not content[bom:]


def test_a_long_line_is_never_held(tmp_path):
    path = store(tmp_path / "a.jsonl.gz", b'{"a": 1}\n' + b"x" * 50_000_000 + b"\r\n{}\n", pieces=1)
    sizes = []

    def allocate(size: int) -> bytearray:
        sizes.append(size)
        return bytearray(size)

    (source,) = resolve_sources([str(path)])
    blocks = list(iter_blocks(source, block_bytes=1 << 16, max_row_bytes=1 << 20, allocate=allocate))
    assert [(type(block), block.byte_offset) for block in blocks] == [(LineBlock, 0), (LongLine, 9), (LineBlock, 50_000_011)]
    assert blocks[1].length == 50_000_000
    assert blocks[1].head == b"x" * 1024
    assert max(sizes) <= (1 << 20) + (1 << 17)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_every_cut_is_an_error_that_names_the_place(tmp_path, suffix):
    content = b"".join(b'{"query": "%d"}\n' % number for number in range(300))
    whole = store(tmp_path / f"whole.jsonl{suffix}", content, pieces=1).read_bytes()
    assert b"".join(line + b"\n" for _, _, line in lines_of(tmp_path / f"whole.jsonl{suffix}")) == content
    path = tmp_path / f"cut.jsonl{suffix}"
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=rf"cut\.jsonl{suffix} \(byte {size:,}\): is cut short inside its (gzip|zstd) data"):
            lines_of(path)
    path.write_bytes(b"")
    assert lines_of(path) == []


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_changed_bytes_are_noticed(tmp_path, suffix):
    content = b"".join(b'{"query": "%d"}\n' % (number * 7919 % 100003) for number in range(400))
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    whole = gzip.compress(content) if suffix == ".gz" else compressor.compress(content)
    path = tmp_path / f"a.jsonl{suffix}"
    noticed = 0
    for place in range(10, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            lines = lines_of(path)
        except InputError as error:
            assert "Copy the file again, whole." in str(error)
            noticed += 1
        else:
            assert b"".join(line + b"\n" for _, _, line in lines) == content
    assert noticed > len(whole) // 3 - 10


def test_padding_and_rubbish_after_gzip(tmp_path):
    member = gzip.compress(b"{}\n")
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(member + bytes(700) + member + bytes(5))
    assert [line for _, _, line in lines_of(path)] == [b"{}", b"{}"]
    path.write_bytes(member + b"rubbish that is no member")
    with pytest.raises(InputError, match="is no intact gzip data"):
        lines_of(path)


def test_skippable_frames_and_frames_of_unknown_size(tmp_path):
    compressor = zstandard.ZstdCompressor()
    streamed = compressor.compressobj()
    frame = streamed.compress(b"[1]\n" * 9) + streamed.flush()
    skippable = b"\x53\x2a\x4d\x18\x03\x00\x00\x00abc"
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(skippable + frame + skippable + compressor.compress(b"[2]"))
    assert [line for _, _, line in lines_of(path)] == [b"[1]"] * 9 + [b"[2]"]


def test_a_window_too_large_is_refused(tmp_path):
    parameters = zstandard.ZstdCompressionParameters(window_log=28, compression_level=1)
    streamed = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    (tmp_path / "a.jsonl.zst").write_bytes(streamed.compress(b"{}\n") + streamed.flush())
    with pytest.raises(InputError, match="is no intact zstd data"):
        lines_of(tmp_path / "a.jsonl.zst")


def test_golden_zstd_files(shared_data):
    folder = shared_data / "nasty" / "zstd" / "tests"
    assert lines_of(folder / "golden-decompression" / "empty-block.zst") == []
    with pytest.raises(InputError, match="is no intact zstd data"):
        lines_of(folder / "golden-decompression-errors" / "truncated_huff_state.zst")


def test_a_source_that_is_written_to(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n" * 1000)
    (source,) = resolve_sources([str(path)])
    blocks = iter_blocks(source, block_bytes=300)
    next(blocks)
    with path.open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(SourceChangedError, match="is not what this run identified"):
        list(blocks)
    with pytest.raises(SourceChangedError):
        next(iter_blocks(source))


def test_rows_as_values(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n\n[NaN]\r\n"x"')
    (source,) = resolve_sources([str(path)])
    rows = list(iter_rows(source))
    assert [(row.origin.row, row.origin.byte_offset) for row in rows] == [(1, 0), (3, 10), (4, 17)]
    assert rows[0].payload == {"a": 1}
    assert rows[2].payload == "x"


def test_a_bad_row_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n" * 1000 + b'{"a": }\n')
    (source,) = resolve_sources([str(path)])
    rows = iter_rows(source)
    assert sum(1 for _, _ in zip(range(1000), rows, strict=False)) == 1000
    message = r"a\.jsonl:1001 \(byte 3,000\): is broken JSON \(Expecting value at character 7 of the row\)\. Fix the row\."
    with pytest.raises(BadRowError, match=message):
        next(rows)


def test_the_library_keeps_output_back_at_no_chunk_size(tmp_path, monkeypatch):
    """Whatever pieces the compressed bytes come in, nothing is lost at the end."""
    content = b"".join(b'{"query": "%d"}\n' % number for number in range(3000)) + b" " * 100_000
    for chunk in (1, 2, 3, 5, 100):
        monkeypatch.setattr("zephon_core.readers.streams._READ_BYTES", chunk)
        for suffix in (".gz", ".zst"):
            path = store(tmp_path / f"a.jsonl{suffix}", content, pieces=2)
            assert b"\n".join(line for _, _, line in lines_of(path)) == content
    assert zlib.crc32(content)
