"""From a mixture's parameters to its ratios, pages and exports: what the command line and the flow have in common."""

from __future__ import annotations

import glob
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zephon_core.atomic import write_bytes
from zephon_core.errors import InputError, SpecError, TransientInputError
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.ratios.documents import RatioDocuments
from zephon_core.ratios.estimation import TokenRatio
from zephon_core.ratios.exports import ExportFormat, export, suffix_of
from zephon_core.ratios.measuring import Measuring, Opener
from zephon_core.ratios.mixture import Mixture, mixture_weights
from zephon_core.ratios.prime import Priming, pinned_ratios, prime
from zephon_core.ratios.publishing import mixture_identity
from zephon_core.ratios.report import REPORT_NAME, render_report
from zephon_core.ratios.specs import CountKind, LongRows, RatioRun, RatioSpec
from zephon_core.readers.sources import local_path
from zephon_core.store import ArtifactStore

if TYPE_CHECKING:
    from zephon_core.ratios.counting import CountingSpec, Replay
    from zephon_core.ratios.datasets import Dataset

__all__ = [
    "RatioResult",
    "counting_of",
    "finish",
    "measuring_of",
    "mixture_of",
    "open_datasets",
    "openers_of",
    "prime_mixture",
    "replay_of",
    "unfit_formats",
    "warn_of_specials",
]


_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RatioResult:
    """What a run has come to. mixture: where shares were wanted, and it could be worked out; else `refused` says why not.

    output: the folder of its files, "" if none was asked for. left_out: why exports were not written, by loader. notes: what a
    person should know who uses the others. datasets: those that were opened for the mixture.
    """

    priming: Priming
    mixture: Mixture | None
    output: str
    refused: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    datasets: Mapping[str, Dataset] = field(default_factory=dict, compare=False, repr=False)

    @property
    def fingerprint(self) -> str:
        """The identity of all ratios together (64 hex digits): equal data sets and settings, equal fingerprint."""
        keys = {name: outcome.document.key for name, outcome in self.priming.outcomes.items()}
        pinned = {name: ratio.tokens_per_byte for name, ratio in self.priming.ratios.items() if ratio.source == "pinned"}
        return mixture_identity(keys, pinned)

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values."""
        return {
            **self.priming.to_json(),
            **({} if self.mixture is None else self.mixture.to_json()),
            **({"mixture": None, "refused": self.refused} if self.refused else {}),
            **({"output": self.output, "left_out": dict(self.left_out)} if self.output else {}),
        }


@dataclass(frozen=True)
class _AtUrls:
    """An opener of what lies at some URLs; see `zephon_core.ratios.prime.Opener`."""

    name: str
    urls: tuple[str, ...]
    format: str
    store_root: Path
    workers: int
    progress: Progress

    @property
    def place(self) -> str:
        return "\n".join([self.format, *self.urls])

    def __call__(self) -> Dataset:
        from zephon_core.ratios.datasets import Dataset

        for url in self.urls:
            path = local_path(url)
            if path is not None and not glob.has_magic(url) and not path.exists():
                raise InputError(url, "does not exist", remedy=f"Correct the path of {self.name}, or mount what holds it.")
        return Dataset.from_path(
            self.name,
            list(self.urls),
            format=self.format or None,
            store=ArtifactStore(self.store_root),
            workers=self.workers,
            progress=self.progress,
        )


def openers_of(spec: RatioSpec, run: RatioRun, progress: Progress = NULL_PROGRESS) -> dict[str, Opener]:
    """Return what opens each data set, by name."""
    root = ArtifactStore(run.store).root
    return {name: _AtUrls(name, tuple(urls), spec.format, root, run.workers, progress) for name, urls in spec.dataset_urls.items()}


def open_datasets(spec: RatioSpec, run: RatioRun, progress: Progress = NULL_PROGRESS) -> dict[str, Dataset]:
    """Open every data set. Raises InputError for one that isn't there, TransientInputError for one that can't be reached."""
    return {name: opener() for name, opener in openers_of(spec, run, progress).items()}


def counting_of(spec: RatioSpec) -> CountingSpec | None:
    """Return what is counted, None where nothing is tokenized. Raises SpecError for settings that don't fit together."""
    if not spec.tokenizer or spec.measure:
        return None
    from zephon_core.ratios.counting import ChatTokenCountingSpec, TextTokenCountingSpec

    if spec.kind is CountKind.CHAT:
        return ChatTokenCountingSpec(
            spec.tokenizer,
            field=spec.field or "messages",
            tools_field=spec.tools_field,
            chat_template=Path(spec.chat_template) if spec.chat_template else None,
            max_length=spec.max_length or None,
            loss_tokens=spec.loss_tokens,
            delivery=spec.chat_delivery.value,
        )
    return TextTokenCountingSpec(
        spec.tokenizer,
        field=spec.field or None,
        special_tokens=spec.special_tokens.value,
        max_length=spec.max_length or None,
        truncation=bool(spec.max_length) and spec.long_rows is LongRows.TRUNCATE,
        split_long_samples=bool(spec.max_length) and spec.long_rows is LongRows.SPLIT,
        missing_field=spec.missing_field.value,
    )


