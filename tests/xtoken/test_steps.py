"""The steps from datums to advantages: equal to the library's one call to the bit, each artifact named by what it is made from."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_pair import BARE, CHATML, LINES, as_json, datum_rows, encoded, logprob_rows_of, write_model, write_rows, write_side

from zephon_core.blocks import BlockState
from zephon_core.errors import (
    BadRowError,
    InputError,
    MissingArtifactError,
    SourceChangedError,
    SpecError,
    TokenizerError,
    ZephonError,
)
from zephon_core.store import ArtifactStore
from zephon_core.tokenizers import Tokenizer, load_tokenizer
from zephon_core.tokenizers.chat_template import load_chat_template
from zephon_core.upkeep import list_entries, sweep
from zephon_core.xtoken import TrainDatum, attach_chunk_advantages, build_chunk_plans, score_sequences
from zephon_core.xtoken import steps as all_steps
from zephon_core.xtoken.alignment.build import render_teacher
from zephon_core.xtoken.score.unit import UnitScorer
from zephon_core.xtoken.specs import ChunkAdvantagesRun, ChunkAdvantagesSpec
from zephon_core.xtoken.steps import ChunkAdvantagesResult, advantages_recipes, build_chunk_advantages, identify

pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("scores_here")

COUNT = 40
FIELDS = set(TrainDatum.model_fields) - {"advantages"}

Build = Callable[..., ChunkAdvantagesResult]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """student/ and teacher/, the teacher's with a model; tokens.parquet, messages.parquet, and the logprobs for each."""
    folder = tmp_path_factory.mktemp("pair")
    student = write_side(folder / "student", 400, CHATML)
    teacher = write_side(folder / "teacher", 330, BARE, *LINES[1:])
    write_model(folder / "teacher", teacher.vocab_size)
    for name, rows in (
        ("tokens", datum_rows(student, teacher, COUNT, messages=False)),
        ("messages", datum_rows(student, teacher, COUNT, messages=True)),
    ):
        write_rows(folder / f"{name}.parquet", rows)
        side = render_teacher(
            [row["messages"] if name == "messages" else row["teacher_tokens"] for row in rows],
            teacher_tokenizer=teacher,
            teacher_template=load_chat_template(str(folder / "teacher"), None).render,
        )
        logprobs = [{"teacher_logprobs": row} for row in logprob_rows_of(np.diff(side.offsets).tolist())]
        write_rows(folder / f"{name}.logprobs.parquet", logprobs, row_group=5)
    return folder


@pytest.fixture
def build(pair: Path, tmp_path: Path) -> Build:
    """Build advantages of tokens or messages, with logprobs that are given unless `score` is set, in a store of the test's own."""

    def build_from(side: str = "tokens", run: dict[str, Any] | None = None, **changes: Any) -> ChunkAdvantagesResult:
        return build_chunk_advantages(spec_of(pair, side, **changes), run_of(tmp_path, **(run or {})))

    return build_from


def spec_of(pair: Path, side: str = "tokens", **changes: Any) -> ChunkAdvantagesSpec:
    given = {} if changes.get("score") else {"teacher_logprobs": str(pair / f"{side}.logprobs.parquet")}
    sides = {"student": str(pair / "student"), "teacher": str(pair / "teacher")}
    return ChunkAdvantagesSpec.model_validate({"datums": str(pair / f"{side}.parquet"), **sides, **given, **changes})


def run_of(tmp_path: Path, **options: Any) -> ChunkAdvantagesRun:
    return ChunkAdvantagesRun(store=str(tmp_path / "store"), workers=1, device="cpu", **options)


def sides_of(pair: Path) -> tuple[Tokenizer, Tokenizer]:
    return load_tokenizer(pair / "student"), load_tokenizer(pair / "teacher")


def by_library(pair: Path, side: str, rows: list[dict[str, Any]], logprobs: list[Any], **settings: Any) -> Any:
    """What one call of the library gives for all datums at once."""
    student, teacher = sides_of(pair)
    datums = [TrainDatum(**{name: row[name] for name in FIELDS}) for row in rows]
    plans = build_chunk_plans(
        datums,
        [row["messages"] if side == "messages" else row["teacher_tokens"] for row in rows],
        student_tokenizer=student,
        teacher_tokenizer=teacher,
        student_template=load_chat_template(str(pair / "student"), None).render,
        teacher_template=load_chat_template(str(pair / "teacher"), None).render,
    )
    return attach_chunk_advantages(datums, plans, logprobs, **settings)


