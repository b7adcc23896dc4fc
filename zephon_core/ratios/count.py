"""The exact full pass: every row of a data set is counted, in parallel.

Workers are processes of one thread each, and every one of them reads, decodes and counts for itself: nothing but sums crosses
between processes. A job is a slice of a unit's rows, so that a data set of one file keeps all workers busy, too: each of them
reads the unit, once, and counts its share of the rows. Sums of whole numbers don't depend on who did what, or when.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_core.errors import FatalCountError, InputError, MeasureError, TransientInputError
from zephon_core.models.pool import WorkerPool
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.ratios.counting import CountingSpec, CountPlan, Replay, build_counter
from zephon_core.ratios.counting.plans import WITH_LOSS
from zephon_core.ratios.counting.portable import function_name, why_not_portable
from zephon_core.ratios.datasets.model import TextColumn, UnitReader, UnitRows, WholeUnits, good_payloads
from zephon_core.ratios.specs import RatioRun
from zephon_core.readers.rows import RowProblem
from zephon_core.store import ArtifactStore
from zephon_core.tokenizers import serial_encoding

if TYPE_CHECKING:
    from zephon_core.ratios.datasets import Dataset

__all__ = ["ExactCount", "count_tokens", "count_units", "open_worker", "prefix_rows"]

_PREFIX_ROWS = 8
_PREFIX_ROWS_TO_REPLAY = 256  # most of which may be dropped
_PROBLEMS_TOLD = 20
_UNMEASURABLE = "can't be measured"

_JOB_BYTES = 1 << 20
_SLICE_BYTES = 4 << 20
_JOBS_A_WORKER = 16
_BATCH_BYTES = 1 << 20
_BATCH_ROWS = 4096
_WORTH_PROCESSES_BYTES = 8 << 20

Measure = Callable[[Any], int]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ExactCount:
    """What a data set delivers.

    tokens, loss_tokens: delivered in all, and of those the ones that carry loss (None where that isn't counted).
    raw_bytes: of all shards. rows: that were counted, empty ones included. bad_rows, bad_units: that were not, by reason;
    unreadable: files that are no shards since they can't be read at all. problems: the first few of all these, with their places.
    transient: whether a later try may read some of them.
    measured_share: of the shards' bytes, that which was counted; 1 unless something was bad. readable_share: see `Dataset`.
    bytes_read: off the disk or wire; what several workers read counts several times. encoder: what encoded texts, "" if nothing
    did. what: was counted, for people.
    """

    tokens: int
    loss_tokens: int | None
    raw_bytes: int
    rows: int
    bad_rows: dict[str, int]
    bad_units: dict[str, int]
    unreadable: dict[str, int]
    problems: tuple[str, ...]
    transient: bool
    measured_share: float
    readable_share: float
    bytes_read: int
    seconds: float
    encoder: str
    what: str

    @property
    def complete(self) -> bool:
        """Whether every row was counted."""
        return not self.bad_rows and not self.bad_units and not self.unreadable

    @property
    def counted_share(self) -> float:
        """The share of the data set's bytes that was counted."""
        return self.measured_share * self.readable_share

    @property
    def tokens_per_byte(self) -> float:
        """Delivered tokens per raw byte; of what could be counted, if not all could be. 0 for a data set without bytes."""
        return self._per_byte(self.tokens)

    @property
    def loss_tokens_per_byte(self) -> float | None:
        """Tokens that carry loss, per raw byte; None where they aren't counted."""
        return None if self.loss_tokens is None else self._per_byte(self.loss_tokens)

    def _per_byte(self, tokens: int) -> float:
        measured_bytes = self.raw_bytes * self.measured_share
        return tokens / measured_bytes if measured_bytes else 0.0


def count_tokens(
    dataset: Dataset,
    counting: CountingSpec | None,
    *,
    replay: Replay | None = None,
    measure: Measure | None = None,
    run: RatioRun | None = None,
    progress: Progress = NULL_PROGRESS,
) -> ExactCount:
    """Count what every row of a data set delivers.

    A bad row, unit or file costs itself: it is counted by reason, and left out of the ratio. Raises FatalCountError, with its
    place, for a row that the training would refuse; MeasureError for a function of the user's that fails; InputError if no unit can
    be read (TransientInputError if a later try may); WorkerError if a worker dies.
    """
    started = time.perf_counter()
    run = run or RatioRun()
    store = ArtifactStore(run.store)
    total_bytes = int(dataset.units.size.sum())
    workers = run.worker_count if total_bytes >= _WORTH_PROCESSES_BYTES else 1
    if workers > 1 and (reason := _why_alone(replay, measure)):
        progress.note(f"Counting in one process alone: {reason}.")
        workers = 1
    jobs = _jobs(dataset.units.size, workers)
    prefix = _first_rows(dataset, prefix_rows(replay))
    order = _Order(dataset, counting, replay, measure, prefix, total_bytes, workers, str(store.root))
    sums = _Sums()
    with progress.phase("count", total=total_bytes, unit="B") as phase, closing(_results(order, jobs)) as results:
        for part in results:
            sums.add(part)
            phase.advance(part.unit_bytes)
    return _outcome(dataset, sums, time.perf_counter() - started)


def count_units(
    dataset: Dataset, reader: WholeUnits, plan: CountPlan, encoder: str, *, progress: Progress = NULL_PROGRESS
) -> ExactCount:
    """Count as `count_tokens` does, in this process, by a plan, each unit read once with a reader. encoder: what encodes texts."""
    started = time.perf_counter()
    worker, sums = _Worker(dataset, reader, plan, encoder), _Sums()
    sums.add(worker(()))
    with progress.phase("count", total=int(dataset.units.size.sum()), unit="B") as phase:
        for unit in range(len(dataset.units)):
            part = worker((_Slice(unit, 0, 1),))
            sums.add(part)
            phase.advance(part.unit_bytes)
    return _outcome(dataset, sums, time.perf_counter() - started)


def _outcome(dataset: Dataset, sums: _Sums, seconds: float) -> ExactCount:
    total_bytes = int(dataset.units.size.sum())
    unreadable = [f"{problem.url}: {problem.reason}" for problem in dataset.problems]
    transient = sums.transient or any(problem.transient for problem in dataset.problems)
    told = (*unreadable, *sums.told())
    if not sums.rows and (sums.bad_units or (unreadable and not len(dataset.units))):
        kind = TransientInputError if transient else InputError
        raise kind(f"data set {dataset.name}", f"can't be read: {told[0]}")
    return ExactCount(
        tokens=int(sums.tokens[0]),
        loss_tokens=int(sums.tokens[1]) if sums.outputs == WITH_LOSS else None,
        raw_bytes=int(dataset.raw_bytes().sum()),
        rows=sums.rows,
        bad_rows=dict(sorted(sums.bad_rows.items())),
        bad_units=dict(sorted(Counter(sums.bad_units.values()).items())),
        unreadable=dict(sorted(Counter(problem.reason for problem in dataset.problems).items())),
        problems=told[:_PROBLEMS_TOLD],
        transient=transient,
        measured_share=float(1 - sums.lost_bytes(dataset.units.size) / max(total_bytes, 1)),
        readable_share=dataset.readable_share,
        bytes_read=sums.bytes_read,
        seconds=seconds,
        encoder=sums.encoder,
        what=sums.what,
    )


def _why_alone(replay: Replay | None, measure: Measure | None) -> str:
    """Say which function of the user's can't go to other processes, and why; empty if all can."""
    if measure is not None:
        reason = why_not_portable(measure)
        return f"{function_name(measure)}: {reason}" if reason else ""
    return replay.why_not_portable() if replay is not None else ""


def _results(order: _Order, jobs: list[Job]) -> Generator[_Sums]:
    """Yield what is counted in each job, in any order. The first one says how is counted, also where there are no jobs."""
    if order.workers == 1 or len(jobs) < 2:
        with serial_encoding(), open_worker(order) as count:
            yield count(())
            yield from map(count, jobs)
        return
    with WorkerPool(min(order.workers, len(jobs)), "zephon_core.ratios.count:open_worker", order) as pool:
        for _, part in pool.run(jobs):
            yield part


class _Slice(NamedTuple):
    """The rows of a unit from part/parts of its bytes on, to (part + 1)/parts."""

    unit: int
    part: int
    parts: int


Job = tuple[_Slice, ...]


def _jobs(unit_bytes: Int64, workers: int) -> list[Job]:
    """Cut units into jobs, large ones into several, small ones put together; the largest first, so that workers end together."""
    slice_bytes = max(_SLICE_BYTES, int(unit_bytes.sum()) // (workers * _JOBS_A_WORKER))
    jobs: list[Job] = []
    small: list[_Slice] = []
    small_bytes = 0
    for unit in np.argsort(-unit_bytes, kind="stable").tolist():
        parts = 1 if workers == 1 else -(-int(unit_bytes[unit]) // slice_bytes)
        if parts > 1 or unit_bytes[unit] >= _JOB_BYTES:
            jobs += [(_Slice(unit, part, parts),) for part in range(parts)]
            continue
        small.append(_Slice(unit, 0, 1))
        small_bytes += int(unit_bytes[unit])
        if small_bytes >= _JOB_BYTES:
            jobs.append(tuple(small))
            small, small_bytes = [], 0
    return [*jobs, tuple(small)] if small else jobs


def prefix_rows(replay: Replay | None) -> int:
    """Say how many rows a plan is made from."""
    return _PREFIX_ROWS_TO_REPLAY if replay else _PREFIX_ROWS


def _first_rows(dataset: Dataset, rows: int) -> list[Any]:
    """Read the first good rows of a data set, for the plan."""
    found: list[Any] = []
    with dataset.open(None) as reader:
        for unit in range(len(dataset.units)):
            try:
                found += _first_rows_of(reader, dataset, unit, rows)
            except InputError:
                continue  # it is counted as bad when its turn comes
            if len(found) >= rows:
                break
    return found[:rows]


def _first_rows_of(reader: UnitReader, dataset: Dataset, unit: int, rows: int) -> list[Any]:
    payloads: list[Any] = []
    if dataset.units.addressable[unit]:
        offset, size = 0, int(dataset.units.size[unit])
        while offset < size and len(payloads) < rows:
            row = reader.read_at(unit, offset)
            payloads.append(row.payload)
            offset = row.start + row.length
    else:
        decoded = reader.read(unit)
        payloads = decoded.payloads(range(min(rows, len(decoded.row_bytes))))
    return good_payloads(payloads)


@dataclass
class _Sums:
    """What was counted so far.

    bad_units: what is wrong with a unit. problems: in words, by unit and row (-1: the unit itself); the first few are enough.
    lost: the share of a unit that was not counted. unit_bytes: what was gone through.
    tokens: int64 [2], by output. outputs, encoder, what: of the plan that counted.
    """

    outputs: tuple[str, ...] = ()
    encoder: str = ""
    what: str = ""
    tokens: Int64 = field(default_factory=lambda: np.zeros(2, np.int64))
    rows: int = 0
    bad_rows: Counter[str] = field(default_factory=Counter)
    bad_units: dict[int, str] = field(default_factory=dict)
    problems: dict[tuple[int, int], str] = field(default_factory=dict)
    transient: bool = False
    lost: dict[int, Fraction] = field(default_factory=dict)
    unit_bytes: int = 0
    bytes_read: int = 0

    def add(self, other: _Sums) -> None:
        self.outputs, self.encoder, self.what = other.outputs, other.encoder, other.what
        self.tokens += other.tokens
        self.rows += other.rows
        self.bad_rows += other.bad_rows
        self.bad_units |= other.bad_units
        self.transient |= other.transient
        self.problems = dict(sorted((self.problems | other.problems).items())[:_PROBLEMS_TOLD])
        for unit, share in other.lost.items():
            self.lost[unit] = self.lost.get(unit, Fraction()) + share
        self.unit_bytes += other.unit_bytes
        self.bytes_read += other.bytes_read

    def told(self) -> tuple[str, ...]:
        return tuple(text for _, text in sorted(self.problems.items()))

    def lost_bytes(self, unit_bytes: Int64) -> Fraction:
        return sum((share * int(unit_bytes[unit]) for unit, share in self.lost.items()), Fraction())


@dataclass(frozen=True)
class _Order:
    """All that a worker process is told."""

    dataset: Dataset
    counting: CountingSpec | None
    replay: Replay | None
    measure: Measure | None
    prefix: list[Any]
    text_bytes: int
    workers: int
    store: str


@contextmanager
def open_worker(order: _Order) -> Iterator[Callable[[Job], _Sums]]:
    """Open what a worker process counts with."""
    store = ArtifactStore(order.store)
    counter = build_counter(
        order.counting,
        replay=order.replay,
        measure=order.measure,
        text_bytes=order.text_bytes,
        threads=order.workers,
        store=store,
    )
    plan = counter.plan(order.prefix)
    with order.dataset.open(plan.paths) as reader:
        yield _Worker(order.dataset, reader, plan, counter.encoder)


class _Worker:
    """Counts jobs on one thread."""

    def __init__(self, dataset: Dataset, reader: WholeUnits, plan: CountPlan, encoder: str) -> None:
        self._dataset = dataset
        self._reader = reader
        self._plan = plan
        self._encoder = encoder
        self._unit = -1
        self._rows: UnitRows | None = None

    def __call__(self, job: Job) -> _Sums:
        before = self._reader.bytes_read
        sums = _Sums(self._plan.outputs, self._encoder, self._plan.description)
        for piece in job:
            size = int(self._dataset.units.size[piece.unit])
            sums.unit_bytes += size * (piece.part + 1) // piece.parts - size * piece.part // piece.parts
            try:
                rows = self._read(piece.unit)
            except InputError as error:
                sums.bad_units[piece.unit] = error.found
                sums.transient |= isinstance(error, TransientInputError)
                sums.problems[piece.unit, -1] = str(error)
                sums.lost[piece.unit] = sums.lost.get(piece.unit, Fraction()) + Fraction(1, piece.parts)
            else:
                self._count(piece, rows, sums)
        sums.bytes_read = self._reader.bytes_read - before
        return sums

    def _read(self, unit: int) -> UnitRows:
        """Read a unit, or take the last one: slices of one follow on each other."""
        if self._rows is None or unit != self._unit:
            self._rows = None  # before the next one is read: two large ones may not fit
            self._rows, self._unit = self._reader.read(unit), unit
        return self._rows

    def _count(self, piece: _Slice, rows: UnitRows, sums: _Sums) -> None:
        weights = rows.row_bytes if rows.row_bytes.any() else np.ones_like(rows.row_bytes)
        ends = np.cumsum(weights)
        total = int(ends[-1]) if len(ends) else 0
        begin, stop = (int(np.searchsorted(ends, total * part // piece.parts)) for part in (piece.part, piece.part + 1))
        stop = len(ends) if piece.part + 1 == piece.parts else stop
        column = rows.texts(self._plan.column) if self._plan.column else None
        lost = told = 0
        while begin < stop:
            full = int(np.searchsorted(ends, int(ends[begin]) + _BATCH_BYTES))
            end = max(begin + 1, min(stop, begin + _BATCH_ROWS, full))
            try:
                if column is not None:
                    bad = self._count_texts(column, range(begin, end), sums)
                else:
                    bad = self._count_payloads(rows, range(begin, end), sums)
            except (FatalCountError, MeasureError) as error:
                raise error.at(self._where(piece.unit, error.position)) from error
            for row, reason in sorted(bad.items()):
                lost += int(weights[row])
                if told < _PROBLEMS_TOLD:
                    told += 1
                    sums.problems[piece.unit, row] = f"{self._where(piece.unit, row)}: {reason}"
            sums.bad_rows.update(bad.values())
            sums.rows += end - begin - len(bad)
            begin = end
        if lost:
            sums.lost[piece.unit] = Fraction(lost, total)

    def _count_texts(self, column: TextColumn, batch: range, sums: _Sums) -> dict[int, str]:
        """Count rows that are one text each, and return what is wrong with bad ones."""
        bad: dict[int, str] = {}
        texts = []
        for row in (np.flatnonzero(~column.is_null[batch.start : batch.stop]) + batch.start).tolist():
            try:
                texts.append(column.text(row))
            except RowProblem as problem:
                bad[row] = problem.reason
        sums.tokens[0] += self._plan.count_texts(texts).sum()
        return bad

    def _count_payloads(self, rows: UnitRows, batch: range, sums: _Sums) -> dict[int, str]:
        """Count rows whatever they are, and return what is wrong with bad ones."""
        bad: dict[int, str] = {}
        payloads, owners = [], []
        for row, payload in zip(batch, rows.payloads(batch), strict=True):
            if isinstance(payload, RowProblem):
                bad[row] = payload.reason
            else:
                payloads.append(payload)
                owners.append(row)
        try:
            counts = self._plan.count(payloads)
        except (FatalCountError, MeasureError) as error:
            error.position = owners[error.position]
            raise
        bad.update((row, _UNMEASURABLE) for row, count in zip(owners, counts, strict=True) if count is None)
        measured = [count for count in counts if count is not None]
        outputs = len(self._plan.outputs)
        sums.tokens[:outputs] += np.array(measured, np.int64).reshape(-1, outputs).sum(axis=0)
        return bad

    def _where(self, unit: int, row: int) -> str:
        """Name a row: its number in the shard, where that is known."""
        units = self._dataset.units
        url = self._dataset.shards[int(units.shard[unit])].url
        before = units.rows[(units.shard == units.shard[unit]) & (units.part < units.part[unit])]
        if (before < 0).any():
            return f"{url} (row {row + 1:,} of its unit {int(units.part[unit]) + 1:,})"
        return f"{url}:{int(before.sum()) + row + 1}"
