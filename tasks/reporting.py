"""What people see of a run in Prefect: log lines, progress bars, tables and pages.

Publishing never fails a run, and progress never slows one down: it is sent from a thread of its own, at most one call to
the API every two seconds. Tables and pages are published by the flow from artifact references, since a cached task's body,
and with it anything that it would publish, doesn't run.
"""

from __future__ import annotations

import contextvars
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol
from uuid import UUID

import httpx
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.logging.handlers import APILogHandler
from prefect.utilities.context import get_flow_run_id

from zephon_core.errors import ZephonError
from zephon_core.progress import LoggingProgress, Phase

__all__ = [
    "STEPS",
    "RunProgress",
    "RunStopped",
    "artifact_key",
    "publish_markdown",
    "publish_table",
    "route_core_logs",
    "run_progress",
    "stop_tasks_in_threads",
]

STEPS = "steps"  # last word of the key of the table whose last row is what a flow made
API_INTERVAL_S = 2.0
LOG_INTERVAL_S = 10.0
_CLOSING_TIMEOUT_S = 10.0

# What a call to the API can fail with: the network, the server's answer, Prefect's own checks, a client that is shutting down.
PUBLISHING_ERRORS = (httpx.HTTPError, PrefectException, OSError, RuntimeError, ValueError)


def artifact_key(*words: str) -> str:
    """Join words into a key that Prefect accepts (lower case, digits and dashes): `artifact_key("scan", "A b")` is "scan-a-b"."""
    return re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-") or "artifact"


def in_run() -> bool:
    """Say whether this code runs inside a flow or task run."""
    return FlowRunContext.get() is not None or TaskRunContext.get() is not None


class _RunLogHandler(APILogHandler):
    """Sends what is logged inside a run to that run, and nothing else: core threads outside of any run have no page to log to."""

    def emit(self, record: logging.LogRecord) -> None:
        if in_run():
            super().emit(record)


class _NoTracebackOfBadInput(logging.Filter):
    """Drops the tracebacks that Prefect's engine logs of the core's own errors: the run's state says them in one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], ZephonError))


_no_traceback = _NoTracebackOfBadInput()


def route_core_logs(level: int = logging.INFO) -> None:
    """Let the core's log records of `level` and above reach the run's log, in whichever process this is; idempotent.

    `PREFECT_LOGGING_EXTRA_LOGGERS=zephon_core` attaches Prefect's handler, but leaves the logger at the root's level.
    """
    for name in ("prefect.engine", "prefect.flow_runs"):
        logging.getLogger(name).addFilter(_no_traceback)
    logger = logging.getLogger("zephon_core")
    if logger.level == logging.NOTSET or logger.level > level:
        logger.setLevel(level)
    if not any(isinstance(handler, APILogHandler) for handler in logger.handlers):
        logger.addHandler(_RunLogHandler())


class RunStopped(Exception):
    """The flow run was told to stop while one of its tasks was at work in another thread."""


_stopped_runs: set[UUID] = set()


def stop_tasks_in_threads() -> None:
    """Have the tasks of the flow run that runs now, in whatever threads, raise RunStopped when they next report progress.

    A thread can't be stopped from outside, and one that encodes would keep a stopped process alive for hours.
    """
    if flow_run_id := get_flow_run_id():
        _stopped_runs.add(flow_run_id)


class _DescribedPhase(Protocol):
    def advance(self, amount: float) -> None: ...

    def describe(self, now: float) -> str: ...


class _PublishedPhase:
    """A phase that is written to the run's log, and from which the publisher takes what to show."""

    def __init__(self, inner: _DescribedPhase, key: str, total: float | None) -> None:
        self._inner = inner
        self._run = get_flow_run_id()
        self._lock = threading.Lock()
        self._done = 0.0
        self._total = total
        self.key = key
        self.artifact: UUID | None = None
        self.shown: tuple[float, str] | None = None
        self.last_words = ""

    def advance(self, amount: float) -> None:
        if self._run in _stopped_runs:
            raise RunStopped("The run was told to stop; what is finished is kept.")
        with self._lock:
            self._done += amount
            self._inner.advance(amount)

    def end(self) -> None:
        self.last_words = self._inner.describe(time.monotonic())

    @property
    def percent(self) -> float:
        if self.last_words:
            return 100.0
        return min(100.0, 100.0 * self._done / self._total) if self._total else 0.0

    def describe(self) -> str:
        return self.last_words or self._inner.describe(time.monotonic())


