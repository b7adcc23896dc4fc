"""A ratio of tokens to bytes, and the settings by which one is obtained."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from zephon_core.errors import SpecError
from zephon_core.ratios.callables import callable_identity, is_function_path, resolve_function

__all__ = [
    "DEFAULT_FALLBACK_TOKENS_PER_BYTE",
    "EXACT_BELOW_BYTES",
    "GUESS_SPREAD",
    "RatioSource",
    "TokenEstimation",
    "TokenRatio",
    "check_ratio",
    "check_whole",
]

RatioSource = Literal["measured", "pinned", "fallback"]
Measure = Callable[[Any], int]

DEFAULT_FALLBACK_TOKENS_PER_BYTE = 0.25
EXACT_BELOW_BYTES = 1 << 20
GUESS_SPREAD = 2.5
"""A guess stands for anything between so many times less and more: a data set's that couldn't be measured, or that of a part which
was left out. Of the corpora that this was tried on, from Hindi under a multilingual vocabulary to Hindi under an English one, true
ratios lay between 0.55 and 2.4 times the usual 0.25."""


@dataclass(frozen=True)
class TokenRatio:
    """Tokens per raw byte of one data set, and where the figure comes from.

    source: measured, pinned (somebody said so) or fallback (a guess).
    interval: lower and upper end at the confidence asked for, tokens per byte; None where nothing was measured.
    draws, units: how many draws were made, in how many different units. bytes_read: off the disk or wire.
    design: how it was estimated ("exact": everything was counted). reason: why it is a fallback.
    loss_tokens_per_byte, loss_interval: of chat rows, the tokens that bear loss (the assistant's) alone.

    Raises SpecError for a ratio that is not finite and positive.
    """

    tokens_per_byte: float
    source: RatioSource
    interval: tuple[float, float] | None = None
    draws: int = 0
    units: int = 0
    bytes_read: int = 0
    design: str = ""
    reason: str = ""
    loss_tokens_per_byte: float | None = None
    loss_interval: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.source not in get_args(RatioSource):
            raise SpecError("source", f"is {self.source!r}", wanted="measured, pinned or fallback")
        check_ratio("tokens_per_byte", self.tokens_per_byte)
        for name, interval in (("interval", self.interval), ("loss_interval", self.loss_interval)):
            if interval is not None and not (
                len(interval) == 2 and all(map(math.isfinite, interval)) and interval[0] <= interval[1]
            ):
                raise SpecError(name, f"is {interval!r}", wanted="two finite numbers, the lower one first")

    def to_state(self) -> list[Any]:
        """Return [ratio, source], the form that checkpoints hold."""
        return [float(self.tokens_per_byte), self.source]

    @classmethod
    def from_state(cls, state: Any) -> TokenRatio:
        """Return the ratio of a state. Raises SpecError for what is none."""
        try:
            ratio, source = state
            return cls(ratio, source)
        except (TypeError, ValueError) as error:
            if isinstance(error, SpecError):
                raise
            raise SpecError("state", f"is {state!r}", wanted="[tokens per byte, source]") from None


def check_ratio(where: str, value: Any) -> float:
    """Return `value` as a float. Raises SpecError unless it is a finite, positive number and no bool."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecError(where, f"is {value!r}", wanted="a number of tokens per byte")
    try:
        ratio = float(value)
    except OverflowError:
        ratio = math.inf
    if not math.isfinite(ratio) or ratio <= 0:
        raise SpecError(where, f"is {value!r}", wanted="a finite, positive number of tokens per byte")
    return ratio


@dataclass(frozen=True)
class TokenEstimation:
    """How the ratios of a mixture's data sets are obtained. Raises SpecError for settings that can't be.

    primer: "measure"; or {name: tokens per byte}, which pins those and measures the rest; or one number for every data set,
    for which nothing is read and no tokenizer is needed.
    measure: a function payload → tokens, or its name `package.module:function`, in place of text extraction and tokenizing.
    calibration_samples: draws a data set beyond which it isn't sampled further, unless its interval is still too wide.
    calibration_shards_min, calibration_shards_max: taken from configurations of the zephon package, and without effect: draws are
    spread over as many shards as there are, and the interval decides when there are enough.
    fallback_tokens_per_byte: the guess for a data set that can't be measured.
    target_rel_error: stop when the interval's half-width is under this share of the ratio. confidence: of the interval.
    byte_budget: read no more than this, but of Lance, whose library reads by itself; None: no limit. Where two draws fit less than
    every other time, or what was drawn first turns out to cost more than all of it (long rows far away), the result is a fallback.
    exact_below_bytes: count a data set whole when it has no more raw bytes than this.
    """

    primer: Literal["measure"] | Mapping[str, float] | float = "measure"
    measure: Measure | str | None = None
    calibration_samples: int = 2048
    calibration_shards_min: int = 4
    calibration_shards_max: int = 16
    fallback_tokens_per_byte: float = DEFAULT_FALLBACK_TOKENS_PER_BYTE
    target_rel_error: float = 0.01
    confidence: float = 0.95
    byte_budget: int | None = None
    exact_below_bytes: int = EXACT_BELOW_BYTES

    def __post_init__(self) -> None:
        self._check_primer()
        if isinstance(self.measure, str) and not is_function_path(self.measure):
            raise SpecError("measure", f"is {self.measure!r}", wanted="package.module:function")
        if self.measure is not None and not isinstance(self.measure, str) and not callable(self.measure):
            raise SpecError("measure", f"is a {type(self.measure).__name__}", wanted="a function payload → tokens")
        check_whole("calibration_samples", self.calibration_samples, least=1)
        check_whole("calibration_shards_min", self.calibration_shards_min, least=1)
        check_whole("calibration_shards_max", self.calibration_shards_max, least=self.calibration_shards_min)
        check_ratio("fallback_tokens_per_byte", self.fallback_tokens_per_byte)
        _check_share("target_rel_error", self.target_rel_error)
        _check_share("confidence", self.confidence)
        if self.byte_budget is not None:
            check_whole("byte_budget", self.byte_budget, least=1)
        check_whole("exact_below_bytes", self.exact_below_bytes, least=0)

    def _check_primer(self) -> None:
        if isinstance(self.primer, str):
            if self.primer != "measure":
                raise SpecError("primer", f"is {self.primer!r}", wanted="measure, {name: ratio} or one ratio for all")
        elif isinstance(self.primer, Mapping):
            for name, value in self.primer.items():
                if not isinstance(name, str):
                    raise SpecError("primer", f"pins {name!r}", wanted="names of data sets")
                check_ratio(f"primer[{name!r}]", value)
        elif isinstance(self.primer, bool) or not isinstance(self.primer, int | float):
            raise SpecError("primer", f"is {self.primer!r}", wanted="measure, {name: ratio} or one ratio for all")
        else:
            check_ratio("primer", self.primer)

    @property
    def pins(self) -> dict[str, float]:
        """The pinned ratios, by data set; empty where all are measured, or one holds for all."""
        return {name: float(value) for name, value in self.primer.items()} if isinstance(self.primer, Mapping) else {}

    @property
    def global_ratio(self) -> float | None:
        """The one ratio that holds for every data set, if there is one."""
        return None if isinstance(self.primer, str | Mapping) else float(self.primer)

    def load_measure(self) -> Measure | None:
        """Return the function that takes the tokenizer's place, None if there is none. Raises SpecError if it can't be imported."""
        if isinstance(self.measure, str):
            return resolve_function(self.measure, where="measure")
        return self.measure

    def identity(self) -> dict[str, Any]:
        """Return what decides a measured ratio, as canonical JSON values: neither pins nor anything else of other data sets."""
        measure = self.load_measure()
        return {
            "measure": None if measure is None else callable_identity(measure),
            "calibration_samples": self.calibration_samples,
            "fallback_tokens_per_byte": float(self.fallback_tokens_per_byte),
            "target_rel_error": float(self.target_rel_error),
            "confidence": float(self.confidence),
            "byte_budget": self.byte_budget,
            "exact_below_bytes": self.exact_below_bytes,
        }


def check_whole(where: str, value: Any, *, least: int, most: int | None = None) -> None:
    """Raise SpecError unless `value` is a whole number within these bounds, and no bool."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        wanted = f"a whole number of at least {least:,}" if most is None else f"a whole number from {least:,} to {most:,}"
        raise SpecError(where, f"is {value!r}", wanted=wanted)


def _check_share(where: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise SpecError(where, f"is {value!r}", wanted="a number between 0 and 1")
