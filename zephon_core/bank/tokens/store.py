"""The token store of a bank: ids of all texts end to end, written as they come and resumed where they stopped.

    token_ids.npy       uint8, uint16 or uint32 [tokens]: the narrowest that holds every id of the tokenizer
    token_offsets.npy   uint64 [texts + 1]: text i is token_ids[offsets[i] : offsets[i + 1]]
    lengths.npy         int32 [texts]
    token_chunks.jsonl  the ledger: what the store is of, then how much of it is there

Data are flushed before the ledger says that they are there. What lies past the ledger's last line after a crash is cut off, so the
finished files are the same bytes however often the work was interrupted. In the end the ledger is one line of totals.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import orjson

from zephon_core.atomic import fsync_directory, write_bytes
from zephon_core.blocks.tokens import TOKEN_FILES
from zephon_core.errors import CorruptArtifactError, MismatchError
from zephon_core.npy import HEADER_BYTES, npy_header

__all__ = [
    "IDS_NAME",
    "LEDGER_NAME",
    "LENGTHS_NAME",
    "OFFSETS_NAME",
    "TOKEN_FILES",
    "Tally",
    "TokenStoreIdentity",
    "TokenWriter",
    "id_dtype",
]

LEDGER_NAME = "token_chunks.jsonl"
IDS_NAME, OFFSETS_NAME, LENGTHS_NAME = TOKEN_FILES

_FORMAT = 1


@dataclass(frozen=True)
class TokenStoreIdentity:
    """What a token store is made from: a store begun for another one is not continued."""

    tokenizer_sha256: str
    max_key_tokens: int
    text_count: int
    texts_bytes: int
    vocab_size: int
    format: int = _FORMAT


@dataclass(frozen=True)
class Tally:
    """How much of the texts is done. text_bytes: of texts.jsonl. whole_*: of texts that are neither truncated nor empty."""

    texts: int = 0
    text_bytes: int = 0
    tokens: int = 0
    truncated: int = 0
    empty: int = 0
    whole_characters: int = 0
    whole_tokens: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


def id_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the narrowest unsigned type that holds ids below `vocab_size`, little-endian."""
    name = "<u1" if vocab_size <= 1 << 8 else "<u2" if vocab_size <= 1 << 16 else "<u4"
    return np.dtype(name)


class TokenWriter:
    """Appends to a token store in `directory`, after whatever an earlier run of the same work left on record there.

    done: what is on record. appended: that and what was appended since. Raises MismatchError if the directory holds the
    beginning of another store.
    """

    def __init__(self, directory: Path, identity: TokenStoreIdentity) -> None:
        self._directory = directory
        self._identity = identity
        self.dtype = id_dtype(identity.vocab_size)
        self.done, ledger = self._on_record()
        self.appended = self.done
        offsets_start = npy_header(np.dtype("<u8"), identity.text_count + 1) + bytes(8)
        lengths_start = npy_header(np.dtype("<i4"), identity.text_count)
        self._ids = _open_cut(directory / IDS_NAME, bytes(HEADER_BYTES), self.done.tokens * self.dtype.itemsize)
        self._offsets = _open_cut(directory / OFFSETS_NAME, offsets_start, self.done.texts * 8)
        self._lengths = _open_cut(directory / LENGTHS_NAME, lengths_start, self.done.texts * 4)
        self._ledger = _open_cut(directory / LEDGER_NAME, ledger, 0)
        self._flush_data()
        _flush(self._ledger)
        fsync_directory(directory)

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        for file in (self._ids, self._offsets, self._lengths, self._ledger):
            file.close()

    def recorded(self) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32]]:
        """Map the ids and lengths that are on record, read-only."""
        if not self.done.texts:
            return np.empty(0, dtype=self.dtype), np.empty(0, dtype="<i4")
        ids, lengths = self._directory / IDS_NAME, self._directory / LENGTHS_NAME
        return (
            np.memmap(ids, self.dtype, "r", offset=HEADER_BYTES, shape=(self.done.tokens,)),
            np.memmap(lengths, "<i4", "r", offset=HEADER_BYTES, shape=(self.done.texts,)),
        )

    def append(self, ids: npt.NDArray[Any], lengths: npt.NDArray[np.int32], tally: Tally) -> None:
        """Append some texts, described by `tally`. They are on record after the next `checkpoint`."""
        ends = np.cumsum(lengths, dtype="<u8") + np.uint64(self.appended.tokens)
        self._ids.write(ids.astype(self.dtype, copy=False).data)
        self._offsets.write(ends.data)
        self._lengths.write(lengths.astype("<i4", copy=False).data)
        self.appended = self.appended + tally

    def checkpoint(self) -> None:
        """Flush what was appended to the device, then put it on record."""
        if self.appended != self.done:
            self._flush_data()
            self._ledger.write(_ledger_line(self.appended))
            _flush(self._ledger)
            self.done = self.appended

    def finish(self) -> None:
        """Put everything on record and make the files whole."""
        self.checkpoint()
        self._ids.seek(0)
        self._ids.write(npy_header(self.dtype, self.done.tokens))
        _flush(self._ids)
        write_bytes(self._directory / LEDGER_NAME, _ledger_line(self._identity) + _ledger_line(self.done))

    def forget(self) -> None:
        """Take everything off the record: the next run begins anew."""
        self._ledger.truncate(0)
        _flush(self._ledger)

    def _flush_data(self) -> None:
        for file in (self._ids, self._offsets, self._lengths):
            _flush(file)

    def _on_record(self) -> tuple[Tally, bytes]:
        """Find what the ledger has on record and the files really hold, and the part of the ledger that says so."""
        ledger = self._directory / LEDGER_NAME
        content = ledger.read_bytes() if ledger.exists() else b""
        head, *lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True) or [b""]
        if not head:
            return Tally(), _ledger_line(self._identity)
        self._refuse_other(ledger, _parsed(ledger, head))
        done, kept = Tally(), head
        for line in lines:
            tally = Tally(**_parsed(ledger, line))
            if not self._is_there(tally):
                break
            done, kept = tally, kept + line
        return done, kept

    def _refuse_other(self, ledger: Path, begun_for: dict[str, Any]) -> None:
        for name, value in asdict(self._identity).items():
            if begun_for.get(name) != value:
                found = f"was begun with {name.replace('_', ' ')} {begun_for.get(name)}, and now it is {value}"
                raise MismatchError(str(ledger), found, remedy=f"Delete {self._directory} to begin anew.")

    def _is_there(self, tally: Tally) -> bool:
        wanted = (tally.tokens * self.dtype.itemsize, (tally.texts + 1) * 8, tally.texts * 4)
        files = [self._directory / name for name in TOKEN_FILES]
        return all(file.exists() and file.stat().st_size >= HEADER_BYTES + size for file, size in zip(files, wanted, strict=True))


def _open_cut(path: Path, start: bytes, kept_bytes: int) -> BinaryIO:
    """Open a file for appending after its first bytes, which are made `start`, and `kept_bytes` that follow them."""
    file = path.open("r+b" if path.exists() else "w+b")
    file.write(start)
    file.truncate(len(start) + kept_bytes)
    file.seek(0, os.SEEK_END)
    return file


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _ledger_line(entry: Tally | TokenStoreIdentity) -> bytes:
    return orjson.dumps(asdict(entry)) + b"\n"


def _parsed(ledger: Path, line: bytes) -> dict[str, Any]:
    try:
        entry: dict[str, Any] = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise CorruptArtifactError(str(ledger), f"holds {line[:40]!r}", wanted="JSON", remedy="Delete its directory.") from error
    return entry
