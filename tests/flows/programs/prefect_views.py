"""What Prefect's API says of a flow run."""

from __future__ import annotations

import json
import time
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    FlowRunFilter,
    FlowRunFilterId,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.client.schemas.objects import Log


def what_prefect_says(flow_run: str) -> dict[str, Any]:
    """Return the run's name, the states of its task runs by name, its log and its artifacts, once they are in."""
    run_id = UUID(flow_run)
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(run_id)
        records = _records(client, run_id)
        return {
            "name": run.name,
            "tasks": _tasks(client, run_id, _ended(records)),
            "logs": [f"{record.name}: {record.message}" for record in records],
            "artifacts": _artifacts(client, run_id),
        }


def _records(client: SyncPrefectClient, run_id: UUID) -> list[Log]:
    """Read the run's log once its last line is in: records are sent in batches, in order."""
    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run_id]))
    for _ in range(100):
        records = client.read_logs(wanted, limit=200)
        if any(record.name == "prefect.flow_runs" and "Finished in state" in record.message for record in records):
            return records
        time.sleep(0.1)
    raise TimeoutError(f"the log of flow run {run_id} doesn't say that it has ended")


def _ended(records: list[Log]) -> set[UUID]:
    """Tell which task runs have ended, by the log."""
    ended = {record.task_run_id for record in records if record.message.startswith("Finished in state")}
    return {task_run for task_run in ended if task_run is not None}


def _tasks(client: SyncPrefectClient, run_id: UUID, ended: set[UUID]) -> dict[str, str]:
    """Read the states of the task runs once all that ended are known as such: they reach the database through events, later."""
    wanted = FlowRunFilter(id=FlowRunFilterId(any_=[run_id]))
    for _ in range(100):
        runs = client.read_task_runs(flow_run_filter=wanted)
        if ended <= {run.id for run in runs if run.state is not None and run.state.is_final()}:
            return {run.name: run.state.name for run in runs if run.state is not None and run.state.name is not None}
        time.sleep(0.1)
    raise TimeoutError(f"the task runs of flow run {run_id} don't all reach the database as ended")


def _artifacts(client: SyncPrefectClient, run_id: UUID) -> list[dict[str, Any]]:
    found = client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id])))
    return [
        {
            "key": artifact.key,
            "type": artifact.type,
            "description": artifact.description,
            "data": json.loads(artifact.data) if artifact.type == "table" and isinstance(artifact.data, str) else artifact.data,
        }
        for artifact in found
    ]
