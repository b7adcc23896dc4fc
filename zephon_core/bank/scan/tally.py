"""What a scan counts, and the rows that it sets aside."""

from __future__ import annotations

import base64
import codecs
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from zephon_core.bank.scan.arrays import Bytes, Ints
from zephon_core.bank.scan.fields import FieldTable
from zephon_core.bank.specs import OnBadRow, ScanSpec
from zephon_core.readers.rows import Origin, row_error
from zephon_core.readers.sources import Source

if TYPE_CHECKING:
    from zephon_core.bank.scan.parse import BadRow, ParsedBlock

__all__ = ["BadRows", "Tally"]

_BINS = 64
_HEAD_BYTES = 1 << 10


class Tally:
    """Counts of a scan, a block at a time. lines: lines or rows of each source that went by. field_texts: texts of each field."""

    def __init__(self, table: FieldTable, sources: Sequence[Source]) -> None:
        self._table = table
        self._sources = sources
        self.lines = [0] * len(sources)
        self.rows = self.texts = 0
        self.bad_rows: Counter[str] = Counter()
        self.seconds: dict[str, float] = {}
        self._source_rows = [0] * len(sources)
        self._source_texts = [0] * len(sources)
        self._source_bad: list[Counter[str]] = [Counter() for _ in sources]
        self.field_texts = np.zeros(len(table.paths), np.int64)
        self._kinds = np.zeros(len(table.kind_names), np.int64)
        self._text_bytes = self._distinct_bytes = self._longest_bytes = 0
        self._bins = np.zeros(_BINS, np.int64)

    def add(self, source: int, block: ParsedBlock, chosen: Ints) -> None:
        """Count a block of a source, of whose texts `chosen` are taken for new."""
        self.lines[source] += block.lines
        self.rows += block.rows
        self._source_rows[source] += block.rows
        for bad in block.bad:
            self.bad_rows[bad.problem.reason] += 1
            self._source_bad[source][bad.problem.reason] += 1
        count = len(block.lengths)
        self.texts += count
        self._source_texts[source] += count
        self.field_texts += np.bincount(block.fields, minlength=len(self.field_texts))
        self._text_bytes += int(block.lengths.sum())
        self._count(self._table.kinds[block.fields[chosen]], block.lengths[chosen], 1)

    def drop(self, kinds: Ints, lengths: Ints) -> None:
        """Take back texts that were taken for new and were not."""
        self._count(kinds, lengths, -1)

    def _count(self, kinds: Bytes | Ints, lengths: Ints, sign: int) -> None:
        self._kinds += sign * np.bincount(kinds, minlength=len(self._kinds))
        self._distinct_bytes += sign * int(lengths.sum())
        # frexp's exponent of n is the number of bits of n, exact below 2**53.
        self._bins += sign * np.bincount(np.frexp(lengths)[1], minlength=_BINS)
        self._longest_bytes = max(self._longest_bytes, int(lengths.max(initial=0)))

    def statistics(self, spilled_runs: int) -> dict[str, Any]:
        """Return everything as JSON values."""
        distinct = int(self._kinds.sum())
        return {
            "rows": self.rows,
            "texts": self.texts,
            "distinct": distinct,
            "duplicates": self.texts - distinct,
            "kinds": dict(zip(self._table.kind_names, self._kinds.tolist(), strict=True)),
            "kind_names": list(self._table.kind_names),
            "fields": dict(zip(self._table.paths, self.field_texts.tolist(), strict=True)),
            "text_bytes": self._text_bytes,
            "distinct_bytes": self._distinct_bytes,
            "longest_text_bytes": self._longest_bytes,
            "length_histogram": {str(1 << bits - 1): count for bits, count in enumerate(self._bins.tolist()) if count},
            "bad_rows": dict(sorted(self.bad_rows.items())),
            "sources": [
                {
                    "name": source.name,
                    "sha256": source.sha256,
                    "bytes": source.bytes,
                    "rows": self._source_rows[number],
                    "texts": self._source_texts[number],
                    "bad_rows": sum(self._source_bad[number].values()),
                    "bad_rows_by_reason": dict(sorted(self._source_bad[number].items())),
                }
                for number, source in enumerate(self._sources)
            ],
            "spilled_runs": spilled_runs,
            "seconds": {part: round(seconds, 3) for part, seconds in self.seconds.items()},
        }


class BadRows:
    """Raises at the first bad row, or sets bad rows aside in a file, which is made when the first one comes."""

    def __init__(self, spec: ScanSpec, sources: Sequence[Source], path: Path) -> None:
        self._spec = spec
        self._sources = sources
        self._path = path
        self._file: BinaryIO | None = None

    def __enter__(self) -> BadRows:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, source: int, lines_before: int, bad: BadRow) -> None:
        """Deal with a bad row of a block that begins after `lines_before` lines of its source. Raises BadRowError."""
        row = lines_before + bad.row
        if self._spec.on_bad_row == OnBadRow.ERROR:
            origin = Origin(self._sources[source], row, bad.byte_offset)
            raise row_error(origin, bad.problem, "Fix the row, or set on_bad_row (--on-bad-row) to quarantine.", bad.raw)
        record: dict[str, Any] = {
            "source": source,
            "row": row,
            "byte_offset": bad.byte_offset,
            "reason": bad.problem.reason,
            "detail": str(bad.problem),
        }
        if bad.problem.reason == "too long":
            record |= {"raw_bytes": bad.length, "raw_is_cut": True}
            record |= _raw(bad.raw[:_HEAD_BYTES], final=bad.length <= _HEAD_BYTES)
        else:
            record |= _raw(bad.raw, final=True)
        if self._file is None:
            self._file = self._path.open("wb")
        self._file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")


def _raw(content: bytes, *, final: bool) -> dict[str, str]:
    """Give a row's bytes as text, or in base64 if they are none; a character that a cut tore apart is left out."""
    try:
        return {"raw": codecs.getincrementaldecoder("utf-8")().decode(content, final)}
    except UnicodeDecodeError:
        return {"raw_base64": base64.b64encode(content).decode()}
