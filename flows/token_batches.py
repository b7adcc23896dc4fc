"""Token-budget batches as a Prefect flow: identify → lengths → plan → report.

    python -m flows.token_batches --config FILE

runs it in this process. A step whose artifact is in the store is Cached, whoever made it; the steps are the same functions
that `zephon-flows batches plan` calls, and both give the same artifacts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import Task, flow
from prefect.client.schemas.objects import State
from prefect.settings import get_current_settings
from prefect.states import Failed

from flows.command import run_from_file
from tasks.batches import draw_report, identify_lengths, measure_lengths, plan_epoch, publish_batches
from tasks.caching import bind
from tasks.reporting import STEPS, artifact_key, publish_markdown, publish_table, route_core_logs
from zephon_core.batching.publish import check_output
from zephon_core.batching.report import REPORT_NAME, describe
from zephon_core.batching.specs import BatchesRun, BatchesSpec
from zephon_core.batching.steps import BatchesIdentity, BatchesRecipes, BatchesResult, batches_recipes, result_of
from zephon_core.errors import ZephonError
from zephon_core.progress import format_amount
from zephon_core.store import ArtifactStore, Recipe

__all__ = ["main", "token_batches"]


@flow(
    name="token-batches",
    flow_run_name="batches-{spec.name}",
    retries=0,
    validate_parameters=True,
    persist_result=False,
)
def token_batches(spec: BatchesSpec, run: BatchesRun = BatchesRun()) -> BatchesResult:  # noqa: B008 - frozen, and shown in the form
    """Cut an epoch into batches of a token budget for all ranks, each with the same number of batches of nearly equal cost.

    Steps that are done already, here or by the command line, are not done again.

    Args:
        spec: Which lengths, which budget, for how many ranks. Equal values give equal plans.
        run: Where it is kept and published. Nothing here changes a batch.

    """
    route_core_logs()
    try:
        return _Planning(spec, run).result()
    except ZephonError as error:
        # As a state, so that the run says in one line what is wrong; raised, Prefect logs a traceback first.
        return Failed(message=str(error), data=error)  # type: ignore[return-value]


class _Planning:
    """One run of the flow: its steps' states and times."""

    def __init__(self, spec: BatchesSpec, run: BatchesRun) -> None:
        self._spec = spec
        self._run = run
        self._store = ArtifactStore(run.store)
        self._refresh = run.refresh or bool(get_current_settings().tasks.refresh_cache)
        self._after: list[State[Any]] = []  # what the next step waits for, as the run's graph shows it
        self._cached: dict[str, bool] = {}
        self._seconds: dict[str, float] = {}
        self._clock = time.monotonic()

    def result(self) -> BatchesResult:
        """Run the steps in order and publish what they made."""
        spec, run = self._spec, self._run
        if run.output:
            check_output(run.output)
        identity: BatchesIdentity = self._finish("identify", identify_lengths(spec, run, return_state=True))
        recipes = batches_recipes(spec, identity)
        self._step("lengths", measure_lengths, recipes.lengths, identity)
        self._step("plan", plan_epoch, recipes.plan, identity)
        self._step("report", draw_report, recipes.report, identity)
        folder = ""
        if run.output:
            folder = self._finish("publish", publish_batches(spec, identity, run, wait_for=self._after, return_state=True))
        cached, seconds = self._cached, self._seconds
        result = result_of(spec, identity, store=self._store, folder=folder, cached=cached, seconds=seconds)
        self._publish(result, recipes)
        return result

    def _step(self, name: str, task: Task[..., Any], recipe: Recipe, identity: BatchesIdentity) -> None:
        bound = bind(task, recipe, self._store, refresh=self._refresh)
        state = bound(self._spec, identity, self._run, wait_for=self._after, return_state=True)
        self._finish(name, state)
        self._cached[name] = state.name == "Cached"

    def _finish(self, name: str, state: State[Any]) -> Any:
        """Return what the step returned; raises the error of one that failed."""
        result = state.result()
        self._after = [state]
        now = time.monotonic()
        self._seconds[name] = round(now - self._clock, 3)
        self._clock = now
        return result

    def _publish(self, result: BatchesResult, recipes: BatchesRecipes) -> None:
        name = self._spec.name
        rows = _step_rows(self._store, result, recipes)
        publish_table(artifact_key("batches", name, STEPS), rows, description=f"What each step of batches **{name}** made.")
        report = Path(result.plan if self._run.output else rows[1]["url"]) / REPORT_NAME
        page = _page(self._spec, result, report)
        publish_markdown(artifact_key("batches", name, "report"), page, description=f"Batches **{name}**.")


def _step_rows(store: ArtifactStore, result: BatchesResult, recipes: BatchesRecipes) -> list[dict[str, Any]]:
    """Return one row a step; the last one is the plan, which is what the flow is run for."""
    rows = []
    for step, recipe in (("lengths", recipes.lengths), ("report", recipes.report), ("plan", recipes.plan)):
        ref = store.find(recipe.kind, recipe.fingerprint)
        rows.append(
            {
                "step": step,
                "state": "gone" if ref is None else "cached" if result.cached[step] else "built",
                "seconds": result.seconds[step],
                "bytes": format_amount(sum(file.bytes for file in store.record(ref).files.values()), "B") if ref else "",
                "fingerprint": recipe.fingerprint,
                "url": ref.url if ref else "",
            }
        )
    rows[-1]["url"] = result.plan
    return rows


def _page(spec: BatchesSpec, result: BatchesResult, report: Path) -> str:
    """Describe the plan on one page of Markdown."""
    lines = [f"# Batches {spec.name}", ""]
    lines += [f"- {words}" for words in describe(result.statistics).values()]
    lines += [
        f"- fingerprint `{result.fingerprint}`",
        f"- folder `{result.plan}`",
        f"- report [`{report}`]({report.as_uri()})",
        "",
        f"```\nzephon-flows batches stats {result.plan}\n```",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the flow with the parameters in a file; see `flows.command`."""
    return run_from_file(token_batches, BatchesSpec, BatchesRun, arguments, name="token_batches", description=__doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
