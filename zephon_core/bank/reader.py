"""Read a feature bank: map its matrix, find rows by text, check it.

Nothing is loaded into memory: the matrix and the index of digests are mapped, and a look-up touches O(log n) pages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import orjson

from zephon_core.bank.manifest import MANIFEST_NAME, VALID_NAME, parse_manifest, read_manifest
from zephon_core.errors import CorruptArtifactError, IncompleteBankError, InputError, SpecError
from zephon_core.readers.sources import file_system, transport_errors, transport_words

if TYPE_CHECKING:
    import torch

__all__ = ["FeatureBank", "text_digest"]


def text_digest(text: str) -> bytes:
    """Return the SHA-1 (20 bytes) under which a bank files a text; the text is stripped first, as the scan does."""
    return hashlib.sha1(text.strip().encode("utf-8", "replace"), usedforsecurity=False).digest()


class FeatureBank:
    """A finished (or, if asked for, partial) bank, opened for reading.

    Attributes: `path`, `manifest` (dict), `features` (float16 or float32 memmap [rows, hidden_size]).
    Look-ups: `text in bank`, `bank[text]` (one feature vector), `bank.row(text)`, `bank.rows(texts)`.
    """

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self.features = self._map(manifest["bank"])
        count = int(manifest["text_count"])
        self._digests = self._map("digests.npy")
        self._rows = self._map("rows.npy")
        self._check_shape(manifest["bank"], self.features, (count, int(manifest["hidden_size"])), "f")
        self._check_shape("digests.npy", self._digests, (count, 20), "u")
        self._check_shape("rows.npy", self._rows, (count,), "u")
        self._text_offsets: npt.NDArray[np.uint64] | None = None

    @classmethod
    def open(cls, path: str | Path, *, partial: bool = False) -> FeatureBank:
        """Open the bank in the folder `path`, or at an fsspec URL, which is copied into the user's cache first.

        partial: accept a bank that lacks rows; `valid` then says which rows are there.
        Raises MissingArtifactError, CorruptArtifactError (manifest or sizes), IncompleteBankError.
        """
        folder = _local_copy(str(path)) if "://" in str(path) else Path(path)
        manifest = read_manifest(folder)
        for name, record in manifest["files"].items():
            check_size(folder / name, int(record["bytes"]))
        if not manifest["complete"] and not partial:
            raise IncompleteBankError(
                str(folder),
                f"holds {manifest['encoded_rows']:,} of {manifest['text_count']:,} rows",
                remedy="Run the same `zephon-flows bank build` again to finish it, or open it with partial=True.",
            )
        return cls(folder, manifest)

    def __len__(self) -> int:
        return int(self.features.shape[0])

    def __repr__(self) -> str:
        return f"FeatureBank({str(self.path)!r}, rows={len(self)}, hidden_size={self.features.shape[1]})"

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and self._find(text) is not None

    def __getitem__(self, text: str) -> npt.NDArray[np.floating[Any]]:
        """Return the feature vector [hidden_size] of a text. Raises KeyError."""
        vector: npt.NDArray[np.floating[Any]] = self.features[self.row(text)]
        return vector

    def row(self, text: str) -> int:
        """Return the row of a text. Raises KeyError."""
        row = self._find(text)
        if row is None:
            raise KeyError(text)
        return row

    def rows(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return the row of each text, int64 [len(texts)], and -1 for a text that isn't in the bank."""
        if not len(self) or not texts:
            return np.full(len(texts), -1, np.int64)
        wanted = np.frombuffer(b"".join(map(text_digest, texts)), "S20")
        filed, rows = self.index
        places = np.minimum(np.searchsorted(filed, wanted), len(self) - 1)
        return np.where(filed[places] == wanted, rows[places].astype(np.int64), -1)

    def row_of_digest(self, digest: bytes) -> int | None:
        """Return the row filed under a SHA-1 (20 bytes), None where there is none."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._digests[middle].tobytes() < digest:
                low = middle + 1
            else:
                high = middle
        if low < len(self) and self._digests[low].tobytes() == digest:
            return int(self._rows[low])
        return None

    def text(self, row: int) -> str:
        """Return the text of a row. Raises IndexError."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        if self._text_offsets is None:
            self._text_offsets = self._map("text_offsets.npy")
        start, end = int(self._text_offsets[row]), int(self._text_offsets[row + 1])
        with (self.path / self.manifest["texts"]).open("rb") as handle:
            handle.seek(start)
            return str(orjson.loads(handle.read(end - start)))

    def texts(self) -> Iterator[str]:
        """Yield all texts in row order."""
        with (self.path / self.manifest["texts"]).open("rb") as handle:
            for line in handle:
                yield orjson.loads(line)

    @property
    def index(self) -> tuple[npt.NDArray[np.bytes_], npt.NDArray[np.unsignedinteger[Any]]]:
        """The mapped index: all SHA-1 digests in ascending order (S20 [rows]) and the row of each (unsigned [rows])."""
        return self._digests.reshape(-1).view("S20"), self._rows

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """Which rows hold features, bool [rows]: false where a row isn't encoded yet or is poison."""
        if VALID_NAME in self.manifest["files"]:
            return np.asarray(self._map(VALID_NAME))
        return np.broadcast_to(np.True_, (len(self),))

    def to_torch(self) -> torch.Tensor:
        """Return the matrix as a tensor [rows, hidden_size] on the mapped file: nothing is copied.

        Writing to the tensor changes this process's pages only, never the file.
        """
        import torch

        return torch.from_numpy(np.load(self.path / self.manifest["bank"], mmap_mode="c"))

    def _find(self, text: str) -> int | None:
        return self.row_of_digest(text_digest(text))

    def _map(self, name: str) -> npt.NDArray[Any]:
        try:
            array: npt.NDArray[Any] = np.load(self.path / name, mmap_mode="r")
        except (OSError, ValueError) as error:
            raise CorruptArtifactError(str(self.path / name), f"can't be mapped ({error})", remedy="Rebuild the bank.") from error
        return array

    def _check_shape(self, name: str, array: npt.NDArray[Any], shape: tuple[int, ...], kind: str) -> None:
        if array.shape != shape or array.dtype.kind != kind:
            raise CorruptArtifactError(
                str(self.path / name),
                f"is an array of {array.dtype} {list(array.shape)}",
                wanted=f"{'floating-point' if kind == 'f' else 'unsigned'} numbers {list(shape)}, as {MANIFEST_NAME} says",
                remedy="Rebuild the bank, or copy it again.",
            )


