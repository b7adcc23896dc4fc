"""The encoded lengths of a source's examples: one array, checked once, identified by its content."""

from __future__ import annotations

import hashlib
import os
import time
from functools import cached_property
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from zephon_core.batching.options import LARGEST, TokenBatchOptions
from zephon_core.errors import InputError, LengthError, StateError

__all__ = ["LengthTable"]

_HASHED_AT_ONCE = 1 << 22
_SETTLING_NS = 2_000_000_000
_UNREADABLE = (  # what numpy lets through of a header that isn't one
    *(ArithmeticError, AttributeError, BadZipFile, EOFError, LookupError, MemoryError, OSError, RecursionError),
    *(SyntaxError, TokenError, TypeError, ValueError),
)
_TYPES = (np.dtype(np.int32), np.dtype(np.int64))

Lengths = npt.NDArray[np.int32] | npt.NDArray[np.int64]


class LengthTable:
    """Lengths of examples 0 .. count - 1, in tokens, with the identity of their source.

    values: int32 or int64 [count], C-contiguous, read-only; mapped from disk where they are a file. An array that is handed in
    is not copied where its type allows: it must not be written to afterwards. Nor must the file: what is rewritten in it is
    noticed before anything is planned anew, but a process that reads a mapped file which was made shorter is killed (SIGBUS).
    source_id: what the caller calls the source (a fingerprint); "" where only the lengths tell.
    path: the .npy file that the values are mapped from, or None.
    """

    def __init__(self, values: Lengths, *, source_id: str = "", path: Path | None = None, stamp: list[int] | None = None) -> None:
        self.values = values
        self.source_id = source_id
        self.path = path
        self.stamp = stamp
        self._looked = None if path is None else _look(path)
        self._sha256 = ""

    @classmethod
    def of(cls, lengths: npt.ArrayLike | LengthTable | os.PathLike[str] | str, *, source_id: str = "") -> LengthTable:
        """Make a table of an array, a list or an .npy file; a table is returned as it is, unless another source_id is given.

        Integers of another type become int32 or int64, which copies them. Raises InputError for a file that can't be read and
        LengthError for what isn't a row of whole numbers below 2**63.
        """
        if isinstance(lengths, LengthTable):
            if source_id in ("", lengths.source_id):
                return lengths
            table = cls(lengths.values, source_id=source_id, path=lengths.path, stamp=lengths.stamp)
            table._sha256 = lengths._sha256
            return table
        if isinstance(lengths, str | os.PathLike):
            return _opened(Path(lengths), source_id)
        if isinstance(lengths, np.ma.MaskedArray):
            raise LengthError("lengths", "are a masked array", wanted="one row of whole numbers, none left out")
        try:
            array = np.asarray(lengths)
        except (ValueError, TypeError, OverflowError, RuntimeError) as error:
            raise LengthError("lengths", f"are no row of numbers ({error})", wanted="one row of whole numbers") from error
        return cls(_canonical(array, "lengths"), source_id=source_id)

    @property
    def count(self) -> int:
        """How many examples there are."""
        return len(self.values)

    @cached_property
    def shortest(self) -> int:
        """The smallest length; 0 for an empty table. Read once, with one pass."""
        return int(self.values.min()) if self.count else 0

    @cached_property
    def longest(self) -> int:
        """The largest length; 0 for an empty table. Read once, with one pass."""
        return int(self.values.max()) if self.count else 0

    @property
    def total_tokens(self) -> int:
        """The sum of all lengths, exact however large (one pass each time)."""
        halves = (int(part.sum(dtype=np.int64)) for part in (self.values >> 31, self.values & (2**31 - 1)))
        high, low = halves
        return (high << 31) + low

    @property
    def sha256(self) -> str:
        """Identity of the content, 64 hex digits, whatever the type, the file or the source_id; computed once, with one pass.

        SHA-256 of "zephon lengths 1", the type ("<i4" if every length fits it, else "<i8"), the count, and the values in that type.
        """
        if not self._sha256:
            self._sha256 = _content_sha256(self.values, self.longest, self.shortest)
        return self._sha256

    def vouch(self, sha256: str, stamp: list[int], *, shortest: int, longest: int) -> None:
        """Take what was read of this very file before, `sha256` and the bounds, unless it has changed or was read since.

        stamp: the file's size, times and inode then.
        """
        if not self._sha256 and self.stamp is not None and self.stamp == stamp:
            self._sha256 = sha256
            self.__dict__.update(shortest=shortest, longest=longest)

    def check(self, options: TokenBatchOptions) -> None:
        """Raise LengthError naming the first example whose length is below one or alone beyond the budget.

        Whatever the options, the table is read once.
        """
        if not self.count or (self.shortest >= 1 and self.longest <= options.maximum_tokens):
            return
        wrong = (self.values < 1) | (self.values > options.maximum_tokens)
        example = int(np.argmax(wrong))
        raise _length_error(example, int(self.values[example]), options)

    def check_unchanged(self) -> None:
        """Raise StateError if the values were rewritten since the table was made, as far as a pass over them and the file tell."""
        remedy = "Lengths must stay as they are while they are used: make the table anew."
        now = None if self.path is None else _look(self.path)
        written = now is not None and self._looked is not None and now[3] == self._looked[3] and now[:2] != self._looked[:2]
        if written:  # a file that was removed or replaced leaves the mapped one as it is, and so does another link to it
            raise StateError(str(self.path), "was written to while it was in use", remedy=remedy)
        if "longest" not in self.__dict__:  # nothing was read yet
            return
        found = (int(self.values.min()), int(self.values.max())) if self.count else (0, 0)
        if found != (self.shortest, self.longest):
            where = "lengths" if self.path is None else str(self.path)
            wanted = f"{self.shortest} to {self.longest}, as when they were checked"
            raise StateError(where, f"go from {found[0]} to {found[1]} now", wanted=wanted, remedy=remedy)

    def check_still(self, lengths: npt.NDArray[Any], examples: npt.NDArray[Any], options: TokenBatchOptions) -> None:
        """Raise LengthError if lengths looked up now can't be batched, although all could when they were checked.

        lengths: those of `examples`, [n] each. A mapped file may have been written to since. Raises StateError for one that can
        be batched and is longer than any was.
        """
        if not len(lengths) or (int(lengths.min()) >= 1 and int(lengths.max()) <= self.longest):
            return
        wrong = int(np.argmax((lengths < 1) | (lengths > self.longest)))
        if not 1 <= lengths[wrong] <= options.maximum_tokens:
            raise _length_error(int(examples[wrong]), int(lengths[wrong]), options)
        raise StateError("lengths", "were written to while they were in use", remedy="Make the table anew, and plan again.")


