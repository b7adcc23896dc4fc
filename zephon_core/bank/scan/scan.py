"""The distinct texts of a bank's sources, in order of first appearance, in one streaming pass.

Blocks of rows are parsed, stripped and hashed by threads and consumed in order: nothing depends on how many threads there are.
The inner loops are compiled (numba) and run without the interpreter lock; see `json_rows`, `sha1` and `table`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from zephon_core.bank.scan.fields import compile_fields
from zephon_core.bank.scan.tally import BadRows, Tally
from zephon_core.bank.specs import ScanSpec
from zephon_core.errors import InputError
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.readers.sources import Source

__all__ = ["SCAN_VERSION", "scan_texts", "write_index"]

SCAN_VERSION = 1
"""Goes up whenever the same sources would give other bytes."""

_FILES = ("texts.jsonl", "text_offsets.npy", "kinds.npy", "digests.npy", "rows.npy", "bad_rows.jsonl")
_SCRATCH = "scan.tmp"


def scan_texts(
    spec: ScanSpec,
    sources: Sequence[Source],
    directory: Path,
    *,
    threads: int,
    memory_bytes: int,
    progress: Progress = NULL_PROGRESS,
) -> dict[str, Any]:
    """Write the distinct texts of `sources` to `directory` and return statistics; whatever an earlier run left there is replaced.

    texts.jsonl: one JSON string a line, in row order; text_offsets.npy: uint64 [n + 1], where its lines begin; kinds.npy: uint8
    [n], indices into kind_names; digests.npy: uint8 [n, 20], sorted SHA-1 of the texts' UTF-8, with rows.npy: their rows (uint32,
    from 2**32 texts on uint64); bad_rows.jsonl: rows set aside, if there are any.

    memory_bytes bounds the table of digests; blocks in flight take a few megabytes a thread beside it. Raises BadRowError,
    InputError (a source is unreadable, or none holds a text), SourceChangedError, SpecError.
    """
    from zephon_core.bank.scan.distinct import Distinct
    from zephon_core.bank.scan.drop import drop_texts
    from zephon_core.bank.scan.files import TextWriter
    from zephon_core.bank.scan.pipeline import parsed_blocks

    started = time.monotonic()
    table = compile_fields(spec.fields)
    scratch = _fresh(directory)
    tally = Tally(table, sources)
    distinct = Distinct(directory, scratch, memory_bytes)
    with (
        closing(TextWriter(directory, table.kinds)) as writer,
        BadRows(spec, sources, directory / "bad_rows.jsonl") as bad_rows,
        closing(parsed_blocks(spec, table, sources, max(1, threads))) as blocks,
        progress.phase("scan", total=sum(source.bytes for source in sources), unit="B") as phase,
    ):
        for number, block in blocks:
            for bad in block.bad:
                bad_rows.add(number, tally.lines[number], bad)
            chosen = distinct.admit(block.digests)
            writer.write(block, chosen)
            tally.add(number, block, chosen)
            phase.advance(block.stored_bytes)
    if not tally.texts:
        raise _no_texts(spec, sources, tally)
    streamed = time.monotonic()
    candidates = distinct.candidates
    dropped = distinct.finish()
    if dropped.count:
        tally.drop(*drop_texts(directory, scratch, candidates, dropped))
    shutil.rmtree(scratch)
    tally.seconds = {"stream": streamed - started, "finish": time.monotonic() - streamed}
    return tally.statistics(distinct.spilled_runs)


def _fresh(directory: Path) -> Path:
    """Clear what an earlier run left and make the folder for what this one needs only while it runs."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        (directory / name).unlink(missing_ok=True)
    scratch = directory / _SCRATCH
    if scratch.exists():
        shutil.rmtree(scratch)
    scratch.mkdir()
    return scratch


def _no_texts(spec: ScanSpec, sources: Sequence[Source], tally: Tally) -> InputError:
    where = sources[0].url if len(sources) == 1 else f"{len(sources)} sources"
    paths = ", ".join(repr(field.path) for field in spec.fields)
    found = f"no text at {paths} in {tally.rows:,} rows"
    if tally.bad_rows:
        found += f", {sum(tally.bad_rows.values()):,} of them bad"
    empty = not tally.rows and not tally.bad_rows
    remedy = "Name a source that has rows." if empty else "Look at a row, and name the fields that hold its texts."
    return InputError(where, found, remedy=remedy)


def write_index(directory: Path, path: Path) -> None:
    """Write {SHA-1 in hex: row} of a scan's directory to `path` in row order, byte for byte as json.dumps of that dictionary."""
    from zephon_core.bank.scan.index import write_index_file

    write_index_file(directory, path)
