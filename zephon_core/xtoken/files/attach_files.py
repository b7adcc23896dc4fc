"""From files of datums, plans and the teacher's logprobs to a file of datums with advantages, a part at a time.

advantages.parquet    the rows that got advantages, in order, with all their columns and `advantages`
drops.parquet         the others: row (from 0, over all files), trial_name, fragment_index, reason, detail
stats.json            what came of it, `ChunkAdvantageStats`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_core.atomic import write_json
from zephon_core.blocks import TokenRows
from zephon_core.errors import BadRowError, CorruptArtifactError, SpecError
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.xtoken.advantages import Attaching, Drop, drop_words
from zephon_core.xtoken.alignment import TeacherSide
from zephon_core.xtoken.datums import DATUM_FIELDS, DatumColumns, offsets_of, ragged_column, row_and_position, shown_name
from zephon_core.xtoken.files.parquet_rows import (
    MAKE_ANEW,
    ParquetRows,
    Part,
    RowStream,
    check_logprobs,
    list_array,
    logprob_rows,
    parquet_writer,
    stored_tables,
)
from zephon_core.xtoken.files.plan_files import PLANS_NAME, TEACHER_TOKENS
from zephon_core.xtoken.plans import PlanColumns
from zephon_core.xtoken.score import open_scores

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ADVANTAGES_COLUMN",
    "ADVANTAGES_NAME",
    "DROPS_NAME",
    "LOGPROBS_COLUMN",
    "STATS_NAME",
    "TOLD_COLUMNS",
    "AttachInputs",
    "AttachPart",
    "AttachedPart",
    "attached_parts",
    "drop_name",
    "read_drops",
    "write_advantages",
]

ADVANTAGES_NAME = "advantages.parquet"
DROPS_NAME = "drops.parquet"
STATS_NAME = "stats.json"
LOGPROBS_COLUMN = "teacher_logprobs"
ADVANTAGES_COLUMN = "advantages"
TOLD_COLUMNS = ("trial_name", "fragment_index", TEACHER_TOKENS)
"""What a file of logprobs may say of the datums that it was made for."""


class AttachPart(NamedTuple):
    """Some datums with their plans. row_offsets, rows: the teacher's logprobs, flat, as `attach_columns` takes them."""

    part: Part
    datums: DatumColumns
    plans: PlanColumns
    row_offsets: npt.NDArray[np.int64]
    rows: npt.NDArray[np.float64]


@dataclass(frozen=True)
class AttachInputs:
    """What advantages are made from. plans: the folder that `write_plans` filled; scores: one that `score_tokens` did.

    logprobs: the teacher's, a row a datum, in place of scores.
    """

    rows: ParquetRows
    plans: Path
    scores: Path | None = None
    logprobs: ParquetRows | None = None

    def parts(self, columns: Sequence[str] | None = DATUM_FIELDS, *, checked: bool = False) -> Iterator[AttachPart]:
        """Yield all datums in order, with some of their columns or all.

        checked: refuse given logprobs that their file says are other datums', or that are no logarithms of probabilities.
        Raises BadRowError, InputError, SourceChangedError.
        """
        plans = RowStream(stored_tables(self.plans / PLANS_NAME))
        given = RowStream(part.table for part in self._logprob_parts(checked=checked)) if self.logprobs else None
        scored = open_scores(self.scores, self.plans).logprobs if self.scores else None
        ids, done = TokenRows(self.plans).ids, 0
        for part in self.rows.parts(columns):
            datums = part.datums()
            planned = _planned(self.plans / PLANS_NAME, plans, len(datums))
            if given is not None:
                table = given.take(len(datums))
                row_offsets, rows = logprob_rows(table, LOGPROBS_COLUMN)
                if checked:
                    read = int(planned.teacher_token_count.sum())
                    self._check_given(AttachPart(part, datums, planned, row_offsets, rows), table, ids[done : done + read])
                    done += read
            else:
                row_offsets = offsets_of(planned.teacher_token_count)
                rows = np.asarray(scored[done : done + int(row_offsets[-1])], np.float64) if scored is not None else np.empty(0)
                done += len(rows)
            yield AttachPart(part, datums, planned, row_offsets, rows)

    def _logprob_parts(self, *, checked: bool) -> Iterator[Part]:
        assert self.logprobs is not None
        told = [name for name in TOLD_COLUMNS if name in self.logprobs.schema.names] if checked else []
        return self.logprobs.parts([LOGPROBS_COLUMN, *told])

    def _check_given(self, given: AttachPart, table: pa.Table, ids: npt.NDArray[np.uint32]) -> None:
        """Check some rows of the logprobs' file. ids: what the teacher reads for them."""
        assert self.logprobs is not None
        logprobs, first = self.logprobs, given.part.first
        for row, found, wanted in _strangers(given, table, ids):
            remedy = "Name the file that was made for these datums, in their order."
            raise BadRowError(logprobs.place(first + row), found, wanted=f"{wanted} {given.part.place(row)}", remedy=remedy)
        needed = _needed(given.plans, given.row_offsets)
        check_logprobs(LOGPROBS_COLUMN, given.row_offsets, given.rows, needed, lambda row: logprobs.place(first + row))


