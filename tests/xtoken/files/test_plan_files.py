"""From files of datums to plans: the same as in memory, read again as written; templates when they are needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_pair import BARE, CHATML, LINES, as_json, datum_rows, write_rows, write_side

from zephon_core.blocks import TokenRows
from zephon_core.errors import BadRowError, InputError, SpecError
from zephon_core.readers.sources import resolve_sources
from zephon_core.tokenizers import Tokenizer
from zephon_core.xtoken import Conversation, TrainDatum, build_chunk_plans
from zephon_core.xtoken.files.parquet_rows import ParquetRows, stored_tables
from zephon_core.xtoken.files.plan_files import (
    PLANS_NAME,
    Templates,
    check_datum_rows,
    late_template,
    load_templates,
    reads_messages,
    teacher_side,
    write_plans,
)
from zephon_core.xtoken.plans import PlanColumns

pytest.importorskip("transformers")
COUNT = 24
FIELDS = tuple(TrainDatum.model_fields)[:-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pair")


@pytest.fixture(scope="module")
def sides(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    return write_side(folder / "student", 400, CHATML), write_side(folder / "teacher", 330, BARE, *LINES[1:])


@pytest.fixture(scope="module")
def templates(folder: Path, sides: object) -> Templates:
    return load_templates(str(folder / "student"), "", str(folder / "teacher"), "")


def opened(*files: Path) -> ParquetRows:
    return ParquetRows.open(resolve_sources([str(file) for file in files]))


def planned(rows: ParquetRows, sides: tuple[Tokenizer, Tokenizer], templates: Templates | None, to: Path) -> dict[str, Any]:
    to.mkdir()
    return write_plans(rows, student=sides[0], teacher=sides[1], templates=templates, directory=to)


@pytest.mark.parametrize("messages", [False, True])
def test_plans_of_a_file_are_those_of_the_library(sides, templates, tmp_path, messages):
    rows = datum_rows(*sides, COUNT, messages=messages)
    datums = [TrainDatum(**{name: row[name] for name in FIELDS}) for row in rows]
    both = {"student_tokenizer": sides[0], "teacher_tokenizer": sides[1]}
    if messages:
        both |= {"student_template": templates.student.render, "teacher_template": templates.teacher.render}
    wanted = build_chunk_plans(datums, [row["messages" if messages else "teacher_tokens"] for row in rows], **both)
    files = [write_rows(tmp_path / "a.parquet", rows[:9], row_group=4), write_rows(tmp_path / "b.parquet", rows[9:], row_group=99)]
    statistics = planned(opened(*files), sides, templates if messages else None, tmp_path / "to")
    found = [plan for table in stored_tables(tmp_path / "to" / PLANS_NAME) for plan in PlanColumns.from_arrow(table).plans()]
    assert found == wanted
    lengths = [plan.teacher_token_count for plan in wanted if plan.teacher_token_count]
    tokens = TokenRows(tmp_path / "to")
    assert np.diff(tokens.offsets.astype(np.int64)).tolist() == lengths
    assert statistics == {
        "datums": COUNT,
        "chunks": sum(len(plan.chunks) for plan in wanted),
        "exact_chunks": sum(span.exact for plan in wanted for span in plan.chunks),
        "loss_tokens": sum(datum.loss_token_count for datum in datums),
        "covered_tokens": sum(plan.scored_student_tokens for plan in wanted),
        "student_tokens": sum(len(datum.model_input_tokens) for datum in datums),
        "teacher_tokens": sum(lengths),
        "doubt": "",
    }


def test_what_the_teacher_reads_of_messages(sides, templates, tmp_path):
    rows = datum_rows(*sides, 5, messages=True)
    (part,) = opened(write_rows(tmp_path / "a.parquet", as_json(rows))).parts(["messages"])
    side = teacher_side(part, sides[1], templates)
    wanted = [sides[1].encode_batch([templates.teacher.render(row["messages"], {})]).ids.tolist() for row in rows]
    assert [side.row(datum).tolist() for datum in range(5)] == wanted


@pytest.mark.parametrize(
    ("messages", "change", "message"),
    [
        (False, {"teacher_tokens": [3, 99_999]}, r"a\.parquet:3: teacher_tokens are of another vocabulary: .* no token 99999"),
        (False, {"model_input_tokens": [1], "loss_mask": [0.5]}, r"a\.parquet:3: has "),
        (True, {"messages": "[{]"}, r"a\.parquet:3: 'messages' is a text that is no JSON"),
        (True, {"messages": '[{"role": "clown", "content": ""}]'}, r"a\.parquet:3: is refused by .* \(TemplateError: no clowns!\)"),
    ],
)
def test_a_row_that_is_none_leaves_no_plans(sides, templates, tmp_path, messages, change, message):
    rows = datum_rows(*sides, 6, messages=messages)
    rows = as_json(rows) if messages else rows
    rows[2] = {**rows[2], **change}
    with pytest.raises(BadRowError, match=message):
        planned(opened(write_rows(tmp_path / "a.parquet", rows)), sides, templates if messages else None, tmp_path / "to")
    # Files that were begun are closed: whoever opens them again finds no handle in the way.
    assert planned(opened(write_rows(tmp_path / "b.parquet", datum_rows(*sides, 3, messages=False))), sides, None, tmp_path / "c")


def test_files_of_another_schema_and_damaged_ones(sides, tmp_path):
    rows = datum_rows(*sides, 6, messages=False)
    file = write_rows(tmp_path / "a.parquet", rows)
    assert not reads_messages(opened(file))
    for name, change, message in (
        ("loss_mask", pa.array(["x"] * 6), "column loss_mask is string, expected lists of numbers"),
        ("teacher_tokens", pa.array([["x"]] * 6), "column teacher_tokens is list<.*string>, expected lists of whole numbers"),
    ):
        table = pq.read_table(file)
        pq.write_table(table.set_column(table.schema.get_field_index(name), name, change), tmp_path / "b.parquet")
        with pytest.raises(InputError, match=rf"b\.parquet: {message}"):
            check_datum_rows(opened(tmp_path / "b.parquet"))
    pq.write_table(pq.read_table(file), tmp_path / "c.parquet", write_page_checksum=True)
    damaged = bytearray((tmp_path / "c.parquet").read_bytes())
    damaged[len(damaged) // 3] ^= 0xFF
    (tmp_path / "c.parquet").write_bytes(damaged)
    with pytest.raises(InputError, match=r"c\.parquet: can't be decoded"):
        planned(opened(tmp_path / "c.parquet"), sides, None, tmp_path / "to")


def test_a_template_of_a_folder_is_read_when_it_is_needed_and_a_given_one_at_once(folder, sides, tmp_path):
    conversation = Conversation([{"role": "user", "content": "Hi"}], {})
    for given in ("", CHATML):
        render = late_template(str(folder / "student"), given, "student_template")
        assert render(conversation.messages, {}) == "<|im_start|>user\nHi<|im_end|>\n"
    write_side(tmp_path / "broken", 400, "{% for %}")
    late = late_template(str(tmp_path / "broken"), "", "student_template")
    with pytest.raises(SpecError, match="broken: has a chat template named default that is no Jinja template"):
        late(conversation.messages, {})
    with pytest.raises(SpecError, match="student_template: is no Jinja template"):
        late_template(str(folder / "student"), "{% for %}", "student_template")
    with pytest.raises(SpecError, match="student_template: is none"):
        late_template(str(folder / "student"), "none", "student_template")(conversation.messages, {})


def test_other_templates_have_other_names(folder, sides, templates):
    own, teachers = templates.sha256
    assert len({own, teachers}) == 2 and all(len(each) == 64 for each in templates.sha256)
    unknown = load_templates(str(folder / "student"), "none", str(folder / "teacher"), "{{ messages }}")
    assert unknown.student is None and unknown.sha256[0] == "" and unknown.sha256[1] not in (own, teachers)
