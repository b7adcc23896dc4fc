"""The deployments of chunk advantages, as the server has them, and one of them run as a CI job does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from chunk_inputs import COUNT, advantages_spec, make_inputs
from shared_service import Running

from deployments.local import CHECKOUT
from zephon_core.xtoken.specs import ChunkAdvantagesRun, ChunkAdvantagesSpec

NAMES = ("nightly", "manual", "ci")


@pytest.fixture(scope="module")
def deployed(prefect_service: Running) -> dict[str, dict[str, Any]]:
    return {name: prefect_service.get(f"/deployments/name/chunk-advantages/{name}") for name in NAMES}


def test_schedule_limits_and_form(deployed: dict[str, dict[str, Any]]) -> None:
    (schedule,) = deployed["nightly"]["schedules"]
    assert (schedule["schedule"]["cron"], schedule["schedule"]["timezone"]) == ("15 5 * * *", "Europe/Berlin")
    assert schedule["active"] is False
    strategies = {name: each["concurrency_options"]["collision_strategy"] for name, each in deployed.items()}
    assert strategies == {"nightly": "CANCEL_NEW", "manual": "ENQUEUE", "ci": "ENQUEUE"}
    assert {each["global_concurrency_limit"]["limit"] for each in deployed.values()} == {1}
    for deployment in deployed.values():
        assert deployment["entrypoint"] == "flows/chunk_advantages.py:chunk_advantages"
        assert deployment["enforce_parameter_schema"] is True and deployment["tags"] == ["zephon"]
        assert deployment["parameter_openapi_schema"]["required"] == ["spec"]


def test_the_form_asks_in_words_and_within_bounds(deployed: dict[str, dict[str, Any]]) -> None:
    definitions = deployed["manual"]["parameter_openapi_schema"]["definitions"]
    for name in ("ChunkAdvantagesSpec", "ChunkAdvantagesRun", "ScoreSpec", "ModelSpec"):
        for field, described in definitions[name]["properties"].items():
            kind = definitions[described["$ref"].rsplit("/", 1)[1]] if "$ref" in described else described
            assert described.get("title") or kind.get("title"), f"{name}.{field}"
            assert described.get("description") or kind.get("description"), f"{name}.{field}"
            assert not {"oneOf", "allOf"} & described.keys(), f"{name}.{field}"
    assert definitions["ChunkAdvantagesSpec"]["required"] == ["datums", "student", "teacher"]
    clip = definitions["ChunkAdvantagesSpec"]["properties"]["clip"]
    assert {"type": "number", "exclusiveMinimum": 0} in clip["anyOf"]
    assert definitions["ChunkAdvantagesRun"]["properties"]["workers"]["minimum"] == 0


def test_parameters_come_back_as_they_were_written(deployed: dict[str, dict[str, Any]]) -> None:
    parameters = deployed["nightly"]["parameters"]
    spec = ChunkAdvantagesSpec.model_validate(parameters["spec"])
    assert (spec.datums, spec.student, spec.teacher) == (("data/datums/*.parquet",), "models/student", "models/teacher")
    assert spec.score is not None and spec.score.model.path == "models/teacher"
    assert ChunkAdvantagesSpec.model_validate(json.loads(spec.model_dump_json())) == spec
    assert ChunkAdvantagesRun.model_validate(parameters["run"]).output == "advantages/nightly"


def ci_run(service: Running, spec: dict[str, Any], run: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    parameters = folder / "parameters.json"
    parameters.write_text(json.dumps({"spec": spec, "run": run}))
    command = [sys.executable, "-m", "deployments.ci_run", "chunk-advantages/ci", "--params-file", str(parameters)]
    return subprocess.run(command, cwd=CHECKOUT, env={**os.environ, **service.env}, capture_output=True, text=True, check=False)


def test_a_ci_job_gets_the_advantages_identity_and_folder(prefect_service: Running, tmp_path: Path) -> None:
    make_inputs(tmp_path)
    run = {"store": str(tmp_path / "store"), "output": str(tmp_path / "out"), "workers": 1}
    done = ci_run(prefect_service, advantages_spec(tmp_path, scored=True), run, tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["deployment"], answer["state"], answer["url"]) == ("chunk-advantages/ci", "Completed", str(tmp_path / "out"))
    assert (tmp_path / "store" / "chunk_advantages" / answer["fingerprint"]).is_dir()
    assert pq.read_table(Path(answer["url"]) / "advantages.parquet").num_rows == COUNT


def test_a_bad_parameter_is_refused_before_anything_runs(prefect_service: Running, tmp_path: Path) -> None:
    spec = {"datums": ["d.parquet"], "student": "s", "teacher": "t", "clip": 0}
    done = ci_run(prefect_service, spec, {}, tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1 and "spec.clip" in done.stderr
