"""From data sets to ratios: what is pinned is taken, what is known is read, and the rest is measured, one data set at a time.

A data set that can't be measured gets a fallback, and one warning says which ones did, why, and what it does to the mixture.
What would be wrong for all of them, or would stop the training later, stops the priming at once.
"""

from __future__ import annotations

import dataclasses
import logging
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zephon_core.errors import SpecError
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.ratios.documents import Outcome, RatioDocuments
from zephon_core.ratios.estimation import TokenEstimation, TokenRatio
from zephon_core.ratios.measuring import AlreadyOpen, Measuring, Opener, reach
from zephon_core.ratios.publishing import map_url, publish_map, read_map
from zephon_core.store import ArtifactStore

if TYPE_CHECKING:
    from zephon_core.ratios.counting import CountingSpec, Replay
    from zephon_core.ratios.datasets import Dataset

__all__ = [
    "FallbackWarning",
    "Priming",
    "agree",
    "fallback_message",
    "gather",
    "pinned_ratios",
    "prime",
    "prime_token_ratios",
    "ratio_json",
]

_logger = logging.getLogger(__name__)


class FallbackWarning(RuntimeWarning):
    """Some ratios are guesses, and the mixture will be off for their data sets."""


@dataclasses.dataclass(frozen=True)
class Priming:
    """What priming has come to. ratios: by data set. outcomes: of those that were measured, now or before."""

    ratios: dict[str, TokenRatio]
    outcomes: dict[str, Outcome]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the ratios as plain values. cached: it was known before, so that nothing was read for it now."""
        ratios = {}
        for name, ratio in self.ratios.items():
            outcome = self.outcomes.get(name)
            plain = ratio_json(ratio, outcome.document.key if outcome else "")
            cached = outcome is not None and outcome.cached
            ratios[name] = {**plain, "cached": cached, "bytes_read": 0 if cached else plain["bytes_read"]}
        return {"ratios": ratios, "seconds": round(self.seconds, 3)}


def ratio_json(ratio: TokenRatio, key: str = "") -> dict[str, Any]:
    """Return a ratio as `--json` shows it."""
    plain: dict[str, Any] = {
        "tokens_per_byte": ratio.tokens_per_byte,
        "source": ratio.source,
        "interval": None if ratio.interval is None else list(ratio.interval),
        "draws": ratio.draws,
        "units": ratio.units,
        "bytes_read": ratio.bytes_read,
        "design": ratio.design,
        "reason": ratio.reason,
        "key": key,
    }
    if ratio.loss_tokens_per_byte is not None:
        plain["loss_tokens_per_byte"] = ratio.loss_tokens_per_byte
        plain["loss_interval"] = None if ratio.loss_interval is None else list(ratio.loss_interval)
    return plain


def prime(
    datasets: Mapping[str, Opener],
    measuring: Measuring,
    documents: RatioDocuments,
    *,
    publish: str = "",
    refresh: bool = False,
    progress: Progress = NULL_PROGRESS,
) -> Priming:
    """Get the ratio of every data set; only those that are to be measured are opened.

    publish: an fsspec URL of a folder for the one map that every rank reads; "" is none. What lies there already is taken.
    Raises SpecError for pins of unknown data sets and other settings that can't be, FatalCountError for a row that the
    training would refuse as well.
    """
    started = time.monotonic()
    pinned = pinned_ratios(measuring.estimation, list(datasets))
    reached = {name: reach(name, opener, measuring, documents) for name, opener in datasets.items() if name not in pinned}
    place = map_url(publish, measuring.settings({name: opener.place for name, opener in datasets.items()})) if publish else ""
    keys = {name: None if isinstance(found, Outcome) else measuring.key(found) for name, found in reached.items()}
    known = read_map(place, keys, failures_ttl_s=documents.negative_ttl_s) if place and not refresh else None
    if known is not None:
        progress.note(f"ratios taken from {place}")
        outcomes = {name: Outcome(document=document, cached=True, stored=True) for name, document in known.items()}
    else:
        outcomes = {
            name: found if isinstance(found, Outcome) else measuring.once(found, documents, refresh=refresh, progress=progress)
            for name, found in reached.items()
        }
        if place:
            outcomes = agree(place, outcomes, pinned, failures_ttl_s=documents.negative_ttl_s, replace=refresh)
    return gather(list(datasets), measuring.estimation, outcomes, seconds=time.monotonic() - started)


def agree(
    place: str, outcomes: Mapping[str, Outcome], pinned: Mapping[str, float], *, failures_ttl_s: float, replace: bool = False
) -> dict[str, Outcome]:
    """Put the outcomes down at `place` (of `map_url`), and return those that count: whoever came first has said them."""
    made = {name: outcome.document for name, outcome in outcomes.items()}
    there = publish_map(place, made, pinned, failures_ttl_s=failures_ttl_s, replace=replace)
    return {name: outcome.model_copy(update={"document": there[name]}) for name, outcome in outcomes.items()}


def pinned_ratios(estimation: TokenEstimation, names: Sequence[str]) -> dict[str, float]:
    """Return the ratios that need no measuring, by data set. Raises SpecError for pins of data sets that aren't there."""
    if (ratio := estimation.global_ratio) is not None:
        return dict.fromkeys(names, ratio)
    if unknown := sorted(set(estimation.pins) - set(names)):
        raise SpecError("primer", f"pins {', '.join(unknown)}", wanted=f"names among {', '.join(sorted(names)) or 'none'}")
    return estimation.pins


