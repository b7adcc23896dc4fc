"""The feature bank as a Prefect flow: identify → scan → tokenize → encode → manifest.

    python -m flows.feature_bank --config FILE

runs it in this process. A step whose artifact is in the store is Cached, whoever made it; the steps are the same functions
that `zephon-flows bank build` calls, and both give the same artifacts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.logging import get_run_logger

from flows.command import run_from_file
from flows.stepwise import Stepwise, say_what_is_kept, step_rows, with_errors_as_states
from tasks.bank import encode_texts, identify_inputs, publish_bank, scan_texts, tokenize_texts, write_manifest
from tasks.caching import bind
from tasks.reporting import STEPS, artifact_key, publish_markdown, publish_table
from tasks.runners import choose_runner, run_of_part, runner_resources, stop_parts
from zephon_core.bank.build import BankResult, check_run, current_result
from zephon_core.bank.encode import EncodeOutcome, read_outcome
from zephon_core.bank.manifest import empty_fields
from zephon_core.bank.specs import BankSpec, RunOptions
from zephon_core.bank.steps import BankIdentity, BankRecipes, bank_recipes, restart_encode
from zephon_core.progress import LoggingProgress
from zephon_core.store import ArtifactStore, Recipe

__all__ = ["feature_bank", "main"]


_say_what_is_kept = say_what_is_kept("What is finished is kept: the same run goes on where this one stopped.")


@flow(
    name="feature-bank",
    flow_run_name="bank-{spec.name}",
    retries=0,
    validate_parameters=True,
    persist_result=False,
    on_cancellation=[_say_what_is_kept],
    on_crashed=[_say_what_is_kept],
)
def feature_bank(spec: BankSpec, run: RunOptions = RunOptions()) -> BankResult:  # noqa: B008 - frozen, and shown in the form
    """Encode every distinct text of a data set once with a frozen transformer.

    Steps that are done already, here or by the command line, are not done again; an interrupted run goes on where it was.

    Args:
        spec: What is made: the texts, the tokenizer, the model. Equal values give equal banks.
        run: How it runs: where, with how much of the machine, how far. Nothing here changes what is made.

    """
    return with_errors_as_states(lambda: _Build(spec, run).result())


class _Build(Stepwise):
    """One run of the flow."""

    def result(self) -> BankResult:
        """Run the steps in order and publish what they made."""
        spec, run = self._spec, self._run
        check_run(run)
        identity = self._finish("identify", [identify_inputs(spec, run, return_state=True)])
        if identity.is_current:
            get_run_logger().info("%s holds all sources already: there is nothing to do", spec.base)
            return current_result(spec, self._seconds)
        recipes = bank_recipes(spec, identity)
        self._step("scan", scan_texts, recipes.scan, identity)
        self._step("tokenize", tokenize_texts, recipes.tokens, identity)
        if self._refresh:
            restart_encode(spec, identity, run, store=self._store, progress=LoggingProgress(get_run_logger()))
        if run.parts > 1 and run.part is None:
            self._encode_parts(recipes.features, identity)
        else:
            self._step("encode", encode_texts, recipes.features, identity)
        bank = self._step("manifest", write_manifest, recipes.bank, identity)
        published = self._published(publish_bank, identity)
        folder = str(Path(published).expanduser().absolute()) if published else bank.url if bank else ""
        outcome = _read_outcome(self._store, recipes)
        result = BankResult(
            bank=folder,
            fingerprint=recipes.bank.fingerprint,
            text_count=outcome.text_count,
            encoded_rows=outcome.encoded_rows,
            complete=bank is not None,
            cached=self._cached,
            seconds=self._seconds,
            empty_fields=empty_fields(self._store.record(self._store.needed(recipes.scan)).statistics),
        )
        for path in result.empty_fields:
            get_run_logger().warning("%s", _no_text_at(path))
        self._publish(result, recipes)
        return result

    def _encode_parts(self, recipe: Recipe, identity: BankIdentity) -> None:
        """Encode all parts under the chosen runner. Whichever comes last commits the artifact."""
        bound = bind(encode_texts, recipe, self._store, refresh=self._refresh)
        with choose_runner(self._run, self._run.parts) as runner, runner_resources(self._run):
            try:
                futures = [runner.submit(bound, self._part(part, identity)) for part in range(self._run.parts)]
                for future in futures:
                    future.wait()
            except BaseException:  # told to stop, by a signal say: the runner would wait for its parts, which may take hours
                stop_parts()
                raise
            states = [future.state for future in futures]
        self._finish("encode", states)
        self._cached["encode"] = all(state.name == "Cached" for state in states)

    def _part(self, part: int, identity: BankIdentity) -> dict[str, Any]:
        name = f"part-{part + 1}-of-{self._run.parts}"
        return {"spec": self._spec, "identity": identity, "run": run_of_part(self._run, part), "part": name}

    def _publish(self, result: BankResult, recipes: BankRecipes) -> None:
        name = self._spec.name
        steps = [("scan", recipes.scan), ("tokenize", recipes.tokens), ("encode", recipes.features), ("manifest", recipes.bank)]
        rows = step_rows(self._store, steps, cached=result.cached, seconds=result.seconds, absent="incomplete", url=result.bank)
        publish_table(artifact_key("bank", name, STEPS), rows, description=f"What each step of bank **{name}** made.")
        publish_markdown(artifact_key("bank", name, "report"), _page(self._spec, result), description=f"Bank **{name}**.")


def _read_outcome(store: ArtifactStore, recipes: BankRecipes) -> EncodeOutcome:
    """Read how many rows are encoded, from the finished features or from what there is of them."""
    if ref := store.find("features", recipes.features.fingerprint):
        return read_outcome(ref.path)
    return read_outcome(store.partial_path((recipes.added or recipes).features))


def _no_text_at(path: str) -> str:
    return f"no row of any source holds a text at {path}: check the path"


def _page(spec: BankSpec, result: BankResult) -> str:
    """Describe the bank on one page of Markdown."""
    missing = result.text_count - result.encoded_rows
    standing = "complete" if result.complete else f"**incomplete**: {missing:,} rows are missing; run it again to go on"
    longest = f"at most {spec.tokenize.max_key_tokens:,} tokens a text"
    lines = [
        f"# Feature bank {spec.name}",
        "",
        f"- {result.text_count:,} distinct texts, {result.encoded_rows:,} encoded; {standing}",
        f"- model `{spec.encode.model.path}`, {spec.encode.model.dtype.value}, {longest}",
        f"- sources {', '.join(f'`{source}`' for source in spec.scan.sources)}",
        f"- fingerprint `{result.fingerprint}`",
        *(f"- **{_no_text_at(f'`{path}`')}**" for path in result.empty_fields),
    ]
    if result.bank:
        lines += [
            f"- folder `{result.bank}`",
            f"- report [`{Path(result.bank) / 'report.html'}`]({(Path(result.bank) / 'report.html').as_uri()})",
            "",
            f"```\nzephon-flows bank info {result.bank}\nzephon-flows bank verify {result.bank}\n```",
        ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the flow with the parameters in a file; see `flows.command`."""
    return run_from_file(feature_bank, BankSpec, RunOptions, arguments, name="feature_bank", description=__doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