def replay_of(spec: RatioSpec) -> Replay | None:
    """Return what is done to rows before they are counted, None where nothing is."""
    if not spec.pre_tokenize_ops or spec.measure:
        return None
    from zephon_core.ratios.counting import Replay

    return Replay(spec.pre_tokenize_ops)


def measuring_of(spec: RatioSpec, run: RatioRun) -> Measuring:
    """Return all that a measurement needs beside the data set. Raises SpecError for settings that can't be."""
    estimation = spec.estimation()
    if len(pinned_ratios(estimation, list(spec.dataset_urls))) == len(spec.dataset_urls):
        return Measuring(estimation, None, spec.seed)
    if not spec.tokenizer and not spec.measure:
        raise SpecError(
            "--tokenizer or spec.tokenizer",
            "is missing",
            remedy="Name the tokenizer, a function to measure with, or pin the ratios.",
        )
    return Measuring(estimation, counting_of(spec), spec.seed, replay_of(spec), run.workers, ArtifactStore(run.store))


def warn_of_specials(measuring: Measuring) -> None:
    """Warn where special tokens are counted for which the tokenizer has none, so that the training would have to be told."""
    from zephon_core.ratios.counting import TextTokenCountingSpec
    from zephon_core.tokenizers.chat_template import unnamed_specials

    counting = measuring.counting
    if isinstance(counting, TextTokenCountingSpec) and (
        missing := unnamed_specials(str(counting.tokenizer), counting.special_tokens)
    ):
        _logger.warning(
            "special_tokens %s counts %s for each row, and %s names none: it is right only if the training is given one; "
            "else choose another (--special-tokens)",
            counting.special_tokens,
            " and ".join(missing),
            counting.tokenizer,
        )


def mixture_of(spec: RatioSpec, ratios: Mapping[str, TokenRatio], datasets: Mapping[str, Dataset]) -> Mixture | None:
    """Return the mixture that was asked for, None if none was."""
    if not spec.shares:
        return None
    return mixture_weights(
        spec.wanted_shares,
        ratios,
        datasets,
        budget_tokens=spec.budget_tokens or None,
        sample_bytes=spec.known_sample_bytes,
    )


def prime_mixture(spec: RatioSpec, run: RatioRun = RatioRun(), *, progress: Progress = NULL_PROGRESS) -> RatioResult:  # noqa: B008
    """Get the ratios of a mixture's data sets, work out the mixture if shares are named, and write what was asked for."""
    documents = RatioDocuments(ArtifactStore(run.store), negative_ttl_s=run.negative_ttl_s)
    measuring = measuring_of(spec, run)
    warn_of_specials(measuring)
    openers = openers_of(spec, run, progress)
    priming = prime(openers, measuring, documents, publish=run.publish, refresh=run.refresh, progress=progress)
    return finish(spec, run, priming, progress=progress)


