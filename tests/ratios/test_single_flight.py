"""Several processes, one measurement; and what becomes of it when the one that makes it is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ratio_inputs import make_dataset

from zephon_core.locks import LeaseOwner, is_held

PROGRAMS = Path(__file__).parent / "programs"


class Processes:
    """Starts processes that prime one data set, which stand still in the middle of it while `hold` exists."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self.hold = folder / "hold"
        self.log = folder / "log.txt"
        self._dataset = make_dataset(folder / "data", "a", shards=1, rows=5)
        self.started: list[subprocess.Popen[str]] = []

    def start(self, **variables: str) -> subprocess.Popen[str]:
        env = {
            **os.environ,
            "PYTHONPATH": f"{PROGRAMS.parents[2]}:{PROGRAMS}",
            "COUNT_HOLD": str(self.hold),
            "COUNT_LOG": str(self.log),
            **variables,
        }
        command = [sys.executable, str(PROGRAMS / "prime_once.py"), str(self._dataset), str(self.store)]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def wait_until_held(self) -> Path:
        reached = self.hold.with_suffix(".reached")
        while not reached.exists():
            assert all(process.poll() is None for process in self.started)
            time.sleep(0.01)
        (lease,) = (self.store / "leases").glob("token_ratios-*.lease")
        assert is_held(lease)
        return lease


@pytest.fixture
def processes(tmp_path: Path) -> Any:
    made = Processes(tmp_path)
    made.hold.touch()
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate(timeout=60)
    return dict(json.loads(output))


def test_one_measures_and_its_peers_wait_and_take_it(processes: Processes) -> None:
    first = processes.start()
    processes.wait_until_held()
    peers = [processes.start() for _ in range(3)]
    processes.hold.unlink()
    answers = [answer(process) for process in (first, *peers)]
    assert [each["cached"] for each in answers] == [False, True, True, True]
    assert len({each["ratio"] for each in answers}) == 1
    assert processes.log.read_text().count("a") == 5  # each row once


def test_a_killed_process_is_taken_over_from(processes: Processes) -> None:
    first = processes.start()
    lease = processes.wait_until_held()
    second = processes.start()
    owner = LeaseOwner.read(lease)
    assert owner is not None and owner.pid == first.pid
    first.send_signal(signal.SIGKILL)
    first.wait()
    while (now := LeaseOwner.read(lease)) is None or now.pid != second.pid:
        assert second.poll() is None
        time.sleep(0.01)
    processes.hold.unlink()
    assert answer(second)["cached"] is False
    assert [path.suffix for path in (processes.store / "token_ratios").iterdir()] == [".json"]
    assert answer(processes.start())["cached"] is True


def test_a_full_disk_costs_the_memory_and_not_the_measurement(processes: Processes) -> None:
    processes.hold.unlink()
    found = answer(processes.start(NO_ROOM="1", COUNT_LOG=""))
    assert (found["source"], found["cached"], found["stored"]) == ("measured", False, False)
    assert list((processes.store / "token_ratios").glob("*")) == []
    found_again = answer(processes.start())
    assert (found_again["stored"], found_again["ratio"]) == (True, found["ratio"])
