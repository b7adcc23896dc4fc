"""One data set's measurement: what decides it, where it is looked up, and what is done where it can't be made."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import BrokenExecutor
from typing import TYPE_CHECKING, Any, Protocol

from zephon_core.errors import (
    FatalCountError,
    InputError,
    LeaseHeldError,
    MissingExtraError,
    SpecError,
    TokenizerError,
    TransientInputError,
    WorkerError,
    ZephonError,
)
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.ratios.documents import Outcome, RatioDocument, RatioDocuments, ratio_key
from zephon_core.ratios.estimation import TokenEstimation, check_whole
from zephon_core.ratios.specs import MOST_WORKERS

if TYPE_CHECKING:
    from zephon_core.ratios.counting import CountingSpec, Replay
    from zephon_core.ratios.datasets import Dataset
    from zephon_core.store import ArtifactStore

__all__ = ["AlreadyOpen", "Measuring", "Opener", "naming_fields", "reach", "tell_of"]

_logger = logging.getLogger(__name__)

_PROBLEMS_TOLD = 20
_NAMES_TOLD = 8
_HAS_NO = re.compile(r"(:\d+| \([^)]*\)): has no '[^']*'")
# Wrong for every data set, or the training's own failure come early.
_STOP_EVERYTHING = (FatalCountError, LeaseHeldError, MissingExtraError, SpecError, TokenizerError)


@dataclasses.dataclass(frozen=True)
class Measuring:
    """What a measurement needs beside the data set, and what decides its result: everything but `workers` and `store`.

    counting: None where `estimation.measure` counts. replay: what the training does to rows before it tokenizes them.
    store: where it is remembered what tokenizers are, and proved that a faster encoder serves; None: the default store.
    """

    estimation: TokenEstimation
    counting: CountingSpec | None
    seed: int = 0
    replay: Replay | None = None
    workers: int = 0
    store: ArtifactStore | None = None

    def __post_init__(self) -> None:
        """Raise SpecError for a seed or a number of workers that can't be."""
        check_whole("seed", self.seed, least=0, most=(1 << 63) - 1)
        check_whole("workers", self.workers, least=0, most=MOST_WORKERS)

    def inputs(self, dataset: Dataset) -> dict[str, Any]:
        """Return the identities that a data set's key covers. Raises SpecError, TokenizerError for settings that can't be used."""
        if self.counting is None and self.estimation.measure is None:
            raise SpecError("counting", "is missing", remedy="Name the tokenizer, give measure=, or pin the ratios.")
        identities = {"seed": self.seed, "estimation": self.estimation.identity(), "dataset": dataset.fingerprint}
        # What is left out is no part of the content, but of what is said of it.
        left_out = {"unreadable": sorted(problem.stored_bytes for problem in dataset.problems)} if dataset.problems else {}
        return {**identities, **left_out, **self._counted()}

    def _counted(self) -> dict[str, Any]:
        if self.estimation.measure is not None:  # which gets rows as they are
            return {"counting": None, "replay": None}
        return {
            "counting": None if self.counting is None else self.counting.identity(store=self.store),
            "replay": self.replay.identity() if self.replay else None,
        }

    def settings(self, places: Mapping[str, str]) -> dict[str, Any]:
        """Return what decides a mixture's ratios apart from content. places: of its data sets, by name, pinned ones too."""
        identities = {"seed": self.seed, "estimation": self.estimation.identity(), "pinned": self.estimation.pins}
        return {**identities, **self._counted(), "places": dict(places)}

    def key(self, dataset: Dataset) -> str:
        """Return the key of a data set's document."""
        return ratio_key(self.inputs(dataset))

    def measure(self, dataset: Dataset, progress: Progress = NULL_PROGRESS) -> RatioDocument:
        """Measure one data set, whatever is known of it. A fallback rather than an error where others can go on."""
        inputs = self.inputs(dataset)
        started = time.monotonic()
        retryable = False
        try:
            with naming_fields(dataset):
                measurement = _calibrate(self, dataset, progress)
            retryable = bool(measurement.pop("retryable", False))
        except _STOP_EVERYTHING:
            raise
        except (ZephonError, OSError, BrokenExecutor, MemoryError) as error:
            _logger.debug("%s can't be measured", dataset.name, exc_info=error)  # the warning of fallbacks says why
            retryable = isinstance(error, TransientInputError | WorkerError) or not isinstance(error, ZephonError)
            measurement = {
                "ratio": self.estimation.fallback_tokens_per_byte * _content_share(dataset),
                "source": "fallback",
                "reason": str(error) or type(error).__name__,
            }
        return RatioDocument.make(
            dataset.name,
            measurement,
            dataset={
                "fingerprint": dataset.fingerprint,
                "shards": len(dataset.shards),
                "rows": int(dataset.counts().sum()) if (dataset.counts() >= 0).all() else -1,
                "raw_bytes": int(dataset.raw_bytes().sum()),
                "stored_bytes": sum(shard.stored_bytes for shard in dataset.shards),
                "problems": [dataclasses.asdict(problem) for problem in dataset.problems],
            },
            inputs=inputs,
            seconds=time.monotonic() - started,
            retryable=retryable,
        )

    def inputs_of_place(self, place: str) -> dict[str, Any]:
        """Return the identities that stand for a data set that can't be opened."""
        return {"seed": self.seed, "estimation": self.estimation.identity(), "place": place}

    def unreachable(self, name: str, place: str, reason: str) -> RatioDocument:
        """Return the fallback of a data set that can't even be opened now. place: what tells it from others."""
        measurement = {"ratio": self.estimation.fallback_tokens_per_byte, "source": "fallback", "reason": reason}
        inputs = self.inputs_of_place(place)
        return RatioDocument.make(name, measurement, dataset={"place": place}, inputs=inputs, seconds=0.0, retryable=True)

    def once(
        self, dataset: Dataset, documents: RatioDocuments, *, refresh: bool = False, progress: Progress = NULL_PROGRESS
    ) -> Outcome:
        """Return what is known of a data set, and measure it where nothing is; of many callers at once, one measures."""
        return documents.once(self.key(dataset), lambda: self.measure(dataset, progress), refresh=refresh, progress=progress)


