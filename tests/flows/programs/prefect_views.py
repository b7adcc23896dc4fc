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


def what_prefect_says(flow_run: str) -> dict[str, Any]:
    """Return the run's name, the states of its task runs by name, its log and its artifacts, once they are in."""
    run_id = UUID(flow_run)
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(run_id)
        return {
            "name": run.name,
            "tasks": _tasks(client, run_id),
            "logs": _logs(client, run_id),
            "artifacts": _artifacts(client, run_id),
        }


def _tasks(client: SyncPrefectClient, run_id: UUID) -> dict[str, str]:
    """Task runs reach the database through events, a moment later."""
    wanted = FlowRunFilter(id=FlowRunFilterId(any_=[run_id]))
    for _ in range(100):
        runs = client.read_task_runs(flow_run_filter=wanted)
        if runs and all(run.state is not None and run.state.is_final() for run in runs):
            break
        time.sleep(0.1)
    return {run.name: run.state.name for run in runs if run.state is not None and run.state.name is not None}


def _logs(client: SyncPrefectClient, run_id: UUID) -> list[str]:
    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run_id]))
    for _ in range(100):
        records = client.read_logs(wanted, limit=200)
        if any(record.name == "prefect.flow_runs" and "Finished in state" in record.message for record in records):
            break
        time.sleep(0.1)
    return [f"{record.name}: {record.message}" for record in records]


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
