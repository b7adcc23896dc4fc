"""A flow that runs its steps one after the other: each a task bound to its artifact, waiting for the one before."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from prefect import Flow, Task
from prefect.client.schemas.objects import FlowRun, State
from prefect.flows import FlowStateHook
from prefect.logging.loggers import flow_run_logger
from prefect.settings import get_current_settings
from prefect.states import Failed

from tasks.caching import bind
from tasks.reporting import route_core_logs
from zephon_core.errors import ZephonError
from zephon_core.progress import format_amount
from zephon_core.store import ArtifactStore, Recipe

__all__ = ["Stepwise", "refreshes", "say_what_is_kept", "step_rows", "with_errors_as_states"]

T = TypeVar("T")


def with_errors_as_states(work: Callable[[], T]) -> T:
    """Do a flow's work with the core's log in the run's; an error of the core becomes the run's state.

    As a state, the run says in one line what is wrong; raised, Prefect logs a traceback first.
    """
    route_core_logs()
    try:
        return work()
    except ZephonError as error:
        return Failed(message=str(error), data=error)  # type: ignore[return-value]


def refreshes(run: Any) -> bool:
    """Tell whether what is there is to be made again: by the run's options, or by Prefect's own setting."""
    return run.refresh or bool(get_current_settings().tasks.refresh_cache)


def say_what_is_kept(words: str) -> FlowStateHook[..., Any]:
    """Return a hook for a flow that was cancelled or crashed: it says in the run's log what the same run needn't do again."""

    def say(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
        flow_run_logger(flow_run).warning("%s. %s", state.name, words)

    return say


class Stepwise:
    """The steps of one run: what the next one waits for, which were Cached, and how many seconds each took."""

    def __init__(self, spec: Any, run: Any) -> None:
        self._spec = spec
        self._run = run
        self._store = ArtifactStore(run.store)
        self._refresh = refreshes(run)
        self._after: list[State[Any]] = []  # what the next step waits for, as the run's graph shows it
        self._cached: dict[str, bool] = {}
        self._seconds: dict[str, float] = {}
        self._clock = time.monotonic()

    def _step(self, name: str, task: Task[..., Any], recipe: Recipe, identity: Any) -> Any:
        """Run a step and return its artifact's reference."""
        bound = bind(task, recipe, self._store, refresh=self._refresh)
        state = bound(self._spec, identity, self._run, wait_for=self._after, return_state=True)
        ref = self._finish(name, [state])
        self._cached[name] = state.name == "Cached"
        return ref

    def _published(self, task: Task[..., str], identity: Any) -> str:
        """Publish what was made to the run's output; return the folder, "" where none is wanted."""
        if not self._run.output:
            return ""
        state = task(self._spec, identity, self._run, wait_for=self._after, return_state=True)
        return str(self._finish("publish", [state]))

    def _finish(self, name: str, states: list[State[Any]]) -> Any:
        """Return what the step's last task run returned; raises the error of the first that failed."""
        results = [state.result() for state in states]
        self._after = states
        now = time.monotonic()
        self._seconds[name] = round(now - self._clock, 3)
        self._clock = now
        return results[-1]


def step_rows(
    store: ArtifactStore,
    steps: Sequence[tuple[str, Recipe]],
    *,
    cached: Mapping[str, bool],
    seconds: Mapping[str, float],
    absent: str,
    url: str,
) -> list[dict[str, Any]]:
    """Return one row a step; the last is what the flow is run for, and lies at `url`. absent: the state of one without artifact."""
    rows = []
    for step, recipe in steps:
        ref = store.find(recipe.kind, recipe.fingerprint)
        rows.append(
            {
                "step": step,
                "state": absent if ref is None else "cached" if cached[step] else "built",
                "seconds": seconds[step],
                "bytes": format_amount(sum(file.bytes for file in store.record(ref).files.values()), "B") if ref else "",
                "fingerprint": recipe.fingerprint,
                "url": ref.url if ref else "",
            }
        )
    rows[-1]["url"] = url
    return rows
