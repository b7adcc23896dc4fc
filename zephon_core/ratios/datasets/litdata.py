"""LitData shards: chunks of an optimized folder; that package isn't needed.

index.json names the chunks, the tree that items are, and the format of each leaf. A chunk is: number of items n (uint32), n + 1
offsets (uint32) from its first byte, the items. An item is: the sizes of its leaves (uint32), the leaves; or nothing but its
tokens, where the index names the TokensLoader. Compression wraps the whole chunk (then its name ends with .zstd.bin), runs of
items (then it begins with a directory of its own), or each item; an index may promise that for chunks that are plain, so each
chunk says itself. Items of nothing but texts, numbers and lists may lie in an Arrow IPC file at the chunk's end instead; then
their own places are empty. Numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from zephon_core.errors import InputError
from zephon_core.ratios.datasets.columns import ColumnRows, check_batch
from zephon_core.ratios.datasets.files import FoundFile, OpenFile, Tally, cut_short
from zephon_core.ratios.datasets.formats import Part, ShardPlace, Survey, open_file
from zephon_core.ratios.datasets.listing import Container, inside
from zephon_core.ratios.datasets.litdata_leaves import assemble, decode_leaf, parse_tree, top_fields, wanted_leaves
from zephon_core.ratios.datasets.mds import read_index, whole
from zephon_core.ratios.datasets.model import LocatedRow, TextColumn, UnitRows, payloads_or_problems
from zephon_core.readers.arrow import arrow_errors, read_options
from zephon_core.readers.rows import RowProblem

__all__ = ["LitDataReader", "LitDataRows", "open_shard", "places", "probe"]

_FRAMED_MAGIC = b"LDFZ01\0\0"
_FRAMED_HEAD = struct.Struct("<8sHHIII")
_FRAMED_COUNT_AT = 12
_FRAME = struct.Struct("<IIQII")
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_WHOLE_SUFFIX = ".zstd.bin"
_ARROW_MAGIC = b"LDARW01\0"
_ARROW_TAIL = struct.Struct("<I8s")


def places(container: Container) -> list[ShardPlace]:
    """Read index.json. Raises InputError where it is broken, encrypted, or compressed in a way that isn't read here."""
    url = inside(container.url, "index.json")
    files = {file.url: file for file in container.files}
    index = read_index(files[url])
    try:
        config = index["config"]
        tree = parse_tree(config.get("data_spec"))
        compression = str(config.get("compression") or "none").split(":")[0]
        fields = top_fields(tree)
        if len(fields) != len(config["data_format"]):
            raise ValueError(f"{len(config['data_format'])} formats for {len(fields)} leaves")
        shared = {
            "format": list(config["data_format"]),
            "tree": tree,
            "may_be_wrapped": config.get("compression_level") == "sample",
            "bare": config.get("item_loader") == "TokensLoader",
        }
        chunks = [(str(chunk["filename"]), whole(chunk["chunk_size"]), whole(chunk["chunk_bytes"])) for chunk in index["chunks"]]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(url, f"is no LitData index ({type(error).__name__}: {error})") from error
    if config.get("encryption") or compression not in ("none", "zstd"):
        found = (
            "says that chunks are encrypted" if config.get("encryption") else f"says that chunks are compressed by {compression}"
        )
        raise InputError(url, found, wanted="plain chunks, or zstd")
    return [
        ShardPlace(
            inside(container.url, name),
            "litdata",
            compression,
            # A file that is named and isn't there is found out when it is opened.
            (files.get(f"{container.url}/{name}") or FoundFile(f"{container.url}/{name}", raw_bytes, ""),),
            {**shared, "rows": rows, "raw_bytes": raw_bytes},
        )
        for name, rows, raw_bytes in chunks
    ]


def probe(place: ShardPlace, tally: Tally) -> Survey:
    """Take rows and sizes from the index, and check that the chunk begins as one of so many items does."""
    rows, raw_bytes = place.details["rows"], place.details["raw_bytes"]
    with open_file(place, tally) as file:
        head = file.range(0, _FRAMED_HEAD.size)
    if not place.url.endswith(_WHOLE_SUFFIX):
        at = _FRAMED_COUNT_AT if head.startswith(_FRAMED_MAGIC) else 0
        if int.from_bytes(head[at : at + 4], "little") != rows:
            raise _other_number(place.url, rows)
    parts = (Part(0, max(1, raw_bytes), file.size_bytes, rows, False),) if rows else ()
    return Survey(rows, raw_bytes, parts)


def _other_number(url: str, rows: int) -> InputError:
    return InputError(url, f"doesn't hold the {rows:,} items that index.json tells", remedy="Copy the folder again, whole.")


def open_shard(place: ShardPlace, paths: Sequence[str] | None, tally: Tally) -> LitDataReader:
    """Open a chunk; only fields that the paths begin with are decoded."""
    return LitDataReader(place, paths, tally)