class Opener(Protocol):
    """Opens a data set when it is needed. place: what tells it from others before it is open."""

    @property
    def place(self) -> str:
        """Its URLs, say."""

    def __call__(self) -> Dataset:
        """Open it. Raises TransientInputError where it can't be reached now."""


def reach(name: str, opener: Opener, measuring: Measuring, documents: RatioDocuments) -> Dataset | Outcome:
    """Open a data set; where it can't be reached now, return its fallback, and remember that for a while."""
    if known := documents.read_failure(ratio_key(measuring.inputs_of_place(opener.place))):
        return Outcome(document=known, cached=True, stored=False)
    try:
        dataset = opener()
    except TransientInputError as error:
        failure = str(error)
    else:
        tell_of(dataset)
        if dataset.shards:
            return dataset
        problem = f"{dataset.problems[0].url}: {dataset.problems[0].reason}" if dataset.problems else "it has none"
        failure = f"none of its files can be read ({problem})"
    document = measuring.unreachable(name, opener.place, failure)
    documents.keep(document)
    return Outcome(document=document, cached=False, stored=False)


@contextlib.contextmanager
def naming_fields(dataset: Dataset) -> Iterator[None]:
    """Add to the error of a row that lacks a column what its file has: of such a row nothing else was read."""
    try:
        yield
    except FatalCountError as error:
        url = next(
            (shard.url for shard in dataset.shards if _HAS_NO.fullmatch(f"{error.where}: {error.found}".removeprefix(shard.url))),
            "",
        )
        names = _names(dataset, url)
        if not names:
            raise
        found = f"{error.found}, but {', '.join(names[:_NAMES_TOLD])}"
        raise FatalCountError(error.where, found, wanted=error.wanted, remedy=error.remedy) from error


def _names(dataset: Dataset, url: str) -> list[str]:
    try:
        return dataset.names_in(url)
    except InputError:  # nor can that be read
        return []


def tell_of(dataset: Dataset) -> None:
    """Warn of what is left out of a data set, and of formats side by side, which may be one content twice."""
    for problem in dataset.problems[:_PROBLEMS_TOLD]:
        _logger.warning("%s: %s is left out: %s", dataset.name, problem.url, problem.reason)
    if (more := len(dataset.problems) - _PROBLEMS_TOLD) > 0:
        _logger.warning("%s: %s more files are left out", dataset.name, f"{more:,}")
    if len(dataset.formats) > 1:
        formats = ", ".join(f"{shards:,} of {name}" for name, shards in dataset.formats.items())
        _logger.warning("%s: counts files of several formats together (%s); a glob takes some alone", dataset.name, formats)


@dataclasses.dataclass(frozen=True)
class AlreadyOpen:
    """An opener of a data set that is open."""

    dataset: Dataset

    @property
    def place(self) -> str:
        """See `Opener`."""
        return self.dataset.fingerprint

    def __call__(self) -> Dataset:
        """See `Opener`."""
        return self.dataset


def _content_share(dataset: Dataset) -> float:
    """Return content bytes per raw byte: a guess is one of content, and the training is charged with raw bytes."""
    content_bytes, raw_bytes = int(dataset.units.size.sum()), int(dataset.raw_bytes().sum())
    return content_bytes / raw_bytes if content_bytes and raw_bytes else 1.0


def _calibrate(measuring: Measuring, dataset: Dataset, progress: Progress) -> dict[str, Any]:
    from zephon_core.ratios.calibrate import calibrate

    measurement = calibrate(
        dataset,
        measuring.counting,
        measuring.estimation,
        seed=measuring.seed,
        replay=measuring.replay,
        workers=measuring.workers,
        store=measuring.store,
        progress=progress,
    )
    return dataclasses.asdict(measurement)
