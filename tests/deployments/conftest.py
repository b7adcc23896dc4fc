"""The service that these tests share with those of the flows, a run whose process vanishes, and somebody to be told of failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "flows" / "programs"), str(TESTS / "deployments" / "programs")]

from shared_service import Running, prefect_service, wait_for  # noqa: E402, F401 - the fixture
from tiny_inputs import bank_spec, make_inputs  # noqa: E402


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small inputs of a bank."""
    folder = tmp_path_factory.mktemp("inputs")
    make_inputs(folder)
    return folder


@pytest.fixture(scope="session")
def vanished_run(prefect_service: Running, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, float]:  # noqa: F811
    """A deployed run whose process was killed, with no worker to notice; its id, and the moment."""
    folder = tmp_path_factory.mktemp("vanished")
    deployment = prefect_service.get("/deployments/name/feature-bank/ci")
    twin = {key: deployment[key] for key in ("flow_id", "entrypoint", "pull_steps", "tags")}
    created = prefect_service.post("/deployments/", {**twin, "name": "vanishing"})
    parameters = {"spec": bank_spec(inputs), "run": {"store": str(folder), "workers": 1}}
    run = prefect_service.post(
        f"/deployments/{created['id']}/create_flow_run", {"parameters": parameters, "state": {"type": "PENDING"}}
    )
    hold = folder / "hold"
    hold.touch()
    env = {**os.environ, **prefect_service.env, "PREFECT__FLOW_RUN_ID": run["id"], "TINY_ENCODER_HOLD": str(hold)}
    env["PYTHONPATH"] = str(TESTS / "flows" / "programs")
    with subprocess.Popen(
        [sys.executable, "-m", "prefect.engine"],
        cwd=TESTS.parent,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as engine:
        wait_for(hold.with_suffix(".reached").exists, "the encode")
        engine.send_signal(signal.SIGKILL)
    return run["id"], time.monotonic()


class Pager:
    """A web server that keeps what it is sent."""

    def __init__(self) -> None:
        messages: list[dict[str, str]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.messages = messages
        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="session")
def pager() -> Iterator[Pager]:
    pager = Pager()
    yield pager
    pager.close()
