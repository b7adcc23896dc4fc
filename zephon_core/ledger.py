"""Which blocks of a long piece of work are done: append-only files of checked records that survive a kill at any byte.

A ledger file is a header of 64 bytes and then records of a fixed size, little-endian, each ending in an XXH3 checksum of
itself. A torn or damaged record is no record: its block counts as not done. Every process writes a file of its own and what is
done is the union, so any number of them may work on disjoint blocks of one plan, die and come back.

A record is appended as soon as its bytes are written, so a killed process loses nothing that it had written. From time to time
those bytes are flushed, and then a mark is appended and flushed. A record before a mark is on the device, and so is what it is
about. One after the last mark is provisional: after a power cut it may be there without its bytes, so it counts as done only once
they are found to match its checksum.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from zephon_core.atomic import fsync_directory
from zephon_core.errors import CorruptArtifactError, LeaseHeldError, MismatchError

__all__ = ["BLOCK_RECORD", "FLAW_RECORD", "LEDGER_VERSION", "Ledger", "LedgerRecords", "read_records", "read_union"]

LEDGER_VERSION = 1
BLOCK_RECORD = np.dtype(
    [
        ("block", "<u8"),
        ("checksum", "<u8"),  # of the bytes that were written for the block
        ("finished_ms", "<u8"),  # since 1970
        ("rows", "<u4"),
        ("length", "<u4"),  # tokens of the longest row
        ("flaws", "<u4"),  # rows that can't be used
        ("took_us", "<u4"),
        ("largest", "<f4"),  # largest absolute value before the cast
        ("worker", "<u2"),
        ("halvings", "<u2"),  # how often the block was halved because memory ran out
        ("check", "<u8"),
    ]
)
FLAW_RECORD = np.dtype([("block", "<u8"), ("row", "<u8"), ("reason", "<u4"), ("unused", "<u4"), ("check", "<u8")])

Records = npt.NDArray[np.void]
Flags = npt.NDArray[np.bool_]
_MARK = np.uint64((1 << 64) - 1)
_MAGIC = b"ZPHLEDG\0"
_HEADER = struct.Struct("<8sII32s8xQ")  # magic, version, bytes a record, identity, checksum of what precedes


class Ledger:
    """One process's ledger file, open for appending and locked against other processes of this host.

    path: made if absent. identity: SHA-256 hex of what the work is; a file of other work is refused with MismatchError.
    kind: the records' dtype, whose last field `check` this class fills in. Raises LeaseHeldError if another process has it open.
    """

    def __init__(self, path: Path, identity: str, kind: np.dtype[Any] = BLOCK_RECORD) -> None:
        self.path = path
        self._kind = kind
        header = _header(identity, kind)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._lock()
            size = os.fstat(self._handle).st_size
            if size < _HEADER.size:  # new, or killed while it was made: nothing was recorded
                os.ftruncate(self._handle, 0)
                os.pwrite(self._handle, header, 0)
                os.fsync(self._handle)
                fsync_directory(path.parent)
                size = _HEADER.size
            else:
                _check_header(path, os.pread(self._handle, _HEADER.size, 0), header)
            self._end = size - (size - _HEADER.size) % kind.itemsize
        except BaseException:
            os.close(self._handle)
            raise

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def append(self, records: Records) -> None:
        """Add records; a torn record that a kill left behind is overwritten. They are provisional until the next `flush`."""
        if not len(records):
            return
        content = _sealed(records, self._kind)
        os.pwrite(self._handle, content, self._end)
        self._end += len(content)

    def flush(self) -> None:
        """Mark all records so far as flushed; to be called after a flush of what they are about. The mark is flushed too."""
        mark = np.zeros(1, self._kind)
        mark[_key(self._kind)] = _MARK
        self.append(mark)
        os.fsync(self._handle)

    def close(self) -> None:
        """Close the file and free its lock."""
        os.close(self._handle)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LeaseHeldError(
                str(self.path), "is being written by another process", remedy="Wait until it is done: nothing is done twice."
            ) from None


class LedgerRecords(NamedTuple):
    """Records, and for each whether it is flushed (bool): one that isn't is provisional."""

    records: Records
    flushed: Flags


