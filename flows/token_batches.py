"""Token-budget batches as a Prefect flow: identify → lengths → plan → report.

    python -m flows.token_batches --config FILE

runs it in this process. A step whose artifact is in the store is Cached, whoever made it; the steps are the same functions
that `zephon-flows batches plan` calls, and both give the same artifacts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from prefect import flow

from flows.command import run_from_file
from flows.stepwise import Stepwise, step_rows, with_errors_as_states
from tasks.batches import draw_report, identify_lengths, measure_lengths, plan_epoch, publish_batches
from tasks.reporting import STEPS, artifact_key, publish_markdown, publish_table
from zephon_core.batching.publish import check_output
from zephon_core.batching.report import REPORT_NAME, describe
from zephon_core.batching.specs import BatchesRun, BatchesSpec
from zephon_core.batching.steps import BatchesIdentity, BatchesRecipes, BatchesResult, batches_recipes, result_of

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
    return with_errors_as_states(lambda: _Planning(spec, run).result())


class _Planning(Stepwise):
    """One run of the flow."""

    def result(self) -> BatchesResult:
        """Run the steps in order and publish what they made."""
        spec, run = self._spec, self._run
        if run.output:
            check_output(run.output)
        identity: BatchesIdentity = self._finish("identify", [identify_lengths(spec, run, return_state=True)])
        recipes = batches_recipes(spec, identity)
        self._step("lengths", measure_lengths, recipes.lengths, identity)
        self._step("plan", plan_epoch, recipes.plan, identity)
        self._step("report", draw_report, recipes.report, identity)
        folder = self._published(publish_batches, identity)
        cached, seconds = self._cached, self._seconds
        result = result_of(spec, identity, store=self._store, folder=folder, cached=cached, seconds=seconds)
        self._publish(result, recipes)
        return result

    def _publish(self, result: BatchesResult, recipes: BatchesRecipes) -> None:
        name = self._spec.name
        # The plan, which is what the flow is run for, comes last.
        steps = [("lengths", recipes.lengths), ("report", recipes.report), ("plan", recipes.plan)]
        rows = step_rows(self._store, steps, cached=result.cached, seconds=result.seconds, absent="gone", url=result.plan)
        publish_table(artifact_key("batches", name, STEPS), rows, description=f"What each step of batches **{name}** made.")
        report = Path(result.plan if self._run.output else rows[1]["url"]) / REPORT_NAME
        page = _page(self._spec, result, report)
        publish_markdown(artifact_key("batches", name, "report"), page, description=f"Batches **{name}**.")


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