def rows_of(path: Path | str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def files_of(folder: str | Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in Path(folder).iterdir() if file.suffix != ".json"}


@pytest.mark.parametrize("side", ["tokens", "messages"])
@pytest.mark.parametrize("settings", [{}, {"clip": 0.75}, {"clip": 0.75, "center": True}, {"center": True}], ids=str)
def test_equal_to_one_call_of_the_library_to_the_bit(build: Build, pair: Path, side: str, settings: dict[str, Any]) -> None:
    rows, given = rows_of(pair / f"{side}.parquet"), rows_of(pair / f"{side}.logprobs.parquet")
    datums, stats = by_library(pair, side, rows, [row["teacher_logprobs"] for row in given], **settings)
    result = build(side, **settings)
    made = rows_of(f"{result.output}/advantages.parquet")
    assert 0 < stats.empty_coverage_drops < stats.datums and stats.chunks > 100
    assert [row["advantages"] for row in made] == [datum.advantages for datum in datums]
    assert [(row["trial_name"], row["fragment_index"]) for row in made] == [(d.trial_name, d.fragment_index) for d in datums]
    assert result.stats == stats.model_dump() == json.loads(Path(result.output, "stats.json").read_bytes())
    assert (stats.clipped_chunks > 0) == ("clip" in settings)


@pytest.mark.parametrize("side", ["tokens", "messages"])
def test_row_groups_change_nothing_in_the_files(
    build: Build, pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    monkeypatch.setattr("zephon_core.xtoken.files.parquet_rows._PART_ROWS", 2048)
    rows, made = rows_of(pair / f"{side}.parquet"), []
    for row_group in (1, 6, 99):
        file = write_rows(tmp_path / f"{row_group}.parquet", rows, row_group=row_group)
        made.append(files_of(build(side, datums=str(file)).output))
    assert made[0] == made[1] == made[2] and {"advantages.parquet", "drops.parquet"} <= made[0].keys()


def test_scored_by_a_model_as_given_its_logprobs(build: Build, pair: Path) -> None:
    rows = rows_of(pair / "tokens.parquet")
    scores = score_sequences(pair / "teacher", [row["teacher_tokens"] for row in rows])
    datums, stats = by_library(pair, "tokens", rows, list(scores.lists()), center=True)
    result = build(score={"model": str(pair / "teacher")}, center=True)
    assert [row["advantages"] for row in rows_of(f"{result.output}/advantages.parquet")] == [d.advantages for d in datums]
    assert result.stats == stats.model_dump()
    assert list(result.cached) == ["align", "score", "attach", "report"]


def test_all_columns_travel_in_order_of_the_rows(build: Build, pair: Path, tmp_path: Path) -> None:
    table = pq.read_table(pair / "tokens.parquet")
    more = {
        "reward": pa.array([number / 3 for number in range(COUNT)], pa.float32()),
        "origin": pa.array([{"file": f"f{number}", "tags": [str(number)] * (number % 3)} for number in range(COUNT)]),
        "blob": pa.array([bytes([number]) if number % 2 else None for number in range(COUNT)]),
        "level": pa.array([["low", "high"][number % 2] for number in range(COUNT)]).dictionary_encode(),
        "advantages": pa.nulls(COUNT, pa.list_(pa.float64())),
    }
    for name, values in more.items():
        table = table.append_column(name, values)
    parts = [str(tmp_path / "0.parquet"), str(tmp_path / "1.parquet")]
    pq.write_table(table.slice(0, 13), parts[0], row_group_size=4)
    pq.write_table(table.slice(13), parts[1])
    result = build(datums=[str(tmp_path / "?.parquet")])
    made, drops = pq.read_table(f"{result.output}/advantages.parquet"), rows_of(f"{result.output}/drops.parquet")
    assert made.schema.equals(table.schema)
    kept = np.setdiff1d(np.arange(COUNT), [drop["row"] for drop in drops])
    assert made.drop_columns("advantages").equals(table.drop_columns("advantages").take(pa.array(kept)))
    plain = build()
    assert made.column("advantages").equals(pq.read_table(f"{plain.output}/advantages.parquet").column("advantages"))


def test_drops_are_listed_with_their_reason(build: Build, pair: Path, tmp_path: Path) -> None:
    given = rows_of(pair / "tokens.logprobs.parquet")
    given[1]["teacher_logprobs"].append(-1.0)
    given[2]["teacher_logprobs"][3:] = [None] * (len(given[2]["teacher_logprobs"]) - 3)
    given[8]["teacher_logprobs"] = None
    logprobs = write_rows(tmp_path / "logprobs.parquet", given)
    result = build(teacher_logprobs=str(logprobs))
    drops = {row["row"]: row for row in rows_of(f"{result.output}/drops.parquet")}
    reasons = {row: drop["reason"] for row, drop in drops.items()}
    empty = [row for row in range(COUNT) if row % 11 in (5, 7)]
    assert reasons == {1: "row_length", 2: "no_logprob", 8: "row_length", **dict.fromkeys(empty, "empty_coverage")}
    tokens = len(rows_of(pair / "tokens.parquet")[1]["teacher_tokens"])
    assert drops[1] == {
        "row": 1,
        "trial_name": "trial 0",
        "fragment_index": 1,
        "reason": "row_length",
        "detail": f"the teacher's row has {tokens + 1} logprobs, expected {tokens}, one a token",
    }
    assert result.drops == {"empty_coverage": len(empty), "no_logprob": 1, "row_length": 2}
    assert result.stats["mismatch_drops"] == 3 and result.stats["empty_coverage_drops"] == len(empty)


def told(pair: Path, folder: Path, side: str, change: Callable[[list[dict[str, Any]]], None], **types: pa.DataType) -> str:
    """Write logprobs that say whose they are, changed somehow."""
    rows, given = rows_of(pair / f"{side}.parquet"), rows_of(pair / f"{side}.logprobs.parquet")
    teacher = load_tokenizer(pair / "teacher")
    template = load_chat_template(str(pair / "teacher"), None).render
    named = [
        {
            **{name: row[name] for name in ("trial_name", "fragment_index")},
            "teacher_tokens": row["teacher_tokens"] if side == "tokens" else encoded(teacher, template(row["messages"], {})),
            **logprobs,
        }
        for row, logprobs in zip(rows, given, strict=True)
    ]
    change(named)
    return str(write_rows(folder / "told.parquet", named, row_group=6, **types))


@pytest.mark.parametrize("side", ["tokens", "messages"])
def test_logprobs_that_say_whose_they_are_are_taken_for_these(build: Build, pair: Path, tmp_path: Path, side: str) -> None:
    plain = files_of(build(side).output)
    for types in ({}, {"fragment_index": pa.uint8(), "teacher_tokens": pa.list_(pa.uint16())}):
        assert files_of(build(side, teacher_logprobs=told(pair, tmp_path, side, lambda rows: None, **types)).output) == plain


def swapped(rows: list[dict[str, Any]]) -> None:
    rows[3], rows[4] = rows[4], rows[3]


@pytest.mark.parametrize("side", ["tokens", "messages"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda rows: rows.__setitem__(slice(None), rows[::-1]),
            rf"told\.parquet:1: has trial_name 'trial {(COUNT - 1) // 3}', expected 'trial 0', that of .*:1\. Name the file",
        ),
        (swapped, r"told\.parquet:4: has fragment_index 1, expected 0, that of .*\.parquet:4\."),
        (lambda rows: rows[9].update(trial_name=None), r"told\.parquet:10: has trial_name null, expected 'trial 3', that of"),
        (
            lambda rows: rows[9]["teacher_tokens"].__setitem__(1, 0),
            r"told\.parquet:10: has 0 in teacher_tokens at position 1, expected \d+, which the teacher reads for .*\.parquet:10\.",
        ),
        (
            lambda rows: rows[9]["teacher_tokens"].__setitem__(1, None),
            r"told\.parquet:10: has null in teacher_tokens at position 1, expected \d+, which the teacher reads for",
        ),
        (
            lambda rows: rows[20].update(teacher_tokens=[1, 2]),
            r"told\.parquet:21: has 2 teacher_tokens, expected \d+, which the teacher reads for .*\.parquet:21\.",
        ),
    ],
)
def test_logprobs_of_other_datums_are_refused(
    build: Build, pair: Path, tmp_path: Path, side: str, change: Callable[[list[dict[str, Any]]], None], message: str
) -> None:
    with pytest.raises(BadRowError, match=message) as caught:
        build(side, teacher_logprobs=told(pair, tmp_path, side, change))
    assert "\n" not in str(caught.value)


def test_columns_that_say_whose_logprobs_are_must_be_of_their_type(build: Build, pair: Path, tmp_path: Path) -> None:
    def numbered(rows: list[dict[str, Any]]) -> None:
        for number, row in enumerate(rows):
            row["trial_name"] = number

    with pytest.raises(InputError, match=r"told\.parquet: column trial_name is int64, expected text"):
        build(teacher_logprobs=told(pair, tmp_path, "tokens", numbered))


def test_logprobs_above_0_are_refused_where_they_are_needed(build: Build, pair: Path, tmp_path: Path) -> None:
    rows = rows_of(pair / "tokens.parquet")
    rows[2]["loss_mask"][-1] = 1.0
    for value, place in ((1e-4, -1), (5.0, 0)):  # rounding, and padding
        rows[2]["sampled_logprobs"][place] = value
        assert rows[2]["loss_mask"][0] == 0.0
        build(datums=str(write_rows(tmp_path / "some.parquet", rows)))
    last = len(rows[2]["loss_mask"]) - 1
    rows[2]["sampled_logprobs"][last] = 5.0
    message = rf"some\.parquet:3: has a sampled_logprobs of 5\.0 at position {last}, expected at most 0\. Turn the sign of negative"
    with pytest.raises(BadRowError, match=message):
        build(datums=str(write_rows(tmp_path / "some.parquet", rows)))

    given = rows_of(pair / "tokens.logprobs.parquet")
    given[2]["teacher_logprobs"][0] = 7.0  # nothing precedes it: no chunk needs it
    given[4]["teacher_logprobs"].append(8.0)  # dropped for its length
    result = build(teacher_logprobs=str(write_rows(tmp_path / "given.parquet", given)))
    assert result.drops["row_length"] == 1
    last = len(given[9]["teacher_logprobs"]) - 1
    given[9]["teacher_logprobs"][last] = 5.0
    message = (
        rf"given\.parquet:10: has a teacher_logprobs of 5\.0 at position {last}, expected at most 0\. Turn the sign of negative"
    )
    with pytest.raises(BadRowError, match=message):
        build(teacher_logprobs=str(write_rows(tmp_path / "given.parquet", given)))
    given[9]["teacher_logprobs"][last] = float("inf")
    result = build(teacher_logprobs=str(write_rows(tmp_path / "given.parquet", given)))
    assert result.drops["no_logprob"] == 1


def test_logprobs_too_large_to_count_with_drop_their_datums(build: Build, pair: Path, tmp_path: Path) -> None:
    given = rows_of(pair / "tokens.logprobs.parquet")
    for row, value in ((1, -1e308), (2, -1.7e308), (9, -3.4e38)):
        given[row]["teacher_logprobs"][1:] = [value] * (len(given[row]["teacher_logprobs"]) - 1)
    result = build(teacher_logprobs=str(write_rows(tmp_path / "given.parquet", given)))
    assert [row["row"] for row in rows_of(f"{result.output}/drops.parquet") if row["reason"] == "no_logprob"] == [1, 2]
    assert all(np.isfinite(value) for value in result.stats.values())


def test_a_column_of_advantages_is_not_overwritten(build: Build, pair: Path, tmp_path: Path) -> None:
    table = pq.read_table(pair / "tokens.parquet")
    pq.write_table(table.append_column("advantages", pa.array([0.5] * COUNT)), tmp_path / "has.parquet")
    with pytest.raises(
        InputError, match=r"has\.parquet: has a column advantages, which would be overwritten\. Rename it or drop it"
    ):
        build(datums=str(tmp_path / "has.parquet"))


def test_drops_are_logged_up_to_a_number(build: Build, pair: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = [{"teacher_logprobs": [0.0]} for _ in range(COUNT)]
    rows = [{**row, "trial_name": "a\x1b[31m"} for row in rows_of(pair / "tokens.parquet")]
    result = build(
        datums=str(write_rows(tmp_path / "named.parquet", rows)),
        teacher_logprobs=str(write_rows(tmp_path / "given.parquet", given)),
    )
    words = [record.getMessage() for record in caplog.records if record.name.endswith("advantages")]
    assert result.stats["datums"] == 0 and len(words) == 22
    count = len(rows[0]["teacher_tokens"])
    assert words[0] == rf"dropped: trial a\x1b[31m, fragment 0: the teacher's row has 1 logprobs, expected {count}, one a token"
    assert words[20] == f"dropped: {COUNT - 20} more, {COUNT} in all, which drops.parquet lists"
    assert words[21].startswith(f"{COUNT} of {COUNT} rows of the teacher's logprobs are as long as another sequence")


def test_a_model_of_another_vocabulary_is_refused_before_it_scores(build: Build, pair: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    size = write_side(other, 345, BARE, *LINES[::-1]).vocab_size
    write_model(other, size)
    score = {"model": str(other)}
    message = (
        r"score\.model: is .*other, whose tokenizer has another vocabulary than .*teacher: token \d+ is b'.*', expected b'.*Name"
    )
    with pytest.raises(SpecError, match=message):
        build(score=score)
    (other / "tokenizer.json").unlink()  # nothing says what it reads
    build(score=score)
    definition = json.loads((pair / "teacher" / "tokenizer.json").read_bytes())
    definition["added_tokens"][0]["content"] = "<|im_begin|>"
    definition["model"]["vocab"] = dict(reversed(definition["model"]["vocab"].items()))
    definition["normalizer"] = {"type": "NFC"}
    (other / "tokenizer.json").write_text(json.dumps(definition))
    build(score=score)  # another file, the same vocabulary
    write_model(other, 300)
    message = (
        r"score\.model: is .*other, which knows 300 ids, and the teacher's tokenizer gives 3\d\d, expected a model of the teacher's"
    )
    with pytest.raises(SpecError, match=message):
        build(score=score)


def test_where_the_teacher_reads_nothing_at_all_the_file_is_named(build: Build, pair: Path, tmp_path: Path) -> None:
    rows = [{**row, "teacher_tokens": []} for row in rows_of(pair / "tokens.parquet")]
    with pytest.raises(
        InputError, match=r"silent\.parquet: holds no token that the teacher could score, expected one row with tokens"
    ):
        build(datums=str(write_rows(tmp_path / "silent.parquet", rows)), score={"model": str(pair / "teacher")})


def test_lists_of_a_fixed_size_give_the_same_advantages(build: Build, pair: Path, tmp_path: Path) -> None:
    rows = rows_of(pair / "tokens.parquet")
    size = max(len(row["loss_mask"]) for row in rows)
    for row in rows:
        more = size - len(row["loss_mask"])
        for name, padding in (("model_input_tokens", 0), ("loss_mask", 0.0), ("sampled_logprobs", 0.0)):
            row[name] += [padding] * more
    kinds = {"model_input_tokens": pa.int32(), "loss_mask": pa.float32(), "sampled_logprobs": pa.float64()}
    fixed = {name: pa.list_(kind, size) for name, kind in kinds.items()}
    plain = build(datums=str(write_rows(tmp_path / "plain.parquet", rows)))
    made = build(datums=str(write_rows(tmp_path / "fixed.parquet", rows, **fixed)))
    plain_table, made_table = (pq.read_table(f"{each.output}/advantages.parquet") for each in (plain, made))
    assert made_table.column("advantages").equals(plain_table.column("advantages")) and made.stats == plain.stats
    assert made_table.schema.field("loss_mask").type == fixed["loss_mask"]


def test_a_teacher_that_reads_nothing_gets_no_row_and_shifts_no_other(build: Build, pair: Path, tmp_path: Path) -> None:
    rows = rows_of(pair / "tokens.parquet")
    rows[0]["teacher_tokens"] = rows[17]["teacher_tokens"] = rows[-1]["teacher_tokens"] = []
    datums = write_rows(tmp_path / "datums.parquet", rows)
    some = [row["teacher_tokens"] for row in rows if row["teacher_tokens"]]
    scored = iter(score_sequences(pair / "teacher", some).lists())
    logprobs = [next(scored) if row["teacher_tokens"] else [] for row in rows]
    expected, stats = by_library(pair, "tokens", rows, logprobs)
    result = build(datums=str(datums), score={"model": str(pair / "teacher")})
    assert [row["advantages"] for row in rows_of(f"{result.output}/advantages.parquet")] == [d.advantages for d in expected]
    assert result.stats == stats.model_dump()


def test_messages_as_structs_and_as_json_are_the_same(build: Build, pair: Path, tmp_path: Path) -> None:
    rows = rows_of(pair / "messages.parquet")
    result = build("messages", datums=str(write_rows(tmp_path / "json.parquet", as_json(rows))))
    assert files_of(result.output)["drops.parquet"] == files_of(build("messages").output)["drops.parquet"]
    made, plain = (rows_of(f"{each.output}/advantages.parquet") for each in (result, build("messages")))
    assert [row["advantages"] for row in made] == [row["advantages"] for row in plain]


def test_without_the_students_template_a_diff_finds_what_is_common(build: Build, pair: Path) -> None:
    result = build("messages", student_template="none")
    assert result.stats["coverage_rate"] > 0.9
    assert result.fingerprint != build("messages").fingerprint
    given = build("messages", student_template=CHATML, teacher_template=str(pair / "teacher" / "chat_template.jinja"))
    assert given.fingerprint == build("messages").fingerprint  # by content, wherever it is from


def test_what_is_made_is_found_again_wherever_its_inputs_lie(build: Build, pair: Path, tmp_path: Path) -> None:
    score = {"model": str(pair / "teacher")}
    first = build(score=score)
    assert set(first.cached.values()) == {False}
    assert set(build(score=score, run={"output": str(tmp_path / "out")}).cached.values()) == {True}
    shutil.copytree(pair, tmp_path / "moved")
    moved = spec_of(tmp_path / "moved", score={"model": str(tmp_path / "moved" / "teacher")})
    again = build_chunk_advantages(moved, run_of(tmp_path))
    assert set(again.cached.values()) == {True} and again.fingerprint == first.fingerprint


def test_a_change_makes_anew_what_depends_on_it_and_nothing_else(build: Build, pair: Path, tmp_path: Path) -> None:
    score = {"model": str(pair / "teacher"), "max_batch": 2}
    build(score=score)
    cached = {"align": True, "score": True, "attach": True, "report": True}
    assert build(score=score, clip=0.5).cached == {**cached, "attach": False, "report": False}
    assert build(score=score, center=True).cached == {**cached, "attach": False, "report": False}
    assert build(score=score, name="other").cached == {**cached, "report": False}
    assert build(score={**score, "max_batch": 3}).cached == {**cached, "score": False, "attach": False, "report": False}
    student = tmp_path / "student"
    write_side(student, 400, CHATML + " ")
    plain = build(score=score, student=str(student))
    assert plain.cached == cached | {"report": True}  # tokens need no template
    write_side(student, 410, CHATML)
    other = build(score=score, student=str(student))
    assert other.cached == {**cached, "align": False, "attach": False, "report": False}  # the teacher reads what it read


def test_another_template_is_another_plan_and_other_scores(build: Build, pair: Path) -> None:
    score = {"model": str(pair / "teacher")}
    build("messages", score=score)
    other = build("messages", score=score, teacher_template=BARE.replace("[U]", "[A]"))
    assert set(other.cached.values()) == {False}
    other = build("messages", score=score, student_template=CHATML.replace("tools", "utensils"))
    assert other.cached == {"align": False, "score": True, "attach": False, "report": False}


def test_leftovers_of_a_killed_run_do_not_get_into_an_artifact(build: Build, pair: Path, tmp_path: Path) -> None:
    expected = files_of(build().output)
    store = ArtifactStore(tmp_path / "second")
    spec = spec_of(pair)
    recipes = advantages_recipes(spec, identify(spec, store=store))
    for recipe in (recipes.align, recipes.attach, recipes.report):
        (store.partial(recipe) / "advantages.parquet").write_bytes(b"half")
        (store.partial(recipe) / "other").write_bytes(b"left")
    result = build_chunk_advantages(spec, ChunkAdvantagesRun(store=str(store.root)))
    assert files_of(result.output) == expected
    for recipe in (recipes.align, recipes.report):
        assert not store.needed(recipe).path.joinpath("other").exists()


def test_refresh_makes_everything_anew_and_compares(
    build: Build, pair: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    score = {"model": str(pair / "teacher"), "max_batch": 1}
    first = build(score=score)
    before = files_of(first.output)
    again = build(score=score, run={"refresh": True})
    assert set(again.cached.values()) == {False} and files_of(again.output) == before


def test_scoring_that_was_cut_off_goes_on(build: Build, pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    score = {"model": str(pair / "teacher"), "max_batch": 1}
    whole = build(score=score)
    shutil.move(tmp_path / "store", tmp_path / "undisturbed")
    spec, run = spec_of(pair, score=score), run_of(tmp_path)
    store = ArtifactStore(run.store)
    identity = identify(spec, store=store)
    all_steps.align(spec, identity, store=store)
    done = 0

    def dies(self: UnitScorer, jobs: Any) -> Any:
        nonlocal done
        done += len(jobs)
        if done > 20:
            raise KeyboardInterrupt
        return once(self, jobs)

    once = UnitScorer.__call__
    monkeypatch.setattr(UnitScorer, "__call__", dies)
    with pytest.raises(KeyboardInterrupt):
        all_steps.score(spec, identity, run, store=store)
    recipe = advantages_recipes(spec, identity).score
    assert recipe is not None
    state = BlockState.read(store.partial_path(recipe))
    assert state is not None and 0 < len(state.records().records) < COUNT
    monkeypatch.setattr(UnitScorer, "__call__", once)
    again = build(score=score)
    assert again.fingerprint == whole.fingerprint
    assert files_of(again.output) == {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in (tmp_path / "undisturbed" / "chunk_advantages" / whole.fingerprint).iterdir()
        if file.suffix != ".json"
    }
    assert not store.partial_path(recipe).exists()


def test_a_restart_forgets_what_was_scored(pair: Path, tmp_path: Path) -> None:
    spec, store = spec_of(pair, score={"model": str(pair / "teacher")}), ArtifactStore(tmp_path / "store")
    identity = identify(spec, store=store)
    recipe = advantages_recipes(spec, identity).score
    assert recipe is not None
    (store.partial(recipe) / "blocks.0").write_bytes(b"x")
    all_steps.restart_score(spec, identity, store=store)
    assert not store.partial_path(recipe).exists()
    given = spec_of(pair)
    all_steps.restart_score(given, identify(given, store=store), store=store)  # nothing to forget


def test_steps_need_those_before_them(pair: Path, tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    spec = spec_of(pair, score={"model": str(pair / "teacher")})
    identity = identify(spec, store=store)
    for step in (all_steps.attach, all_steps.report):
        with pytest.raises(MissingArtifactError, match=r"holds no valid chunk_.*Run the steps before"):
            step(spec, identity, store=store)
    with pytest.raises(MissingArtifactError, match="chunk_plan"):
        all_steps.score(spec, identity, run_of(tmp_path), store=store)
    given = spec_of(pair)
    with pytest.raises(SpecError, match="nothing to score"):
        all_steps.score(given, identify(given, store=store), run_of(tmp_path), store=store)


def test_inputs_that_change_under_a_run_are_noticed(pair: Path, tmp_path: Path) -> None:
    shutil.copytree(pair, tmp_path / "pair")
    store = ArtifactStore(tmp_path / "store")
    spec = spec_of(tmp_path / "pair", "messages")
    identity = identify(spec, store=store)
    (tmp_path / "pair" / "teacher" / "chat_template.jinja").write_text(BARE + " ")
    with pytest.raises(SourceChangedError, match="the chat templates"):
        all_steps.align(spec, identity, store=store)
    identity = identify(spec, store=store)
    write_side(tmp_path / "pair" / "student", 390, CHATML)
    with pytest.raises(SourceChangedError, match="student"):
        all_steps.align(spec, identity, store=store)
    identity = identify(spec, store=store)
    write_rows(tmp_path / "pair" / "messages.parquet", rows_of(pair / "messages.parquet"), row_group=9)
    with pytest.raises(SourceChangedError, match=r"messages\.parquet"):
        all_steps.align(spec, identity, store=store)


def test_what_is_published_is_a_folder_with_its_page(build: Build, tmp_path: Path) -> None:
    output = tmp_path / "deep" / "out"
    result = build(run={"output": str(output)}, name="mine")
    assert result.output == str(output)
    assert {file.name for file in output.iterdir()} == {
        "advantages.parquet",
        "drops.parquet",
        "stats.json",
        "report.html",
        all_steps.MANIFEST_NAME,
    }
    manifest = json.loads((output / all_steps.MANIFEST_NAME).read_bytes())
    assert manifest["name"] == "mine" and manifest["fingerprints"]["advantages"] == result.fingerprint
    assert "mine" in (output / "report.html").read_text()
    before = (output / all_steps.MANIFEST_NAME).stat()
    build(run={"output": str(output)}, name="mine")
    assert (output / all_steps.MANIFEST_NAME).stat() == before  # left alone
    build(run={"output": str(output)}, clip=0.1)
    assert json.loads((output / "stats.json").read_bytes())["clipped_chunks"] > 0
    store = ArtifactStore(tmp_path / "store")
    gone = {entry.kind for entry in sweep(store, older_than_s=0)}
    assert {entry.kind for entry in list_entries(store) if not entry.published} >= gone
    assert not [file for file in output.parent.iterdir() if file.name.startswith(".")]


def test_a_folder_of_something_else_is_not_touched(build: Build, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("words")
    for output, message in (
        (
            str(tmp_path / "thesis"),
            "holds files that are no advantages, expected a new folder, an empty one, or one that holds advan",
        ),
        (str(tmp_path / "thesis" / "chapter.txt"), "is no folder"),
        ("s3://bucket/advantages", "is a URL"),
    ):
        with pytest.raises(SpecError, match=message):
            build(run={"output": output})
    assert not (tmp_path / "store").exists()  # found out before any work


@pytest.mark.parametrize(
    ("side", "change", "error", "message"),
    [
        ("tokens", {"trial_name": None}, BadRowError, r"bad\.parquet:4: has no trial_name, expected one a datum"),
        ("tokens", {"fragment_index": None}, BadRowError, r"bad\.parquet:4: has no fragment_index"),
        ("tokens", {"model_input_tokens": None}, BadRowError, r"bad\.parquet:4: has no model_input_tokens"),
        ("tokens", {"model_input_tokens": [5000]}, BadRowError, r"bad\.parquet:4: has \d+ values in loss_mask for 1 tokens"),
        (
            "tokens",
            {"model_input_tokens": [70, 5000], "loss_mask": [0.0, 1.0], "sampled_logprobs": [0.0, -1.0]},
            BadRowError,
            r"bad\.parquet:4: model_input_tokens are of another vocabulary: .*student/tokenizer\.json has no token 5000, which "
            r"stands at position 1, expected ids of its own, below \d+\. Name the tokenizer that gave these ids",
        ),
        (
            "tokens",
            {"teacher_tokens": [1, 2, -7]},
            BadRowError,
            r"bad\.parquet:4: teacher_tokens are of another vocabulary: .*no token -7",
        ),
        ("tokens", {"teacher_tokens": None}, BadRowError, r"bad\.parquet:4: has no teacher_tokens, expected a list of numbers"),
        ("json", {"messages": None}, BadRowError, r"bad\.parquet:4: 'messages' is null or not there, expected a list of messages"),
        ("json", {"messages": "{"}, BadRowError, r"bad\.parquet:4: 'messages' is a text that is no JSON"),
        (
            "json",
            {"messages": '[{"role": "user", "content": "a\\ud83d"}]'},
            BadRowError,
            r"bad\.parquet:4: 'messages' holds half of a surrogate pair \('\\ud83d' at character 2\)",
        ),
        ("json", {"messages": '[{"content": "a"}]'}, BadRowError, r"bad\.parquet:4: message 1 of 'messages' has no role"),
        (
            "json",
            {"messages": '[{"role": "clown", "content": "a"}]'},
            BadRowError,
            r"bad\.parquet:4: is refused by the chat template of .*teacher \(TemplateError: no clowns!\)\. Fix or drop the row",
        ),
    ],
)
def test_a_row_that_is_none_is_named(
    build: Build, pair: Path, tmp_path: Path, side: str, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    name = "tokens" if side == "tokens" else "messages"
    rows = rows_of(pair / f"{name}.parquet")
    rows = as_json(rows) if side == "json" else rows
    rows[3] = {**rows[3], **change}
    with pytest.raises(error, match=message) as caught:
        build(name, datums=str(write_rows(tmp_path / "bad.parquet", rows)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss_mask": None}, r"bad\.parquet: datums have no column loss_mask, expected trial_name"),
        (
            {"teacher_tokens": None},
            "datums have no column teacher_tokens or messages, expected one of them, for what the teacher reads",
        ),
        ({"messages": pa.array(["[]"] * COUNT)}, "datums have both columns teacher_tokens and messages.*Drop one"),
        ({"fragment_index": pa.array(["0"] * COUNT)}, "column fragment_index is string, expected whole numbers"),
        (
            {"teacher_tokens": pa.array([[0.5]] * COUNT)},
            r"column teacher_tokens is list<.*double>, expected lists of whole numbers",
        ),
        ({"loss_mask": pa.array([0.5] * COUNT)}, "column loss_mask is double, expected lists of numbers"),
    ],
)
def test_columns_that_are_no_datums_are_named(
    build: Build, pair: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    table = pq.read_table(pair / "tokens.parquet")
    for name, column in change.items():
        table = table.drop_columns([name]) if name in table.column_names else table
        table = table if column is None else table.append_column(name, column)
    pq.write_table(table, tmp_path / "bad.parquet")
    with pytest.raises(InputError, match=message):
        build(datums=str(tmp_path / "bad.parquet"))
    assert not (tmp_path / "store" / "chunk_plan").exists()


def test_a_wrong_tokenizer_is_suspected_by_name_and_figures(
    build: Build, pair: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    student, _ = sides_of(pair)
    assert build("tokens").doubt == ""
    rows = rows_of(pair / "tokens.parquet")
    wrong = [{**row, "teacher_tokens": [token % 300 for token in encoded(student, "Other words, at length. " * 9)]} for row in rows]
    logprobs = [{"teacher_logprobs": each} for each in logprob_rows_of([len(row["teacher_tokens"]) for row in wrong])]
    given = {"datums": write_rows(tmp_path / "a.parquet", wrong), "teacher_logprobs": write_rows(tmp_path / "b.parquet", logprobs)}
    doubt = build("tokens", **{name: str(path) for name, path in given.items()}).doubt
    assert re.match(r"No chunk covers any loss token of \d+ of \d+ datums, .*: one of the tokenizers is probably another", doubt)
    assert re.search(
        r"Of the ids, 100% of the student's and \d+\.\d+% of the teacher's come out again .*: the teacher's tokeni", doubt
    )
    (told,) = [record.getMessage() for record in caplog.records if record.name.endswith("plan_files")]
    assert re.match(r"chunks cover \d\d?\.\d % of the loss tokens\. Of the ids, 100% of the student's and", told)
    short = [{"teacher_logprobs": [None, *each["teacher_logprobs"]]} for each in rows_of(pair / "tokens.logprobs.parquet")]
    doubt = build("tokens", teacher_logprobs=str(write_rows(tmp_path / "c.parquet", short))).doubt
    assert re.match(r"\d+ of 40 rows of the teacher's logprobs are as long as another sequence .* \([\d,]+ logprobs for", doubt)


@pytest.mark.parametrize(
    ("side", "change", "message"),
    [
        ("tokens", {"student": "nowhere"}, "nowhere"),
        ("tokens", {"teacher": "nowhere"}, "nowhere"),
        ("tokens", {"datums": "nowhere.parquet"}, r"nowhere\.parquet: does not exist"),
        ("tokens", {"datums": "{pair}/tokens.logprobs.parquet"}, "datums have no column trial_name"),
        ("tokens", {"teacher_logprobs": "nowhere.parquet"}, r"nowhere\.parquet: does not exist"),
        ("tokens", {"teacher_logprobs": "{pair}/tokens.parquet"}, "has no column teacher_logprobs"),
        ("tokens", {"score": {"model": {"path": "nowhere"}}}, "nowhere: does not exist"),
        ("tokens", {"student_template": "{{ messages }}"}, "student_template: is given, and the datums carry teacher_tokens"),
        ("messages", {"teacher_template": "{% for %}"}, "teacher_template: is no Jinja template"),
    ],
)
def test_what_a_glance_tells_is_told_before_anything_is_hashed(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str, change: dict[str, Any], message: str
) -> None:
    def hashing(*_: object, **__: object) -> None:
        raise AssertionError("hashed")

    monkeypatch.setattr("zephon_core.xtoken.steps.resolve_sources", hashing)
    change = {name: value.replace("{pair}", str(pair)) if isinstance(value, str) else value for name, value in change.items()}
    with pytest.raises(ZephonError, match=message):
        identify(spec_of(pair, side, **change), store=ArtifactStore(str(tmp_path / "store")))


def test_logprobs_that_do_not_fit_are_refused_before_any_work(build: Build, pair: Path, tmp_path: Path) -> None:
    given = rows_of(pair / "tokens.logprobs.parquet")
    with pytest.raises(InputError, match=r"l\.parquet: has 39 rows for 40 datums, expected one a datum, in their order"):
        build(teacher_logprobs=str(write_rows(tmp_path / "l.parquet", given[1:])))
    with pytest.raises(InputError, match=r"has no column teacher_logprobs, but .*teacher_tokens, expected one"):
        build(teacher_logprobs=str(pair / "tokens.parquet"))
    with pytest.raises(InputError, match="column teacher_logprobs is string"):
        build(
            teacher_logprobs=str(
                write_rows(tmp_path / "l.parquet", [{"teacher_logprobs": "x"}] * COUNT, teacher_logprobs=pa.string())
            )
        )
    assert not (tmp_path / "store" / "chunk_plan").exists()


def test_settings_that_can_not_be_are_refused(build: Build, pair: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="teacher_template: is given, and the datums carry teacher_tokens, which need no template"):
        build(teacher_template=BARE)
    with pytest.raises(SpecError, match=r"student_template: names .*nowhere\.jinja, which can't be read"):
        build("messages", student_template=str(tmp_path / "nowhere.jinja"))
    bare = tmp_path / "bare"
    write_side(bare, 330, BARE, *LINES[1:])
    (bare / "chat_template.jinja").unlink()
    with pytest.raises(SpecError, match=r"bare: has no chat template.*Set teacher_template"):
        build("messages", teacher=str(bare))
    with pytest.raises(TokenizerError, match="nowhere: is not there"):
        build(teacher=str(tmp_path / "nowhere"))
    with pytest.raises(SpecError, match="device: is cuda:99, expected a GPU of this machine"):
        build_chunk_advantages(spec_of(pair), ChunkAdvantagesRun(store=str(tmp_path / "store"), device="cuda:99"))


def test_tools_are_rendered_and_a_diff_of_nothing_covers_nothing(build: Build, pair: Path, tmp_path: Path) -> None:
    student, teacher = sides_of(pair)
    rows = datum_rows(student, teacher, 3, messages=True)
    rows = [{**row, "tools": [{"name": "f", "arguments": None}]} for row in rows]
    datums = write_rows(
        tmp_path / "tools.parquet", rows, tools=pa.list_(pa.struct([("name", pa.string()), ("arguments", pa.string())]))
    )
    template = "{{ tools | tojson if tools else '' }}" + BARE
    text = '[{"name": "f"}]' + "".join(
        f"{'[A]' if message['role'] == 'assistant' else '[U]'} {message['content'].strip()}\n" for message in rows[0]["messages"]
    )
    result = build("messages", datums=str(datums), teacher_template=template, score={"model": str(pair / "teacher")})
    (plan,) = (tmp_path / "store" / "chunk_plan").iterdir()
    ids, offsets = np.load(plan / "token_ids.npy"), np.load(plan / "token_offsets.npy")
    assert ids[: offsets[1]].tolist() == encoded(teacher, text)
    assert result.stats["datums"] == 3