class RunProgress:
    """Progress of a task run: log lines, and a progress artifact for each phase that lasts longer than `interval_s`.

    subject: what the work is about, the first part of the artifacts' keys. step: the second part, left out where a phase is
    called the same. Used as a context manager, which sends what is pending at its end.
    """

    def __init__(
        self,
        subject: str,
        step: str,
        *,
        logger: Any,
        interval_s: float = API_INTERVAL_S,
        log_interval_s: float = LOG_INTERVAL_S,
    ) -> None:
        self._subject = subject
        self._step = step
        self._logger = logger
        self._interval_s = interval_s
        self._log = LoggingProgress(logger, interval_s=log_interval_s)
        self._phases: list[_PublishedPhase] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._called = 0.0
        self._warned = False
        context = contextvars.copy_context()  # the run's identity, which a new thread doesn't inherit
        self._thread = threading.Thread(
            target=context.run, args=(self._publish_until_closed,), name=f"progress {step}", daemon=True
        )

    def __enter__(self) -> RunProgress:
        """Start the thread that publishes."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Send what is pending, for a few seconds at most."""
        self._closing.set()
        self._thread.join(_CLOSING_TIMEOUT_S)

    @contextmanager
    def phase(self, label: str, *, total: float | None, unit: str) -> Iterator[Phase]:
        """See `zephon_core.progress.Progress.phase`."""
        words = (self._step,) if label == self._step else (self._step, label)
        with self._log.phase(label, total=total, unit=unit) as inner:
            phase = _PublishedPhase(inner, artifact_key(self._subject, *words, "progress"), total)  # type: ignore[arg-type]
            with self._lock:
                self._phases.append(phase)
            yield phase
            phase.end()
            with self._lock:
                if phase.shown is None:  # too short to be shown
                    self._phases.remove(phase)

    def note(self, message: str) -> None:
        """See `zephon_core.progress.Progress.note`."""
        self._log.note(message)

    def _publish_until_closed(self) -> None:
        while not self._closing.wait(self._interval_s):
            self._publish_one()
        with self._lock:
            self._phases = [phase for phase in self._phases if phase.last_words]  # the others broke off
        while self._phases:
            time.sleep(max(0.0, self._called + self._interval_s - time.monotonic()))
            self._publish_one()

    def _publish_one(self) -> None:
        """Make one call to the API, for the phase that has waited longest among those that have moved."""
        with self._lock:
            phase = next((p for p in self._phases if p.shown != (p.percent, p.last_words)), None)
            if phase is None:
                return
            percent, last_words = phase.shown = (phase.percent, phase.last_words)
            self._phases.remove(phase)
            if not last_words:
                self._phases.append(phase)
        self._called = time.monotonic()
        try:
            if phase.artifact is None:
                phase.artifact = create_progress_artifact(percent, key=phase.key, description=phase.describe(), _sync=True)
            else:
                update_progress_artifact(phase.artifact, percent, description=phase.describe(), _sync=True)
        except PUBLISHING_ERRORS as error:
            if not self._warned:
                self._warned = True
                self._logger.warning("Progress can't be shown in the UI (%s); the work goes on.", _in_short(error))


def run_progress(subject: str, step: str) -> AbstractContextManager[RunProgress | LoggingProgress]:
    """Return the progress sink of the task that runs now, to be used in a `with` block; outside of a run, a plain log."""
    route_core_logs()
    if in_run():
        return RunProgress(subject, step, logger=get_run_logger())
    return nullcontext(LoggingProgress())


def publish_table(key: str, rows: Sequence[Mapping[str, Any]], *, description: str = "") -> None:
    """Publish a table on the run's page and under its key among the artifacts."""
    table = [dict(row) for row in rows]
    _publish(key, lambda: create_table_artifact(table, key=key, description=description or None, _sync=True))


def publish_markdown(key: str, text: str, *, description: str = "") -> None:
    """Publish a page of Markdown on the run's page and under its key among the artifacts."""
    _publish(key, lambda: create_markdown_artifact(text, key=key, description=description or None, _sync=True))


def _publish(key: str, call: Callable[[], object]) -> None:
    if not in_run():
        return
    try:
        call()
    except PUBLISHING_ERRORS as error:
        get_run_logger().warning("%s can't be published (%s); the run goes on.", key, _in_short(error))


def _in_short(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
