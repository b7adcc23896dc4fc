"""One round of draws from a data set: positions in, delivered tokens per byte at each of them out.

A draw finds a row with a probability proportional to its bytes, and in a long text a stretch of it likewise, so that a record a
thousand times the others is looked at a thousand times as often, and never tokenized whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from threading import Lock, local
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_core.errors import BudgetSpentError, FatalCountError, InputError, TransientInputError
from zephon_core.ratios.datasets.files import Allowance, KeptBytes
from zephon_core.ratios.datasets.model import BLANK_ROW, LocatedRow, LocatedWindow, UnitReader, UnitRows, good_payloads
from zephon_core.ratios.estimate import locate
from zephon_core.ratios.looks import WHOLE_TEXT_BYTES, Found, UnitDraws, long_text, stretch_of
from zephon_core.readers.rows import RowProblem

if TYPE_CHECKING:
    from zephon_core.ratios.counting import CountPlan
    from zephon_core.ratios.datasets import Dataset

__all__ = ["Draws", "RowsRead", "Sampler"]

_COUNT_AT_ONCE = 2048
_GROUPS_AT_ONCE = 16
_KEEP_BYTES = 256 << 20
_LONG_ROW_BYTES = 8 << 10
_LONG_ROW_STRETCHES = 4
_STRETCH_EVERY_BYTES = 16 << 10

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


_Wanted = tuple[int, int, float, Float64]
"""A draw that falls on a unit: its number, the byte of the unit, the same as a place from 0 to 1, and further places, at random."""
_Outcome = tuple[int, list[Found] | InputError | BudgetSpentError]
"""A draw's number, and the rows that it came upon, or why there are none."""


@dataclass
class Draws:
    """The outcome of one round.

    values: float64 [draws, outputs], tokens per byte of the axis, NaN where a draw could not be measured, for `reasons`.
    measured: float64 [draws], the share of a draw's looks that could be. within: float64 [draws], variance of the first output
    among a draw's looks, NaN for one that looked once. transient: whether some failed for reasons that may go away.
    """

    values: Float64
    measured: Float64
    within: Float64
    reasons: Counter[str] = field(default_factory=Counter)
    transient: bool = False

    @classmethod
    def none_yet(cls, draws: int, outputs: int) -> Draws:
        """Return so many draws, none of them measured."""
        return cls(np.full((draws, outputs), np.nan), np.zeros(draws), np.full(draws, np.nan))


class RowsRead(NamedTuple):
    """How many rows were read alone, and the bytes read for them."""

    rows: int = 0
    bytes: int = 0