def read_records(path: Path, identity: str, kind: np.dtype[Any] = BLOCK_RECORD) -> LedgerRecords:
    """Read the whole records of a ledger file, in the order in which they were written; torn and damaged ones are left out.

    A file that is gone, removed by whoever finished the work, holds none.
    Raises MismatchError if the file belongs to other work, CorruptArtifactError if it is no ledger.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    if len(content) < _HEADER.size:
        return LedgerRecords(np.zeros(0, kind), np.zeros(0, np.bool_))
    _check_header(path, content[: _HEADER.size], _header(identity, kind))
    body = memoryview(content)[_HEADER.size :]
    step = kind.itemsize
    whole = len(body) // step
    records = np.frombuffer(body[: whole * step], kind)
    checks = (xxhash.xxh3_64_intdigest(body[place : place + step - 8]) for place in range(0, whole * step, step))
    records = records[records["check"] == np.fromiter(checks, np.uint64, whole)]
    marks = records[_key(kind)] == _MARK
    flushed = np.arange(len(records)) < np.flatnonzero(marks).max(initial=-1)
    return LedgerRecords(records[~marks], flushed[~marks])


def read_union(paths: Iterable[Path], identity: str, kind: np.dtype[Any] = BLOCK_RECORD, *, key: str = "block") -> LedgerRecords:
    """Read several ledger files as one: a record a `key`, the latest where there are several, ascending."""
    parts = [read_records(path, identity, kind) for path in paths]
    records = np.concatenate([np.zeros(0, kind), *(part.records for part in parts)])
    flushed = np.concatenate([np.zeros(0, np.bool_), *(part.flushed for part in parts)])
    if "finished_ms" in (kind.names or ()):
        order = np.argsort(records["finished_ms"], kind="stable")
        records, flushed = records[order], flushed[order]
    _, last = np.unique(records[key][::-1], return_index=True)
    latest = len(records) - 1 - last
    return LedgerRecords(records[latest], flushed[latest])


def _key(kind: np.dtype[Any]) -> str:
    """Return the name of a record's first field, which a mark fills with ones."""
    return (kind.names or ("",))[0]


def _header(identity: str, kind: np.dtype[Any]) -> bytes:
    head = _HEADER.pack(_MAGIC, LEDGER_VERSION, kind.itemsize, bytes.fromhex(identity), 0)[:-8]
    return head + xxhash.xxh3_64_intdigest(head).to_bytes(8, "little")


def _check_header(path: Path, found: bytes, wanted: bytes) -> None:
    if found == wanted:
        return
    if found[:8] != _MAGIC or xxhash.xxh3_64_intdigest(found[:-8]).to_bytes(8, "little") != found[-8:]:
        raise CorruptArtifactError(str(path), "is damaged or no ledger", remedy=f"Delete {path} to do its blocks again.")
    _, version, size, identity, _ = _HEADER.unpack(found)
    _, wanted_version, wanted_size, wanted_identity, _ = _HEADER.unpack(wanted)
    if (version, size) != (wanted_version, wanted_size):
        raise MismatchError(
            str(path),
            f"is a ledger of version {version} with records of {size} bytes",
            wanted=f"version {wanted_version} with {wanted_size}",
            remedy="Finish it with the version of zephon-flows that began it, or delete it.",
        )
    raise MismatchError(
        str(path),
        f"belongs to other work ({identity.hex()[:16]})",
        wanted=wanted_identity.hex()[:16],
        remedy="Delete the folder to begin anew.",
    )


def _sealed(records: Records, kind: np.dtype[Any]) -> bytes:
    """Return the records' bytes with their checksums filled in."""
    step = kind.itemsize
    content = bytearray(records.astype(kind, copy=False).tobytes())
    for place in range(0, len(content), step):
        check = xxhash.xxh3_64_intdigest(memoryview(content)[place : place + step - 8])
        content[place + step - 8 : place + step] = check.to_bytes(8, "little")
    return bytes(content)
