"""Flows run against one real server, in one process of their own for all tests, or in a process each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent.parent
PROGRAMS = TESTS / "flows" / "programs"
# Where this process imports Prefect, to look at a class or a schema, it leaves the user's own Prefect alone.
os.environ["PREFECT_HOME"] = str(Path(tempfile.gettempdir()) / "zephon-tests-prefect")

sys.path[:0] = [str(PROGRAMS), str(TESTS / "deployments" / "programs")]

from shared_service import Running, prefect_service  # noqa: E402, F401 - the fixture


class FlowError(Exception):
    """A flow raised; `kind` is the name of the error's class."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class FlowRunner:
    """A process that runs flows on demand (see programs/flow_runner.py)."""

    def __init__(self, env: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAMS / "flow_runner.py")],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            )

    def call(self, function: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"function": function, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"error": "EOFError", "message": "the process ended"}')
        if "error" in answer:
            raise FlowError(answer["error"], answer["message"])
        return answer["value"]

    def close(self) -> None:
        self._process.communicate(timeout=60)


@pytest.fixture(scope="session")
def flow_env(prefect_service: Running) -> dict[str, str]:  # noqa: F811
    """The environment of a process that runs flows."""
    env = {**prefect_service.env, "PYTHONPATH": f"{TESTS.parent}:{PROGRAMS}"}
    del env["PREFECT_LOGGING_EXTRA_LOGGERS"]  # as for someone who runs a flow and has set nothing
    return env


@pytest.fixture(scope="session")
def flows(flow_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowRunner]:
    runner = FlowRunner(flow_env, tmp_path_factory.mktemp("flows") / "log.txt")
    yield runner
    runner.close()
