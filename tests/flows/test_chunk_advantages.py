"""The chunk-advantages flow against a real server, with real tokenizers and a small teacher that scores."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from chunk_inputs import COUNT, advantages_spec, make_inputs
from shared_service import wait_for

from zephon_core.blocks import BlockState
from zephon_core.progress import format_amount
from zephon_core.store import ArtifactStore
from zephon_core.xtoken.score import ScoreSpec, score_plan
from zephon_core.xtoken.specs import ChunkAdvantagesRun, ChunkAdvantagesSpec
from zephon_core.xtoken.steps import build_chunk_advantages

CHECKOUT = Path(__file__).resolve().parents[2]
GIVEN = ("align", "attach", "report")
SCORED = ("align", "score", "attach", "report")

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    make_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def call(flows: Any) -> Run:
    """Run the flow; returns its outcome and what Prefect says of it."""

    def run_flow(spec: dict[str, Any], *, store: Path, state: str = "COMPLETED", **options: Any) -> dict[str, Any]:
        options = {"store": str(store), "workers": 1, **options}
        outcome = dict(flows.call("advantage_runs:run_advantages", spec=spec, run=options))
        assert outcome["state"] == state, outcome["message"]
        return {**outcome, **flows.call("prefect_views:what_prefect_says", flow_run=outcome["flow_run"])}

    return run_flow


@pytest.fixture
def run(call: Run, tmp_path: Path) -> Run:
    """Run the flow with a store of the test's own."""
    return lambda spec, **options: call(spec, store=tmp_path / "store", **options)