def _planned(path: Path, plans: RowStream, count: int) -> PlanColumns:
    """Take the next plans of a file of the store. Raises CorruptArtifactError for one of other rows or columns."""
    try:
        found = PlanColumns.from_arrow(plans.take(count))
    except SpecError as error:
        raise CorruptArtifactError(str(path), f"{error.where} {error.found}", wanted=error.wanted, remedy=MAKE_ANEW) from error
    if len(found) != count:
        raise CorruptArtifactError(str(path), "holds fewer plans than there are datums", wanted="one a datum", remedy=MAKE_ANEW)
    return found


def _strangers(given: AttachPart, table: pa.Table, ids: npt.NDArray[np.uint32]) -> Iterator[tuple[int, str, str]]:
    """Yield rows of logprobs that their columns say are of another datum: the row, what is found, what is wanted for that datum."""
    datums, counts = given.datums, given.plans.teacher_token_count
    for name, wanted in (("trial_name", datums.trial_name), ("fragment_index", datums.fragment_index.tolist())):
        if name in table.column_names:
            for row, (ours, theirs) in enumerate(zip(wanted, table.column(name).to_pylist(), strict=True)):
                if ours != theirs:
                    yield row, f"has {name} {_written(theirs)}", f"{_written(ours)}, that of"
    if TEACHER_TOKENS not in table.column_names:
        return
    offsets, values, _ = ragged_column(table, TEACHER_TOKENS)
    others = np.diff(offsets) != counts
    if others.any():
        row = int(np.argmax(others))
        yield row, f"has {np.diff(offsets)[row]:,} {TEACHER_TOKENS}", f"{counts[row]:,}, which the teacher reads for"
        return
    tokens = values.to_numpy(zero_copy_only=False)
    others = tokens != ids
    if others.any():
        wrong = int(np.argmax(others))
        row, position = row_and_position(offsets, wrong)
        found = f"has {_written(values[wrong].as_py())} in {TEACHER_TOKENS} at position {position}"
        yield row, found, f"{ids[wrong]}, which the teacher reads for"


def _written(value: str | int | None) -> str:
    if value is None:
        return "null"
    return f"'{shown_name(value)}'" if isinstance(value, str) else str(value)


