"""What the server does by itself: `python -m deployments.automations [--notify BLOCK_TYPE/NAME]`, as often as you like.

- A run whose process vanished (a machine that died, say) is marked Crashed: its heartbeat, sent every 30 s
  (`PREFECT_FLOWS_HEARTBEAT_FREQUENCY=30`, see prefect.yaml), stayed out.
- Where a notification block is named (`slack-webhook/team`, `custom-webhook/pager`, …), a run that failed or crashed is told
  to it. The block is made in the UI and holds its own secret; here only its name is known.

Both see only runs of this project's deployments, by their tag.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from deployments.local import find_server
from zephon_core.errors import InputError, SpecError, ZephonError

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events.schemas.automations import AutomationCore

__all__ = ["crash_detection", "failure_notification", "install", "main"]

TAG = "zephon"
CRASH_NAME = "zephon: a run without a heartbeat has crashed"
NOTIFY_NAME = "zephon: tell of runs that failed"

# Two heartbeats may be missed; with the server's own round of 5 s, a vanished run is Crashed within 50 to 80 s.
HEARTBEAT_PATIENCE = timedelta(seconds=75)
_ENDS = {f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed")}


def crash_detection() -> AutomationCore:
    """Return the automation that marks a run Crashed whose heartbeat stayed out."""
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    return AutomationCore(
        name=CRASH_NAME,
        description="Heartbeats come every 30 s; two may be missed.",
        trigger=EventTrigger(
            posture=Posture.Proactive,
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.heartbeat", *_ENDS},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related={"prefect.resource.id": f"prefect.tag.{TAG}"},
            for_each={"prefect.resource.id"},
            threshold=1,
            within=HEARTBEAT_PATIENCE,
        ),
        actions=[
            ChangeFlowRunState(
                name=None,
                state=StateType.CRASHED,
                force=False,
                message="The run's process has vanished: its heartbeat stayed out. Run it again; it goes on where it was.",
            )
        ],
    )


def failure_notification(client: SyncPrefectClient, block: str) -> AutomationCore:
    """Return the automation that tells the notification block `type/name` of runs that failed or crashed."""
    from prefect.events.actions import SendNotification
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
    from prefect.exceptions import ObjectNotFound

    kind, slash, name = block.partition("/")
    if not slash or not kind or not name:
        raise SpecError("--notify", f"is {block!r}", wanted="BLOCK_TYPE/NAME, as in slack-webhook/team")
    try:
        document = client.read_block_document_by_name(name, kind)
    except ObjectNotFound:
        raise InputError(block, "is no block on this server", remedy="Make it in the UI under Blocks.") from None
    return AutomationCore(
        name=NOTIFY_NAME,
        trigger=EventTrigger(
            posture=Posture.Reactive,
            expect={"prefect.flow-run.Failed", "prefect.flow-run.Crashed"},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related={"prefect.resource.id": f"prefect.tag.{TAG}"},
            for_each={"prefect.resource.id"},
            threshold=1,
            within=timedelta(0),
        ),
        actions=[
            SendNotification(
                block_document_id=document.id,
                subject="{{ flow.name }}: {{ flow_run.name }} {{ flow_run.state.name | lower }}",
                body="{{ flow_run.state.message }}\n{{ flow_run | ui_url }}",
            )
        ],
    )


def install(client: SyncPrefectClient, automation: AutomationCore) -> None:
    """Create the automation, or bring the one of that name up to date; one that is up to date isn't touched.

    An update, even to what it is, makes the server forget the heartbeats it has seen, and with them the runs it watches.
    """
    known = client.read_automations_by_name(automation.name)
    for twin in known[1:]:
        client.delete_automation(twin.id)
    if not known:
        client.create_automation(automation)
    elif _content(known[0]) != _content(automation):
        client.update_automation(known[0].id, automation)


def _content(automation: AutomationCore) -> dict[str, Any]:
    content = automation.model_dump(mode="json", include={"description", "trigger", "actions"})
    content["trigger"].pop("id", None)
    for name in ("after", "expect", "for_each"):  # sets
        content["trigger"][name] = sorted(content["trigger"][name])
    return content


def main(arguments: Sequence[str] | None = None) -> int:
    """Install the automations; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deployments.automations", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--notify", default="", metavar="BLOCK_TYPE/NAME", help="a notification block to tell of failed runs")
    chosen = parser.parse_args(arguments)
    try:
        find_server()
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            if (fault := client.api_healthcheck()) is not None:
                raise InputError(str(client.api_url), f"doesn't answer ({fault})", remedy="Is the server running?")
            install(client, crash_detection())
            if chosen.notify:
                install(client, failure_notification(client, chosen.notify))
    except ZephonError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
