"""Run a deployment from a CI job: `python -m deployments.ci_run feature-bank/ci --param spec.scan.sources='["train=a.jsonl"]' …`.

Streams the run's log to standard error and ends with the run's state as exit code: 0 completed, 1 failed or crashed (or never
started), 2 usage, 3 cancelled, 4 timed out (the run is then cancelled). The last line on standard output is one JSON object
that names the artifact the run made.

The server is $PREFECT_API_URL, else the one that `make up` started.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any
from uuid import UUID

if __package__ in (None, ""):  # run as a file: what it needs lies beside its folder
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from deployments.local import find_server
from zephon_core.console import read_config, with_flags
from zephon_core.errors import InputError, SpecError, ZephonError
from zephon_core.usage import CommandParser

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State
    from prefect.client.schemas.responses import DeploymentResponse

__all__ = ["main"]

COMPLETED, FAILED, USAGE, CANCELLED, TIMED_OUT = 0, 1, 2, 3, 4

_POLL_S = 0.5
_WORKER_CHECK_S = 15.0
_CANCEL_TIMEOUT_S = 60.0
_LAST_LOGS_S = 6.0
_LOG_PAGE = 200
_LOG_OVERLAP = 50  # records that arrive late sort in before those already shown
_REFUSED = "prefect.exceptions.ParameterTypeError: "  # ends the traceback of values that the flow refuses: the run's state says why


class _Interrupted(Exception):
    """The job that runs this was cancelled."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a deployment; returns the exit code."""
    chosen = _parser().parse_args(arguments)
    try:
        parameters = _given_parameters(chosen.params_file, chosen.param)
    except SpecError as error:
        _say(f"error: {error}")
        return USAGE
    try:
        find_server()
    except ZephonError as error:
        _say(f"error: {error}")
        return FAILED
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    return _run(chosen.deployment, parameters, timeout_s=chosen.timeout, worker_wait_s=chosen.worker_wait)


def _parser() -> CommandParser:
    parser = CommandParser(prog="python -m deployments.ci_run", description="Run a deployment and wait for its end.")
    parser.add_argument("deployment", metavar="FLOW/NAME", help="for example feature-bank/ci")
    parser.add_argument(
        "--param",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a parameter by its dotted path; the value is JSON, or else text. Repeat it.",
    )
    parser.add_argument(
        "--params-file", type=Path, default=None, metavar="FILE", help="YAML or JSON of parameters; --param overrides it"
    )
    parser.add_argument(
        "--timeout", type=float, default=None, metavar="SECONDS", help="cancel the run after so long. [default: never]"
    )
    parser.add_argument(
        "--worker-wait",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long to wait for a worker to be there. [default: 30]",
    )
    return parser


def _given_parameters(path: Path | None, assignments: Sequence[str]) -> dict[str, Any]:
    """Read parameters from the file and the command line, the latter on top. Raises SpecError."""
    flags: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not all(key.split(".")):
            raise SpecError("--param", f"is {assignment!r}", wanted="KEY=VALUE, with a dotted path as key")
        try:
            flags[key] = json.loads(text)
        except ValueError:
            flags[key] = text
    return with_flags(read_config(path), flags)


def _run(name: str, given: Mapping[str, Any], *, timeout_s: float | None, worker_wait_s: float) -> int:
    import httpx
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        try:
            return _run_and_follow(client, name, given, timeout_s=timeout_s, worker_wait_s=worker_wait_s)
        except ZephonError as error:
            _say(f"error: {error}")
        except httpx.HTTPError as error:
            _say(f"error: {client.api_url}: doesn't answer any more ({_first_line(error)}). The run may go on unwatched.")
        return FAILED


