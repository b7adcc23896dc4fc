"""One run: find which blocks are missing, have them worked on, and finish what has become whole."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from zephon_core.blocks.outcome import Standing, Throughput, is_as_before, read_standing, standing
from zephon_core.blocks.rows import RowFile, RowLayout
from zephon_core.blocks.runner import BlockRunner
from zephon_core.blocks.state import BlockState, damaged_blocks
from zephon_core.blocks.units import Share, plan_units, unit_jobs, wanted_blocks
from zephon_core.blocks.writer import BlockWriter, flush_all
from zephon_core.budget import BlockPlan
from zephon_core.errors import CorruptArtifactError, SourceChangedError
from zephon_core.ledger import LedgerRecords
from zephon_core.progress import Progress

__all__ = ["BlockWork", "Product", "RunTally"]

_ATTEMPTS = 2

Blocks = npt.NDArray[np.int64]


class Product(Protocol):
    """What the blocks are made into, and by what.

    verb: names the work to people; file_name: of the rows.
    """

    verb: str
    file_name: str

    def open_runner(self, most_workers: int) -> AbstractContextManager[BlockRunner]:
        """Load the model where it will run."""

    def layout(self, settled: dict[str, Any]) -> RowLayout:
        """Return where the rows lie; settled: what is known of the model."""

    def check_inputs(self) -> None:
        """Raise SourceChangedError if the model is no longer the one that the work is named after."""

    def receipt(self, file: RowFile, runner: BlockRunner, poison: npt.NDArray[np.integer]) -> dict[str, Any]:
        """Measure how good the rows are that came out; poison: those that can't be used."""


