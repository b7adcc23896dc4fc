"""MDS shards, as MosaicML Streaming's MDSWriter writes them; that package isn't needed.

index.json names the shards, their columns and sizes. A shard is: number of samples n (uint32), n + 1 offsets (uint32) from the
shard's first byte, a JSON document, the samples. A sample is: the sizes (uint32) of those columns that have none in the index,
then the columns' values, in the index's order. Numbers are little-endian. (mosaicml-streaming 0.13, format "mds" version 2.)

Pickles are never loaded: their columns, and those of images, stay bytes.
"""

from __future__ import annotations

import bz2
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon_core.errors import InputError
from zephon_core.ratios.datasets.files import FoundFile, OpenFile, Tally, cut_short
from zephon_core.ratios.datasets.formats import Part, ShardPlace, Survey, open_file
from zephon_core.ratios.datasets.json_lines import parse_quickly
from zephon_core.ratios.datasets.listing import Container, inside
from zephon_core.ratios.datasets.model import LocatedRow, TextColumn, payloads_or_problems
from zephon_core.readers.rows import RowProblem
from zephon_core.readers.streams import decompressed

__all__ = ["MdsReader", "MdsRows", "open_shard", "places", "probe", "read_index", "whole"]

_COMPRESSIONS = {"gz": "gzip", "zstd": "zstd", "bz2": "bz2", "br": "brotli", "snappy": "snappy"}
_SCALARS = {f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)} | {"float16", "float32", "float64"}
_SHAPE_DTYPES = (np.uint8, np.uint16, np.uint32, np.uint64)
_VALUE_DTYPES = dict(
    zip(
        (8, 9, 16, 17, 18, 32, 33, 34, 64, 65, 66),
        ("uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32", "uint64", "int64", "float64"),
        strict=True,
    )
)


def places(container: Container) -> list[ShardPlace]:
    """Read index.json. Raises InputError where it is broken."""
    index_url = f"{container.url}/index.json"
    files = {file.url: file for file in container.files}
    index = read_index(files[index_url])
    try:
        return [_place(container.url, shard, files) for shard in index["shards"]]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(index_url, f"is no MDS index ({type(error).__name__}: {error})", wanted="version 2") from error


def read_index(file: FoundFile) -> Any:
    """Read a JSON document of any size. Raises InputError."""
    with OpenFile(file, Tally()) as handle:
        content = handle.range(0, file.bytes)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(file.url, f"is broken JSON ({error})", remedy="Copy the folder again, whole.") from error