def _run_and_follow(
    client: SyncPrefectClient, name: str, given: Mapping[str, Any], *, timeout_s: float | None, worker_wait_s: float
) -> int:
    started = time.monotonic()
    deployment = _deployment(client, name)
    _wait_for_worker(client, deployment, worker_wait_s)
    flow_run = _create(client, deployment, given)
    _say(f"{name}: run {flow_run.name} ({flow_run.id})")
    follower = _Follower(client, deployment, flow_run.id)
    try:
        state = follower.follow(None if timeout_s is None else started + timeout_s)
    except _Interrupted:
        _say(f"error: {name}: interrupted; the run is cancelled.")
        follower.cancel()
        return CANCELLED
    except InputError:
        follower.cancel()
        raise
    if state is None:
        _say(f"error: {name}: not done after {timeout_s:g} s; the run is cancelled.")
        follower.cancel()
        return TIMED_OUT
    return _report(client, name, flow_run, state)


def _deployment(client: SyncPrefectClient, name: str) -> DeploymentResponse:
    from prefect.exceptions import ObjectNotFound

    if (fault := client.api_healthcheck()) is not None:
        raise InputError(str(client.api_url), f"doesn't answer ({_first_line(fault)})", remedy="Is the server running?")
    if name.count("/") != 1:
        raise SpecError("deployment", f"is {name!r}", wanted="FLOW/NAME, as in feature-bank/ci")
    try:
        return client.read_deployment_by_name(name)
    except ObjectNotFound:
        flows = {flow.id: flow.name for flow in client.read_flows()}
        known = sorted(f"{flows.get(each.flow_id)}/{each.name}" for each in client.read_deployments())
        raise InputError(name, "is not deployed", wanted=f"one of {', '.join(known) or 'none at all'}") from None


def _wait_for_worker(client: SyncPrefectClient, deployment: DeploymentResponse, timeout_s: float) -> None:
    """Wait until a worker serves the deployment's pool. Raises InputError when none comes."""
    deadline = time.monotonic() + timeout_s
    while not _has_worker(client, deployment):
        if time.monotonic() >= deadline:
            raise InputError(
                f"work pool {deployment.work_pool_name}",
                "has no worker online, so nothing would run",
                remedy=f"Start one: prefect worker start --pool {deployment.work_pool_name}",
            )
        time.sleep(_POLL_S)


def _has_worker(client: SyncPrefectClient, deployment: DeploymentResponse) -> bool:
    from prefect.client.schemas.filters import WorkerFilter, WorkerFilterStatus

    if deployment.work_pool_name is None:
        return True  # served by a process of its own, of which the server knows no list
    online = WorkerFilter(status=WorkerFilterStatus(any_=["ONLINE"]))
    return bool(client.read_workers_for_work_pool(deployment.work_pool_name, worker_filter=online))


def _create(client: SyncPrefectClient, deployment: DeploymentResponse, given: Mapping[str, Any]) -> FlowRun:
    from prefect.exceptions import PrefectHTTPStatusError

    parameters = _merged(deployment.parameters, given)
    try:
        return client.create_flow_run_from_deployment(deployment.id, parameters=parameters)
    except PrefectHTTPStatusError as error:
        try:
            detail = str(error.response.json()["detail"])
        except (ValueError, KeyError, TypeError):
            detail = _first_line(error)
        raise InputError("parameters", f"are refused ({' '.join(detail.split())})") from None


