"""What `make up` has deployed, as the server has it."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest
from shared_service import Running

from deployments.local import CHECKOUT
from zephon_core.bank.specs import BankSpec, RunOptions


@pytest.fixture(scope="module")
def deployed(prefect_service: Running) -> dict[str, dict[str, Any]]:
    return {name: prefect_service.get(f"/deployments/name/feature-bank/{name}") for name in ("nightly", "manual", "ci")}


def test_runs_start_in_the_workers_own_checkout(deployed: dict[str, dict[str, Any]]) -> None:
    for deployment in deployed.values():
        assert deployment["entrypoint"] == "flows/feature_bank.py:feature_bank"
        assert deployment["path"] is None
        assert deployment["pull_steps"] == [{"prefect.deployments.steps.set_working_directory": {"directory": "./"}}]
        assert deployment["job_variables"]["working_dir"] == "."
        assert str(CHECKOUT) not in json.dumps(deployment)


def test_the_version_is_what_git_says(deployed: dict[str, dict[str, Any]]) -> None:
    (version,) = {deployment["version"] for deployment in deployed.values()}
    in_git = subprocess.run(["git", "-C", str(CHECKOUT), "rev-parse", "HEAD"], capture_output=True, check=False).returncode == 0
    described = r"(\S+-\d+-g)?[0-9a-f]{7,40}(-dirty)?|v?\d\S*"  # since the last tag, if there is one
    assert re.fullmatch(described, version) if in_git else version == "unversioned"


def test_the_schedule_and_the_limits(deployed: dict[str, dict[str, Any]]) -> None:
    (schedule,) = deployed["nightly"]["schedules"]
    assert (schedule["schedule"]["cron"], schedule["schedule"]["timezone"]) == ("15 2 * * *", "Europe/Berlin")
    assert schedule["active"] is False
    strategies = {name: each["concurrency_options"]["collision_strategy"] for name, each in deployed.items()}
    assert strategies == {"nightly": "CANCEL_NEW", "manual": "ENQUEUE", "ci": "ENQUEUE"}
    assert {each["global_concurrency_limit"]["limit"] for each in deployed.values()} == {1}


def test_the_environment_of_a_run(deployed: dict[str, dict[str, Any]]) -> None:
    for deployment in deployed.values():
        env = deployment["job_variables"]["env"]
        assert env["PREFECT_LOGGING_EXTRA_LOGGERS"] == "zephon_core"
        assert env["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30"


def test_parameters_come_back_as_they_were_written(deployed: dict[str, dict[str, Any]]) -> None:
    parameters = deployed["nightly"]["parameters"]
    spec = BankSpec.model_validate(parameters["spec"])
    assert spec.scan.sources == ("train=data/train.jsonl", "eval=data/eval.jsonl")
    assert BankSpec.model_validate(json.loads(spec.model_dump_json())) == spec
    assert RunOptions.model_validate(parameters["run"]).output == "banks/nightly"
    assert deployed["manual"]["parameter_openapi_schema"]["required"] == ["spec"]
    assert deployed["manual"]["enforce_parameter_schema"] is True
