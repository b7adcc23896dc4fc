"""Put finished blocks on disk: rows into their file, then a record with their checksum into the ledger. On a thread of its own."""

from __future__ import annotations

import queue
import threading
import time
from types import TracebackType
from typing import Any, Final

import numpy as np

from zephon_core.blocks.finished import BlockResult
from zephon_core.blocks.rows import RowFile, block_checksum
from zephon_core.budget import BlockPlan
from zephon_core.ledger import BLOCK_RECORD, FLAW_RECORD, Ledger

__all__ = ["BlockWriter", "flush_all"]

_SYNC_INTERVAL_S = 2.0
_LONGEST_INTERVAL_S = 30.0
_SYNC_SHARE = 20  # a flush may take one part in so many of the time
_WAITING_BLOCKS = 64
_MOST_UNFLUSHED = 512  # provisional blocks, all of which a resumed run reads
_END: Final = object()
_MOST_UINT32 = (1 << 32) - 1


class BlockWriter:
    """Writes blocks as they come, each with its record, so that a kill costs only what is still in hand.

    Every few seconds rows, list of unusable rows and ledger are flushed, in this order, and the records are marked: until then
    they are provisional, and what a power cut takes is found by its checksum.
    not_before_ms: the earliest time to put on record, in milliseconds since 1970, later than all records that these replace.
    Leaving the with statement flushes what is left. An error of the thread is raised by the next call.
    """

    def __init__(self, plan: BlockPlan, file: RowFile, ledger: Ledger, flaws: Ledger, *, not_before_ms: int = 0) -> None:
        self._plan = plan
        self._file = file
        self._ledger = ledger
        self._flaw_ledger = flaws
        self._not_before_ms = not_before_ms
        self._inbox: queue.Queue[Any] = queue.Queue(_WAITING_BLOCKS)
        self._unflushed = 0
        self._due = time.monotonic() + _SYNC_INTERVAL_S
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="block writer", daemon=True)

    def __enter__(self) -> BlockWriter:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._inbox.put(_END)
        self._thread.join()
        if kind is None:
            self._raise()

    def put(self, worker: int, result: BlockResult) -> None:
        """Take a block to be written; waits while too many are waiting."""
        self._raise()
        self._inbox.put((worker, result))

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            while (item := self._next()) is not _END:
                self._write(*item)
            self._sync()
        except Exception as error:  # raised again by whoever deals with this object next
            self._error = error
            while self._inbox.get() is not _END:
                pass

    def _next(self) -> Any:
        """Wait for the next block, and flush whenever it is time to."""
        while True:
            try:
                return self._inbox.get(timeout=max(0.0, self._due - time.monotonic()))
            except queue.Empty:
                self._sync()

    def _write(self, worker: int, result: BlockResult) -> None:
        rows = self._plan.rows(result.block)
        finished = result.finished
        self._file.write(rows, finished.stored)
        flawed = np.flatnonzero(finished.flaws)
        flaws = [(result.block, int(rows[place]), int(finished.flaws[place]), 0, 0) for place in flawed]
        record = (
            result.block,
            block_checksum(rows, finished.stored),
            max(time.time_ns() // 1_000_000, self._not_before_ms),
            len(rows),
            int(self._plan.lengths[result.block]),
            len(flawed),
            min(result.took_us, _MOST_UINT32),
            finished.largest,
            worker,
            min(result.halvings, (1 << 16) - 1),
            0,
        )
        self._flaw_ledger.append(np.array(flaws, FLAW_RECORD))
        self._ledger.append(np.array([record], BLOCK_RECORD))
        self._unflushed += 1
        if self._unflushed >= _MOST_UNFLUSHED:
            self._sync()

    def _sync(self) -> None:
        started = time.monotonic()
        if self._unflushed:
            flush_all(self._file, self._flaw_ledger, self._ledger)
            self._unflushed = 0
        took_s = time.monotonic() - started
        self._due = time.monotonic() + min(max(_SYNC_INTERVAL_S, _SYNC_SHARE * took_s), _LONGEST_INTERVAL_S)


def flush_all(file: RowFile, flaws: Ledger, ledger: Ledger) -> None:
    """Flush to the device in the order in which one vouches for the other: rows, the list of unusable ones, the ledger."""
    file.sync()
    flaws.flush()
    ledger.flush()