def gather(names: Sequence[str], estimation: TokenEstimation, outcomes: Mapping[str, Outcome], *, seconds: float) -> Priming:
    """Put pinned and measured ratios together, in the order of `names`, and warn of fallbacks."""
    pinned = pinned_ratios(estimation, names)
    ratios = {name: TokenRatio(pinned[name], "pinned") if name in pinned else outcomes[name].document.ratio for name in names}
    warn_of_fallbacks(ratios)
    for name, ratio in ratios.items():
        _logger.info("%s: %.6f tokens a byte (%s)", name, ratio.tokens_per_byte, ratio.source)
    return Priming(ratios, dict(outcomes), seconds)


def warn_of_fallbacks(ratios: Mapping[str, TokenRatio]) -> None:
    """Give one FallbackWarning of all guesses, if there are any."""
    if message := fallback_message(ratios):
        warnings.warn(message, FallbackWarning, stacklevel=5)  # whoever called prime_token_ratios


def fallback_message(ratios: Mapping[str, TokenRatio]) -> str:
    """Say which ratios are guesses, why, and how far the mixture may be off for them; "" where none is."""
    fallbacks = {name: ratio for name, ratio in ratios.items() if ratio.source == "fallback"}
    if not fallbacks:
        return ""
    listed = "; ".join(
        f"{name}: {ratio.tokens_per_byte:.6g} tokens a byte ({ratio.reason.rstrip('.') or 'no reason was given'})"
        for name, ratio in sorted(fallbacks.items())
    )
    return (
        f"{len(fallbacks)} of {len(ratios)} ratios are guesses: {listed}. {_effect(ratios, fallbacks)} "
        "Pin their ratios, give measure=, or mend what keeps them from being measured."
    )


def _effect(ratios: Mapping[str, TokenRatio], fallbacks: Mapping[str, TokenRatio]) -> str:
    """Say what the guesses do to the mixture, going by the ratios that are known."""
    known = {name: ratio.tokens_per_byte for name, ratio in ratios.items() if name not in fallbacks}
    if not known:
        return "With nothing measured, the mixture is one of bytes, not of tokens."
    low, high = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
    guesses = [ratio.tokens_per_byte for ratio in fallbacks.values()]
    whose = f"{low}'s ({known[low]:.4g})" + (f" or {high}'s ({known[high]:.4g})" if high != low else "")
    least, most = f"{known[low] / max(guesses):.2g}", f"{known[high] / min(guesses):.2g}"
    times = f"{most} times" if least == most else f"from {least} to {most} times"
    return (
        f"A data set is delivered as its true ratio over the guess: were that {whose}, {times} the tokens wanted, "
        "at the others' expense."
    )


def prime_token_ratios(
    *,
    datasets: Iterable[Dataset],
    estimation: TokenEstimation,
    counting: CountingSpec | None,
    seed: int = 0,
    store: ArtifactStore | str | Path | None = None,
    pre_tokenize_ops: Sequence[Any] = (),
    progress: Progress | None = None,
    workers: int = 0,
    publish: str = "",
    negative_ttl_s: float = 120.0,
    refresh: bool = False,
) -> dict[str, TokenRatio]:
    """Return the tokens-per-byte ratio of every data set, by name; what an earlier call has measured isn't measured again.

    counting: what is counted in a row; None where nothing is tokenized (all pinned, or `estimation.measure`).
    store: where measurements are remembered; None: the default store. pre_tokenize_ops: what the training does to rows before
    it tokenizes them. workers: processes; 0: one a core. publish: an fsspec URL of a folder for the one map that every rank
    reads. negative_ttl_s: how long a data set that can't be read just now isn't tried again. refresh: measure even so.

    Data sets that can't be measured get a fallback, of which one FallbackWarning tells. Raises SpecError, TokenizerError or
    MissingExtraError for settings that can't be used, FatalCountError for a row that the training would refuse as well.
    """
    named: dict[str, Opener] = {}
    for dataset in datasets:
        if dataset.name in named:
            raise SpecError("datasets", f"has {dataset.name!r} twice", remedy="Give every data set a name of its own.")
        named[dataset.name] = AlreadyOpen(dataset)
    opened = store if isinstance(store, ArtifactStore) else ArtifactStore(store or "")
    measuring = Measuring(estimation, counting, seed, _replay(pre_tokenize_ops, estimation, list(named)), workers, opened)
    documents = RatioDocuments(opened, negative_ttl_s=negative_ttl_s)
    return prime(named, measuring, documents, publish=publish, refresh=refresh, progress=progress or NULL_PROGRESS).ratios


def _replay(ops: Sequence[Any], estimation: TokenEstimation, names: Sequence[str]) -> Replay | None:
    """Return the replay of what is done to rows before they are tokenized, None where nothing is, or nothing is tokenized."""
    if not ops or estimation.measure is not None or len(pinned_ratios(estimation, names)) == len(names):
        return None
    from zephon_core.ratios.counting import Replay

    return Replay(ops)
