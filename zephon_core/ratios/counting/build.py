"""Put together what counts: a spec's counter, after a replay or not, or a function of the user's."""

from __future__ import annotations

from zephon_core.errors import SpecError
from zephon_core.ratios.counting.measure import Measure, MeasureCounter
from zephon_core.ratios.counting.plans import CountingSpec, TokenCounter
from zephon_core.ratios.counting.replay import Replay, ReplayedCounter
from zephon_core.store import ArtifactStore

__all__ = ["build_counter"]


def build_counter(
    counting: CountingSpec | None,
    *,
    replay: Replay | None = None,
    measure: Measure | None = None,
    text_bytes: int = 0,
    threads: int = 1,
    store: ArtifactStore | None = None,
) -> TokenCounter:
    """Make the counter of one worker.

    counting: may be None where `measure` takes its place. replay: left out with `measure`, which gets raw rows.
    text_bytes, threads, store: see `CountingSpec.build_counter`. Raises SpecError where there is nothing to count with.
    """
    if measure is not None:
        return MeasureCounter(measure)
    if counting is None:
        raise SpecError("counting", "is not set", wanted="a spec with the training's tokenizer, or measure, or a ratio for all")
    counter = counting.build_counter(text_bytes=text_bytes, threads=threads, store=store)
    return ReplayedCounter(counter, replay) if replay else counter