@dataclass
class RunTally:
    """What one run did; damaged: blocks found with other bytes than were written, and made again."""

    started: float = field(default_factory=time.monotonic)
    devices: list[str] = field(default_factory=list)
    throughput: Throughput = field(default_factory=Throughput)
    rows: int = 0
    tokens: int = 0
    work_s: float = 0.0
    damaged: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the figures that go into an outcome."""
        return {
            "devices": self.devices,
            "rows_now": self.rows,
            "tokens_now": self.tokens,
            "seconds": round(time.monotonic() - self.started, 3),
            "tokens_per_second": round(self.tokens / self.work_s, 1) if self.work_s else 0.0,
            "throughput": self.throughput.samples(),
            "damaged_blocks": self.damaged,
        }


@dataclass(frozen=True)
class _OnRecord:
    """done: bool [blocks]; latest_ms: time of the latest record."""

    done: npt.NDArray[np.bool_]
    latest_ms: int


class BlockWork:
    """The blocks of one plan, to be worked on as far as `share` asks for.

    lengths: integers [rows], tokens of each. Several processes may each do a share of one plan at once, die and come back.
    """

    def __init__(
        self,
        plan: BlockPlan,
        lengths: npt.NDArray[np.integer],
        state: BlockState,
        product: Product,
        share: Share,
        progress: Progress,
    ) -> None:
        self._plan = plan
        self._state = state
        self._product = product
        self._share = share
        self._progress = progress
        self._block_tokens = plan.block_tokens(lengths)
        self._units = plan_units(self._block_tokens)
        self.tally = RunTally()

    def run(self) -> None:
        """Do what is wanted and missing, and finish the whole once nothing is missing.

        Raises what the product raises; LeaseHeldError (another process does this share), WorkerError, ArtifactError (disk full).
        """
        for _ in range(_ATTEMPTS):
            if self._advance():
                return
        raise CorruptArtifactError(
            str(self._state.directory),
            "loses what is written to it",
            remedy="Check the disk, and that no other program writes there.",
        )

    def standing(self, *, allow_poison: bool) -> Standing:
        """Return how much is done now."""
        if found := read_standing(self._state.directory, allow_poison=allow_poison):
            return found
        # Another process, which did the last part, has finished the work and put it where it belongs: no file is here any more.
        gone = BlockState(self._state.directory, {**self._state.document, "finished": False})
        return replace(
            standing(gone, allow_poison=allow_poison),
            rows_done=self._plan.row_count,
            blocks_done=len(self._plan),
            complete=True,
        )

    def _advance(self) -> bool:
        """See `run`; returns false if finished blocks turned out to be damaged at the very end, so that there is more to do."""
        if self._state.finished:
            self._state.sweep()
            return True
        asked = wanted_blocks(self._plan, self._units, self._share)
        try:
            on_record = self._look()
        except FileNotFoundError:
            if is_as_before(self._state):
                raise
            return True
        if not is_as_before(self._state):
            return True  # other processes have done this part, and with it the whole
        wanted = asked & ~on_record.done
        if not wanted.any() and not on_record.done.all():
            return True
        with ExitStack() as stack:
            most = max(1, int(np.count_nonzero(wanted)))
            runner = stack.enter_context(self._product.open_runner(most))
            self._product.check_inputs()
            self._state.settle(runner.facts.settled)
            if wanted.any():
                self._work(runner, wanted, on_record.latest_ms)
                self._keep_or_void(np.flatnonzero(wanted))
            return self._finish(runner)

    def _keep_or_void(self, blocks: Blocks) -> None:
        """Take the blocks of this run off the record if the model was changed meanwhile: weights may be read as they are used."""
        try:
            self._product.check_inputs()
        except SourceChangedError:
            self._void(blocks, int(self._state.records().records["finished_ms"].max(initial=0)))
            raise

    def _look(self) -> _OnRecord:
        """Read the ledgers, and compare with the file what this process answers for.

        That is its own part, or everything if there are no parts: what another process may be writing at this moment, on another
        host perhaps, isn't judged, and counts once it is flushed. What turns out to be damaged is taken off the record, and
        what is intact is flushed.
        """
        everything = self._state.records()
        done = np.zeros(len(self._plan), np.bool_)
        if not len(everything.records):
            return _OnRecord(done, 0)
        latest_ms = int(everything.records["finished_ms"].max())
        own_paths = [
            path
            for path in self._state.ledger_paths
            if self._share.part is None or path.name == f"blocks.{self._share.name}.ledger"
        ]
        own = self._state.records(own_paths)
        done[everything.records["block"][everything.flushed]] = True
        done[own.records["block"]] = True
        damaged = self._damaged(own)
        if len(damaged):
            self._progress.note(f"{len(damaged):,} finished blocks hold other bytes than were written, and are done again")
            done[damaged] = False
            latest_ms = self._void(damaged, latest_ms)
        if not own.flushed.all() and self._path.exists():
            for path in own_paths:
                self._flush(path.name.removeprefix("blocks.").removesuffix(".ledger"))
        return _OnRecord(done, latest_ms)

    def _damaged(self, own: LedgerRecords) -> Blocks:
        if not self._path.exists():
            return own.records["block"].astype(np.int64)
        with self._open() as file:
            return np.union1d(damaged_blocks(file, self._plan, own), self._state.without_flaws(own.records))

    def _void(self, damaged: Blocks, latest_ms: int) -> int:
        """Take damaged blocks off the record; return the time of the latest record then, in milliseconds."""
        self.tally.damaged += len(damaged)
        ledger, flaws = self._state.open_ledgers(self._share.name)
        with ledger, flaws:
            self._state.void(ledger, damaged, latest_ms + 1)
        return max(latest_ms + 1, time.time_ns() // 1_000_000)

    def _flush(self, part: str) -> None:
        """Make records that a killed process left provisional count: they were found intact, and now they are on the device."""
        ledger, flaws = self._state.open_ledgers(part)
        with self._open() as file, ledger, flaws:
            flush_all(file, flaws, ledger)

    def _work(self, runner: BlockRunner, wanted: npt.NDArray[np.bool_], latest_ms: int) -> None:
        tally = self.tally
        tally.devices = runner.devices
        total = int(self._block_tokens[wanted].sum())
        with ExitStack() as stack:
            file = stack.enter_context(self._open())
            ledger, flaws = map(stack.enter_context, self._state.open_ledgers(self._share.name))
            phase = stack.enter_context(self._progress.phase(self._product.verb, total=total, unit="tokens"))
            writer = stack.enter_context(BlockWriter(self._plan, file, ledger, flaws, not_before_ms=latest_ms + 1))
            before = time.monotonic()
            for worker, results in runner.run(unit_jobs(self._plan, self._units, wanted, ragged=runner.facts.ragged)):
                tokens = 0
                for result in results:
                    writer.put(worker, result)
                    tokens += int(self._block_tokens[result.block])
                    tally.rows += len(result.finished.flaws)
                tally.tokens += tokens
                tally.throughput.add(time.monotonic() - before, tokens)
                phase.advance(tokens)
            tally.work_s += time.monotonic() - before

    def _finish(self, runner: BlockRunner) -> bool:
        """Once the blocks of all parts are on record and flushed, check, measure and tidy; see `_advance` for what is returned.

        Of processes that get here at once, one does it.
        """
        try:
            with self._state.finishing():
                current = BlockState.read(self._state.directory)
                if current is None or current.finished:
                    return True
                records, flushed = self._state.records()
                if len(records) < len(self._plan) or not flushed.all():
                    return True  # whoever is still at work will find that nothing is missing
                with self._open() as file:
                    if len(self._state.ledger_paths) > 1:  # hosts that share a file system can undo one another's writes
                        damaged = damaged_blocks(file, self._plan, LedgerRecords(records, flushed), thorough=True)
                        if len(damaged):
                            self._void(damaged, int(records["finished_ms"].max()))
                            return False
                    poison = self._state.poison_of(records)
                    receipt = self._product.receipt(file, runner, poison["row"])
                self._state.finish(records, poison, receipt)
        except FileNotFoundError:
            if self._state.directory.exists():
                raise
        return True

    def _open(self) -> RowFile:
        return RowFile(self._path, self._product.layout(self._state.document))

    @property
    def _path(self) -> Path:
        return self._state.directory / self._product.file_name
