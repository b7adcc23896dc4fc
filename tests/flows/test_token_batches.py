"""The token-batches flow against a real server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared_service import wait_for

from zephon_core.batching import GlobalBatchPlan
from zephon_core.batching.specs import BatchesRun, BatchesSpec
from zephon_core.batching.steps import plan_batches
from zephon_core.store import ArtifactStore

CHECKOUT = Path(__file__).resolve().parents[2]
STEPS = ("lengths", "plan", "report")

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of 300 lengths."""
    path = tmp_path / "table.npy"
    np.save(path, np.random.default_rng(0).integers(1, 60, 300))
    return path


@pytest.fixture
def spec(table: Path) -> dict[str, Any]:
    return {
        "name": "Small.plan",
        "lengths": {"table": str(table)},
        "plan": {"maximum_tokens": 256, "layout": "padded", "world_size": 3, "bucket_width": 4},
    }


@pytest.fixture
def run(flows: Any, tmp_path: Path) -> Run:
    """Run the flow with a store of the test's own; returns its outcome and what Prefect says of it."""

    def run_flow(spec: dict[str, Any], *, state: str = "COMPLETED", **options: Any) -> dict[str, Any]:
        outcome = dict(flows.call("batch_runs:run_batches", spec=spec, run={"store": str(tmp_path / "store"), **options}))
        assert outcome["state"] == state, outcome["message"]
        named = [f"{step}-{spec['name']}" for step in (STEPS if state == "COMPLETED" else STEPS[:2])]

        def said() -> dict[str, Any] | None:
            """What Prefect says once it has heard of all tasks."""
            found = dict(flows.call("prefect_views:what_prefect_says", flow_run=outcome["flow_run"]))
            return found if found["tasks"].keys() >= set(named) else None

        return {**outcome, **wait_for(said, "the task runs")}

    return run_flow


def states(outcome: dict[str, Any]) -> list[str]:
    """The states of the tasks that make artifacts, in their order."""
    return [outcome["tasks"].get(f"{step}-Small.plan", "not run") for step in STEPS]


def test_a_second_run_is_cached_and_a_change_is_planned_anew(run: Run, spec: dict[str, Any], tmp_path: Path) -> None:
    first = run(spec)
    assert first["name"] == "batches-Small.plan"
    assert states(first) == ["Completed"] * 3
    second = run(spec)
    assert states(second) == ["Cached"] * 3
    assert second["result"]["fingerprint"] == first["result"]["fingerprint"]
    assert second["result"]["cached"] == dict.fromkeys(STEPS, True)
    renamed = run({**spec, "name": "Other"})
    assert renamed["tasks"]["plan-Other"] == "Cached" and renamed["tasks"]["report-Other"] == "Completed"
    wider = run({**spec, "plan": {**spec["plan"], "world_size": 4}})
    assert states(wider) == ["Cached", "Completed", "Completed"]
    assert wider["result"]["statistics"]["world_size"] == 4
    np.save(tmp_path / "table.npy", np.load(tmp_path / "table.npy")[:-1])
    assert states(run(spec)) == ["Completed"] * 3


def test_the_artifact_is_the_truth_and_prefect_its_shadow(run: Run, spec: dict[str, Any], tmp_path: Path) -> None:
    first = run(spec)
    shutil.rmtree(first["result"]["plan"])
    second = run(spec)
    assert states(second) == ["Cached", "Completed", "Cached"]
    assert second["result"]["fingerprint"] == first["result"]["fingerprint"]
    shutil.rmtree(tmp_path / "store" / "prefect")
    assert states(run(spec)) == ["Cached"] * 3
    assert states(run(spec, refresh=True)) == ["Completed"] * 3


def test_what_the_command_line_has_planned_is_cached(run: Run, spec: dict[str, Any], tmp_path: Path) -> None:
    """The server has never seen these: its records are no part of the truth."""
    made = plan_batches(BatchesSpec.model_validate(spec), BatchesRun(store=str(tmp_path / "store")))
    outcome = run(spec)
    assert states(outcome) == ["Cached"] * 3
    assert outcome["result"]["fingerprint"] == made.fingerprint
    assert outcome["result"]["statistics"] == json.loads(json.dumps(made.to_json()["statistics"]))


def test_every_run_ends_with_a_table_a_page_and_a_plan_that_opens(run: Run, spec: dict[str, Any], tmp_path: Path) -> None:
    output = tmp_path / "out"
    outcome = run(spec, output=str(output))
    artifacts = {artifact["key"]: artifact for artifact in outcome["artifacts"]}
    rows = artifacts["batches-small-plan-steps"]["data"]
    assert [(row["step"], row["state"]) for row in rows] == [("lengths", "built"), ("report", "built"), ("plan", "built")]
    assert rows[-1]["fingerprint"] == outcome["result"]["fingerprint"] and rows[-1]["url"] == str(output)
    page = artifacts["batches-small-plan-report"]["data"]
    assert "300 examples" in page and str(output / "report.html") in page
    plan = GlobalBatchPlan.open(output)
    batches = [plan.batch(step, rank).indices for step in range(plan.steps) for rank in range(3)]
    assert sorted(np.concatenate(batches).tolist()) == list(range(300))
    assert (output / "report.html").read_text().startswith("<!doctype html>")
    store = ArtifactStore(tmp_path / "store")
    ref = store.find("batch_plan", outcome["result"]["fingerprint"])
    assert ref is not None and store.record(ref).inputs.keys() == {"lengths"}


def test_an_example_that_fits_no_batch_fails_the_run_in_one_line(run: Run, spec: dict[str, Any], table: Path) -> None:
    lengths = np.load(table)
    lengths[41] = 900
    np.save(table, lengths)
    outcome = run(spec, state="FAILED")
    assert outcome["message"].startswith("example 41: has length 900, which alone exceeds the budget")
    assert states(outcome) == ["Completed", "Failed", "not run"]
    assert not any("Traceback" in line for line in outcome["logs"])


def test_the_flow_runs_from_the_checkout(spec: dict[str, Any], tmp_path: Path, flow_env: dict[str, str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"spec": spec, "run": {"store": str(tmp_path / "store")}}))
    command = [sys.executable, "-m", "flows.token_batches", "--config", str(config)]
    done = subprocess.run(command, cwd=CHECKOUT, env=flow_env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["statistics"]["examples"] == 300
    config.write_text(json.dumps({"spec": {"lengths": {}, "plan": {"maximum_tokens": 0}}}))
    done = subprocess.run(command, cwd=CHECKOUT, env=flow_env, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and "spec.plan.maximum_tokens" in done.stderr
