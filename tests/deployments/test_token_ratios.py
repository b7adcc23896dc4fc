"""The deployments of token ratios, as the server has them, and one of them run as a CI job does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from shared_service import Running, wait_for
from tiny_inputs import bank_spec

from deployments.local import CHECKOUT
from zephon_core.ratios.specs import RatioRun, RatioSpec

sys.path.insert(0, str(CHECKOUT / "tests" / "ratios" / "programs"))

from ratio_inputs import make_dataset, make_tokenizer


@pytest.fixture(scope="module")
def deployed(prefect_service: Running) -> dict[str, dict[str, Any]]:
    return {name: prefect_service.get(f"/deployments/name/token-ratios/{name}") for name in ("weekly", "manual", "ci")}


def test_schedule_limits_and_form(deployed: dict[str, dict[str, Any]]) -> None:
    (schedule,) = deployed["weekly"]["schedules"]
    assert (schedule["schedule"]["cron"], schedule["schedule"]["timezone"]) == ("30 3 * * 0", "Europe/Berlin")
    assert schedule["active"] is False
    strategies = {name: each["concurrency_options"]["collision_strategy"] for name, each in deployed.items()}
    assert strategies == {"weekly": "CANCEL_NEW", "manual": "ENQUEUE", "ci": "ENQUEUE"}
    for deployment in deployed.values():
        assert deployment["entrypoint"] == "flows/token_ratios.py:token_ratios"
        assert deployment["enforce_parameter_schema"] is True and deployment["tags"] == ["zephon"]
        assert deployment["parameter_openapi_schema"]["required"] == ["spec"]


def test_parameters_come_back_as_they_were_written(deployed: dict[str, dict[str, Any]]) -> None:
    parameters = deployed["weekly"]["parameters"]
    assert RatioSpec.model_validate(parameters["spec"]).dataset_urls == {"web": ["data/web/"], "code": ["data/code/"]}
    assert RatioRun.model_validate(parameters["run"]).output == "ratios/weekly"


def test_a_bank_that_completes_can_set_off_the_weekly_run(prefect_service: Running, deployed: dict[str, dict[str, Any]]) -> None:
    weekly = deployed["weekly"]["id"]
    automations = prefect_service.get(f"/automations/related-to/prefect.deployment.{weekly}")
    (automation,) = [each for each in automations if each["name"] == "zephon: ratios after a feature bank"]
    assert automation["enabled"] is False
    trigger = automation["trigger"]
    assert trigger["expect"] == ["prefect.flow-run.Completed"]
    related = trigger["match_related"]
    assert related == {"prefect.resource.role": "flow", "prefect.resource.name": "feature-bank"}
    (action,) = automation["actions"]
    assert action["type"] == "run-deployment" and action["deployment_id"] == weekly


def test_it_does_once_it_is_switched_on(
    prefect_service: Running, deployed: dict[str, dict[str, Any]], inputs: Path, tmp_path: Path
) -> None:
    weekly = deployed["weekly"]["id"]
    automations = prefect_service.get(f"/automations/related-to/prefect.deployment.{weekly}")
    (automation,) = [each["id"] for each in automations if each["name"] == "zephon: ratios after a feature bank"]
    parameters = tmp_path / "parameters.json"
    parameters.write_text(json.dumps({"spec": bank_spec(inputs), "run": {"store": str(tmp_path / "store"), "workers": 1}}))

    def runs() -> Any:
        return prefect_service.post("/flow_runs/filter", {"deployments": {"id": {"any_": [weekly]}}})

    assert runs() == []
    switch(prefect_service, automation, on=True)
    try:
        ci_run(prefect_service, "feature-bank/ci", parameters)
        (run,) = wait_for(runs, "a run of token-ratios/weekly")
    finally:
        switch(prefect_service, automation, on=False)
    assert run["deployment_id"] == weekly


def switch(service: Running, automation: str, *, on: bool) -> None:
    """Switch an automation on or off."""
    url = f"{service.service.api_url}/automations/{automation}"
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps({"enabled": on}).encode(), headers, method="PATCH")
    with urllib.request.urlopen(request):
        pass


def ci_run(service: Running, deployment: str, parameters: Path) -> dict[str, Any]:
    """Run a deployment as a CI job does; returns what it says."""
    command = [sys.executable, "-m", "deployments.ci_run", deployment, "--params-file", str(parameters)]
    env = {**os.environ, **service.env}
    done = subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_ci_job_gets_the_mixtures_identity_and_folder(prefect_service: Running, tmp_path: Path) -> None:
    spec = {
        "name": "ci",
        "datasets": [f"{name}={make_dataset(tmp_path / 'data', name)}" for name in ("a", "b")],
        "tokenizer": str(make_tokenizer(tmp_path)),
    }
    parameters = tmp_path / "parameters.json"
    parameters.write_text(json.dumps({"spec": spec, "run": {"store": str(tmp_path / "store"), "output": str(tmp_path / "out")}}))
    answer = ci_run(prefect_service, "token-ratios/ci", parameters)
    assert (answer["deployment"], answer["state"], answer["url"]) == ("token-ratios/ci", "Completed", str(tmp_path / "out"))
    assert len(answer["fingerprint"]) == 64
    assert json.loads((tmp_path / "out" / "ratios.json").read_bytes())["ratios"].keys() == {"a", "b"}