def _length_error(example: int, length: int, options: TokenBatchOptions) -> LengthError:
    where = f"example {example}"
    if length < 1:
        remedy = "Leave examples without tokens out of the source."
        return LengthError(where, f"has length {length}", wanted="at least 1", remedy=remedy)
    return LengthError(
        where,
        f"has length {length}, which alone exceeds the budget",
        wanted=f"at most maximum_tokens = {options.maximum_tokens}",
        remedy="Truncate or split it before batching, or raise maximum_tokens.",
    )


def _canonical(array: npt.NDArray[Any], where: str) -> Lengths:
    """Return the same numbers as a read-only C-contiguous int32 or int64 array, copied only if they have to be."""
    if array.size == 0 and array.ndim == 1 and array.dtype == np.float64:  # an empty list
        array = array.astype(np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise LengthError(where, f"are {array.dtype} {list(array.shape)}", wanted="one row of whole numbers")
    if array.dtype.kind == "u" and array.dtype.itemsize == 8 and array.size and int(array.max()) > LARGEST:
        example = int(np.argmax(array > LARGEST))
        raise LengthError(f"example {example}", f"has length {array[example]}", wanted=f"at most {LARGEST}")
    if array.dtype not in _TYPES:
        small = array.dtype.itemsize < 4 or (array.dtype.itemsize == 4 and array.dtype.kind == "i")
        array = array.astype(np.int32 if small else np.int64)
    contiguous: Lengths = np.ascontiguousarray(array).view()
    contiguous.flags.writeable = False
    return contiguous


def _opened(path: Path, source_id: str) -> LengthTable:
    try:
        stamp = _stamp(path)
        with np.errstate(over="raise"):  # a shape whose size wraps
            array = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError as error:
        raise InputError(str(path), "is not there", wanted="an .npy file of lengths") from error
    except _UNREADABLE as error:
        raise InputError(str(path), f"can't be read as lengths ({error})", wanted="an .npy file of whole numbers") from error
    return LengthTable(_canonical(array, str(path)), source_id=source_id, path=path, stamp=stamp)


def _stamp(path: Path) -> list[int] | None:
    """Size, times and inode, by which a change shows; None while a change just now might not show in them."""
    seen = _look(path)
    return None if seen is None or seen[1] + _SETTLING_NS > time.time_ns() else [*seen]


def _look(path: Path) -> tuple[int, int, int, int] | None:
    try:
        status = path.stat()
    except OSError:  # it was removed, which leaves a mapped file as it is
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _content_sha256(values: Lengths, longest: int, shortest: int) -> str:
    kind = "<i4" if shortest >= -(2**31) and longest < 2**31 else "<i8"
    digest = hashlib.sha256(f"zephon lengths 1 {kind} {len(values)}\n".encode())
    for begin in range(0, len(values), _HASHED_AT_ONCE):
        digest.update(np.ascontiguousarray(values[begin : begin + _HASHED_AT_ONCE], dtype=kind).data)
    return digest.hexdigest()
