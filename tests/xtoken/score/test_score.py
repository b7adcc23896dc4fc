"""A teacher's logprobs: right beside a plain float64 computation, resumable to the byte, refused where they can't be right."""

from __future__ import annotations

import hashlib
import json
import math
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from zephon_core.blocks import BlockState
from zephon_core.errors import CorruptArtifactError, InputError, MismatchError, ModelError
from zephon_core.models import ModelSpec
from zephon_core.xtoken.score import (
    ScoreRun,
    ScoreSpec,
    open_scores,
    predict_score,
    read_scored,
    score_plan,
    score_sequences,
    score_tokens,
    write_token_rows,
)

ROOT = Path(__file__).parents[3]
QWEN = {
    "vocab_size": 331,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "initializer_range": 0.2,
}
PROGRAM = """
import sys
from pathlib import Path
from zephon_core.xtoken.score import ScoreRun, ScoreSpec, score_tokens
tokens, work, model, run = sys.argv[1:]
spec = ScoreSpec.model_validate({"model": model, "max_batch": 2, "token_budget": 64})
print(score_tokens(Path(tokens), spec, Path(work), run=ScoreRun.model_validate_json(run)).complete)
"""


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("teacher")
    Qwen3ForCausalLM(Qwen3Config(**QWEN)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def sequences() -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    short = [5, 1, 17, 5, 40, 2, 17, 5, 33, 40, 3, 1, 9]
    return [rng.integers(0, 331, length) for length in (*short, *rng.integers(60, 90, 60))]


@pytest.fixture(scope="module")
def expected(teacher: Path, sequences: list[np.ndarray]) -> list[np.ndarray]:
    """One sequence at a time, in float64."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(teacher).eval().double()
    rows = []
    with torch.no_grad():
        for ids in sequences:
            logs = model(input_ids=torch.from_numpy(ids)[None]).logits[0].log_softmax(-1).numpy()
            rows.append(np.array([math.nan, *(logs[at - 1, ids[at]] for at in range(1, len(ids)))]))
    return rows


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory, sequences: list[np.ndarray]) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    write_token_rows(folder, sequences)
    return folder


@pytest.fixture(scope="module")
def whole(teacher: Path, tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of scores that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    outcome = score_tokens(tokens, spec_of(teacher), folder)
    assert outcome.complete
    assert outcome.receipt is not None
    assert outcome.receipt["float32"]["largest_deviation"] < 1e-4
    return folder


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def spec_of(teacher: Path, **settings: Any) -> ScoreSpec:
    return ScoreSpec.model_validate({"model": str(teacher), "max_batch": 2, "token_budget": 64, **settings})


def blocks_on_record(work: Path) -> int:
    state = BlockState.read(work)
    return 0 if state is None else len(state.records().records)


def digest(work: Path) -> str:
    return hashlib.sha256((work / "logprobs.f32.npy").read_bytes()).hexdigest()


def test_scores_are_those_of_float64(whole: Path, tokens: Path, expected: list[np.ndarray]) -> None:
    scores = open_scores(whole, tokens)
    assert len(scores) == len(expected)
    for found, wanted in zip(scores, expected, strict=True):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_so_are_those_that_stay_in_memory(teacher: Path, sequences: list[np.ndarray], expected: list[np.ndarray]) -> None:
    scores = score_sequences(teacher, sequences[:13], run=ScoreRun(workers=1))
    for found, wanted in zip(scores, expected[:13], strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert [row[0] for row in scores.lists()] == [None] * 13
    assert scores[-1].tolist()[1:] == list(scores.lists())[-1][1:]
    assert [len(row) for row in scores[2:5]] == [17, 5, 40]


def test_a_receipt_says_how_far_half_precision_is(teacher: Path, tokens: Path, work: Path) -> None:
    outcome = score_tokens(tokens, spec_of(teacher, model={"path": str(teacher), "dtype": "bfloat16"}), work)
    assert outcome.complete
    assert outcome.receipt is not None
    assert 1e-6 < outcome.receipt["float32"]["largest_deviation"] < 1
    assert outcome.receipt["probe"]["rows"] == 16
    json.dumps(vars(outcome), allow_nan=False)


def test_a_second_run_loads_no_model(teacher: Path, tokens: Path, whole: Path) -> None:
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in whole.iterdir()}
    again = score_tokens(tokens, spec_of(teacher), whole)
    assert again.complete
    assert again.rows_now == 0
    assert again.devices == []
    assert {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in whole.iterdir()} == before


@pytest.mark.parametrize(("name", "value"), [("max_batch", 3), ("dtype", "bfloat16")])
def test_other_work_in_the_folder_is_refused(teacher: Path, tokens: Path, whole: Path, name: str, value: Any) -> None:
    settings = {name: value} if name == "max_batch" else {"model": {"path": str(teacher), name: value}}
    with pytest.raises(MismatchError, match=f"was begun with {name}"):
        score_tokens(tokens, spec_of(teacher, **settings), whole)


def test_killed_at_any_moment_it_ends_in_the_same_bytes(teacher: Path, tokens: Path, whole: Path, work: Path) -> None:
    arguments = [sys.executable, "-c", PROGRAM, str(tokens), str(work), str(teacher), '{"workers": 1}']
    chance, recorded = random.Random(3), []
    while len(recorded) < 3:
        process = subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.DEVNULL)
        goal = (recorded[-1] if recorded else 0) + chance.randrange(1, 8)
        while process.poll() is None and blocks_on_record(work) < goal:
            time.sleep(0.002)
        process.kill()
        process.wait()
        recorded.append(blocks_on_record(work))
    assert 0 < recorded[0] < recorded[1] < recorded[2]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
    assert digest(work) == digest(whole)
    assert sorted(path.name for path in work.iterdir()) == sorted(path.name for path in whole.iterdir())


def test_parts_make_the_whole_and_damage_is_mended(teacher: Path, tokens: Path, whole: Path, work: Path) -> None:
    with pytest.raises(CorruptArtifactError, match="holds no scores"):
        read_scored(work)
    first = score_tokens(tokens, spec_of(teacher), work, run=ScoreRun(parts=2, part=1, workers=1))
    assert not first.complete
    assert 0 < first.scored < first.sequences == 73
    with pytest.raises(CorruptArtifactError, match=rf"has {first.scored} of 73 sequences"):
        open_scores(work, tokens)
    scored = np.flatnonzero(np.load(work / "logprobs.f32.npy", mmap_mode="r"))
    with (work / "logprobs.f32.npy").open("r+b") as file:
        file.seek(128 + 4 * int(scored[0]))
        file.write(np.float32(-1).tobytes())
    again = score_tokens(tokens, spec_of(teacher), work, run=ScoreRun(workers=1))
    assert again.complete
    assert again.damaged_blocks == 1
    assert digest(work) == digest(whole)


def test_logprobs_that_are_none_are_never_handed_out(
    teacher: Path, sequences: list[np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("broken")
    for path in teacher.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][7] = math.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    harmless = [np.where(ids == 7, 8, ids) for ids in sequences if len(ids) > 1]
    spoilt = [*harmless, np.array([3, 7, 5])]
    work, tokens = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("tokens")
    write_token_rows(tokens, spoilt)
    outcome = score_tokens(tokens, spec_of(folder), work)
    assert outcome.poison == {"not a number": 1}
    assert not outcome.complete
    assert np.isnan(open_scores(work, tokens)[-1]).all()
    assert np.isfinite(open_scores(work, tokens)[0][1:]).all()


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([[1, 2], []], "sequence 1: is empty, expected token ids"),
        ([[1.5, 2.0]], r"sequence 0: is float64 \[2\]"),
        ([[1, -2]], r"sequence 0: is int64 \[2\]"),
        ([[[1], [2]]], r"sequence 0: is int64 \[2, 1\]"),
        ([], "holds no sequences"),
    ],
)
def test_what_are_no_ids_is_refused(teacher: Path, sequences: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        score_sequences(teacher, sequences)


def test_ids_beyond_the_vocabulary_are_refused(teacher: Path) -> None:
    with pytest.raises(ModelError, match="holds token id 331, expected ids below the model's 331"):
        score_sequences(ModelSpec(path=str(teacher)), [[1, 331]], run=ScoreRun(workers=1))


def test_specs_that_can_t_score_are_refused(teacher: Path) -> None:
    with pytest.raises(ValidationError, match="plugins encode, and don't score"):
        spec_of(teacher, model="some.module:factory")
    with pytest.raises(ValidationError, match="only torch scores"):
        spec_of(teacher, model={"path": str(teacher), "engine": "openvino"})
    with pytest.raises(ValidationError, match="part is 2 of 2 parts"):
        ScoreRun(parts=2, part=2)


def test_the_peak_is_within_the_prediction(tmp_path: Path) -> None:
    """A vocabulary of 150,000 words: the logits of one block of the budget would take 4.9 GB."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    settings = {name: value for name, value in QWEN.items() if name != "head_dim"}
    model, tokens, work = tmp_path / "model", tmp_path / "tokens", tmp_path / "work"
    LlamaForCausalLM(LlamaConfig(**{**settings, "vocab_size": 150_000, "tie_word_embeddings": False})).save_pretrained(model)
    tokens.mkdir()
    work.mkdir()
    rng = np.random.default_rng(0)
    write_token_rows(tokens, [rng.integers(0, 150_000, 400) for _ in range(12)])
    spec = ScoreSpec.model_validate({"model": str(model)})
    code = f"""
from pathlib import Path
from zephon_core.models import EncoderOptions
from zephon_core.blocks import BlockJob
import numpy as np
from zephon_core.xtoken.score.unit import ProbeJob, ScoreTask, open_unit_scorer
from zephon_core.xtoken.score import ScoreSpec
task = ScoreTask(Path({str(tokens)!r}), ScoreSpec.model_validate({{"model": {str(model)!r}}}), EncoderOptions())
with open_unit_scorer(task) as handle:
    handle([BlockJob(0, np.arange(12))])
    handle(ProbeJob(np.arange(4), reference=True))
print(next(int(line.split()[1]) * 1024 for line in open('/proc/self/status') if line.startswith('VmHWM')))
"""
    peak = int(subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    lengths = np.load(tokens / "lengths.npy")
    predicted = predict_score(lengths, score_plan(lengths, spec), spec)
    assert peak <= predicted.peak_memory_bytes
    assert predicted.peak_memory_bytes < 3 * peak
    assert predicted.tokens == 4800
    assert predicted.logits_bytes <= 64 << 20
