"""What takes the server a while: the run that vanished in test_automations.py is Crashed, and failures have been told."""

from __future__ import annotations

import time
from typing import Any

from shared_service import Running, wait_for


def test_a_vanished_run_is_marked_crashed_within_90_seconds(prefect_service: Running, vanished_run: tuple[str, float]) -> None:
    flow_run_id, killed = vanished_run
    path = f"/flow_runs/{flow_run_id}"
    left_s = max(1.0, 90 - (time.monotonic() - killed))
    run = wait_for(lambda: (run := prefect_service.get(path))["state_type"] == "CRASHED" and run, "the crash", left_s)
    assert run["state"]["message"].startswith("The run's process has vanished")


def test_failures_are_told(prefect_service: Running, pager: Any) -> None:
    message = wait_for(lambda: next((m for m in pager.messages if m["subject"].endswith("crashed")), None), "a message", 15)
    assert message["subject"] == "feature-bank: bank-Small.one crashed"
    assert message["body"].startswith("The run's process has vanished")
    assert f"{prefect_service.service.ui_url}/runs/flow-run/" in message["body"]