class Sampler:
    """Measures draws from one data set.

    threads: how many units are read at once; it changes no value. byte_budget: how much it may read; None: any number of bytes.
    units_seen, bytes_read: so far. rows_read: how many rows were read alone, and the bytes read for them.
    """

    def __init__(self, dataset: Dataset, *, threads: int, stack: ExitStack, byte_budget: int | None = None) -> None:
        self._dataset = dataset
        self._stack = stack
        self._local = local()
        self._lock = Lock()
        self._readers: list[UnitReader] = []
        self._files = KeptBytes(_KEEP_BYTES)
        self._allowance = None if byte_budget is None else Allowance(byte_budget)
        self._pool = stack.enter_context(ThreadPoolExecutor(max(1, threads), thread_name_prefix="calibrate"))
        self._order = axis_order(dataset)
        self._seen = np.zeros(len(dataset.units), np.bool_)
        self._looked_at: dict[int, UnitRows] = {}
        self._kept: dict[int, UnitDraws] = {}
        self._kept_rows: dict[int, list[LocatedRow]] = {}
        self._kept_bytes = 0
        self._rows_read = RowsRead()

    def units_at(self, positions: Int64) -> Int64:
        """Tell which units these positions of the axis fall on: int64 [positions]."""
        places, _ = locate(positions, self._dataset.units.size[self._order])
        return self._order[places]

    @property
    def kept(self) -> npt.NDArray[np.bool_]:
        """Which units, bool [units], need not be read again, nor their files: all seen, while there is room for them."""
        return self._seen if self.decoded_bytes_seen <= _KEEP_BYTES else np.zeros_like(self._seen)

    @property
    def units_seen(self) -> int:
        """How many different units were read, or read in."""
        return int(self._seen.sum())

    @property
    def seen_share(self) -> float:
        """The share of the axis that units have which were read, or read in."""
        size = self._dataset.units.size
        return float(size[self._seen].sum() / size.sum())

    @property
    def decoded_bytes_seen(self) -> int:
        """Sizes of the units that were read whole."""
        units = self._dataset.units
        return int(units.size[self._seen & ~units.addressable].sum())

    @property
    def bytes_read(self) -> int:
        """Bytes read so far, off the disk or wire."""
        return sum(reader.bytes_read for reader in self._readers)

    @property
    def rows_read(self) -> RowsRead:
        """What was read so far of units of which rows can be read alone."""
        return self._rows_read

    def look(self, positions: Int64, rows: int, *, whole: bool) -> list[Any]:
        """Read rows at positions that are measured afterwards, for a plan to be made from; what can't be read is passed over.

        whole: else other texts of the same length may stand in for long ones. Raises BudgetSpentError.
        """
        places, offsets = locate(positions, self._dataset.units.size[self._order])
        payloads: list[Any] = []
        reader = self._open(None)
        for unit, offset in zip(self._order[places].tolist(), offsets.tolist(), strict=True):
            with suppress(InputError):
                if self._dataset.units.addressable[unit]:
                    with self._reading_rows(reader, 1):
                        row = None if whole else reader.abridged_at(unit, offset, filled=True)
                        if row is None:
                            row = reader.read_at(unit, offset)
                            self._kept_rows.setdefault(unit, []).append(row)
                    payloads.append(row.payload)
                else:
                    if unit not in self._looked_at:
                        self._looked_at[unit] = reader.read(unit)
                    unit_rows = self._looked_at[unit]
                    count = len(unit_rows.row_bytes)
                    wanted = np.linspace(0, max(0, count - 1), -(-rows // len(positions))).astype(int)
                    payloads += unit_rows.payloads(sorted({int(row) for row in wanted if row < count}))
        return good_payloads(payloads)[:rows]

    def first_rows(self, rows: int) -> list[Any]:
        """Read the first good rows, for a plan to be made from; their units are kept."""
        reader = self._open(None)
        found: list[Any] = []
        for unit in range(len(self._dataset.units)):
            with suppress(InputError):  # it is counted as bad when its turn comes
                self._looked_at[unit] = decoded = reader.read(unit)
                found += good_payloads(decoded.payloads(range(min(rows, len(decoded.row_bytes)))))
            if len(found) >= rows:
                break
        return found[:rows]

    def every_unit(self, plan: CountPlan) -> _RestReader:
        """Return a reader of all units in turn, which are read only if they aren't kept."""
        return _RestReader(self, plan)

    def whole(self, plan: CountPlan, unit: int) -> UnitRows:
        """Return a unit's rows, which are read only if they aren't kept, and not kept. Raises InputError."""
        kept = self._kept.get(unit)
        if kept is not None:
            return kept.rows
        rows = self._looked_at.pop(unit, None)
        return self._reader(plan).read(unit) if rows is None else rows

    def measure(
        self,
        plan: CountPlan,
        positions: Int64,
        rng: np.random.Generator,
        *,
        visits: int = 1,
        advance: Callable[[int], None] = lambda count: None,
    ) -> Draws:
        """Measure the draws at these positions of the axis, always by the same plan; advance is told how many are done.

        visits: how often is looked, at even distances, where a draw falls on a unit that is read whole; the average counts.
        Raises BudgetSpentError where what may be read is not enough.
        """
        sizes = self._dataset.units.size
        places, offsets = locate(positions, sizes[self._order])
        units = self._order[places]
        within = (offsets + rng.random(len(offsets))) / sizes[units]
        again = rng.random((len(positions), _LONG_ROW_STRETCHES - 1))
        draws = Draws.none_yet(len(positions), len(plan.outputs))
        numbers = np.argsort(units, kind="stable")
        groups = np.split(numbers, np.flatnonzero(np.diff(units[numbers])) + 1)
        self._seen[units] = True

        def visit(group: Int64) -> list[_Outcome]:
            wanted = [(int(n), int(offsets[n]), within[n], again[n]) for n in group]
            return self._visit(plan, int(units[group[0]]), wanted, visits)

        step = max(_GROUPS_AT_ONCE, _COUNT_AT_ONCE // visits)
        for first in range(0, len(groups), step):
            waiting: list[tuple[int, list[Found]]] = []
            # All of them, before one of them ends it: none is at it still, then.
            for number, outcome in list(chain.from_iterable(self._pool.map(visit, groups[first : first + step]))):
                if isinstance(outcome, BudgetSpentError):
                    raise outcome
                if isinstance(outcome, InputError):
                    draws.reasons[outcome.found] += 1
                    draws.transient |= isinstance(outcome, TransientInputError)
                else:
                    waiting.append((number, outcome))
            _count(plan, waiting, draws)
            advance(len(waiting))
        return draws

    def _open(self, paths: Sequence[str] | None) -> UnitReader:
        with self._lock:
            reader = self._stack.enter_context(self._dataset.open(paths, kept=self._files, allowance=self._allowance))
            self._readers.append(reader)
        return reader

    def _reader(self, plan: CountPlan) -> UnitReader:
        """Return this thread's reader."""
        reader: UnitReader | None = getattr(self._local, "reader", None)
        if reader is None:
            reader = self._local.reader = self._open(plan.paths)
        return reader

    def _visit(self, plan: CountPlan, unit: int, wanted: list[_Wanted], visits: int) -> list[_Outcome]:
        """Find the rows of all draws that fall on one unit."""
        try:
            if self._dataset.units.addressable[unit]:
                return self._rows_at(plan, unit, wanted)
            found = self._unit(plan, unit)
            return [(number, found.around(place, visits)) for number, _, place, _ in wanted]
        except (InputError, BudgetSpentError) as error:
            return [(number, error) for number, *_ in wanted]

    def _unit(self, plan: CountPlan, unit: int) -> UnitDraws:
        """Read a unit, or take it from those kept from earlier rounds."""
        found = self._kept.get(unit)
        if found is None:
            size = int(self._dataset.units.size[unit])
            rows = self._looked_at.get(unit)
            if rows is None:
                rows = self._reader(plan).read(unit)
            found = UnitDraws(rows, size, plan.text_path, self._where(unit))
            with self._lock:
                if self._kept_bytes + size <= _KEEP_BYTES:
                    self._kept[unit] = found
                    self._kept_bytes += size
        return found

    def _rows_at(self, plan: CountPlan, unit: int, wanted: list[_Wanted]) -> list[_Outcome]:
        """Find what some bytes of a unit belong to: windows of the text of rows known to be long, else rows."""
        reader = self._reader(plan)
        found: list[_Outcome] = []
        with self._reading_rows(reader, len(wanted)):
            for number, offset, _, again in wanted:
                window = None if plan.text_path is None else reader.window_at(unit, offset, plan.text_path)
                if window is not None:
                    found.append((number, [self._windowed(unit, window)]))
                else:
                    row = self._row_of(reader, unit, offset, abridged=plan.text_path is not None)
                    found.append((number, self._row_at(plan, unit, row, offset, again)))
        return found

    @contextmanager
    def _reading_rows(self, reader: UnitReader, rows: int) -> Iterator[None]:
        """Note that so many rows are read here, and what is read for them."""
        before = reader.bytes_read
        try:
            yield
        finally:
            with self._lock:
                self._rows_read = RowsRead(self._rows_read.rows + rows, self._rows_read.bytes + reader.bytes_read - before)

    def _windowed(self, unit: int, window: LocatedWindow) -> Found:
        """Weigh a window of a row: each byte that belongs to it stands for an equal part of the tokens that start in it."""
        return Found(
            None,
            1 / window.length,
            self._place(unit, window.start),
            text=window.text,
            start=window.begin,
            stop=window.end,
            share=window.length / window.shared,
        )

    def _row_of(self, reader: UnitReader, unit: int, offset: int, *, abridged: bool) -> LocatedRow:
        """Read the row that holds a byte of a unit; a long one that holds several is read once.

        abridged: its long texts aren't wanted.
        """
        known = self._kept_rows.setdefault(unit, [])
        row = next((row for row in known if row.start <= offset < row.start + row.length), None)
        if row is None:
            row = (reader.abridged_at(unit, offset) if abridged else None) or reader.read_at(unit, offset)
            with self._lock:
                if row.length > _LONG_ROW_BYTES and self._kept_bytes + row.length <= _KEEP_BYTES:
                    known.append(row)
                    self._kept_bytes += row.length
        return row

    def _row_at(self, plan: CountPlan, unit: int, row: LocatedRow, offset: int, again: Float64) -> list[Found]:
        """Look at a row, or at some stretches of its text: the more, the more it cost to read."""
        found = Found(row.payload, 1 / row.length, self._place(unit, row.start))
        data = long_text(found, plan.text_path if row.length > WHOLE_TEXT_BYTES else None)
        if data is None:
            return [found]
        places = [
            (offset - row.start + 0.5) / row.length,
            *again[: min(_LONG_ROW_STRETCHES - 1, row.length // _STRETCH_EVERY_BYTES)],
        ]
        return [stretch_of(data, float(place), found) for place in places]

    def _place(self, unit: int, start: int) -> str:
        """Say where a row is: in which file, and at which byte of it."""
        return f"{self._where(unit)} (byte {int(self._dataset.units.start[unit]) + start:,})"

    def _where(self, unit: int) -> str:
        shard = self._dataset.shards[int(self._dataset.units.shard[unit])]
        return shard.url


class _RestReader:
    """Reads units as `WholeUnits` says, from what a sampler keeps or else from their files."""

    def __init__(self, sampler: Sampler, plan: CountPlan) -> None:
        self._sampler = sampler
        self._plan = plan

    @property
    def bytes_read(self) -> int:
        """Bytes that the sampler has read so far, off the disk or wire."""
        return self._sampler.bytes_read

    def read(self, unit: int) -> UnitRows:
        """Return a unit's rows. Raises InputError."""
        return self._sampler.whole(self._plan, unit)


def _count(plan: CountPlan, waiting: Sequence[tuple[int, list[Found]]], draws: Draws) -> None:
    """Count what draws came upon, and average over the looks of a draw, as far as they can be measured."""
    flat = [found for _, group in waiting for found in group]
    values = np.full((len(flat), draws.values.shape[1]), np.nan)
    stretches = [i for i, found in enumerate(flat) if found.text is not None]
    if stretches:
        cuts = [flat[i] for i in stretches]
        with _placed(cuts):
            tokens = plan.count_windows([cut.text or "" for cut in cuts], [cut.start for cut in cuts], [cut.stop for cut in cuts])
        for i, count in zip(stretches, tokens.tolist(), strict=True):
            values[i] = (plan.specials + count * flat[i].share) * flat[i].weight
    whole = [i for i, found in enumerate(flat) if found.text is None]
    for i, counts in zip(whole, _count_rows(plan, [flat[i] for i in whole], draws), strict=True):
        if counts is not None:
            values[i] = np.asarray(counts, np.float64) * flat[i].weight
    start = 0
    for number, group in waiting:
        looks, times = values[start : start + len(group)], np.array([found.times for found in group])
        start += len(group)
        good = np.isfinite(looks[:, 0])
        count = int(times[good].sum())
        draws.measured[number] = count / times.sum()
        if count:
            draws.values[number] = np.average(looks[good], axis=0, weights=times[good])
        if count > 1:
            squares = np.square(looks[good, 0] - draws.values[number, 0])
            draws.within[number] = float(squares @ times[good]) / (count - 1)


def _count_rows(plan: CountPlan, rows: Sequence[Found], draws: Draws) -> list[tuple[int, ...] | None]:
    counts: list[tuple[int, ...] | None] = [None] * len(rows)
    payloads, owners = [], []
    zero = (0,) * len(plan.outputs)
    for i, found in enumerate(rows):
        if isinstance(found.payload, RowProblem):
            draws.reasons[found.payload.reason] += 1
            continue
        if found.payload is BLANK_ROW:
            counts[i] = zero
            continue
        payloads.append(found.payload)
        owners.append(i)
    with _placed([rows[i] for i in owners]):
        counted = plan.count(payloads)
    for i, count in zip(owners, counted, strict=True):
        counts[i] = count
        if count is None:
            draws.reasons["can't be measured"] += 1
    return counts


@contextmanager
def _placed(found: Sequence[Found]) -> Iterator[None]:
    """Say where the row stands that is refused."""
    try:
        yield
    except FatalCountError as error:
        raise error.at(found[error.position].where) from None


def axis_order(dataset: Dataset) -> Int64:
    """Lay the units out so that like lies beside like: by how well they compress, else in canonical order: int64 [units].

    How many stored bytes a decoded byte takes says much about its language and kind, and costs nothing to know: strata of such
    an axis differ among themselves, and less is left to chance within them.
    """
    units = dataset.units
    return np.argsort(units.stored_bytes / units.size, kind="stable").astype(np.int64)
