"""What a local server needs before its worker starts: the work pool, the automations, and no runs that seem to go on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from deployments.automations import crash_detection, install
from deployments.local import POOL, find_server
from zephon_core.errors import ZephonError

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

__all__ = ["create_pool", "end_lost_runs", "main"]


def create_pool(client: SyncPrefectClient) -> None:
    """Create the pool of this machine's worker, unless it is there."""
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectNotFound

    try:
        client.read_work_pool(POOL)
    except ObjectNotFound:
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process", description="The worker of this checkout."))


def end_lost_runs(client: SyncPrefectClient) -> int:
    """Mark runs Crashed that the pool's worker had begun; returns how many. To be called while there is no worker.

    Their processes went with a crash of the machine, say. Each would hold its deployment's only slot for ever.
    """
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
        WorkPoolFilter,
        WorkPoolFilterName,
    )
    from prefect.client.schemas.objects import StateType
    from prefect.states import Crashed

    begun = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
    lost = client.read_flow_runs(
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=begun))),
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL])),
    )
    for run in lost:
        client.set_flow_run_state(run.id, Crashed(message="The server was down, and the run's process is gone. Run it again."))
    return len(lost)


def main() -> int:
    """Provide all three; returns the exit code."""
    try:
        find_server()
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            create_pool(client)
            end_lost_runs(client)
            install(client, crash_detection())
    except ZephonError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
