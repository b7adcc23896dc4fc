"""One run of an encode: find what is missing, encode it, and finish what has become whole."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zephon_core.bank.encode.block_writer import BlockWriter, flush_all
from zephon_core.bank.encode.matrix import FeatureMatrix
from zephon_core.bank.encode.outcome import EncodeOutcome, Throughput, is_as_before, read_standing, standing
from zephon_core.bank.encode.receipts import measure_receipt
from zephon_core.bank.encode.run import EncodeRunner, open_runner, plan_units, unit_jobs, wanted_blocks
from zephon_core.bank.encode.state import EncodeState, damaged_blocks
from zephon_core.bank.encode.unit import TokenRows
from zephon_core.bank.specs import EncodeSpec, RunOptions, StoreDtype
from zephon_core.budget import BlockPlan
from zephon_core.errors import SourceChangedError
from zephon_core.ledger import LedgerRecords
from zephon_core.models import model_content_sha256
from zephon_core.models.plugins import is_plugin
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
    """done: bool [blocks]; latest_ms: time of the latest record."""

    done: npt.NDArray[np.bool_]
    latest_ms: int


class EncodeWork:
    """The blocks of one plan, to be encoded as far as `run` asks for."""

    def __init__(
        self,
        tokens: TokenRows,
        spec: EncodeSpec,
        plan: BlockPlan,
        state: EncodeState,
        run: RunOptions,
        progress: Progress,
        hash_file: Callable[[Path], str],
    ) -> None:
        self._tokens = tokens
        self._spec = spec
        self._plan = plan
        self._state = state
        self._run = run
        self._progress = progress
        self._hash_file = hash_file
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
            runner = stack.enter_context(open_runner(self._tokens.directory, self._spec, self._run, most_workers=most))
            self._check_model()
            self._state.settle(forward=runner.facts.forward, hidden_size=runner.facts.hidden_size)
            if wanted.any():
                self._encode(runner, wanted, on_record.latest_ms)
                self._keep_or_void(np.flatnonzero(wanted))
            return self._finish(runner)

    def _check_model(self) -> None:
        """Raise SourceChangedError if the model that was loaded is not the one that this run identified."""
        if is_plugin(self._spec.model.path):
            return
        if model_content_sha256(self._spec.model, hash_file=self._hash_file) != self._state.document["identity"]["model"]:
            raise SourceChangedError(
                self._spec.model.path,
                "was changed since this run identified it",
                remedy="Run again once nothing writes to it any more.",
            )

    def _keep_or_void(self, blocks: Blocks) -> None:
        """Take the blocks of this run off the record if the model was changed meanwhile: weights may be read as they are used."""
        try:
            self._check_model()
        except SourceChangedError:
            self._void(blocks, int(self._state.records().records["finished_ms"].max(initial=0)))
            raise

    def outcome(self) -> EncodeOutcome:
        """Return what is done now, and how this run went."""
        tally = self._tally
        return replace(
            self._standing(),
            devices=tally.devices,
            rows_now=tally.rows,
            tokens_now=tally.tokens,
            seconds=round(time.monotonic() - tally.started, 3),
            tokens_per_second=round(tally.tokens / tally.encode_s, 1) if tally.encode_s else 0.0,
            throughput=tally.throughput.samples(),
            damaged_blocks=tally.damaged,
        )

    def _standing(self) -> EncodeOutcome:
        allow_poison = self._spec.allow_poison
        if outcome := read_standing(self._state.directory, allow_poison=allow_poison):
            return outcome
        # Another process, which did the last part, has finished the work and put it where it belongs: no file is here any more.
        gone = EncodeState(self._state.directory, {**self._state.document, "finished": False})
        return replace(
            standing(gone, allow_poison=allow_poison),
            encoded_rows=self._plan.row_count,
            blocks_done=len(self._plan),
            complete=True,
        )

    def _look(self) -> _OnRecord:
        """Read the ledgers, and compare with the matrix what this process answers for.

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
            path for path in self._state.ledger_paths if self._run.part is None or path.name == f"blocks.{self._part}.ledger"
        ]
        own = self._state.records(own_paths)
        done[everything.records["block"][everything.flushed]] = True
        done[own.records["block"]] = True
        damaged = self._damaged(own)
        if len(damaged):
            self._progress.note(f"{len(damaged):,} finished blocks hold other bytes than were written, and are encoded again")
            done[damaged] = False
            latest_ms = self._void(damaged, latest_ms)
        if not own.flushed.all() and self._matrix_path.exists():
            for path in own_paths:
                self._flush(path.name.removeprefix("blocks.").removesuffix(".ledger"))
        return _OnRecord(done, latest_ms)

    def _damaged(self, own: LedgerRecords) -> Blocks:
        if not self._matrix_path.exists():
            return own.records["block"].astype(np.int64)
        with self._open_matrix() as matrix:
            return np.union1d(damaged_blocks(matrix, self._plan, own), self._state.without_flaws(own.records))

    def _void(self, damaged: Blocks, latest_ms: int) -> int:
        """Take damaged blocks off the record; return the time of the latest record then, in milliseconds."""
        self._tally.damaged += len(damaged)
        ledger, flaws = self._state.open_ledgers(self._part)
        with ledger, flaws:
            self._state.void(ledger, damaged, latest_ms + 1)
        return max(latest_ms + 1, time.time_ns() // 1_000_000)

    def _flush(self, part: str) -> None:
        """Make records that a killed process left provisional count: they were found intact, and now they are on the device."""
        ledger, flaws = self._state.open_ledgers(part)
        with self._open_matrix() as matrix, ledger, flaws:
            flush_all(matrix, flaws, ledger)

    def _encode(self, runner: EncodeRunner, wanted: npt.NDArray[np.bool_], latest_ms: int) -> None:
        tally = self._tally
        tally.devices = runner.devices
        total = int(self._block_tokens[wanted].sum())
        with ExitStack() as stack:
            matrix = stack.enter_context(self._open_matrix())
            ledger, flaws = map(stack.enter_context, self._state.open_ledgers(self._part))
            phase = stack.enter_context(self._progress.phase("encode", total=total, unit="tokens"))
            writer = stack.enter_context(BlockWriter(self._plan, matrix, ledger, flaws, not_before_ms=latest_ms + 1))
            before = time.monotonic()
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

    def _finish(self, runner: EncodeRunner) -> bool:
        """Once the blocks of all parts are on record and flushed, check, measure and tidy; see `advance` for what is returned.

        Of processes that get here at once, one does it.
        """
        try:
            with self._state.finishing():
                current = EncodeState.read(self._state.directory)
                if current is None or current.finished:
                    return True
                records, flushed = self._state.records()
                if len(records) < len(self._plan) or not flushed.all():
                    return True  # whoever is still at work will find that nothing is missing
                with self._open_matrix() as matrix:
                    if len(self._state.ledger_paths) > 1:  # hosts that share a file system can undo one another's writes
                        damaged = damaged_blocks(matrix, self._plan, LedgerRecords(records, flushed), thorough=True)
                        if len(damaged):
                            self._void(damaged, int(records["finished_ms"].max()))
                            return False
                    poison = self._state.poison_of(records)
                    receipt = measure_receipt(matrix, self._tokens, self._spec, runner, poison["row"])
                self._state.finish(records, poison, receipt)
        except FileNotFoundError:
            if self._state.directory.exists():
                raise
        return True

    def _open_matrix(self) -> FeatureMatrix:
        dtype = np.dtype(self._spec.store_dtype.value)
        return FeatureMatrix(self._matrix_path, self._plan.row_count, self._state.hidden_size, dtype)

    @property
    def _matrix_path(self) -> Path:
        return self._state.directory / features_file(self._spec)

    @property
    def _part(self) -> str:
        return "all" if self._run.part is None else f"part-{self._run.part:04d}-of-{self._run.parts:04d}"
