"""What the server does by itself, installed as often as one likes. Whether it works shows in test_later.py."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from shared_service import Running

from deployments.automations import CRASH_NAME, NOTIFY_NAME
from deployments.local import CHECKOUT


def automations(service: Running, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deployments.automations", *arguments],
        cwd=CHECKOUT,
        env=service.env,
        capture_output=True,
        text=True,
        check=False,
    )


def installed(service: Running) -> list[str]:
    return sorted(each["name"] for each in service.post("/automations/filter", {}))


def test_a_run_vanishes(vanished_run: tuple[str, float], prefect_service: Running) -> None:
    assert prefect_service.get(f"/flow_runs/{vanished_run[0]}")["state_type"] == "RUNNING"


def test_the_crash_detection_is_there_once(prefect_service: Running) -> None:
    assert installed(prefect_service).count(CRASH_NAME) == 1
    assert automations(prefect_service).returncode == 0
    assert installed(prefect_service).count(CRASH_NAME) == 1


def test_the_notification_is_there_once(prefect_service: Running, pager: Any) -> None:
    make_block = (
        "from prefect.blocks.notifications import CustomWebhookNotificationBlock as Block\n"
        f"Block(name='pager', url={pager.url!r}, json_data={{'subject': '{{{{subject}}}}', 'body': '{{{{body}}}}'}}).save('pager')"
    )
    subprocess.run([sys.executable, "-c", make_block], env=prefect_service.env, capture_output=True, check=True)
    for _ in range(2):
        done = automations(prefect_service, "--notify", "custom-webhook/pager")
        assert (done.returncode, done.stderr) == (0, "")
    assert [installed(prefect_service).count(name) for name in (CRASH_NAME, NOTIFY_NAME)] == [1, 1]


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("custom-webhook/nobody", "error: custom-webhook/nobody: is no block on this server. Make it in the UI under Blocks.\n"),
        ("pager", "error: --notify: is 'pager', expected BLOCK_TYPE/NAME, as in slack-webhook/team.\n"),
    ],
)
def test_a_block_that_is_not_there_is_an_error(prefect_service: Running, block: str, message: str) -> None:
    done = automations(prefect_service, "--notify", block)
    assert (done.returncode, done.stderr) == (1, message)
