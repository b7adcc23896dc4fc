"""What is remembered of a data set's ratio: one JSON document, under a key that covers everything that decides it.

    <store>/token_ratios/<key>.json      the measurement
    <store>/token_ratios/<key>.failed    why it couldn't be made just now; counts for a short time only

The key covers the seed, the settings of the estimate, what is counted, the rows' treatment before, and the data set's content;
not its name, nor the other data sets of a mixture. A document that is cut short, altered, of another version or somebody
else's is as good as none. Of many processes that want one measurement, one makes it and the others wait.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from zephon_core.atomic import write_json
from zephon_core.errors import SpecError
from zephon_core.fingerprint import canonical_json, fingerprint
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.ratios.estimation import TokenRatio, check_ratio
from zephon_core.store import ArtifactRef, ArtifactStore, package_versions

__all__ = ["DOCUMENT_VERSION", "KIND", "Outcome", "RatioDocument", "RatioDocuments", "ratio_key"]

DOCUMENT_VERSION = 2
KIND = "token_ratios"

_logger = logging.getLogger(__name__)


def ratio_key(inputs: Mapping[str, Any]) -> str:
    """Return the key (64 hex digits) of what `inputs` decide: seed, estimation, counting, replay and data set, as identities."""
    return fingerprint(KIND, DOCUMENT_VERSION, **inputs)


class RatioDocument(BaseModel):
    """What a document says of the one data set that it is about.

    ratios: {name: [tokens per byte, source, reason]}, under the name that the data set had when it was measured.
    measurement: all that was found out, as plain values. retryable: a fallback that another try might do without.
    inputs: the identities that the key covers.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    v: int = DOCUMENT_VERSION
    key: str
    ratios: dict[str, tuple[float, str, str]] = Field(min_length=1, max_length=1)
    measurement: dict[str, Any]
    dataset: dict[str, Any]
    inputs: dict[str, Any]
    retryable: bool = False
    created: str
    seconds: float
    versions: dict[str, str]

    @model_validator(mode="after")
    def _holds_a_ratio(self) -> RatioDocument:
        if self.v != DOCUMENT_VERSION:
            raise ValueError(f"version {self.v}")
        check_ratio("ratio", self.ratio.tokens_per_byte)
        return self

    @classmethod
    def make(
        cls,
        name: str,
        measurement: Mapping[str, Any],
        *,
        dataset: Mapping[str, Any],
        inputs: Mapping[str, Any],
        seconds: float,
        retryable: bool = False,
    ) -> RatioDocument:
        """Put a document together. measurement: has at least `ratio` and `source`, and otherwise what `TokenRatio` has."""
        plain = _plain(measurement)
        return cls(
            key=ratio_key(inputs),
            ratios={name: (check_ratio("ratio", plain["ratio"]), plain["source"], plain.get("reason") or "")},
            measurement=plain,
            dataset=dict(dataset),
            inputs=dict(inputs),
            retryable=retryable,
            created=datetime.now(UTC).isoformat(timespec="milliseconds"),
            seconds=round(seconds, 3),
            versions=package_versions("numpy", "pyarrow", "tokenizers"),
        )

    @property
    def ratio(self) -> TokenRatio:
        """The document's ratio with all that belongs to it."""
        ((value, source, reason),) = self.ratios.values()
        found = self.measurement
        return TokenRatio(
            value,
            source,  # type: ignore[arg-type]
            interval=_interval(found.get("interval")),
            draws=int(found.get("draws", 0)),
            units=int(found.get("units", 0)),
            bytes_read=int(found.get("bytes_read", 0)),
            design=str(found.get("design", "")),
            reason=reason,
            loss_tokens_per_byte=found.get("loss_ratio"),
            loss_interval=_interval(found.get("loss_interval")),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the document as plain values, with a check sum over all of them."""
        content = self.model_dump(mode="json")
        return {**content, "check": fingerprint("ratio document", 1, content=content)}

    @classmethod
    def from_json(cls, value: Any, key: str = "") -> RatioDocument | None:
        """Return the document that plain values stand for, None if they stand for none, or for another key's."""
        if not isinstance(value, dict):
            return None
        content = {name: item for name, item in value.items() if name != "check"}
        try:
            if value.get("check") != fingerprint("ratio document", 1, content=content):
                return None
            document = cls.model_validate(content)
            genuine = document.key == (key or document.key) == ratio_key(document.inputs)
        except (ValidationError, TypeError, ValueError, LookupError, AttributeError):
            return None
        return document if genuine else None


def _interval(value: Any) -> tuple[float, float] | None:
    return None if value is None else (float(value[0]), float(value[1]))


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a measurement JSON can hold: infinite and undefined numbers become null."""

    def finite(item: Any) -> Any:
        if isinstance(item, float):
            return item if math.isfinite(item) else None
        if isinstance(item, Mapping):
            return {str(key): finite(inner) for key, inner in item.items()}
        return [finite(inner) for inner in item] if isinstance(item, list | tuple) else item

    plain: dict[str, Any] = finite(value)
    if any(end is None for end in plain.get("interval") or ()):
        plain["interval"] = None
    canonical_json(plain)
    return plain


class Outcome(BaseModel):
    """What asking for a measurement has come to. cached: it was there already. stored: it is there now."""

    model_config = ConfigDict(frozen=True)

    document: RatioDocument
    cached: bool
    stored: bool


class RatioDocuments:
    """The documents of one store.

    negative_ttl_s: how long a failure that may pass is remembered, so that the processes of a node don't repeat it in turn.
    Raises SpecError if that is no time.
    """

    def __init__(self, store: ArtifactStore, *, negative_ttl_s: float = 120.0) -> None:
        if isinstance(negative_ttl_s, bool) or not isinstance(negative_ttl_s, int | float) or not negative_ttl_s >= 0:
            raise SpecError("negative_ttl_s", f"is {negative_ttl_s!r}", wanted="seconds, from 0 up")
        self._store = store
        self._folder = store.root / KIND
        self.negative_ttl_s = negative_ttl_s

    def path(self, key: str) -> Path:
        """Return where the document of `key` lies, or would."""
        return self._folder / f"{key}.json"

    def ref(self, key: str) -> ArtifactRef:
        """Return the small, portable name of a document."""
        return ArtifactRef(kind=KIND, fingerprint=key, url=str(self.path(key)))

    def read(self, key: str) -> RatioDocument | None:
        """Return the document of `key`, None where there is no valid one."""
        return RatioDocument.from_json(_load(self.path(key)), key)

    def all(self) -> list[RatioDocument]:
        """Return every valid document, the oldest first."""
        found = [RatioDocument.from_json(_load(path), path.stem) for path in sorted(self._folder.glob("*.json"))]
        return sorted((document for document in found if document is not None), key=lambda document: document.created)

    def read_failure(self, key: str) -> RatioDocument | None:
        """Return the fallback that was the outcome a short time ago, None if that is long past or never was."""
        note = _load(self._failure_path(key))
        if not isinstance(note, dict) or not isinstance(moment := note.get("failed_at_s"), int | float):
            return None
        if not 0 <= time.time() - moment < self.negative_ttl_s:
            return None
        return RatioDocument.from_json(note.get("document"), key)

    def once(
        self,
        key: str,
        measure: Callable[[], RatioDocument],
        *,
        refresh: bool = False,
        progress: Progress = NULL_PROGRESS,
    ) -> Outcome:
        """Return the document of `key`, made by `measure` where there is none; of many callers at once, one makes it.

        A failure that may pass isn't kept as a result, only remembered for a while. refresh: measure in any case, compare, and
        keep the new document. A store that can't be written costs the memory, not the measurement.
        """
        if not refresh and (found := self.read(key)):
            return Outcome(document=found, cached=True, stored=True)
        started = time.time()
        with ExitStack() as held:
            try:
                held.enter_context(self._store.lease(f"{KIND}-{key}", progress))
            except OSError as error:
                _say_unusable(progress, self._store.root, error)
            found = self.read(key)
            if found is not None and (not refresh or datetime.fromisoformat(found.created).timestamp() >= started):
                return Outcome(document=found, cached=True, stored=True)
            if not refresh and (failure := self.read_failure(key)):
                progress.note(f"{_name(failure)}: not tried again yet, since it failed moments ago")
                return Outcome(document=failure, cached=True, stored=False)
            document = measure()
            if refresh and found is not None and not document.retryable:
                progress.note(_compared(found, document))
            return Outcome(document=document, cached=False, stored=self.keep(document, progress))

    def keep(self, document: RatioDocument, progress: Progress = NULL_PROGRESS) -> bool:
        """Keep a result, or note a failure; says whether a result is kept now."""
        key = document.key
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if document.retryable:
                if self.negative_ttl_s > 0:
                    write_json(self._failure_path(key), {"failed_at_s": time.time(), "document": document.to_json()})
                return False
            write_json(self.path(key), document.to_json())
            self._failure_path(key).unlink(missing_ok=True)
        except OSError as error:
            _say_unusable(progress, self._folder, error)
            return False
        return True

    def _failure_path(self, key: str) -> Path:
        return self._folder / f"{key}.failed"


def _load(path: Path) -> Any:
    try:
        return orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _name(document: RatioDocument) -> str:
    return next(iter(document.ratios))


def _say_unusable(progress: Progress, folder: Path, error: OSError) -> None:
    message = f"{folder} can't be written ({error.strerror or error}): this measurement will not be remembered"
    _logger.warning("%s", message)
    progress.note(message)


def _compared(old: RatioDocument, new: RatioDocument) -> str:
    if old.ratios == new.ratios and old.measurement == new.measurement:
        return f"{_name(new)}: measured again, and the same as before"
    return f"{_name(new)}: measured again: {new.ratio.tokens_per_byte:.6g} tokens a byte, before {old.ratio.tokens_per_byte:.6g}"
