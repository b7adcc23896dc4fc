"""Files of sequences scored: rows as they were, logprobs as the library gives them, the same bytes however interrupted."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_pair import BARE, CHATML, LINES, datum_rows, write_model, write_rows, write_side

from zephon_core.blocks import BlockState
from zephon_core.errors import BadRowError, InputError, SpecError
from zephon_core.store import ArtifactStore
from zephon_core.xtoken import score_sequences
from zephon_core.xtoken.sequence_steps import MANIFEST_NAME, SequencesResult, identify, score_sequence_files, sequences_recipes
from zephon_core.xtoken.specs import ChunkAdvantagesRun, ChunkAdvantagesSpec, ScoreSequencesSpec
from zephon_core.xtoken.steps import build_chunk_advantages

pytest.importorskip("transformers")

ROOT = Path(__file__).parents[2]
VOCABULARY = 331
PROGRAM = """
import sys
from zephon_core.xtoken.sequence_steps import score_sequence_files
from zephon_core.xtoken.specs import ChunkAdvantagesRun, ScoreSequencesSpec
spec, run = ScoreSequencesSpec.model_validate_json(sys.argv[1]), ChunkAdvantagesRun.model_validate_json(sys.argv[2])
score_sequence_files(spec, run)
"""


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    write_model(folder, VOCABULARY)
    return folder


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of sequences, one of them without tokens, with a column of their own."""
    folder = tmp_path_factory.mktemp("sequences")
    rng = np.random.default_rng(2)
    lengths = [5, 1, 17, 0, 40, 2, 17, 5, *rng.integers(60, 90, 60).tolist()]
    rows = [{"key": f"k{number}", "tokens": rng.integers(0, VOCABULARY, length).tolist()} for number, length in enumerate(lengths)]
    for name, part in (("0", rows[:20]), ("1", rows[20:])):
        write_rows(folder / f"{name}.parquet", part, tokens=pa.list_(pa.uint16()))
    return folder


def spec_of(sequences: Path, teacher: Path, **changes: Any) -> ScoreSequencesSpec:
    score = {"model": str(teacher), "max_batch": 2, "token_budget": 128}
    files = sequences / "?.parquet" if sequences.is_dir() else sequences
    return ScoreSequencesSpec.model_validate({"sequences": str(files), "score": score, **changes})


def scored(spec: ScoreSequencesSpec, folder: Path, **options: Any) -> SequencesResult:
    return score_sequence_files(spec, ChunkAdvantagesRun(store=str(folder / "store"), workers=1, device="cpu", **options))


def table_of(result: SequencesResult) -> pa.Table:
    return pq.read_table(f"{result.output}/logprobs.parquet")


@pytest.mark.usefixtures("scores_here")
def test_rows_come_back_in_order_with_their_logprobs(sequences: Path, teacher: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    result = scored(spec_of(sequences, teacher, name="mine"), tmp_path, output=str(output))
    made = table_of(result)
    given = pa.concat_tables(pq.read_table(sequences / f"{number}.parquet") for number in (0, 1))
    assert made.drop_columns("teacher_logprobs").equals(given)
    assert made.schema.field("teacher_logprobs").type == pa.list_(pa.float64())
    rows = [row for row in given.column("tokens").to_pylist() if row]
    expected = iter(score_sequences(teacher, rows, max_batch=2, token_budget=128).lists())
    assert made.column("teacher_logprobs").to_pylist() == [
        next(expected) if row else [] for row in given.column("tokens").to_pylist()
    ]
    assert made.column("teacher_logprobs")[0].as_py()[0] is None
    assert (result.sequences, result.tokens) == (68, sum(map(len, rows)))
    assert result.poison == {} and result.receipt is not None and result.receipt["float32"]["largest_deviation"] < 1e-4
    assert result.output == str(output) and {file.name for file in output.iterdir()} == {"logprobs.parquet", MANIFEST_NAME}
    assert json.loads((output / MANIFEST_NAME).read_bytes())["name"] == "mine"
    json.dumps(result.to_json())


@pytest.mark.usefixtures("scores_here")
def test_what_is_scored_is_found_again(sequences: Path, teacher: Path, tmp_path: Path) -> None:
    spec = spec_of(sequences, teacher)
    first = scored(spec, tmp_path)
    assert set(first.cached.values()) == {False}
    shutil.copytree(sequences, tmp_path / "moved")
    shutil.copytree(teacher, tmp_path / "teacher")
    again = scored(spec_of(tmp_path / "moved", tmp_path / "teacher"), tmp_path)
    assert set(again.cached.values()) == {True} and again.fingerprint == first.fingerprint
    other = scored(spec_of(sequences, teacher, score={"model": str(teacher), "max_batch": 3}), tmp_path)
    assert other.cached == {"tokens": True, "score": False, "logprobs": False}
    before = Path(first.output, "logprobs.parquet").read_bytes()
    fresh = scored(spec, tmp_path, refresh=True)
    assert set(fresh.cached.values()) == {False} and Path(fresh.output, "logprobs.parquet").read_bytes() == before


def test_killed_and_resumed_gives_the_same_bytes(sequences: Path, teacher: Path, tmp_path: Path) -> None:
    spec = spec_of(sequences, teacher, score={"model": str(teacher), "max_batch": 1})
    whole = scored(spec, tmp_path / "whole")
    store = ArtifactStore(tmp_path / "killed" / "store")
    recipe = sequences_recipes(spec, identify(spec, store=store)).score
    run = ChunkAdvantagesRun(store=str(store.root), workers=1, device="cpu")
    arguments = [sys.executable, "-c", PROGRAM, spec.model_dump_json(), run.model_dump_json()]
    process = subprocess.Popen(arguments, cwd=ROOT)
    try:
        until = time.monotonic() + 120
        while not 3 <= _blocks_on_record(store.partial_path(recipe)) < 67:
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.002)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = _blocks_on_record(store.partial_path(recipe))
    if store.partial_path(recipe).exists():  # else it was just finished
        assert done >= 3
    again = scored(spec, tmp_path / "killed")
    assert again.fingerprint == whole.fingerprint and again.cached["tokens"]
    digests = {hashlib.sha256(Path(each.output, "logprobs.parquet").read_bytes()).hexdigest() for each in (whole, again)}
    assert len(digests) == 1


