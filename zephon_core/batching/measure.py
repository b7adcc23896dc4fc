"""Where lengths come from: an .npy file, a feature bank's table, or texts that are tokenized.

All end up as one table, lengths.npy: int32 `[examples]` (int64 where a length needs it), in the order of the examples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.batching.lengths import LengthTable
from zephon_core.batching.options import LARGEST
from zephon_core.batching.specs import LengthsSpec
from zephon_core.errors import CorruptArtifactError, InputError, LengthError, SourceChangedError
from zephon_core.fingerprint import FileMemo
from zephon_core.npy import npy_header
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.readers.rows import Row, RowProblem, iter_rows, row_error
from zephon_core.readers.sources import Source, check_all_unchanged
from zephon_core.tokenizers import Tokenizer

__all__ = ["LENGTHS_NAME", "MEASURE_VERSION", "copy_table", "length_statistics", "measure_texts", "table_file", "table_sha256"]

LENGTHS_NAME = "lengths.npy"
MEASURE_VERSION = 1

_MANIFEST_NAME = "manifest.json"
_ROWS_AT_ONCE = 4096
_LENGTHS_AT_ONCE = 1 << 22

Adjust = Callable[[npt.NDArray[Any], int], npt.NDArray[np.int64]]


def table_file(table: str) -> Path:
    """Return the .npy file that a table's name means: itself, or that in a bank's folder. Raises InputError where there is none."""
    path = Path(table).expanduser()
    if path.is_dir():
        path = path / LENGTHS_NAME
    if not path.is_file():
        inside = path.parent.is_dir() and path.name == LENGTHS_NAME
        found = f"holds no {LENGTHS_NAME}" if inside else "is not there"
        raise InputError(
            str(path.parent if inside else path), found, wanted="an .npy file of lengths, or the folder of a feature bank"
        )
    return path


def table_sha256(table: str, memo: FileMemo) -> str:
    """Return the SHA-256 of a table's file; of a bank's, once it is known to be what the bank's manifest says.

    Raises InputError, or CorruptArtifactError for a bank's table that is another one.
    """
    path = table_file(table)
    try:
        digest = memo.sha256(path)
    except OSError as error:
        raise InputError(str(path), f"can't be read ({error.strerror or error})") from error
    promised = _promised_sha256(path.parent / _MANIFEST_NAME) if Path(table).expanduser().is_dir() else ""
    if promised and promised != digest:
        raise CorruptArtifactError(
            str(path), f"has SHA-256 {digest}", wanted=promised, remedy="`zephon-flows bank verify` says what else is wrong."
        )
    return digest


def _promised_sha256(manifest: Path) -> str:
    """Look up what a bank's manifest says of its table; "" for a folder without one."""
    try:
        return str(json.loads(manifest.read_bytes())["files"][LENGTHS_NAME]["sha256"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptArtifactError(
            str(manifest), f"can't be read ({type(error).__name__}: {error})", wanted="a bank's manifest"
        ) from error


def copy_table(
    spec: LengthsSpec, sha256: str, directory: Path, *, memo: FileMemo, progress: Progress = NULL_PROGRESS
) -> dict[str, Any]:
    """Write the lengths of a table, with what the training adds and cuts, into `directory`; return their statistics.

    sha256: that of its file when it was identified. Raises SourceChangedError if it is another one now, and InputError or
    LengthError for what is no table.
    """
    path = table_file(spec.table)
    table = LengthTable.of(path)
    adjust = _adjustment(spec)
    longest = min(table.longest + spec.extra_tokens, spec.cut_at_tokens or LARGEST)
    kind = np.dtype(np.int32 if longest < 1 << 31 else np.int64)
    target = directory / LENGTHS_NAME
    # Written rather than mapped: on a full disk a mapped file kills the process that writes to it.
    with target.open("wb") as handle, progress.phase("lengths", total=table.count, unit="examples") as phase:
        handle.write(npy_header(kind, table.count))
        for begin in range(0, table.count, _LENGTHS_AT_ONCE):
            part = table.values[begin : begin + _LENGTHS_AT_ONCE]
            handle.write(adjust(part, begin).astype(kind).data)
            phase.advance(len(part))
    if memo.sha256(path) != sha256:
        raise SourceChangedError(str(path))
    return length_statistics(np.load(target, mmap_mode="r"))


def measure_texts(
    spec: LengthsSpec,
    sources: Sequence[Source],
    tokenizer: Tokenizer,
    directory: Path,
    *,
    memo: FileMemo,
    progress: Progress = NULL_PROGRESS,
) -> dict[str, Any]:
    """Tokenize the texts of the sources, a row an example, and write their lengths into `directory`; return their statistics.

    No special tokens are added but those that `spec` counts. Raises BadRowError for a row without the text, SourceChangedError.
    """
    adjust = _adjustment(spec)
    parts: list[npt.NDArray[np.int64]] = []
    begin = 0
    with progress.phase("lengths", total=None, unit="examples") as phase:
        rows = (row for source in sources for row in iter_rows(source, paths=[spec.field]))
        for some in _chunks(rows, _ROWS_AT_ONCE):
            found = np.asarray(tokenizer.encode_batch([_text(row, spec.field) for row in some]).lengths)
            if not found.all():
                problem = RowProblem("no tokens", f"{spec.field!r} has no token", "at least one")
                raise row_error(some[int(np.argmin(found))].origin, problem, "Leave rows without tokens out of the source.")
            parts.append(adjust(found, begin))
            begin += len(some)
            phase.advance(len(some))
    check_all_unchanged(sources, memo=memo)
    if not parts:
        raise InputError(", ".join(source.url for source in sources), "hold no row")
    lengths = np.concatenate(parts)
    kind = np.dtype(np.int32 if int(lengths.max()) < 1 << 31 else np.int64)
    with (directory / LENGTHS_NAME).open("wb") as handle:
        handle.write(npy_header(kind, len(lengths)))
        handle.write(lengths.astype(kind).data)
    return length_statistics(lengths)


def length_statistics(lengths: npt.NDArray[Any]) -> dict[str, Any]:
    """Describe a table: examples, tokens, and the shortest, mean and longest length."""
    table = LengthTable.of(lengths)
    tokens = table.total_tokens
    return {
        "examples": table.count,
        "tokens": tokens,
        "shortest": table.shortest,
        "mean": round(tokens / table.count, 3) if table.count else 0.0,
        "longest": table.longest,
    }


def _adjustment(spec: LengthsSpec) -> Adjust:
    """Return what turns lengths into those of the training: with the tokens that it adds, and cut where it cuts.

    It takes the number of the first of the lengths as well, and raises LengthError for one below 1, or that becomes too large.
    """

    def adjust(lengths: npt.NDArray[Any], begin: int) -> npt.NDArray[np.int64]:
        most = LARGEST - spec.extra_tokens
        if len(lengths) and not 1 <= int(lengths.min()) <= int(lengths.max()) <= most:
            wrong = int(np.argmax((lengths < 1) | (lengths > most)))
            short = int(lengths[wrong]) < 1
            wanted = "at least 1" if short else f"at most {most}"
            remedy = "Leave examples without tokens out of the source." if short else ""
            raise LengthError(f"example {begin + wrong}", f"has length {lengths[wrong]}", wanted=wanted, remedy=remedy)
        whole = lengths.astype(np.int64) + spec.extra_tokens
        return np.minimum(whole, spec.cut_at_tokens) if spec.cut_at_tokens else whole

    return adjust


def _text(row: Row, field: str) -> str:
    value = row.payload
    for name in field.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if not isinstance(value, str):
        kind = "is not there" if value is None else f"is a {type(value).__name__}"
        problem = RowProblem("no text", f"{field!r} {kind}", "text")
        raise row_error(row.origin, problem, "Fix the row, or name the field that holds the text (--field).")
    return value


def _chunks(items: Iterable[Row], size: int) -> Iterator[list[Row]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
