"""The deployments of token batches, as the server has them, and one of them run as a CI job does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared_service import Running

from deployments.local import CHECKOUT
from zephon_core.batching import GlobalBatchPlan
from zephon_core.batching.specs import BatchesRun, BatchesSpec


@pytest.fixture(scope="module")
def deployed(prefect_service: Running) -> dict[str, dict[str, Any]]:
    return {name: prefect_service.get(f"/deployments/name/token-batches/{name}") for name in ("nightly", "manual", "ci")}


def test_schedule_limits_and_form(deployed: dict[str, dict[str, Any]]) -> None:
    (schedule,) = deployed["nightly"]["schedules"]
    assert (schedule["schedule"]["cron"], schedule["schedule"]["timezone"]) == ("45 4 * * *", "Europe/Berlin")
    assert schedule["active"] is False
    strategies = {name: each["concurrency_options"]["collision_strategy"] for name, each in deployed.items()}
    assert strategies == {"nightly": "CANCEL_NEW", "manual": "ENQUEUE", "ci": "ENQUEUE"}
    for deployment in deployed.values():
        assert deployment["entrypoint"] == "flows/token_batches.py:token_batches"
        assert deployment["enforce_parameter_schema"] is True and deployment["tags"] == ["zephon"]
        assert deployment["parameter_openapi_schema"]["required"] == ["spec"]


def test_the_form_asks_in_words_and_within_bounds(deployed: dict[str, dict[str, Any]]) -> None:
    definitions = deployed["manual"]["parameter_openapi_schema"]["definitions"]
    plan = definitions["PlanSpec"]["properties"]
    assert plan["layout"]["enum"] == ["packed", "padded"] and plan["maximum_tokens"]["minimum"] == 1
    for name in ("BatchesSpec", "LengthsSpec", "PlanSpec", "BatchesRun"):
        for field in definitions[name]["properties"].values():
            assert field["title"] and ("description" in field or "$ref" in field or "allOf" in field), field


def test_parameters_come_back_as_they_were_written(deployed: dict[str, dict[str, Any]]) -> None:
    parameters = deployed["nightly"]["parameters"]
    spec = BatchesSpec.model_validate(parameters["spec"])
    assert (spec.lengths.table, spec.plan.maximum_tokens, spec.plan.world_size) == ("banks/nightly", 8192, 8)
    assert BatchesRun.model_validate(parameters["run"]).output == "batches/nightly"


def test_a_ci_job_gets_the_plans_identity_and_folder(prefect_service: Running, tmp_path: Path) -> None:
    np.save(tmp_path / "lengths.npy", np.arange(1, 101))
    parameters = tmp_path / "parameters.json"
    spec = {"name": "ci", "lengths": {"table": str(tmp_path / "lengths.npy")}, "plan": {"maximum_tokens": 400, "world_size": 2}}
    run = {"store": str(tmp_path / "store"), "output": str(tmp_path / "out")}
    parameters.write_text(json.dumps({"spec": spec, "run": run}))
    command = [sys.executable, "-m", "deployments.ci_run", "token-batches/ci", "--params-file", str(parameters)]
    done = subprocess.run(
        command, cwd=CHECKOUT, env={**os.environ, **prefect_service.env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["deployment"], answer["state"], answer["url"]) == ("token-batches/ci", "Completed", str(tmp_path / "out"))
    assert (tmp_path / "store" / "batch_plan" / answer["fingerprint"]).is_dir()
    assert GlobalBatchPlan.open(answer["url"]).count == 100
