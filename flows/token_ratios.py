"""Token ratios as a Prefect flow: identify → calibrate, one task a data set → prime.

    python -m flows.token_ratios --config FILE

runs it in this process. A data set whose ratio is in the store is Cached, whoever measured it; the steps are the same functions
that `zephon-flows ratios prime` calls, and both give the same documents.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture

from flows.command import run_from_file
from flows.stepwise import refreshes, say_what_is_kept, with_errors_as_states
from tasks.caching import bind_document
from tasks.ratios import Identified, calibrate_dataset, identify_datasets, prime_ratios
from tasks.reporting import STEPS, artifact_key, publish_markdown, publish_table
from tasks.runners import choose_runner, stop_parts, workers_of_part
from zephon_core.errors import InputError
from zephon_core.progress import format_amount
from zephon_core.ratios.documents import Outcome
from zephon_core.ratios.estimation import TokenRatio
from zephon_core.ratios.run import RatioResult
from zephon_core.ratios.specs import RatioRun, RatioSpec
from zephon_core.store import ArtifactStore

__all__ = ["main", "token_ratios"]


_say_what_is_kept = say_what_is_kept("Data sets that are measured stay so: the same run goes on with the others.")


@flow(
    name="token-ratios",
    flow_run_name="ratios-{spec.name}",
    retries=0,
    validate_parameters=True,
    persist_result=False,
    on_cancellation=[_say_what_is_kept],
    on_crashed=[_say_what_is_kept],
)
def token_ratios(spec: RatioSpec, run: RatioRun = RatioRun()) -> RatioResult:  # noqa: B008 - frozen, and shown in the form
    """Measure how many tokens a byte of each data set gives, with an interval, and work out the mixture if shares are named.

    What is known already, from here or from the command line, is not measured again.

    Args:
        spec: Which data sets, what is counted, how surely. Equal values give equal numbers.
        run: How it runs: where, with how much of the machine, what is written. Nothing here changes a number.

    """
    return with_errors_as_states(lambda: _Ratios(spec, run).result())


class _Ratios:
    """One run of the flow."""

    def __init__(self, spec: RatioSpec, run: RatioRun) -> None:
        self._spec = spec
        self._run = run
        self._store = ArtifactStore(run.store)
        self._refresh = refreshes(run)
        self._states: dict[str, State[Any]] = {}

    def result(self) -> RatioResult:
        """Measure what is to be measured, all data sets side by side, and put the ratios together."""
        started = time.monotonic()
        spec, run = self._spec, self._run
        identified = identify_datasets(spec, run, return_state=True)
        found: list[Identified] = identified.result()
        self._calibrate([each for each in found if each.failure is None])
        measured = {each.name: each.failure or self._states[each.name].result() for each in found}
        cached = [name for name, state in self._states.items() if state.name == "Cached"]
        seconds = time.monotonic() - started
        after = [identified, *self._states.values()]
        result: RatioResult = prime_ratios(spec, run, measured, cached, seconds, wait_for=after, return_state=True).result()
        self._publish(result)
        if result.refused:  # the ratios are there, written and shown; what else was asked for is not
            raise InputError("mixture", f"can't be worked out: {result.refused}")
        return result

    def _calibrate(self, found: Sequence[Identified]) -> None:
        if not found:
            return
        run = self._run.model_copy(update={"workers": workers_of_part(self._run, len(found))})
        with choose_runner(self._run, len(found)) as runner:
            try:
                futures = {each.name: self._submit(runner, each, run) for each in found}
                for future in futures.values():
                    future.wait()
            except BaseException:  # told to stop, by a signal say: the runner would wait for all that it was given
                stop_parts()
                raise
            self._states = {name: future.state for name, future in futures.items()}

    def _submit(self, runner: Any, identified: Identified, run: RatioRun) -> PrefectFuture[Any]:
        bound = bind_document(calibrate_dataset, identified.key, self._store, refresh=self._refresh)
        future: PrefectFuture[Any] = runner.submit(bound, {"spec": self._spec, "run": run, "name": identified.name})
        return future

    def _publish(self, result: RatioResult) -> None:
        name = self._spec.name
        table = artifact_key("ratios", name, STEPS)
        publish_table(table, _rows(self._spec, result, self._store), description=f"Tokens a byte of each data set of **{name}**.")
        page = _page(self._spec, result)
        publish_markdown(artifact_key("ratios", name, "report"), page, description=f"Token ratios of **{name}**.")


def _rows(spec: RatioSpec, result: RatioResult, store: ArtifactStore) -> list[dict[str, Any]]:
    """Return one row a data set; the last one is the mixture."""
    rows = []
    for name, ratio in result.priming.ratios.items():
        outcome = result.priming.outcomes.get(name)
        low, high = ratio.interval or (None, None)
        rows.append(
            {
                "data set": name,
                "state": _standing(ratio, outcome),
                "tokens a byte": round(ratio.tokens_per_byte, 6),
                "from": None if low is None else round(low, 6),
                "to": None if high is None else round(high, 6),
                "draws": ratio.draws,
                "read": format_amount(0 if outcome is None or outcome.cached else ratio.bytes_read, "B"),
                "seconds": outcome.document.seconds if outcome else 0.0,
                "remark": ratio.reason,
                "fingerprint": outcome.document.key if outcome else "",
                "url": str(store.root / "token_ratios" / f"{outcome.document.key}.json") if outcome and outcome.stored else "",
            }
        )
    all_known = all(ratio.source != "fallback" for ratio in result.priming.ratios.values())
    last = {
        "data set": spec.name,
        "state": "known" if all_known else "with guesses",
        "seconds": round(result.priming.seconds, 3),
        "fingerprint": result.fingerprint,
        "url": result.output or str(store.root / "token_ratios"),
    }
    return [*rows, {**dict.fromkeys(rows[0], ""), **last}]


def _standing(ratio: TokenRatio, outcome: Outcome | None) -> str:
    if outcome is None or ratio.source == "fallback":
        return ratio.source
    return "cached" if outcome.cached else "measured"


def _page(spec: RatioSpec, result: RatioResult) -> str:
    """Describe the ratios on one page of Markdown."""
    lines = [f"# Token ratios of {spec.name}", "", "| data set | tokens a byte | interval | source |", "|---|---|---|---|"]
    for name, ratio in result.priming.ratios.items():
        interval = "" if ratio.interval is None else "{:.6f} to {:.6f}".format(*ratio.interval)
        lines.append(f"| {name} | {ratio.tokens_per_byte:.6f} | {interval} | {ratio.source} |")
    guesses = {name: ratio.reason for name, ratio in result.priming.ratios.items() if ratio.source == "fallback"}
    if guesses:
        lines += ["", "**Guesses**, which put the mixture off:", ""]
        lines += [f"- {name}: {reason}" for name, reason in guesses.items()]
    if result.mixture is not None:
        lines += ["", "| data set | share of the tokens | delivered | probability of a sample | epochs |", "|---|---|---|---|---|"]
        for name, weight in result.mixture.datasets.items():
            delivered = "{:.2%} to {:.2%}".format(*weight.share_interval)
            epochs = "" if weight.epochs is None else f"{weight.epochs:,.2f}"
            lines.append(f"| {name} | {weight.share:.2%} | {delivered} | {weight.probability:.6f} | {epochs} |")
    if result.output:
        report = Path(result.output) / "report.html"
        lines += ["", f"- report [`{report}`]({report.as_uri()})"]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the flow with the parameters in a file; see `flows.command`."""
    return run_from_file(token_ratios, RatioSpec, RatioRun, arguments, name="token_ratios", description=__doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