@pytest.fixture(scope="module")
def scored(call: Run, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A store in which a teacher has scored, and the outcome of that run, which nothing disturbed."""
    store = tmp_path_factory.mktemp("scored")
    return store, call(advantages_spec(inputs, scored=True), store=store)


def states(outcome: dict[str, Any], steps: tuple[str, ...] = GIVEN, name: str = "Small.chunks") -> list[str]:
    """The states of the tasks that make artifacts, in their order."""
    return [outcome["tasks"].get(f"{step}-{name}", "not run") for step in steps]


def files_sha256(store: Path, kind: str, fingerprint: str = "*") -> dict[str, str]:
    """The SHA-256 of each file of an artifact, or of the only one of a kind, but for its record."""
    (folder,) = [path for path in (store / kind).glob(fingerprint) if path.suffix != ".partial"]
    names = sorted(path.name for path in folder.iterdir() if path.name != "artifact.json")
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def test_a_second_run_is_cached_and_a_change_is_made_anew(run: Run, inputs: Path, tmp_path: Path) -> None:
    spec = advantages_spec(inputs)
    first = run(spec)
    assert first["name"] == "advantages-Small.chunks"
    assert states(first) == ["Completed"] * 3
    assert not any(name.startswith("score") for name in first["tasks"])
    second = run(spec)
    assert states(second) == ["Cached"] * 3
    assert second["result"]["fingerprint"] == first["result"]["fingerprint"]
    assert second["result"]["cached"] == dict.fromkeys(GIVEN, True)
    renamed = run({**spec, "name": "Other"})
    assert states(renamed, name="Other") == ["Cached", "Cached", "Completed"]
    clipped = run({**spec, "clip": 0.5, "center": True})
    assert states(clipped) == ["Cached", "Completed", "Completed"]
    assert clipped["result"]["stats"]["clipped_chunks"] > 0 == first["result"]["stats"]["clipped_chunks"]
    table = pq.read_table(inputs / "datums.parquet")
    pq.write_table(table.slice(1), tmp_path / "fewer.parquet")
    pq.write_table(pq.read_table(inputs / "logprobs.parquet").slice(1), tmp_path / "logprobs.parquet")
    fewer = {"datums": [str(tmp_path / "fewer.parquet")], "teacher_logprobs": str(tmp_path / "logprobs.parquet")}
    assert states(run({**spec, **fewer})) == ["Completed"] * 3


def test_the_artifact_is_the_truth_and_prefect_its_shadow(run: Run, inputs: Path, tmp_path: Path) -> None:
    spec = advantages_spec(inputs)
    first = run(spec)
    before = files_sha256(tmp_path / "store", "chunk_advantages")
    shutil.rmtree(first["result"]["output"])
    second = run(spec)
    assert states(second) == ["Cached", "Completed", "Cached"]
    assert files_sha256(tmp_path / "store", "chunk_advantages") == before
    shutil.rmtree(tmp_path / "store" / "prefect")
    assert states(run(spec)) == ["Cached"] * 3
    assert states(run(spec, refresh=True)) == ["Completed"] * 3


def test_what_the_command_line_has_made_is_cached(run: Run, inputs: Path, tmp_path: Path) -> None:
    """The server has never seen these: its records are no part of the truth."""
    spec = advantages_spec(inputs)
    made = build_chunk_advantages(ChunkAdvantagesSpec.model_validate(spec), ChunkAdvantagesRun(store=str(tmp_path / "store")))
    outcome = run(spec)
    assert states(outcome) == ["Cached"] * 3
    assert outcome["result"]["fingerprint"] == made.fingerprint
    assert outcome["result"]["stats"] == json.loads(json.dumps(made.to_json()["stats"]))


def test_a_teacher_scores_once(call: Run, scored: tuple[Path, dict[str, Any]], inputs: Path) -> None:
    store, first = scored
    spec = advantages_spec(inputs, scored=True)
    assert states(first, SCORED) == ["Completed"] * 4
    assert states(call(spec, store=store, workers=2), SCORED) == ["Cached"] * 4
    clipped = call({**spec, "clip": 0.5}, store=store)
    assert states(clipped, SCORED) == ["Cached", "Cached", "Completed", "Completed"]
    given = call(advantages_spec(inputs), store=store)
    assert states(given) == ["Cached", "Completed", "Completed"]


def test_scores_that_are_gone_are_made_again(call: Run, scored: tuple[Path, dict[str, Any]], inputs: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(scored[0], store)
    before = files_sha256(store, "chunk_scores")
    shutil.rmtree(store / "chunk_scores")
    outcome = call(advantages_spec(inputs, scored=True), store=store)
    assert states(outcome, SCORED) == ["Cached", "Completed", "Cached", "Cached"]
    assert files_sha256(store, "chunk_scores") == before


def test_refresh_scores_every_block_anew(call: Run, scored: tuple[Path, dict[str, Any]], inputs: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(scored[0], store)
    outcome = call(advantages_spec(inputs, scored=True), store=store, refresh=True)
    assert states(outcome, SCORED) == ["Completed"] * 4
    assert outcome["result"]["fingerprint"] == scored[1]["result"]["fingerprint"]
    assert files_sha256(store, "chunk_scores") == files_sha256(scored[0], "chunk_scores")


def test_killed_while_it_scores_the_rerun_goes_on(
    flow_env: dict[str, str], call: Run, scored: tuple[Path, dict[str, Any]], inputs: Path, tmp_path: Path
) -> None:
    store, spec = tmp_path / "store", advantages_spec(inputs, scored=True)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"spec": spec, "run": {"store": str(store), "workers": 1}}))
    command = [sys.executable, "-m", "flows.chunk_advantages", "--config", str(config)]

    def on_record() -> list[int]:
        """The blocks on record."""
        for folder in store.glob("chunk_scores/*.partial"):
            if (state := BlockState.read(folder)) and len(found := state.records().records):
                return sorted({*found["block"].tolist()})
        return []

    with subprocess.Popen(command, cwd=CHECKOUT, env=flow_env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as engine:
        wait_for(on_record, "a block on record", 120)
        engine.send_signal(signal.SIGKILL)
    done = on_record()
    assert 0 < len(done) < COUNT
    again = call(spec, store=store)
    assert states(again, SCORED) == ["Cached", "Completed", "Completed", "Completed"]
    assert files_sha256(store, "chunk_scores") == files_sha256(scored[0], "chunk_scores")
    undisturbed = scored[1]["result"]["fingerprint"]
    assert again["result"]["fingerprint"] == undisturbed
    assert files_sha256(store, "chunk_advantages") == files_sha256(scored[0], "chunk_advantages", undisturbed)
    (plan,) = (store / "chunk_plan").iterdir()
    lengths = np.load(plan / "lengths.npy")
    tokens = score_plan(lengths, ScoreSpec.model_validate(spec["score"])).block_tokens(lengths)
    missing = format_amount(int(tokens.sum() - tokens[done].sum()), "tokens")
    assert any(f"score: {missing} of {missing} (100%)" in line for line in again["logs"]), again["logs"]


def test_every_run_ends_with_a_table_a_page_and_advantages(run: Run, inputs: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    outcome = run(advantages_spec(inputs), output=str(output))
    result = outcome["result"]
    assert outcome["tasks"]["publish-Small.chunks"] == "Completed" and result["output"] == str(output)
    artifacts = {artifact["key"]: artifact for artifact in outcome["artifacts"]}
    rows = artifacts["advantages-small-chunks-steps"]["data"]
    assert [(row["step"], row["state"]) for row in rows] == [("align", "built"), ("report", "built"), ("attach", "built")]
    assert (rows[-1]["fingerprint"], rows[-1]["url"]) == (result["fingerprint"], str(output))
    page = artifacts["advantages-small-chunks-report"]["data"]
    assert f"{COUNT} " in page and str(output / "report.html") in page and result["fingerprint"] in page
    assert (output / "report.html").read_text().startswith("<!doctype html>")
    table, given = pq.read_table(output / "advantages.parquet"), pq.read_table(inputs / "datums.parquet")
    assert result["stats"]["datums"] == table.num_rows == COUNT
    assert table.column("note").to_pylist() == list(range(COUNT))
    assert table.drop_columns(["advantages"]).equals(given)
    lengths = [len(tokens) for tokens in given.column("model_input_tokens").to_pylist()]
    assert [len(advantages) for advantages in table.column("advantages").to_pylist()] == lengths
    store = ArtifactStore(tmp_path / "store")
    ref = store.find("chunk_advantages", result["fingerprint"])
    assert ref is not None and "chunk_plan" in store.record(ref).inputs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"datums": ["wrong.parquet"]}, "loss_mask"),
        ({"datums": ["absent.parquet"]}, "absent.parquet"),
        ({"teacher_logprobs": "wrong.parquet"}, "teacher_logprobs"),
    ],
)
def test_bad_input_fails_the_run_in_one_line(run: Run, inputs: Path, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    wrong = pq.read_table(inputs / "datums.parquet").rename_columns({"loss_mask": "loss_masks"})
    pq.write_table(wrong, tmp_path / "wrong.parquet")
    named = json.loads(json.dumps(change).replace("wrong.parquet", str(tmp_path / "wrong.parquet")))
    outcome = run(advantages_spec(inputs, **named), state="FAILED")
    assert message in outcome["message"] and "\n" not in outcome["message"]
    assert not any("Traceback" in line for line in outcome["logs"])


def test_the_flow_runs_from_the_checkout(inputs: Path, tmp_path: Path, flow_env: dict[str, str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"spec": advantages_spec(inputs), "run": {"store": str(tmp_path / "store")}}))
    command = [sys.executable, "-m", "flows.chunk_advantages", "--config", str(config)]
    done = subprocess.run(command, cwd=CHECKOUT, env=flow_env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stats"]["datums"] == COUNT
    config.write_text(json.dumps({"spec": {**advantages_spec(inputs), "clip": -1}}))
    done = subprocess.run(command, cwd=CHECKOUT, env=flow_env, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and "spec.clip" in done.stderr
    both = {**advantages_spec(inputs), "score": {"model": {"path": "teacher"}}}
    config.write_text(json.dumps({"spec": both}))
    done = subprocess.run(command, cwd=CHECKOUT, env=flow_env, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "both teacher_logprobs and score" in done.stderr and done.stderr.count("\n") == 1
