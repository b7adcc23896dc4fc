"""Progress, logs, tables and pages of a run, as Prefect's API has them afterwards."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest

from tasks.reporting import artifact_key, run_progress


@pytest.fixture(scope="module")
def watched(flows: Any) -> dict[str, Any]:
    return dict(flows.call("reporting_steps:watch_work", seconds=5.5))


def progress_artifacts(watched: dict[str, Any]) -> list[dict[str, Any]]:
    return [artifact for artifact in watched["artifacts"] if artifact["type"] == "progress"]


def test_progress_makes_at_most_one_call_in_two_seconds(watched: dict[str, Any]) -> None:
    published = len([artifact for artifact in watched["artifacts"] if artifact["type"] != "progress"])
    moments = [moment for moment, _ in watched["calls"]][: len(watched["calls"]) - published]
    assert 3 <= len(moments) <= 4  # made after 2 s, moved after 4 s, and at the end
    assert all(later - earlier > 1.9 for earlier, later in pairwise(moments))


def test_a_long_phase_has_an_artifact_and_ends_at_100(watched: dict[str, Any]) -> None:
    (artifact,) = progress_artifacts(watched)
    assert artifact["key"] == "some-work-progress"
    assert artifact["data"] == 100.0
    assert re.match(r"work: [56] s of 6 s \(\d+%\), 1 s/s", artifact["description"])


def test_a_short_phase_makes_no_call(watched: dict[str, Any]) -> None:
    assert not [artifact for artifact in progress_artifacts(watched) if "short" in artifact["key"]]


def test_phases_notes_and_core_records_are_in_the_runs_log(watched: dict[str, Any]) -> None:
    logs = watched["logs"]
    assert "prefect.task_runs: a note from the core" in logs
    assert any(line.startswith("prefect.task_runs: short: 1 s of 1 s") for line in logs)
    assert logs.count("zephon_core.somewhere: a record of the core in the flow") == 1


def test_tables_and_pages_are_published(watched: dict[str, Any]) -> None:
    by_key = {artifact["key"]: artifact for artifact in watched["artifacts"]}
    assert by_key["some-table"]["data"] == [{"step": "work", "state": "built"}]
    assert by_key["some-page"]["data"] == "# A page"


def test_what_can_not_be_published_does_not_fail_the_run(flows: Any) -> None:
    assert flows.call("reporting_steps:lose_the_server", seconds=2.2) == "done"


def test_tasks_in_threads_end_when_their_run_is_told_to_stop(flows: Any) -> None:
    with pytest.raises(Exception, match="told to stop") as caught:
        flows.call("reporting_steps:stop_a_flow")
    assert caught.value.kind == "InterruptedError"


def test_outside_of_a_run_progress_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with run_progress("bank", "scan") as progress, progress.phase("scan", total=2, unit="B") as phase:
        phase.advance(2)
    assert "scan: 2 B of 2 B (100%)" in caplog.text


@pytest.mark.parametrize(
    ("words", "key"),
    [(("scan", "progress"), "scan-progress"), (("Größe", "a_b  C."), "gr-e-a-b-c"), (("…",), "artifact"), (("a", ""), "a")],
)
def test_keys_are_what_prefect_takes(words: tuple[str, ...], key: str) -> None:
    assert artifact_key(*words) == key