def whole(value: Any) -> int:
    """Return a number of bytes or rows that an index tells. Raises ValueError for what can be none."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r} is no number of bytes or rows")
    return value


def _place(folder: str, shard: Mapping[str, Any], files: Mapping[str, FoundFile]) -> ShardPlace:
    if (shard["format"], shard["version"]) != ("mds", 2):
        found = f"has a shard of format {shard['format']!r}, version {shard['version']}"
        raise InputError(f"{folder}/index.json", found, wanted="mds, version 2")
    compression = _COMPRESSIONS.get(str(shard["compression"] or "").split(":")[0], str(shard["compression"] or "none"))
    stored = shard["zip_data"] if shard["compression"] else shard["raw_data"]
    url = inside(folder, str(stored["basename"]))
    details = {
        "columns": [
            [str(name), str(encoding), None if size is None else whole(size)]
            for name, encoding, size in zip(shard["column_names"], shard["column_encodings"], shard["column_sizes"], strict=True)
        ],
        "raw_bytes": whole(shard["raw_data"]["bytes"]),
        "rows": whole(shard["samples"]),
    }
    # A file that is named and isn't there is found out when it is opened.
    return ShardPlace(url, "mds", compression, (files.get(url) or FoundFile(url, whole(stored["bytes"]), ""),), details)


def probe(place: ShardPlace, tally: Tally) -> Survey:
    """Take rows and sizes from the index, and check that the file is there and of its size."""
    rows, raw_bytes = place.details["rows"], place.details["raw_bytes"]
    with open_file(place, tally) as file:
        if place.compression == "none":
            if file.size_bytes != raw_bytes:
                raise InputError(place.url, f"has {file.size_bytes:,} bytes", wanted=f"{raw_bytes:,} by index.json")
            _offsets(file.range(0, 4 * rows + 8), rows, raw_bytes, place.url)
    parts = (Part(0, max(1, raw_bytes), file.size_bytes, rows, False),) if rows else ()
    return Survey(rows, raw_bytes, parts)


def _offsets(head: bytes, rows: int, raw_bytes: int, url: str) -> NDArray[np.int64]:
    """Return where samples begin, and the end: int64 [rows + 1]. Raises InputError."""
    if len(head) < 4 * rows + 8:
        raise cut_short(url, len(head))
    numbers = np.frombuffer(head, "<u4", rows + 2).astype(np.int64)
    offsets = numbers[1:]
    if numbers[0] != rows or offsets[0] < 4 * rows + 8 or np.any(np.diff(offsets) < 0) or offsets[-1] > raw_bytes:
        raise InputError(url, f"doesn't hold the {rows:,} samples that index.json tells", remedy="Copy the folder again, whole.")
    return offsets


def open_shard(place: ShardPlace, paths: Sequence[str] | None, tally: Tally) -> MdsReader:
    """Open a shard; only columns that the paths begin with are decoded."""
    return MdsReader(place, paths, tally)


class MdsReader:
    """Reads a shard: of a plain one the offsets, and then the samples that are asked for."""

    def __init__(self, place: ShardPlace, paths: Sequence[str] | None, tally: Tally) -> None:
        self._place = place
        self._file = open_file(place, tally)
        names = None if paths is None else {path.split(".")[0].removesuffix("[]") for path in paths}
        self._columns = [
            (str(name), str(encoding), None if size is None else int(size), names is None or name in names)
            for name, encoding, size in place.details["columns"]
        ]

    def read(self, part: int, start: int, size: int, rows: int) -> MdsRows:
        """Find all samples."""
        raw_bytes, rows = self._place.details["raw_bytes"], self._place.details["rows"]
        content = None if self._place.compression == "none" else self._inflated(raw_bytes)
        head = self._file.once(0, 4 * rows + 8) if content is None else content[: 4 * rows + 8]
        offsets = _offsets(head, rows, raw_bytes, self._place.url)
        self._file.check()
        return MdsRows(self._columns, offsets, content, self._file)

    def _inflated(self, raw_bytes: int) -> bytes:
        import pyarrow as pa

        url, compression = self._place.url, self._place.compression
        stored = self._file.once(0, self._file.size_bytes)
        try:
            if compression in ("gzip", "zstd"):
                self._file.seek(0)
                buffer = bytearray(raw_bytes + 1)
                count = decompressed(url, compression, self._file).readinto(memoryview(buffer))  # type: ignore[arg-type]
                content = bytes(buffer[:count])
            elif compression == "bz2":
                content = bz2.decompress(stored)
            elif compression in ("brotli", "snappy"):
                content = pa.Codec(compression).decompress(stored, raw_bytes, asbytes=True)
            else:
                raise InputError(url, f"is compressed with {compression}", wanted="gz, zstd, bz2, br or snappy")
        except (OSError, ValueError, pa.ArrowException) as error:
            raise InputError(url, f"is no intact {compression} data ({error})", remedy="Copy the file again, whole.") from error
        if len(content) != raw_bytes:
            raise InputError(url, f"has not the {raw_bytes:,} bytes that index.json tells", remedy="Copy the folder again, whole.")
        return content

    def read_at(self, start: int, size: int, offset: int) -> LocatedRow:
        """Refuse: units of MDS are whole shards."""
        raise InputError(self._place.url, "can't be read at a byte: it is an MDS shard")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class MdsRows:
    """The samples of a shard. row_bytes: of whole samples as stored, which the offsets tell."""

    def __init__(
        self,
        columns: Sequence[tuple[str, str, int | None, bool]],
        offsets: NDArray[np.int64],
        content: bytes | None,
        file: OpenFile,
    ) -> None:
        self._columns = columns
        self._offsets = offsets
        self._content = content
        self._file = file
        self.row_bytes: NDArray[np.int64] = np.diff(offsets)

    def payload(self, row: int) -> dict[str, Any]:
        """Decode a sample's wanted columns. Raises RowProblem."""
        begin, end = int(self._offsets[row]), int(self._offsets[row + 1])
        if self._content is None:
            sample = self._file.once(begin, end - begin)
            self._file.check()
        else:
            sample = self._content[begin:end]
        open_columns = [column for column in self._columns if column[2] is None]
        position = 4 * len(open_columns)
        try:
            sizes = iter(np.frombuffer(sample, "<u4", len(open_columns)).tolist())
        except ValueError:
            raise RowProblem("broken sample", "is shorter than its columns' sizes") from None
        decoded = {}
        for name, encoding, fixed, is_wanted in self._columns:
            size = next(sizes) if fixed is None else fixed
            if position + size > len(sample):
                raise RowProblem("broken sample", f"ends inside its column {name!r}")
            if is_wanted:
                decoded[name] = decode(name, encoding, sample[position : position + size])
            position += size
        return decoded

    def payloads(self, rows: Sequence[int]) -> list[Any]:
        """Decode many samples, a RowProblem in the place of each bad one."""
        return payloads_or_problems(self, rows)

    def texts(self, path: tuple[str, ...]) -> TextColumn | None:
        """Return None: samples are decoded one by one."""
        return None


def decode(name: str, encoding: str, value: bytes) -> Any:
    """Decode one column's value; what can't be decoded safely stays bytes. Raises RowProblem."""
    try:
        kind, _, rest = encoding.partition(":")
        if kind == "ndarray":
            return _array(rest, value)
        if kind in _SCALARS:
            return np.frombuffer(value, f"<{np.dtype(kind).str[1:]}")[0]
        match kind:
            case "str":
                return value.decode("utf-8")
            case "int":
                return int(np.frombuffer(value, "<i8")[0])
            case "json":
                return parse_quickly(value)
            case "str_int":
                return int(value)
            case "str_float":
                return float(value)
            case "str_decimal":
                return Decimal(value.decode("ascii"))
            case _:
                return value
    except UnicodeDecodeError as error:
        raise RowProblem("invalid UTF-8", f"its {name!r} is no valid UTF-8 at byte {error.start}") from None
    except (ValueError, ArithmeticError, IndexError, KeyError) as error:
        raise RowProblem("broken value", f"its {name!r} is no {encoding} ({error})") from None


def _array(arguments: str, value: bytes) -> NDArray[Any]:
    """Decode an array whose dtype and shape stand in the encoding's arguments, or else before its values."""
    dtype, _, dimensions = arguments.partition(":")
    position = 0
    if not dtype:
        dtype = _VALUE_DTYPES[value[position]]
        position += 1
    if dimensions:
        shape = [int(each) for each in dimensions.split(",")]
    else:
        axes, width = value[position] >> 2, value[position] % 4
        shape = np.frombuffer(value, np.dtype(_SHAPE_DTYPES[width]).newbyteorder("<"), axes, position + 1).tolist()
        position += 1 + (axes << width)
    return np.frombuffer(value, np.dtype(dtype).newbyteorder("<"), offset=position).reshape(shape)