def finish(spec: RatioSpec, run: RatioRun, priming: Priming, *, progress: Progress = NULL_PROGRESS) -> RatioResult:
    """Work out the mixture where shares are wanted, and write ratios.json, the report and the exports to `run.output`.

    A data set of which it can't be told how many bytes a sample has costs the mixture, not the ratios: see `RatioResult.refused`.
    """
    mixture, refused, datasets = None, "", {}
    if spec.shares:
        try:
            datasets = _for_mixture(spec, run, priming, progress)
            mixture = mixture_of(spec, priming.ratios, datasets)
        except (InputError, SpecError) as error:
            refused = str(error)
    if not run.output:
        return RatioResult(priming, mixture, "", refused, datasets=datasets)
    folder = Path(run.output).expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    page = render_report(
        spec.name, priming, mixture, target_rel_error=spec.target_rel_error, confidence=spec.confidence, refused=refused
    )
    write_bytes(folder / REPORT_NAME, page.encode())
    left_out, notes = {}, []
    for kind in _EXPORTS:
        if mixture is None and kind not in (ExportFormat.JSON, ExportFormat.ZEPHON):
            left_out[kind.value] = "there is no mixture" if refused else "no shares are named (--share)"
            continue
        try:
            text = export(kind, priming.ratios, mixture, spec.dataset_urls)
        except SpecError as error:  # a place that this loader can't take; the others may
            left_out[kind.value] = str(error)
            progress.note(f"No export for {kind.value}: {error}")
            continue
        name = "ratios" if kind is ExportFormat.JSON else kind.value
        write_bytes(folder / f"{name}{suffix_of(kind)}", text.encode())
        notes += unfit_formats(kind, datasets)
    return RatioResult(priming, mixture, str(folder), refused, left_out, tuple(notes), datasets)


_EXPORTS = [kind for kind in ExportFormat if kind is not ExportFormat.YAML]
_READ_BY = {
    ExportFormat.STREAMING: ("mds", "MosaicML Streaming reads folders of MDS"),
    ExportFormat.ENERGON: ("webdataset", "Megatron-Energon reads prepared folders of WebDataset"),
}


def unfit_formats(kind: ExportFormat, datasets: Mapping[str, Dataset]) -> list[str]:
    """Say of which data sets a loader can't read the files as they are, though it can be told where they would be."""
    if kind is ExportFormat.MEGATRON and datasets:
        return ["megatron: Megatron-LM reads its own tokenized files (.bin, .idx): put their prefixes in place of these paths"]
    format, words = _READ_BY.get(kind, ("", ""))
    unfit = [name for name, dataset in datasets.items() if format and set(dataset.formats) != {format}]
    return [f"{kind.value}: {words}: convert {', '.join(unfit)} first, and correct the place"] if unfit else []


def _for_mixture(spec: RatioSpec, run: RatioRun, priming: Priming, progress: Progress) -> dict[str, Dataset]:
    """Open the data sets, except those that couldn't be reached just now; who says what a row has can do without them."""
    datasets = {}
    for name, opener in openers_of(spec, run, progress).items():
        outcome = priming.outcomes.get(name)
        try:
            if outcome is not None and "place" in outcome.document.dataset:
                raise TransientInputError(f"data set {name}", f"can't be opened ({outcome.document.ratio.reason.rstrip('.')})")
            datasets[name] = opener()
        except InputError as error:
            if name in spec.known_sample_bytes:
                continue
            raise InputError(
                error.where,
                error.found,
                wanted=error.wanted,
                remedy=f"Make it readable, leave it out, or say how many raw bytes a row of it has: --sample-bytes {name}=2000.",
            ) from error
    return datasets
