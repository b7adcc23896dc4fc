"""One run of an encode: find what is missing, encode it, and finish what has become whole."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from zephon_core.bank.block_writer import BlockWriter, flush_all
from zephon_core.bank.encode_outcome import EncodeOutcome, Throughput, standing
from zephon_core.bank.encode_run import EncodeRunner, open_runner, plan_units, unit_jobs, wanted_blocks
from zephon_core.bank.encode_state import EncodeState, damaged_blocks
from zephon_core.bank.encode_unit import TokenRows
from zephon_core.bank.matrix import FeatureMatrix
from zephon_core.bank.receipts import measure_receipt
from zephon_core.bank.specs import EncodeSpec, RunOptions, StoreDtype
from zephon_core.budget import BlockPlan
from zephon_core.progress import Progress

__all__ = ["EncodeWork", "features_file"]

Blocks = npt.NDArray[np.int64]


def features_file(spec: EncodeSpec) -> str:
    """Return the matrix's file name."""
    return "features.f16.npy" if spec.store_dtype is StoreDtype.FLOAT16 else "features.f32.npy"


@dataclass
class _Tally:
    """What this run did."""

    started: float = field(default_factory=time.monotonic)
    devices: list[str] = field(default_factory=list)
    throughput: Throughput = field(default_factory=Throughput)
    rows: int = 0
    tokens: int = 0
    encode_s: float = 0.0
    damaged: int = 0


@dataclass(frozen=True)
class _OnRecord:
    """done: bool [blocks]; damaged: blocks on record whose bytes are others; latest_ms: time of the latest record."""

    done: npt.NDArray[np.bool_]
    damaged: Blocks
    latest_ms: int


class EncodeWork:
    """The blocks of one plan, to be encoded as far as `run` asks for."""

    def __init__(
        self, tokens: TokenRows, spec: EncodeSpec, plan: BlockPlan, state: EncodeState, run: RunOptions, progress: Progress
    ) -> None:
        self._tokens = tokens
        self._spec = spec
        self._plan = plan
        self._state = state
        self._run = run
        self._progress = progress
        self._block_tokens = plan.block_tokens(tokens.lengths)
        self._units = plan_units(self._block_tokens)
        self._tally = _Tally()

    def advance(self) -> bool:
        """Encode what is wanted and missing, and finish the whole once nothing is missing.

        Returns false if finished blocks turned out to be damaged at the very end, so that there is more to do.
        """
        if self._state.finished:
            self._state.sweep()
            return True
        asked = wanted_blocks(self._plan, self._units, self._run)
        on_record = self._look()
        wanted = asked & ~on_record.done
        if not wanted.any() and not on_record.done.all():
            return True
        with ExitStack() as stack:
            most = max(1, int(np.count_nonzero(wanted)))
            runner = stack.enter_context(open_runner(self._tokens.directory, self._spec, self._run, most_workers=most))
            self._state.settle(forward=runner.facts.forward, hidden_size=runner.facts.hidden_size)
            matrix = stack.enter_context(self._open_matrix())
            if wanted.any():
                self._encode(runner, matrix, wanted, on_record)
            return self._finish(runner, matrix)

    def outcome(self) -> EncodeOutcome:
        """Return what is done now, and how this run went."""
        tally = self._tally
        return replace(
            standing(self._state, allow_poison=self._spec.allow_poison),
            devices=tally.devices,
            rows_now=tally.rows,
            tokens_now=tally.tokens,
            seconds=round(time.monotonic() - tally.started, 3),
            tokens_per_second=round(tally.tokens / tally.encode_s, 1) if tally.encode_s else 0.0,
            throughput=tally.throughput.samples(),
            damaged_blocks=tally.damaged,
        )

    def _open_matrix(self) -> FeatureMatrix:
        path = self._state.directory / features_file(self._spec)
        return FeatureMatrix(path, self._plan.row_count, self._state.hidden_size, np.dtype(self._spec.store_dtype.value))

    def _look(self) -> _OnRecord:
        """Read the ledgers, and compare the matrix with them."""
        records = self._state.records()
        blocks = records.records["block"].astype(np.int64)
        done = np.zeros(len(self._plan), np.bool_)
        if not len(blocks):
            return _OnRecord(done, np.zeros(0, np.int64), 0)
        if (self._state.directory / features_file(self._spec)).exists():
            with self._open_matrix() as matrix:
                damaged = damaged_blocks(matrix, self._plan, records)
            damaged = np.union1d(damaged, self._state.without_flaws(records.records))
        else:
            damaged = blocks
        if len(damaged):
            self._progress.note(f"{len(damaged):,} finished blocks hold other bytes than were written, and are encoded again")
            self._tally.damaged += len(damaged)
        done[blocks] = True
        done[damaged] = False
        return _OnRecord(done, damaged, int(records.records["finished_ms"].max()))

    def _encode(self, runner: EncodeRunner, matrix: FeatureMatrix, wanted: npt.NDArray[np.bool_], on_record: _OnRecord) -> None:
        tally = self._tally
        tally.devices = runner.devices
        ledger, flaws = self._state.open_ledgers(self._part)
        total = int(self._block_tokens[wanted].sum())
        with ledger, flaws, self._progress.phase("encode", total=total, unit="tokens") as phase:
            self._state.void(ledger, on_record.damaged, on_record.latest_ms + 1)
            flush_all(matrix, flaws, ledger)  # what a killed run left provisional was found intact
            before = time.monotonic()
            with BlockWriter(self._plan, matrix, ledger, flaws, not_before_ms=on_record.latest_ms + 2) as writer:
                for worker, results in runner.run(unit_jobs(self._plan, self._units, wanted, runner.facts)):
                    tokens = 0
                    for result in results:
                        writer.put(worker, result)
                        tokens += int(self._block_tokens[result.block])
                        tally.rows += len(result.finished.flaws)
                    tally.tokens += tokens
                    tally.throughput.add(time.monotonic() - before, tokens)
                    phase.advance(tokens)
            tally.encode_s += time.monotonic() - before

    def _finish(self, runner: EncodeRunner, matrix: FeatureMatrix) -> bool:
        """Once the blocks of all parts are on record, check them, measure and tidy; see `advance` for what is returned."""
        records = self._state.records()
        if len(records.records) < len(self._plan):
            return True
        matrix.sync()  # blocks that other processes left provisional too
        if len(self._state.ledger_paths) > 1:  # hosts that share a file system can undo one another's writes
            damaged = damaged_blocks(matrix, self._plan, records, thorough=True)
            if len(damaged):
                ledger, flaws = self._state.open_ledgers(self._part)
                with ledger, flaws:
                    self._state.void(ledger, damaged, int(records.records["finished_ms"].max()) + 1)
                    flush_all(matrix, flaws, ledger)
                self._tally.damaged += len(damaged)
                return False
        self._state.finish(measure_receipt(matrix, self._tokens, self._spec, runner, self._state.poison_on_record()["row"]))
        return True

    @property
    def _part(self) -> str:
        return "all" if self._run.part is None else f"part-{self._run.part:04d}-of-{self._run.parts:04d}"
