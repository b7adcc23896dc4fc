"""The steps of token ratios as Prefect tasks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from prefect import task
from prefect.logging import get_run_logger
from pydantic import BaseModel, ConfigDict

from tasks.caching import RETRIES, UNCACHED, refreshing
from tasks.reporting import run_progress
from zephon_core.errors import MissingArtifactError
from zephon_core.ratios.documents import Outcome, RatioDocument, RatioDocuments
from zephon_core.ratios.measuring import reach
from zephon_core.ratios.prime import FallbackWarning, agree, fallback_message, gather, pinned_ratios
from zephon_core.ratios.publishing import map_url
from zephon_core.ratios.run import RatioResult, finish, measuring_of, openers_of, warn_of_specials
from zephon_core.ratios.specs import RatioRun, RatioSpec
from zephon_core.store import ArtifactRef, ArtifactStore

__all__ = ["Identified", "calibrate_dataset", "identify_datasets", "prime_ratios"]


class Identified(BaseModel):
    """A data set that is to be measured: the key of its document, or why it can't be reached now."""

    model_config = ConfigDict(frozen=True)

    name: str
    key: str
    failure: RatioDocument | None = None


@task(task_run_name="identify-{spec.name}", **RETRIES, **UNCACHED)
def identify_datasets(spec: RatioSpec, run: RatioRun) -> list[Identified]:
    """Find out what the data sets are made of, by content; what is known from an earlier run isn't read again."""
    with run_progress(f"ratios {spec.name}", "identify") as progress:
        measuring = measuring_of(spec, run)
        warn_of_specials(measuring)
        documents = _documents(run)
        pinned = pinned_ratios(measuring.estimation, list(spec.dataset_urls))
        found = []
        for name, opener in openers_of(spec, run, progress).items():
            if name in pinned:
                continue
            reached = reach(name, opener, measuring, documents)
            if isinstance(reached, Outcome):
                found.append(Identified(name=name, key=reached.document.key, failure=reached.document))
            else:
                found.append(Identified(name=name, key=measuring.key(reached)))
        return found


@task(task_run_name="calibrate-{spec.name}-{name}", **RETRIES)
def calibrate_dataset(spec: RatioSpec, run: RatioRun, name: str) -> ArtifactRef | RatioDocument:
    """Measure one data set; returns the name of its document, or the document itself where none could be kept."""
    with run_progress(f"ratios {spec.name}", f"calibrate-{name}") as progress:
        measuring = measuring_of(spec, run)
        documents = _documents(run)
        reached = reach(name, openers_of(spec, run, progress)[name], measuring, documents)
        if isinstance(reached, Outcome):
            return reached.document
        outcome = measuring.once(reached, documents, refresh=refreshing(), progress=progress)
        return documents.ref(outcome.document.key) if outcome.stored else outcome.document


@task(task_run_name="prime-{spec.name}", **RETRIES, **UNCACHED)
def prime_ratios(
    spec: RatioSpec, run: RatioRun, measured: Mapping[str, ArtifactRef | RatioDocument], cached: Sequence[str], seconds: float
) -> RatioResult:
    """Put all ratios together, pinned ones too, work out the mixture, publish the map, and write what was asked for.

    measured: what came of each data set that was to be measured. cached: those of which it was known already.
    """
    with run_progress(f"ratios {spec.name}", "prime") as progress:
        documents = _documents(run)
        outcomes = {}
        for name, result in measured.items():
            document = documents.read(result.fingerprint) if isinstance(result, ArtifactRef) else result
            if document is None:
                raise MissingArtifactError(result.url, "has gone since it was made", remedy="Run this again.")
            outcomes[name] = Outcome(document=document, cached=name in cached, stored=isinstance(result, ArtifactRef))
        estimation = spec.estimation()
        if run.publish:
            places = {name: opener.place for name, opener in openers_of(spec, run).items()}
            place = map_url(run.publish, measuring_of(spec, run).settings(places))
            pinned = pinned_ratios(estimation, list(spec.dataset_urls))
            outcomes = agree(place, outcomes, pinned, failures_ttl_s=run.negative_ttl_s, replace=run.refresh)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            priming = gather(list(spec.dataset_urls), estimation, outcomes, seconds=seconds)
        if message := fallback_message(priming.ratios):
            get_run_logger().warning("%s", message)
        return finish(spec, run, priming, progress=progress)


def _documents(run: RatioRun) -> RatioDocuments:
    return RatioDocuments(ArtifactStore(run.store), negative_ttl_s=run.negative_ttl_s)
