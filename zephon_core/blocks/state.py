"""What of a piece of work is on disk, and what work it is.

    <the work's own name>.npy   the file of rows
    blocks.json                 what the work is (identity), what runs the model, and once it is finished the receipt
    blocks.<part>.ledger        one a process: which blocks are done
    blocks.<part>.flaws         one a process: rows that came out unusable
    blocks.npy                  once all blocks are done, in place of the ledgers: one record a block
    blocks.poison.npy           with it, where there are unusable rows: one record a row

Everything that is left when the work is finished is a function of the identity and the hardware: no times, no workers.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.atomic import atomic_file, write_json
from zephon_core.blocks.finished import Flaw
from zephon_core.blocks.rows import RowFile, block_checksum
from zephon_core.budget import BlockPlan
from zephon_core.errors import CorruptArtifactError, MismatchError
from zephon_core.fingerprint import canonical_json
from zephon_core.ledger import BLOCK_RECORD, FLAW_RECORD, Ledger, LedgerRecords, read_union
from zephon_core.locks import alone_in

__all__ = ["BLOCKS_NAME", "BLOCK_TABLE", "POISON_NAME", "POISON_TABLE", "BlockState", "damaged_blocks", "poison_reasons"]

STATE_NAME = "blocks.json"
BLOCKS_NAME = "blocks.npy"
POISON_NAME = "blocks.poison.npy"
STATE_FORMAT = 1
BLOCK_TABLE = np.dtype(
    [
        ("checksum", "<u8"),
        ("rows", "<u4"),
        ("length", "<u4"),
        ("flaws", "<u4"),
        ("halvings", "<u4"),
        ("largest", "<f4"),
    ]
)
POISON_TABLE = np.dtype([("row", "<u8"), ("block", "<u8"), ("reason", "<u4")])
_READ_ALL_BYTES = 8 << 30
_LATEST_BLOCKS = 1024
_SAMPLE_ONE_IN = 100

Table = npt.NDArray[np.void]


@dataclass
class BlockState:
    """The state of one piece of work in its directory.

    document: what blocks.json says: format, identity, block_count, forward and what else the model settles, receipt, finished.
    """

    directory: Path
    document: dict[str, Any]

    @classmethod
    def read(cls, directory: Path) -> BlockState | None:
        """Read what is in a directory; None if nothing was begun there. Raises CorruptArtifactError."""
        path = directory / STATE_NAME
        try:
            document = json.loads(path.read_bytes())
            known = document["format"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorruptArtifactError(str(path), f"can't be read ({error})", remedy="Delete the folder to begin anew.") from error
        if known != STATE_FORMAT:
            raise MismatchError(
                str(path),
                f"has format {known!r}",
                wanted=str(STATE_FORMAT),
                remedy="Finish it with the version of zephon-flows that began it, or delete the folder.",
            )
        return cls(directory, document)

    @classmethod
    def open(cls, directory: Path, identity: Mapping[str, Any], block_count: int, unsettled: Mapping[str, Any]) -> BlockState:
        """Read the state of the work called `identity`, or begin it. Raises MismatchError if the directory holds other work.

        identity: what decides the result, its `text_count` among it. unsettled: what `settle` will fill in, with empty values.
        """
        state = cls.read(directory)
        if state is None:
            state = cls(
                directory,
                {
                    "format": STATE_FORMAT,
                    "identity": dict(identity),
                    "block_count": block_count,
                    **unsettled,
                    "receipt": None,
                    "finished": False,
                },
            )
            state._write()
            return state
        state._refuse_other(identity)
        return state

    @property
    def finished(self) -> bool:
        """Whether all blocks are done and the tables are written."""
        return bool(self.document["finished"])

    @property
    def block_count(self) -> int:
        """How many blocks the plan has."""
        return int(self.document["block_count"])

    @property
    def row_count(self) -> int:
        """How many rows the file has."""
        return int(self.document["identity"]["text_count"])

    @property
    def forward(self) -> str:
        """What runs the model; empty while none has been loaded."""
        return str(self.document["forward"])

    @property
    def receipt(self) -> dict[str, Any] | None:
        """The receipt, None while the work isn't finished."""
        receipt: dict[str, Any] | None = self.document["receipt"]
        return receipt

    @cached_property
    def identity_sha256(self) -> str:
        """SHA-256 of the identity."""
        return hashlib.sha256(canonical_json(self.document["identity"])).hexdigest()

    @property
    def ledger_paths(self) -> list[Path]:
        """The ledgers of all processes so far."""
        return sorted(self.directory.glob("blocks.*.ledger"))

    @property
    def flaw_paths(self) -> list[Path]:
        """The lists of unusable rows of all processes so far."""
        return sorted(self.directory.glob("blocks.*.flaws"))

    def settle(self, now: Mapping[str, Any]) -> None:
        """Note what runs the model (`forward`, and more), or check that it is what ran it so far. Raises MismatchError."""
        current = BlockState.read(self.directory)
        if current is not None:
            self.document = current.document
        if not self.document["forward"]:
            self.document |= dict(now)
            self._write()
        self._refuse_differing({name: self.document[name] for name in now}, now)

    def records(self, paths: Sequence[Path] | None = None) -> LedgerRecords:
        """Return the latest record, in all ledgers or those at `paths`, of each block that has one and isn't void, by block."""
        records, flushed = read_union(self.ledger_paths if paths is None else paths, self.identity_sha256)
        there = (records["rows"] > 0) & (records["block"] < self.block_count)
        return LedgerRecords(records[there], flushed[there])

    def without_flaws(self, records: Table) -> npt.NDArray[np.int64]:
        """Return the blocks on record with more unusable rows than the list names, int64: a power cut took the rest of it."""
        flaws = read_union(self.flaw_paths, self.identity_sha256, FLAW_RECORD, key="row").records
        named = np.bincount(flaws["block"].astype(np.int64), minlength=self.block_count)
        lost: npt.NDArray[np.int64] = records["block"][named[records["block"]] < records["flaws"]].astype(np.int64)
        return lost

    def table(self) -> Table:
        """Return one `BLOCK_TABLE` record a block; those with no rows aren't done, or not known to be on the device."""
        if self.finished:
            table: Table = np.load(self.directory / BLOCKS_NAME)
            return table
        return self._table(self._counted())

    def poison(self) -> Table:
        """Return the unusable rows of the blocks that are done: `POISON_TABLE`, by row."""
        if self.finished:
            path = self.directory / POISON_NAME
            poison: Table = np.load(path) if path.exists() else np.zeros(0, POISON_TABLE)
            return poison
        return self.poison_of(self._counted())

    def _counted(self) -> Table:
        records, flushed = self.records()
        return records[flushed]

    def open_ledgers(self, part: str) -> tuple[Ledger, Ledger]:
        """Open this process's ledger and its list of unusable rows. Raises LeaseHeldError if another process has them."""
        ledger = Ledger(self.directory / f"blocks.{part}.ledger", self.identity_sha256)
        try:
            return ledger, Ledger(self.directory / f"blocks.{part}.flaws", self.identity_sha256, FLAW_RECORD)
        except BaseException:
            ledger.close()
            raise

    def finishing(self) -> AbstractContextManager[None]:
        """Let one process at a time finish; where a directory can't be locked several do, with the same result.

        Raises FileNotFoundError if the directory has been moved away.
        """
        return alone_in(self.directory)

    def finish(self, records: Table, poison: Table, receipt: Mapping[str, Any]) -> None:
        """Write the tables of work whose blocks are all done, and remove the ledgers."""
        if len(poison):
            _save(self.directory / POISON_NAME, poison)
        _save(self.directory / BLOCKS_NAME, self._table(records))
        self.document |= {"receipt": dict(receipt), "finished": True}
        self._write()
        self.sweep()

    def sweep(self) -> None:
        """Remove the ledgers that finished work no longer needs."""
        for path in (*self.ledger_paths, *self.flaw_paths):
            path.unlink(missing_ok=True)

    def void(self, ledger: Ledger, blocks: npt.NDArray[np.int64], not_before_ms: int) -> None:
        """Put on record that blocks are not done after all; provisional until the ledger is flushed."""
        records = np.zeros(len(blocks), BLOCK_RECORD)
        records["block"] = blocks
        records["finished_ms"] = max(time.time_ns() // 1_000_000, not_before_ms)
        ledger.append(records)

    def _table(self, records: Table) -> Table:
        table = np.zeros(self.block_count, BLOCK_TABLE)
        for name in ("checksum", "rows", "length", "flaws", "halvings", "largest"):
            table[name][records["block"]] = records[name]
        return table

    def poison_of(self, records: Table) -> Table:
        """Return the unusable rows of the blocks in `records`: `POISON_TABLE`, by row."""
        flaws = read_union(self.flaw_paths, self.identity_sha256, FLAW_RECORD, key="row").records
        flaws = flaws[np.isin(flaws["block"], records["block"][records["flaws"] > 0])]
        poison = np.zeros(len(flaws), POISON_TABLE)
        for name in ("row", "block", "reason"):
            poison[name] = flaws[name]
        return poison

    def _write(self) -> None:
        write_json(self.directory / STATE_NAME, self.document)

    def _refuse_other(self, identity: Mapping[str, Any]) -> None:
        self._refuse_differing(self.document["identity"], identity)

    def _refuse_differing(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                raise MismatchError(
                    str(self.directory),
                    f"was begun with {name} {before.get(name)!r}, and now it is {now.get(name)!r}",
                    remedy="Undo the change, or delete the folder to encode anew.",
                )


def poison_reasons(poison: Table) -> dict[str, int]:
    """Count unusable rows by reason, in words."""
    reasons, counts = np.unique(poison["reason"], return_counts=True)
    return {Flaw(int(reason)).label: int(count) for reason, count in zip(reasons, counts, strict=True)}


def damaged_blocks(file: RowFile, plan: BlockPlan, on_record: LedgerRecords, *, thorough: bool = False) -> npt.NDArray[np.int64]:
    """Return the blocks on record whose bytes in the file aren't those that were written, int64, ascending.

    A file of up to 8 GiB is read whole, as any is where `thorough`; of a larger one all provisional blocks, the latest of the
    others and one in a hundred of the rest are read, and all as soon as one of them is damaged.
    """
    records, flushed = on_record
    if not len(records):
        return np.zeros(0, np.int64)
    if not thorough and file.file_bytes > _READ_ALL_BYTES:
        latest = np.argsort(records["finished_ms"], kind="stable")
        some = np.union1d(latest[-_LATEST_BLOCKS:], np.arange(0, len(records), _SAMPLE_ONE_IN))
        some = np.union1d(some, np.flatnonzero(~flushed))
        if not any(_is_damaged(file, plan, record) for record in records[some]):
            return np.zeros(0, np.int64)
    sums = np.zeros(len(plan), np.uint64)
    blocks = np.empty(plan.row_count, np.uint32)
    blocks[plan.order] = np.repeat(np.arange(len(plan), dtype=np.uint32), plan.row_counts)
    recorded = np.zeros(len(plan), np.bool_)
    recorded[records["block"]] = True
    for rows, checksums in file.checksums(recorded[blocks]):
        np.add.at(sums, blocks[rows], checksums)
    damaged: npt.NDArray[np.int64] = records["block"][sums[records["block"]] != records["checksum"]].astype(np.int64)
    return damaged


def _is_damaged(file: RowFile, plan: BlockPlan, record: np.void) -> bool:
    rows = plan.rows(int(record["block"]))
    return block_checksum(rows, file.read(rows)) != int(record["checksum"])


def _save(path: Path, table: Table) -> None:
    with atomic_file(path) as handle:
        np.save(handle, table)
