"""A teacher's scores as artifacts: named by what decides them, made once, refused where the ids are another model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_pair import BARE, LINES, write_model, write_side

from zephon_core.blocks import TokenRows
from zephon_core.blocks.tokens import TokenRowsWriter
from zephon_core.errors import CorruptArtifactError, InputError, SpecError
from zephon_core.models import ModelSpec, model_content_sha256
from zephon_core.readers.sources import Source
from zephon_core.store import ArtifactRef, ArtifactStore, Recipe
from zephon_core.tokenizers import identify_tokenizer
from zephon_core.xtoken.files.score_files import build_scores, check_vocabulary, forget_scores, scores_recipe
from zephon_core.xtoken.score import ScoreRun, ScoreSpec, open_scores, score_sequences

pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("scores_here")

ROWS = [[5, 6, 7], [8], [9, 10, 11, 12, 13], [5, 6, 7]]
SOURCE = Source("", "datums.parquet", "parquet", "", 0, "0" * 64)
RUN = ScoreRun(workers=1, device="cpu")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    write_model(folder, write_side(folder, 330, BARE, *LINES[1:]).vocab_size)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(str(tmp_path / "store"))


def spec_of(teacher: Path, **options: Any) -> ScoreSpec:
    return ScoreSpec(model=ModelSpec(path=str(teacher)), **options)


def tokens_of(store: ArtifactStore, rows: list[list[int]]) -> ArtifactRef:
    def produce(directory: Path) -> dict[str, Any]:
        writer = TokenRowsWriter(directory)
        flat = np.array([token for row in rows for token in row], dtype=np.int64)
        writer.append(flat, np.array([len(row) for row in rows], dtype=np.int64))
        writer.close()
        return {}

    return store.build(Recipe.made_of("token_rows", 1, {"rows": str(rows)}, {}), produce).ref


def scored(store: ArtifactStore, teacher: Path, rows: list[list[int]] = ROWS, **options: Any) -> Any:
    spec = spec_of(teacher, **options)

    def unknown(place: int, known: int) -> Exception:
        return SpecError("score.model", f"knows {known}", wanted=f"the id at {place}")

    recipe = scores_recipe("token_scores", {"tokens": str(rows)}, model_content_sha256(spec.model), spec)
    return build_scores(recipe, tokens_of(store, rows), spec, RUN, sources=[SOURCE], unknown=unknown, store=store)


def test_scores_are_named_by_what_decides_them(teacher, tmp_path):
    def name(kind: str = "k", tokens: str = "t", model: str = "m", **options: Any) -> str:
        return scores_recipe(kind, {"tokens": tokens}, model, spec_of(teacher, **options)).fingerprint

    others = [name(kind="l"), name(tokens="u"), name(model="n"), name(max_batch=3), name(token_budget=64)]
    assert len({name(), *others}) == 6
    moved = scores_recipe("k", {"tokens": "t"}, "m", ScoreSpec(model=ModelSpec(path=str(tmp_path))))
    assert moved.fingerprint == name()


def test_scores_read_again_are_those_of_the_model_and_are_made_once(store, teacher):
    made = scored(store, teacher)
    assert not made.cached and scored(store, teacher).cached
    scores = open_scores(made.ref.path, tokens_of(store, ROWS).path)
    wanted = score_sequences(str(teacher), ROWS, run=RUN)
    assert len(scores) == len(ROWS)
    for row, each in enumerate(wanted):
        np.testing.assert_allclose(np.array(scores[row], dtype=np.float64), np.array(each, dtype=np.float64), atol=1e-4)


def test_a_record_tells_the_last_run_from_all_that_is_scored(store, teacher):
    record = store.record(scored(store, teacher).ref).statistics
    assert record["sequences"] == record["scored"] == len(ROWS)
    assert record["last_run"]["rows"] == len(ROWS) and record["last_run"]["seconds"] > 0
    assert not {"rows_now", "seconds", "tokens_per_second", "devices"} & record.keys()


def test_ids_that_the_model_has_not_and_nothing_to_score(store, teacher):
    with pytest.raises(SpecError, match=r"score\.model: knows \d+, expected the id at 4"):
        scored(store, teacher, [[5, 6, 7], [8, 70_000], [80_000]])
    with pytest.raises(InputError, match=r"datums\.parquet: holds no token that the teacher could score, expected one row"):
        scored(store, teacher, [])


def test_scores_that_are_cut_short_are_refused(store, teacher, tmp_path):
    made, tokens = scored(store, teacher), tokens_of(store, ROWS).path
    more = tokens_of(store, [*ROWS, [5]]).path
    with pytest.raises(CorruptArtifactError, match=r"holds 12 logprobs, expected 13"):
        open_scores(made.ref.path, more)
    assert len(TokenRows(tokens).ids) == 12


def test_what_an_interrupted_scoring_left_is_forgotten(store, teacher):
    recipe = scores_recipe("token_scores", {"tokens": "t"}, "m", spec_of(teacher))
    left = store.partial_path(recipe)
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"x")
    forget_scores(recipe, store=store)
    assert not left.exists()
    forget_scores(recipe, store=store)


def test_the_models_own_tokenizer_must_be_the_teachers(store, teacher, tmp_path):
    def check(given: Path) -> None:
        check_vocabulary(spec_of(teacher), str(given), identify_tokenizer(given, store), store=store)

    check(teacher)
    copy = tmp_path / "copy.json"
    copy.write_text(
        (teacher / "tokenizer.json").read_text().replace('"[U]"', '"[V]"')
    )  # another added token is no other vocabulary
    check(copy)
    other = tmp_path / "other"
    write_side(other, 345, BARE, *LINES[::-1])
    with pytest.raises(
        SpecError, match=r"score\.model: is .*, whose tokenizer has another vocabulary than .*other: token \d+ is b'"
    ):
        check(other)