class LitDataReader:
    """Reads a chunk."""

    def __init__(self, place: ShardPlace, paths: Sequence[str] | None, tally: Tally) -> None:
        self._place = place
        self._file = open_file(place, tally)
        self._paths = paths
        fields = top_fields(place.details["tree"])
        self._wanted = wanted_leaves(fields, paths)
        self._unwanted_fields = {field for field, wanted in zip(fields, self._wanted, strict=True) if not wanted}

    def read(self, part: int, start: int, size: int, rows: int) -> UnitRows:
        """Find all items; those of a plain chunk are read when they are asked for."""
        rows = self._place.details["rows"]
        content = None
        try:
            if self._place.url.endswith(_WHOLE_SUFFIX):
                content = _inflate(self._file.once(0, self._file.size_bytes))
            elif self._file.once(0, len(_FRAMED_MAGIC)) == _FRAMED_MAGIC:
                content, offsets = self._frames(rows)
                return LitDataRows(self._place.details, self._wanted, self._unwanted_fields, offsets, content, self._file)
            if (table := self._arrow_rows(content)) is not None:
                return table
            head = self._file.once(0, 4 * rows + 8) if content is None else content[: 4 * rows + 8]
            offsets = self._checked(np.frombuffer(head, "<u4", rows + 2).astype(np.int64), rows)
        except (ValueError, struct.error, zstandard.ZstdError) as error:
            raise InputError(self._place.url, f"is no intact chunk ({error})", remedy="Copy the folder again, whole.") from error
        self._file.check()
        return LitDataRows(self._place.details, self._wanted, self._unwanted_fields, offsets, content, self._file)

    def _arrow_rows(self, content: bytes | None) -> ColumnRows | None:
        """Read the items from the Arrow IPC file at the chunk's end; None if there is none."""
        import pyarrow as pa

        stored = self._file.size_bytes if content is None else len(content)
        if stored < _ARROW_TAIL.size:
            return None

        def piece(begin: int, count: int) -> bytes:
            return self._file.once(begin, count) if content is None else content[begin : begin + count]

        length, magic = _ARROW_TAIL.unpack(piece(stored - _ARROW_TAIL.size, _ARROW_TAIL.size))
        if magic != _ARROW_MAGIC:
            return None
        if length > stored - _ARROW_TAIL.size:
            raise cut_short(self._place.url, stored)
        table = pa.py_buffer(piece(stored - _ARROW_TAIL.size - length, length))
        with arrow_errors(self._place.url):
            schema = pa.ipc.open_file(table).schema
            reader = pa.ipc.open_file(table, options=read_options(schema, self._paths))
            batches = [check_batch(reader.get_batch(number)) for number in range(reader.num_record_batches)]
        if sum(batch.num_rows for batch in batches) != self._place.details["rows"]:
            raise _other_number(self._place.url, self._place.details["rows"])
        self._file.check()
        return ColumnRows(batches)

    def _checked(self, numbers: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
        if numbers[0] != rows or np.any(np.diff(numbers[1:]) < 0):
            raise _other_number(self._place.url, rows)
        return numbers[1:]

    def _frames(self, rows: int) -> tuple[bytes, NDArray[np.int64]]:
        """Inflate the frames of a chunk of the "batch" kind; offsets are those in the inflated items."""
        stored = self._file.once(0, self._file.size_bytes)
        magic, version, _, count, _, frames = _FRAMED_HEAD.unpack_from(stored)
        if (magic, version, count) != (_FRAMED_MAGIC, 1, rows):
            raise _other_number(self._place.url, rows)
        offsets = np.frombuffer(stored, "<u4", rows + 1, _FRAMED_HEAD.size).astype(np.int64)
        begin = _FRAMED_HEAD.size + 4 * (rows + 1)
        table = [_FRAME.unpack_from(stored, begin + number * _FRAME.size) for number in range(frames)]
        content = b"".join(_inflate(stored[at : at + length]) for _, _, at, length, _ in table)
        if len(content) != offsets[-1]:
            raise cut_short(self._place.url, len(stored))
        return content, self._checked(np.concatenate([np.array([rows], np.int64), offsets]), rows)

    def read_at(self, start: int, size: int, offset: int) -> LocatedRow:
        """Refuse: units of LitData are whole chunks."""
        raise InputError(self._place.url, "can't be read at a byte: it is a LitData chunk")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class LitDataRows:
    """The items of a chunk. row_bytes: of whole items as they lie in it, which the offsets tell."""

    def __init__(
        self,
        details: Mapping[str, Any],
        wanted: Sequence[bool],
        unwanted_fields: Set[str],
        offsets: NDArray[np.int64],
        content: bytes | None,
        file: OpenFile,
    ) -> None:
        self._details = details
        self._wanted = wanted
        self._unwanted_fields = unwanted_fields
        self._offsets = offsets
        self._content = content
        self._file = file
        self.row_bytes: NDArray[np.int64] = np.diff(offsets)

    def payload(self, row: int) -> Any:
        """Decode an item's wanted fields. Raises RowProblem."""
        begin, end = int(self._offsets[row]), int(self._offsets[row + 1])
        if self._content is None:
            item = self._file.once(begin, end - begin)
            self._file.check()
        else:
            item = self._content[begin:end]
        try:
            if item.startswith(_ZSTD_MAGIC) and self._details["may_be_wrapped"]:
                item = _inflate(item)
            bare = self._details["bare"]
            sizes = [len(item)] if bare else np.frombuffer(item, "<u4", len(self._wanted)).tolist()
        except (ValueError, zstandard.ZstdError) as error:
            raise RowProblem("broken item", f"is no intact item ({error})") from None
        leaves = []
        position = 0 if bare else 4 * len(sizes)
        for size, kind, is_wanted in zip(sizes, self._details["format"], self._wanted, strict=True):
            if position + size > len(item):
                raise RowProblem("broken item", "ends inside one of its values")
            leaves.append(decode_leaf(kind, item[position : position + size]) if is_wanted else None)
            position += size
        decoded = assemble(self._details["tree"], iter(leaves))
        for field in self._unwanted_fields:
            del decoded[field]
        return decoded

    def payloads(self, rows: Sequence[int]) -> list[Any]:
        """Decode many items, a RowProblem in the place of each bad one."""
        return payloads_or_problems(self, rows)

    def texts(self, path: tuple[str, ...]) -> TextColumn | None:
        """Return None: items are decoded one by one."""
        return None


def _inflate(stored: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj().decompress(stored)