def check_size(path: Path, wanted_bytes: int) -> None:
    """Raise CorruptArtifactError unless the file has this many bytes."""
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        raise CorruptArtifactError(str(path), "is missing", remedy="Rebuild or copy the bank again.") from None
    if found != wanted_bytes:
        raise CorruptArtifactError(
            str(path), f"has {found:,} bytes", wanted=f"{wanted_bytes:,}", remedy="Rebuild or copy the bank again."
        )


def _local_copy(url: str) -> Path:
    """Copy a bank from an fsspec URL into the user's cache, unless that very bank is there, and return the folder."""
    from zephon_core.store import default_store_root

    filesystem, root = file_system(url)
    try:
        raw = filesystem.cat_file(f"{root}/{MANIFEST_NAME}")
    except FileNotFoundError:
        raise SpecError(url, "holds no bank", wanted=MANIFEST_NAME) from None
    except transport_errors() as error:
        raise InputError(url, f"can't be read ({transport_words(error)})") from error
    folder = default_store_root() / "remote" / hashlib.sha256(raw).hexdigest()
    if not (folder / MANIFEST_NAME).exists():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for name in parse_manifest(raw, f"{url}/{MANIFEST_NAME}")["files"]:
                filesystem.get_file(f"{root}/{name}", str(folder / name))
        except transport_errors() as error:
            raise InputError(url, f"can't be copied ({transport_words(error)})") from error
        (folder / MANIFEST_NAME).write_bytes(raw)
    return folder