def _needed(plans: PlanColumns, row_offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Tell of each of the teacher's logprobs whether a chunk needs it; of rows that are as long as their plan says."""
    of = np.repeat(np.arange(len(plans)), np.diff(plans.offsets))
    fits = (np.diff(row_offsets) == plans.teacher_token_count)[of]
    places = row_offsets[of[fits], None] + plans.ranges[fits, 2:]
    size = int(row_offsets[-1]) + 1
    steps = np.bincount(places[:, 0], minlength=size) - np.bincount(places[:, 1], minlength=size)
    needed: npt.NDArray[np.bool_] = np.cumsum(steps[:-1]) > 0
    return needed


def write_advantages(
    inputs: AttachInputs,
    *,
    clip: float | None,
    center: bool,
    directory: Path,
    progress: Progress = NULL_PROGRESS,
) -> dict[str, Any]:
    """Attach advantages, equal to the bit to those of `attach_columns`, and write them into `directory`; return statistics.

    Goes over the datums twice, since what centring subtracts, and the mean that deviations are from, are known only at the end.
    """
    import pyarrow as pa

    attaching = Attaching(clip=clip, center=center, drops_in=DROPS_NAME)
    drops: Counter[str] = Counter()
    total = 2 * inputs.rows.count
    schema = inputs.rows.schema_with(ADVANTAGES_COLUMN, pa.list_(pa.float64()))
    with (
        progress.phase("attach", total=total, unit="datums") as phase,
        parquet_writer(directory / DROPS_NAME, _drops_schema()) as dropped,
        parquet_writer(directory / ADVANTAGES_NAME, schema) as attached,
    ):
        for given in inputs.parts(checked=True):
            weighed = attaching.weigh(*given[1:])
            attaching.tally(given.datums, given.plans, weighed)
            if weighed.drops.any():
                table = _drops_table(given, weighed.drops)
                drops.update(table.column("reason").to_pylist())
                dropped.write_table(table)
            phase.advance(len(given.datums))
        for given in inputs.parts(columns=None):
            weighed = attaching.weigh(*given[1:])
            advantages, _ = attaching.give(given.datums, given.plans, weighed)
            kept = _kept_rows(given, weighed.drops == Drop.NONE, advantages, schema)
            if kept.num_rows:
                attached.write_table(kept)
            phase.advance(len(given.datums))
    stats = attaching.stats().model_dump()
    write_json(directory / STATS_NAME, stats)
    return {"stats": stats, "drops": dict(sorted(drops.items())), "doubt": attaching.doubt}


def _kept_rows(given: AttachPart, kept: npt.NDArray[np.bool_], advantages: npt.NDArray[np.float64], schema: pa.Schema) -> pa.Table:
    """Return the rows that are kept, with their advantages, as a table of `schema`."""
    import pyarrow as pa

    lengths = np.diff(given.datums.offsets)
    lists = list_array(lengths[kept], pa.array(advantages[np.repeat(kept, lengths)]))
    return given.part.with_column(ADVANTAGES_COLUMN, lists, schema, kept)


def drop_name(drop: Drop) -> str:
    """Name a reason as drops.parquet has it: "row_length"."""
    return drop.name.lower()


def _drops_schema() -> pa.Schema:
    import pyarrow as pa

    texts = [(name, pa.string()) for name in ("reason", "detail")]
    return pa.schema([("row", pa.int64()), ("trial_name", pa.string()), ("fragment_index", pa.int64()), *texts])


def _drops_table(given: AttachPart, drops: npt.NDArray[np.uint8]) -> pa.Table:
    import pyarrow as pa

    rows = np.flatnonzero(drops).tolist()
    reasons = [Drop(int(drops[row])) for row in rows]
    values = {
        "row": [given.part.first + row for row in rows],
        "trial_name": [given.datums.trial_name[row] for row in rows],
        "fragment_index": [int(given.datums.fragment_index[row]) for row in rows],
        "reason": [drop_name(reason) for reason in reasons],
        "detail": [_detail(given, row, reason) for row, reason in zip(rows, reasons, strict=True)],
    }
    return pa.table(values, schema=_drops_schema())


def _detail(given: AttachPart, row: int, reason: Drop) -> str:
    found = int(given.row_offsets[row + 1] - given.row_offsets[row])
    return drop_words(reason, found, int(given.plans.teacher_token_count[row]))


def read_drops(directory: Path) -> tuple[list[dict[str, Any]], npt.NDArray[np.int64], list[Drop]]:
    """Read which datums were dropped: the first hundred in full, and of all the row (int64) and the reason."""
    first: list[dict[str, Any]] = []
    rows: list[npt.NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    reasons: list[Drop] = []
    by_name = {drop_name(drop): drop for drop in Drop}
    for table in stored_tables(directory / DROPS_NAME):
        first += table.slice(0, max(0, 100 - len(first))).to_pylist()
        rows.append(table.column("row").to_numpy())
        reasons += [by_name[name] for name in table.column("reason").to_pylist()]
    return first, np.concatenate(rows), reasons


class AttachedPart(NamedTuple):
    """Some datums and what they got. advantages: float64, one a token of all, 0.0 for dropped ones. drops: uint8 [datums]."""

    given: AttachPart
    teacher: TeacherSide
    advantages: npt.NDArray[np.float64]
    drops: npt.NDArray[np.uint8]


def attached_parts(inputs: AttachInputs, directory: Path) -> Iterator[AttachedPart]:
    """Yield all datums in order with what `write_advantages` gave them, and what the teacher read."""
    ids, done = TokenRows(inputs.plans).ids, 0
    _, dropped_rows, reasons = read_drops(directory)
    codes = np.array([int(reason) for reason in reasons], dtype=np.uint8)
    stored = RowStream(stored_tables(directory / ADVANTAGES_NAME, [ADVANTAGES_COLUMN]))
    for given in inputs.parts():
        drops = np.zeros(len(given.datums), dtype=np.uint8)
        inside = slice(*np.searchsorted(dropped_rows, [given.part.first, given.part.first + len(drops)]))
        drops[dropped_rows[inside] - given.part.first] = codes[inside]
        kept = drops == Drop.NONE
        advantages = np.zeros(len(given.datums.loss))
        if kept.any():
            _, values = logprob_rows(stored.take(int(np.count_nonzero(kept))), ADVANTAGES_COLUMN)
            advantages[np.repeat(kept, np.diff(given.datums.offsets))] = values
        offsets = offsets_of(given.plans.teacher_token_count)
        teacher = TeacherSide(ids[done : done + int(offsets[-1])].astype(np.int64), offsets)
        done += int(offsets[-1])
        yield AttachedPart(given, teacher, advantages, drops)