def _blocks_on_record(work: Path) -> int:
    state = BlockState.read(work) if work.exists() else None
    return 0 if state is None else len(state.records().records)


@pytest.mark.usefixtures("scores_here")
def test_what_comes_out_is_what_attaching_takes(tmp_path: Path) -> None:
    student = write_side(tmp_path / "student", 400, CHATML)
    tokenizer = write_side(tmp_path / "teacher", 330, BARE, *LINES[1:])
    write_model(tmp_path / "teacher", tokenizer.vocab_size)
    datums = write_rows(tmp_path / "datums.parquet", datum_rows(student, tokenizer, 20, messages=False))
    score = {"model": str(tmp_path / "teacher")}
    result = scored(ScoreSequencesSpec.model_validate({"sequences": str(datums), "score": score}), tmp_path)
    sides = {"datums": str(datums), "student": str(tmp_path / "student"), "teacher": str(tmp_path / "teacher")}
    run = ChunkAdvantagesRun(store=str(tmp_path / "store"), device="cpu")
    made = [
        build_chunk_advantages(ChunkAdvantagesSpec.model_validate({**sides, **logprobs}), run)
        for logprobs in ({"score": score}, {"teacher_logprobs": f"{result.output}/logprobs.parquet"})
    ]
    first, second = (Path(each.output, "advantages.parquet").read_bytes() for each in made)
    assert first == second and made[0].stats["chunks"] > 50


@pytest.mark.usefixtures("scores_here")
def test_logprobs_that_are_none_are_null(sequences: Path, teacher: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    broken = Path(shutil.copytree(teacher, tmp_path / "broken"))
    weights = load_file(broken / "model.safetensors")
    weights["model.embed_tokens.weight"][7] = math.nan
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    rows = [{"teacher_tokens": ids} for ids in ([3, 8, 5], [3, 7, 5], [9, 1])]
    spec = spec_of(write_rows(tmp_path / "rows.parquet", rows), broken)
    result = scored(spec, tmp_path)
    logprobs = table_of(result).column("teacher_logprobs").to_pylist()
    assert result.poison and logprobs[1] == [None] * 3 and [len(row) for row in logprobs] == [3, 3, 2]


@pytest.mark.parametrize(
    ("column", "values", "error", "message"),
    [
        (
            "ids",
            [[1]],
            InputError,
            r"bad\.parquet: sequences have no column teacher_tokens or tokens, expected one of them, with lists",
        ),
        ("tokens", ["abc"], InputError, r"bad\.parquet: column tokens is string, expected lists of whole numbers"),
        ("tokens", [[1], None], BadRowError, r"bad\.parquet:2: has no tokens, expected a list of numbers"),
        ("tokens", [[1], [2, -3]], BadRowError, r"bad\.parquet:2: holds token id -3, expected ids from 0 on"),
        ("tokens", [[], []], InputError, r"bad\.parquet: holds no token that the teacher could score, expected one row"),
        (
            "tokens",
            [[1, 2], [], [0], [1, VOCABULARY]],
            BadRowError,
            rf"bad\.parquet:4: has {VOCABULARY} in tokens at position 1, which .*teacher\d* has not, expected ids below",
        ),
    ],
)
@pytest.mark.usefixtures("scores_here")
def test_what_are_no_sequences_is_refused(
    teacher: Path, tmp_path: Path, column: str, values: list[Any], error: type[Exception], message: str
) -> None:
    path = write_rows(tmp_path / "bad.parquet", [{column: value} for value in values])
    with pytest.raises(error, match=message) as caught:
        scored(spec_of(path, teacher), tmp_path)
    assert "\n" not in str(caught.value)


def test_a_column_of_logprobs_is_not_overwritten(teacher: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "has.parquet", [{"tokens": [1], "teacher_logprobs": [-1.0]}])
    with pytest.raises(InputError, match=r"has\.parquet: has a column teacher_logprobs, which would be overwritten\. Rename it"):
        scored(spec_of(path, teacher), tmp_path)


def test_two_columns_of_ids_are_one_too_many(teacher: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "both.parquet", [{"tokens": [1], "teacher_tokens": [1]}])
    with pytest.raises(InputError, match="sequences have both columns teacher_tokens and tokens, expected one of them"):
        scored(spec_of(path, teacher), tmp_path)


def test_where_nothing_can_be_published_or_run_is_told_first(sequences: Path, teacher: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("words")
    with pytest.raises(SpecError, match="holds files that are no logprobs"):
        scored(spec_of(sequences, teacher), tmp_path, output=str(tmp_path / "thesis"))
    with pytest.raises(SpecError, match="is cuda:99"):
        score_sequence_files(spec_of(sequences, teacher), ChunkAdvantagesRun(store=str(tmp_path / "store"), device="cuda:99"))
    assert not (tmp_path / "store").exists()
