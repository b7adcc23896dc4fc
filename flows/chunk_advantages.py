"""Advantages from a teacher of another vocabulary as a Prefect flow: identify → align → score → attach → report.

    python -m flows.chunk_advantages --config FILE

runs it in this process. A step whose artifact is in the store is Cached, whoever made it; the steps are the same functions
that `zephon-flows xtoken attach` calls, and both give the same artifacts. Where the teacher's logprobs are given there is
nothing to score.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from prefect import flow
from prefect.logging import get_run_logger

from flows.command import run_from_file
from flows.stepwise import Stepwise, say_what_is_kept, step_rows, with_errors_as_states
from tasks.reporting import STEPS, artifact_key, publish_markdown, publish_table
from tasks.xtoken import (
    align_datums,
    attach_advantages,
    draw_report,
    identify_inputs,
    publish_advantages,
    score_teacher,
)
from zephon_core.progress import LoggingProgress
from zephon_core.xtoken.advantages import DROP_REASONS, Drop
from zephon_core.xtoken.pictures import REPORT_NAME, describe
from zephon_core.xtoken.specs import ChunkAdvantagesRun, ChunkAdvantagesSpec
from zephon_core.xtoken.steps import (
    ChunkAdvantagesIdentity,
    ChunkAdvantagesRecipes,
    ChunkAdvantagesResult,
    advantages_recipes,
    check_run,
    restart_score,
    result_of,
)

__all__ = ["chunk_advantages", "main"]


_say_what_is_kept = say_what_is_kept("What is scored is kept: the same run goes on where this one stopped.")


@flow(
    name="chunk-advantages",
    flow_run_name="advantages-{spec.name}",
    retries=0,
    validate_parameters=True,
    persist_result=False,
    on_cancellation=[_say_what_is_kept],
    on_crashed=[_say_what_is_kept],
)
def chunk_advantages(
    spec: ChunkAdvantagesSpec,
    run: ChunkAdvantagesRun = ChunkAdvantagesRun(),  # noqa: B008 - frozen, and shown in the form
) -> ChunkAdvantagesResult:
    """Turn what a teacher of another vocabulary thinks of a student's datums into an advantage for each of the student's tokens.

    Steps that are done already, here or by the command line, are not done again; an interrupted run goes on where it was.

    Args:
        spec: Which datums, which two tokenizers, whose logprobs. Equal values give equal advantages.
        run: How it runs: where, with how much of the machine. Nothing here changes an advantage.

    """
    return with_errors_as_states(lambda: _Advantages(spec, run).result())


class _Advantages(Stepwise):
    """One run of the flow."""

    def result(self) -> ChunkAdvantagesResult:
        """Run the steps in order and publish what they made."""
        spec, run = self._spec, self._run
        check_run(run)
        identity: ChunkAdvantagesIdentity = self._finish("identify", [identify_inputs(spec, run, return_state=True)])
        recipes = advantages_recipes(spec, identity)
        self._step("align", align_datums, recipes.align, identity)
        if recipes.score is not None:
            if self._refresh:
                restart_score(spec, identity, store=self._store, progress=LoggingProgress(get_run_logger()))
            self._step("score", score_teacher, recipes.score, identity)
        self._step("attach", attach_advantages, recipes.attach, identity)
        self._step("report", draw_report, recipes.report, identity)
        folder = self._published(publish_advantages, identity)
        cached, seconds = self._cached, self._seconds
        result = result_of(spec, identity, store=self._store, folder=folder, cached=cached, seconds=seconds)
        self._publish(result, recipes)
        return result

    def _publish(self, result: ChunkAdvantagesResult, recipes: ChunkAdvantagesRecipes) -> None:
        name = self._spec.name
        # The advantages, which are what the flow is run for, come last.
        made = {"align": recipes.align, "score": recipes.score, "report": recipes.report, "attach": recipes.attach}
        steps = [(step, recipe) for step, recipe in made.items() if recipe is not None]
        rows = step_rows(self._store, steps, cached=result.cached, seconds=result.seconds, absent="gone", url=result.output)
        publish_table(artifact_key("advantages", name, STEPS), rows, description=f"What each step of advantages **{name}** made.")
        report = Path(result.output if self._run.output else rows[-2]["url"]) / REPORT_NAME
        page = _page(self._spec, result, report)
        publish_markdown(artifact_key("advantages", name, "report"), page, description=f"Advantages **{name}**.")


def _page(spec: ChunkAdvantagesSpec, result: ChunkAdvantagesResult, report: Path) -> str:
    """Describe the advantages on one page of Markdown."""
    logprobs = f"logprobs `{spec.teacher_logprobs}`" if spec.score is None else f"scored by `{spec.score.model.path}`"
    lines = [f"# Chunk advantages {spec.name}", ""]
    lines += [f"- {what}: {words}" for what, words in describe(result.stats).items()]
    lines += [f"- **dropped**: {count:,}, since {DROP_REASONS[Drop[name.upper()]]}" for name, count in result.drops.items()]
    lines += [
        f"- student `{spec.student}`, teacher `{spec.teacher}`, {logprobs}",
        f"- fingerprint `{result.fingerprint}`",
        f"- folder `{result.output}`",
        f"- report [`{report}`]({report.as_uri()})",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the flow with the parameters in a file; see `flows.command`."""
    return run_from_file(
        chunk_advantages,
        ChunkAdvantagesSpec,
        ChunkAdvantagesRun,
        arguments,
        name="chunk_advantages",
        description=__doc__ or "",
    )


if __name__ == "__main__":
    sys.exit(main())
