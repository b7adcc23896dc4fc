"""Tasks that report progress, and what their calls to the API were."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from prefect import flow, task
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.task_runners import ThreadPoolTaskRunner
from prefect_views import what_prefect_says

from tasks.reporting import publish_markdown, publish_table, route_core_logs, run_progress
from tasks.runners import stop_parts


@task
def work(seconds: float) -> None:
    """Advance one long phase from several threads as often as they can, and one short phase."""
    with run_progress("some", "work") as progress:
        progress.note("a note from the core")
        with progress.phase("work", total=seconds, unit="s") as phase:
            ends = time.monotonic() + seconds

            def advance() -> None:
                while (now := time.monotonic()) < ends:
                    time.sleep(0.0005)
                    phase.advance((time.monotonic() - now) / 3)

            threads = [threading.Thread(target=advance) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        with progress.phase("short", total=1, unit="s") as phase:
            phase.advance(1)


@flow
def working_flow(seconds: float) -> None:
    route_core_logs()
    route_core_logs()
    logging.getLogger("zephon_core.somewhere").info("a record of the core in the flow")
    work(seconds)
    publish_table("some-table", [{"step": "work", "state": "built"}], description="A table")
    publish_markdown("some-page", "# A page")


@flow
def flow_without_a_server(seconds: float) -> str:
    """Lose the server in mid-run."""
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_CLIENT_MAX_RETRIES: 0}):
        with run_progress("some", "work") as progress, progress.phase("work", total=1, unit="s") as phase:
            time.sleep(seconds)
            phase.advance(1)
        publish_table("some-table", [])
        publish_markdown("some-page", "")
    return "done"


@task
def work_without_end() -> None:
    with run_progress("some", "endless") as progress, progress.phase("endless", total=None, unit="s") as phase:
        while True:
            time.sleep(0.01)
            phase.advance(0.01)


@flow
def flow_that_is_told_to_stop() -> None:
    with ThreadPoolTaskRunner(max_workers=2) as runner:
        for _ in range(2):
            runner.submit(work_without_end, {})
        try:
            time.sleep(0.5)
            raise InterruptedError("told to stop")
        except InterruptedError:
            stop_parts()
            raise


class _Requests(logging.Handler):
    """Collects when which request was sent, as httpx logs them."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[float, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.sent.append((record.created, record.getMessage()))


def watch_work(seconds: float) -> dict[str, Any]:
    """Run the flow; returns the times of its calls about artifacts, and what Prefect has of it."""
    requests = _Requests()
    logger = logging.getLogger("httpx")
    level = logger.level
    logger.addHandler(requests)
    logger.setLevel(logging.INFO)
    try:
        state = working_flow(seconds, return_state=True)
    finally:
        logger.removeHandler(requests)
        logger.setLevel(level)
    calls = [[moment, message.split('"')[0]] for moment, message in requests.sent if "/artifacts" in message]
    return {"calls": calls, **what_prefect_says(str(state.state_details.flow_run_id))}


def stop_a_flow() -> None:
    flow_that_is_told_to_stop()


def lose_the_server(seconds: float) -> str:
    return flow_without_a_server(seconds)
