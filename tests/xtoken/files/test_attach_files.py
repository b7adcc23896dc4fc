"""From plans and logprobs to advantages, part by part: the same as at once; what is damaged in the store is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_pair import LINES, datum_rows, logprob_rows_of, write_rows, write_side

from zephon_core.blocks.tokens import TOKEN_FILES
from zephon_core.errors import BadRowError, CorruptArtifactError
from zephon_core.readers.sources import resolve_sources
from zephon_core.xtoken import ChunkAdvantageStats
from zephon_core.xtoken.advantages import Drop, attach_columns
from zephon_core.xtoken.datums import DatumColumns, ragged_floats
from zephon_core.xtoken.files.attach_files import (
    ADVANTAGES_NAME,
    DROPS_NAME,
    STATS_NAME,
    AttachInputs,
    attached_parts,
    drop_name,
    read_drops,
    write_advantages,
)
from zephon_core.xtoken.files.parquet_rows import ParquetRows
from zephon_core.xtoken.files.plan_files import PLANS_NAME, write_plans
from zephon_core.xtoken.plans import PlanColumns

COUNT = 30


def opened(file: Path) -> ParquetRows:
    return ParquetRows.open(resolve_sources([str(file)]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """datums.parquet, logprobs.parquet (a row too short, one without a number) and plans/."""
    folder = tmp_path_factory.mktemp("attach")
    student, teacher = write_side(folder / "student", 400, ""), write_side(folder / "teacher", 330, "", *LINES[1:])
    rows = datum_rows(student, teacher, COUNT, messages=False)
    write_rows(folder / "datums.parquet", rows, row_group=4)
    logprobs = logprob_rows_of([len(row["teacher_tokens"]) for row in rows])
    logprobs[3], logprobs[4] = logprobs[3][:-1], [None] * len(logprobs[4])
    write_rows(folder / "logprobs.parquet", [{"teacher_logprobs": row} for row in logprobs], row_group=7)
    (folder / "plans").mkdir()
    write_plans(opened(folder / "datums.parquet"), student=student, teacher=teacher, templates=None, directory=folder / "plans")
    return folder


@pytest.fixture
def inputs(folder: Path) -> AttachInputs:
    return inputs_of(folder)


def inputs_of(folder: Path, plans: Path | None = None, logprobs: str = "logprobs") -> AttachInputs:
    given = opened(folder / f"{logprobs}.parquet")
    return AttachInputs(rows=opened(folder / "datums.parquet"), plans=plans or folder / "plans", logprobs=given)


def at_once(folder: Path, **settings: Any) -> Any:
    datums = DatumColumns.from_arrow(pq.read_table(folder / "datums.parquet"))
    plans = PlanColumns.from_arrow(pq.read_table(folder / "plans" / PLANS_NAME))
    rows = pq.read_table(folder / "logprobs.parquet").column("teacher_logprobs").to_pylist()
    return datums, attach_columns(datums, plans, *ragged_floats(rows), **settings)


@pytest.mark.parametrize("settings", [{"clip": None, "center": False}, {"clip": 0.5, "center": True}], ids=str)
def test_part_by_part_as_at_once_and_read_again(folder, inputs, tmp_path, settings):
    datums, wanted = at_once(folder, **settings)
    made = write_advantages(inputs, **settings, directory=tmp_path)
    assert made["stats"] == wanted.stats.model_dump() == json.loads((tmp_path / STATS_NAME).read_bytes())
    assert ChunkAdvantageStats.model_validate({k: v for k, v in made["stats"].items() if k != "coverage_rate"}) == wanted.stats
    assert made["drops"] == {"empty_coverage": int((wanted.drops == Drop.EMPTY_COVERAGE).sum()), "no_logprob": 1, "row_length": 1}
    table = pq.read_table(tmp_path / ADVANTAGES_NAME)
    kept = np.repeat(wanted.kept, np.diff(datums.offsets))
    np.testing.assert_array_equal(table.column("advantages").combine_chunks().flatten().to_numpy(), wanted.advantages[kept])
    assert table.column("trial_name").to_pylist() == [
        name for name, keep in zip(datums.trial_name, wanted.kept, strict=True) if keep
    ]

    first, rows, reasons = read_drops(tmp_path)
    assert rows.tolist() == np.flatnonzero(wanted.drops).tolist() == [row["row"] for row in first]
    assert reasons == [Drop(code) for code in wanted.drops[rows]]
    assert [row["reason"] for row in first] == list(map(drop_name, reasons))
    parts = list(attached_parts(inputs, tmp_path))
    assert len(parts) > 3
    np.testing.assert_array_equal(np.concatenate([part.advantages for part in parts]), wanted.advantages)
    np.testing.assert_array_equal(np.concatenate([part.drops for part in parts]), wanted.drops)


def test_damaged_plans_are_named_and_how_to_mend_them(folder, tmp_path):
    whole = (folder / "plans" / PLANS_NAME).read_bytes()
    table = pq.read_table(folder / "plans" / PLANS_NAME)

    def refused(message: str) -> None:
        for name in TOKEN_FILES:
            (tmp_path / name).write_bytes((folder / "plans" / name).read_bytes())
        with pytest.raises(CorruptArtifactError, match=rf"plans\.parquet: {message}.*Make it anew, with --refresh\.$") as caught:
            write_advantages(inputs_of(folder, tmp_path), clip=None, center=False, directory=tmp_path)
        assert "\n" not in str(caught.value)

    for damaged in (whole[: len(whole) // 2], b"", b"PAR1" + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :]):
        (tmp_path / PLANS_NAME).write_bytes(damaged)
        refused("can't be decoded")
    pq.write_table(table.slice(0, COUNT - 1), tmp_path / PLANS_NAME)
    refused("holds fewer plans than there are datums, expected one a datum")
    pq.write_table(table.rename_columns(["trial_name", "fragment_index", "teacher_token_count", "spans"]), tmp_path / PLANS_NAME)
    refused("plans are no table of chunk plans")
    backwards = [row["chunks"][::-1] for row in table.to_pylist()]
    pq.write_table(table.set_column(3, "chunks", pa.array(backwards, table.schema.field("chunks").type)), tmp_path / PLANS_NAME)
    refused("the plan of trial .*, fragment .* has chunk 1 at")


def test_logprobs_that_are_none_are_the_files_fault(folder, tmp_path):
    rows = pq.read_table(folder / "logprobs.parquet").to_pylist()
    rows[8] = {"teacher_logprobs": [None, *(1.5 for _ in rows[8]["teacher_logprobs"][1:])]}
    write_rows(folder / "positive.parquet", rows)
    with pytest.raises(
        BadRowError, match=r"positive\.parquet:9: has a teacher_logprobs of 1\.5 at position \d+, expected at most 0"
    ):
        write_advantages(inputs_of(folder, logprobs="positive"), clip=None, center=False, directory=tmp_path)


def test_no_drops_and_nothing_but_drops(folder, tmp_path):
    (tmp_path / "a").mkdir()
    write_rows(folder / "none.parquet", [{"teacher_logprobs": []} for _ in range(COUNT)])
    made = write_advantages(inputs_of(folder, logprobs="none"), clip=None, center=False, directory=tmp_path / "a")
    assert made["stats"]["datums"] == 0 and sum(made["drops"].values()) == COUNT
    assert made["doubt"].startswith(f"{made['drops']['row_length']} of {COUNT} rows of the teacher's logprobs are as long as")
    assert pq.read_table(tmp_path / "a" / ADVANTAGES_NAME).num_rows == 0
    assert pq.read_table(tmp_path / "a" / DROPS_NAME).num_rows == COUNT
    assert all(not part.advantages.any() for part in attached_parts(inputs_of(folder, logprobs="none"), tmp_path / "a"))
