"""One server with worker and UI, started as `make up` does, for all tests that need Prefect."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deployments.local import CHECKOUT, Service, environment, read_service

PROGRAMS = CHECKOUT / "tests" / "flows" / "programs"  # the encoder that deployed flows are given lies there


@dataclass
class Running:
    """The service and the folder of its state."""

    state: Path
    service: Service

    @property
    def hold(self) -> Path:
        """While this file exists, deployed runs that use the tiny encoder don't end."""
        return self.state / "hold"

    @property
    def env(self) -> dict[str, str]:
        """The environment of a program that talks to the server."""
        return environment(self.state, self.service.port)

    def get(self, path: str) -> Any:
        """Read from the server's API."""
        with urllib.request.urlopen(self.service.api_url + path) as answer:
            return json.loads(answer.read())

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Write to the server's API."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.service.api_url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read())


def local(state: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run `python -m deployments.local` as a person would, with another state folder."""
    return subprocess.run(
        [sys.executable, "-m", "deployments.local", *arguments],
        cwd=CHECKOUT,
        env={**os.environ, "ZEPHON_STATE": str(state), "PYTHONPATH": str(PROGRAMS), "TINY_ENCODER_HOLD": str(state / "hold")},
        capture_output=True,
        text=True,
        check=check,
    )


def processes_with(variable: str) -> list[int]:
    """Return the processes that have this NAME=VALUE in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = 180.0) -> Any:
    """Return the first true value of `condition`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited too long for {what}")
        time.sleep(0.05)
    return value


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Shared:
    users = 0
    running: Running | None = None


@pytest.fixture(scope="session")
def prefect_service() -> Iterator[Running]:
    """A running service; each test folder's conftest has this fixture, and the last one to end stops it."""
    if _Shared.running is None:
        state = Path(tempfile.mkdtemp(prefix="zephon-service-"))
        local(state, "up", "--port", str(free_port()))
        service = read_service(state)
        assert service is not None
        _Shared.running = Running(state, service)
    _Shared.users += 1
    yield _Shared.running
    _Shared.users -= 1
    if _Shared.users == 0:
        running, _Shared.running = _Shared.running, None
        local(running.state, "down")
        assert not processes_with(f"ZEPHON_SERVICE_TOKEN={running.service.token}")
        shutil.rmtree(running.state)