def _merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `given` over `defaults`, mapping by mapping."""
    merged = dict(defaults)
    for key, value in given.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


class _Follower:
    """Shows a run's log as it comes, until the run ends."""

    def __init__(self, client: SyncPrefectClient, deployment: DeploymentResponse, flow_run_id: UUID) -> None:
        self._client = client
        self._deployment = deployment
        self._id = flow_run_id
        self._shown: set[UUID] = set()
        self._worker_seen = time.monotonic()
        self._log_ended = False
        self._task_names: dict[UUID, str] = {}

    def follow(self, deadline: float | None) -> State[Any] | None:
        """Return the run's final state, None when `deadline` (monotonic) comes first. Raises InputError where no worker is left."""
        while True:
            state = self._client.read_flow_run(self._id).state
            self._show_logs()
            if state is not None and state.is_final():
                self._show_last_logs()
                return state
            if deadline is not None and time.monotonic() >= deadline:
                return None
            if state is None or state.is_scheduled():
                self._check_worker()
            time.sleep(_POLL_S)

    def cancel(self) -> None:
        """Cancel the run and wait a while for its end."""
        from prefect.states import Cancelling

        self._client.set_flow_run_state(self._id, Cancelling(message="Cancelled by the job that started it."))
        self.follow(time.monotonic() + _CANCEL_TIMEOUT_S)

    def _check_worker(self) -> None:
        now = time.monotonic()
        if now - self._worker_seen < _WORKER_CHECK_S:
            return
        if not _has_worker(self._client, self._deployment):
            raise InputError(f"work pool {self._deployment.work_pool_name}", "has lost its workers before the run began")
        self._worker_seen = now

    def _show_last_logs(self) -> None:
        """Wait a little for the run's last words: its process sends them in batches, after its final state."""
        deadline = time.monotonic() + _LAST_LOGS_S
        while not self._log_ended and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            self._show_logs()

    def _show_logs(self) -> None:
        from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
        from prefect.client.schemas.sorting import LogSort

        wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[self._id]))
        offset = max(0, len(self._shown) - _LOG_OVERLAP)
        while True:
            page = self._client.read_logs(wanted, limit=_LOG_PAGE, offset=offset, sort=LogSort.TIMESTAMP_ASC)
            for record in page:
                if record.id not in self._shown:
                    self._shown.add(record.id)
                    self._log_ended |= record.name == "prefect.flow_runs" and record.message.startswith("Finished in state")
                    if _REFUSED in record.message:
                        continue
                    where = self._task_name(record.task_run_id) if record.task_run_id else ""
                    _say(f"{record.timestamp:%H:%M:%S} {logging.getLevelName(record.level):<7} {where}{record.message}")
            if len(page) < _LOG_PAGE:
                return
            offset += _LOG_PAGE

    def _task_name(self, task_run_id: UUID) -> str:
        """Return the task run's name with a colon, nothing while the server doesn't know the run: it hears of it through events."""
        from prefect.exceptions import ObjectNotFound

        if task_run_id not in self._task_names:
            try:
                self._task_names[task_run_id] = f"{self._client.read_task_run(task_run_id).name}: "
            except ObjectNotFound:
                return ""
        return self._task_names[task_run_id]


def _report(client: SyncPrefectClient, name: str, flow_run: FlowRun, state: State[Any]) -> int:
    """Say how the run ended; a completed one with its artifact on standard output."""
    if state.is_completed():
        made = _artifact(client, flow_run.id)
        answer = {"deployment": name, "flow_run_id": str(flow_run.id), "state": state.name, **made}
        sys.stdout.write(json.dumps(answer, ensure_ascii=False) + "\n")
        sys.stdout.flush()
        return COMPLETED
    _say(f"{name}: {(state.name or state.type.value).lower()}: {' '.join((state.message or 'no reason given').split())}")
    return CANCELLED if state.is_cancelled() else FAILED


def _artifact(client: SyncPrefectClient, flow_run_id: UUID) -> dict[str, str | None]:
    """Return fingerprint and URL of what the run made: the last row of the table of steps that the flow published."""
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterType
    from prefect.client.schemas.sorting import ArtifactSort

    tables = client.read_artifacts(
        artifact_filter=ArtifactFilter(
            flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run_id]), type=ArtifactFilterType(any_=["table"])
        ),
        sort=ArtifactSort.CREATED_DESC,
    )
    for table in tables:
        if str(table.key).endswith("-steps"):
            rows = table.data if isinstance(table.data, list) else json.loads(str(table.data))
            return {"fingerprint": rows[-1]["fingerprint"], "url": rows[-1]["url"]}
    return {"fingerprint": None, "url": None}


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _say(message: str) -> None:
    sys.stderr.write(message + "\n")
    sys.stderr.flush()


def _interrupt(_: int, __: FrameType | None) -> None:
    raise _Interrupted


if __name__ == "__main__":
    sys.exit(main())
