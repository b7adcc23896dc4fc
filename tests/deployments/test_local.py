"""`up`, `down` and `status` of the local server, and `serve`, as real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from shared_service import PROGRAMS, Running, free_port, local, processes_with, wait_for
from tiny_inputs import bank_spec

from deployments.local import CHECKOUT, read_service


def test_a_second_up_says_that_it_runs(prefect_service: Running) -> None:
    again = local(prefect_service.state, "up")
    assert again.stdout.startswith(f"Already running. UI: {prefect_service.service.ui_url} ")
    assert read_service(prefect_service.state) == prefect_service.service
    assert local(prefect_service.state, "status").stdout == f"Running. UI: {prefect_service.service.ui_url}\n"


def test_another_port_while_it_runs_is_an_error(prefect_service: Running) -> None:
    done = local(prefect_service.state, "up", "--port", "4299", check=False)
    port = prefect_service.service.port
    assert (done.returncode, done.stderr) == (
        1,
        f"error: port: is 4299, while the server runs on {port}. Stop it first (down), or leave the port out.\n",
    )


def test_a_port_in_use_is_one_line_and_leaves_nothing(prefect_service: Running, tmp_path: Path) -> None:
    done = local(tmp_path, "up", "--port", str(prefect_service.service.port), check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: 127.0.0.1:{prefect_service.service.port}: can't be listened on")
    assert done.stderr.endswith("choose another port with --port or $ZEPHON_PORT.\n") and done.stderr.count("\n") == 1
    assert not (tmp_path / "service.json").exists()


@pytest.mark.parametrize("port", ["65536", "-1", "http"])
def test_what_is_no_port_is_a_matter_of_usage(tmp_path: Path, port: str) -> None:
    done = local(tmp_path, "up", "--port", port, check=False)
    assert done.returncode == 2 and not (tmp_path / "service.json").exists()
    assert "expected" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("record", ["{", "[]", '{"port": "x"}'])
def test_an_unreadable_record_is_none(tmp_path: Path, record: str) -> None:
    (tmp_path / "service.json").write_text(record)
    assert read_service(tmp_path) is None
    assert local(tmp_path, "down").stdout == "Nothing was running.\n"


def test_a_stale_record_harms_nobody(tmp_path: Path) -> None:
    """Process ids are used again: what bears another token, or none, isn't ours."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as innocent:
        record = {"port": free_port(), "token": "ab" * 16, "server_pid": innocent.pid, "worker_pid": os.getpid()}
        (tmp_path / "service.json").write_text(json.dumps(record))
        assert local(tmp_path, "status", check=False).returncode == 3
        assert local(tmp_path, "down").stdout == "Nothing was running.\n"
        assert innocent.poll() is None
        assert not (tmp_path / "service.json").exists()
        innocent.communicate(b"\n")


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """A process that serves in the foreground, and the environment that it was given."""
    (tmp_path / "hold").touch()
    env = {
        **os.environ,
        "ZEPHON_STATE": str(tmp_path / "state"),
        "PYTHONPATH": str(PROGRAMS),
        "TINY_ENCODER_HOLD": str(tmp_path / "hold"),
    }
    command = [sys.executable, "-m", "deployments.serve", "--port", str(free_port())]
    with subprocess.Popen(command, cwd=CHECKOUT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as serve:
        try:
            yield serve, env
        finally:
            serve.terminate()


def test_when_server_and_worker_are_killed_serve_ends_whole_and_the_next_up_puts_things_right(
    serving: tuple[subprocess.Popen[str], dict[str, str]], inputs: Path, tmp_path: Path
) -> None:
    """The run that was orphaned ends too, who follows it is told, and it doesn't block its deployment afterwards."""
    serve, env = serving
    assert serve.stdout is not None and serve.stderr is not None
    said = serve.stdout.readline()
    service = read_service(tmp_path / "state")
    assert service is not None, serve.stderr.read()
    assert said.startswith(f"Running. UI: {service.ui_url} ")
    parameters = tmp_path / "parameters.json"
    parameters.write_text(json.dumps({"spec": bank_spec(inputs), "run": {"store": str(tmp_path / "store"), "workers": 1}}))
    command = [sys.executable, "-m", "deployments.ci_run", "feature-bank/ci", "--params-file", str(parameters)]
    settings = {"PREFECT_API_URL": service.api_url, "PREFECT_HOME": str(tmp_path), "PREFECT_CLIENT_MAX_RETRIES": "0"}
    with (tmp_path / "job.log").open("w") as log:
        job = subprocess.Popen(command, cwd=CHECKOUT, env={**env, **settings}, stdout=log, stderr=subprocess.STDOUT)
        wait_for((tmp_path / "hold.reached").exists, "the encode")
        os.kill(service.server_pid, signal.SIGKILL)
        os.kill(service.worker_pid, signal.SIGKILL)
        assert serve.wait(60) == 1
        assert job.wait(60) == 1
    assert serve.stderr.read().startswith("error: the server or the worker has ended.")
    assert "doesn't answer any more" in (tmp_path / "job.log").read_text().splitlines()[-1]
    assert not processes_with(f"ZEPHON_SERVICE_TOKEN={service.token}")
    assert local(tmp_path / "state", "status", check=False).stdout == "Not running.\n"

    (tmp_path / "hold").unlink()
    try:
        local(tmp_path / "state", "up", "--port", str(free_port()))
        again = subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True, check=False)
        assert again.returncode == 0, again.stderr
        second = read_service(tmp_path / "state")
        assert second is not None
        runs = Running(tmp_path / "state", second).post("/flow_runs/filter", {"sort": "START_TIME_ASC"})
        assert [run["state_type"] for run in runs] == ["CRASHED", "COMPLETED"]
    finally:
        local(tmp_path / "state", "down")
    assert not processes_with(f"ZEPHON_SERVICE_TOKEN={second.token}")
