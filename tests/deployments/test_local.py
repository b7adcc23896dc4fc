"""`up`, `down` and `status` of the local server, and `serve`, as real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
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


def test_serve_ends_whole_when_its_worker_is_killed(inputs: Path, tmp_path: Path) -> None:
    """Also the run that the worker had begun, which the kill orphaned; and the port is free again."""
    port = free_port()
    hold = tmp_path / "hold"
    hold.touch()
    env = {
        **os.environ,
        "ZEPHON_STATE": str(tmp_path / "state"),
        "PYTHONPATH": str(PROGRAMS),
        "TINY_ENCODER_HOLD": str(hold),
    }
    command = [sys.executable, "-m", "deployments.serve", "--port", str(port)]
    with subprocess.Popen(command, cwd=CHECKOUT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as serve:
        assert serve.stdout is not None and serve.stderr is not None
        said = serve.stdout.readline()
        assert said.startswith(f"Running. UI: http://127.0.0.1:{port} "), serve.stderr.read()
        service = read_service(tmp_path / "state")
        assert service is not None
        running = Running(tmp_path / "state", service)
        deployment = running.get("/deployments/name/feature-bank/ci")
        parameters = {"spec": bank_spec(inputs), "run": {"store": str(tmp_path / "store"), "workers": 1}}
        running.post(f"/deployments/{deployment['id']}/create_flow_run", {"parameters": parameters})
        wait_for(hold.with_suffix(".reached").exists, "the encode")
        os.kill(service.worker_pid, signal.SIGKILL)
        assert serve.wait(60) == 1
        assert serve.stderr.read().startswith("error: the server or the worker has ended.")
    assert not processes_with(f"ZEPHON_SERVICE_TOKEN={service.token}")
    assert local(tmp_path / "state", "status", check=False).stdout == "Not running.\n"
