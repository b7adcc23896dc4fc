"""How ratios are obtained, as the parameters of flows, forms and files.

`RatioSpec` decides the numbers, `RatioRun` how they are made; only the first enters a fingerprint. Programs use
`TokenEstimation`, which `RatioSpec.estimation` makes.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from zephon_core.ratios.callables import is_function_path
from zephon_core.ratios.estimation import (
    DEFAULT_FALLBACK_TOKENS_PER_BYTE,
    EXACT_BELOW_BYTES,
    RatioSource,
    TokenEstimation,
    TokenRatio,
)
from zephon_core.runners import TaskRunner

__all__ = [
    "MOST_WORKERS",
    "ChatDelivery",
    "CountKind",
    "LongRows",
    "MissingField",
    "RatioRun",
    "RatioSource",
    "RatioSpec",
    "SpecialTokens",
    "TokenEstimation",
    "TokenRatio",
    "split_pair",
]

MOST_WORKERS = 4096
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_POWERS = re.compile(r"[0-9]+(\.[0-9]+)?[eE]\+?[0-9]{1,2}")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_enum_values=False)

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_are_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false in a number's place, and take whole numbers as people write them: 1e9 is text to YAML."""
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and kind in (int, float):
            raise ValueError(f"is {str(value).lower()}; write a number")
        if isinstance(value, str) and kind is int and _POWERS.fullmatch(value.strip()):
            number = Decimal(value.strip())
            return int(number) if number == number.to_integral_value() else value
        return value


class CountKind(StrEnum):
    """What a row is to the training's tokenize step."""

    TEXT = "text"
    CHAT = "chat"


class ChatDelivery(StrEnum):
    """What the training delivers of a rendered conversation."""

    TEMPLATE = "template"
    ZEPHON = "zephon"


class SpecialTokens(StrEnum):
    """Which special tokens a row gets."""

    BOS_EOS = "bos_eos"
    BOS = "bos"
    EOS = "eos"
    NONE = "none"
    TOKENIZER_DEFAULT = "tokenizer_default"


class LongRows(StrEnum):
    """What the training does with a row of more than `max_length` tokens."""

    TRUNCATE = "truncate"
    SPLIT = "split"


class MissingField(StrEnum):
    """What the training does with a row that lacks the field."""

    ERROR = "error"
    EMPTY = "empty"


def split_pair(text: str, *, what: str) -> tuple[str, str]:
    """Split NAME=VALUE. Raises ValueError where there is no name, or one that can't be."""
    name, equals, value = text.partition("=")
    if not equals or not value.strip():
        raise ValueError(f"{text!r} is no {what}; write NAME={what}")
    if _NAME.fullmatch(name.strip()) is None:
        raise ValueError(f"{name!r} is no name of a data set; write letters, digits, dots, dashes and underscores")
    return name.strip(), value.strip()


def _numbers(pairs: tuple[str, ...], what: str) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for text in pairs:
        name, value = split_pair(text, what=what)
        try:
            number = float(value)
        except ValueError:
            raise ValueError(f"{text!r} says {value!r}; write a number") from None
        if not math.isfinite(number) or number <= 0:
            raise ValueError(f"{text!r} says {value}; write a finite, positive number")
        if name in numbers:
            raise ValueError(f"{name} stands there twice")
        numbers[name] = number
    return numbers


def _from_mapping(value: Any) -> Any:
    """Accept a mapping {name: value} where NAME=VALUE texts are kept; a list of values under a name stands for several."""
    if not isinstance(value, Mapping):
        return value
    pairs = []
    for name, items in value.items():
        several = items if isinstance(items, list | tuple) and items else [items]
        for item in several:
            if isinstance(item, bool) or not isinstance(item, str | int | float):
                raise ValueError(f"{name} is {json.dumps(item, default=str)}; write a text or a number")
            pairs.append(f"{name}={item}")
    return pairs


Pairs = Annotated[tuple[str, ...], BeforeValidator(_from_mapping)]


class RatioSpec(_Frozen):
    """Which data sets are measured, what is counted in them, and how surely."""

    name: str = Field(
        default="mixture",
        title="Name",
        description="What people call this mixture; it names runs and pages, and changes no number.",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
    )
    datasets: Pairs = Field(
        title="Data sets",
        description="NAME=URL each: a folder, glob or fsspec URL. The same name again adds to that data set.",
        min_length=1,
    )
    format: str = Field(
        default="",
        title="Format",
        description="jsonl, parquet, arrow, mds, webdataset, litdata or lance. Empty: as the files say.",
        pattern=r"^[a-z0-9_]*$",
    )
    tokenizer: str = Field(
        default="",
        title="Tokenizer",
        description="Folder or file of the training's tokenizer. Empty only where nothing is tokenized: all pinned, or measured.",
    )
    kind: CountKind = Field(default=CountKind.TEXT, title="Rows are", description="text: one text a row. chat: messages.")
    field: str = Field(
        default="",
        title="Field",
        description="Dotted path of the text in a row (of the messages, for chat). Empty: found by a vote over the first rows.",
    )
    special_tokens: SpecialTokens = Field(
        default=SpecialTokens.BOS_EOS,
        title="Special tokens",
        description="What the training adds to a row; counted so, whatever the tokenizer has.",
    )
    max_length: int = Field(
        default=0, title="Longest row (tokens)", description="The training's limit of a row. 0: none.", ge=0, le=1 << 31
    )
    long_rows: LongRows = Field(
        default=LongRows.TRUNCATE,
        title="Longer rows",
        description="truncate: the rest is lost. split: no token is lost.",
    )
    missing_field: MissingField = Field(
        default=MissingField.ERROR,
        title="Rows without the field",
        description="error: the training would stop, so priming does. empty: such a row delivers no text.",
    )
    chat_template: str = Field(
        default="", title="Chat template", description="File of a Jinja template. Empty: the tokenizer's own."
    )
    chat_delivery: ChatDelivery = Field(
        default=ChatDelivery.TEMPLATE,
        title="Chat rows become",
        description="template: what the template renders. zephon: that, ended by EOS, and nothing where no token bears loss.",
    )
    tools_field: str = Field(default="tools", title="Tools field", description="Dotted path of a chat row's tools, if it has any.")
    loss_tokens: bool = Field(default=True, title="Loss tokens", description="Of chat rows, count the assistant's tokens as well.")
    measure: str = Field(
        default="",
        title="Measure with",
        description="package.module:function, payload to tokens, in place of text extraction and tokenizing.",
    )
    pre_tokenize_ops: tuple[str, ...] = Field(
        default=(),
        title="Before tokenizing",
        description="package.module:function each: the training's map and filter steps, replayed on every row that is counted.",
    )
    pins: Pairs = Field(
        default=(), title="Pinned ratios", description="NAME=0.25 each: tokens per byte that are known, and not measured."
    )
    ratio_for_all: float = Field(
        default=0.0,
        title="One ratio for all",
        description="Tokens per byte of every data set; nothing is measured. 0: measure.",
        ge=0,
    )
    target_rel_error: float = Field(
        default=0.01, title="Wanted precision", description="Half-width of the interval as a share of the ratio.", gt=0, lt=1
    )
    confidence: float = Field(
        default=0.95, title="Confidence", description="How often an interval is to hold the truth.", gt=0, lt=1
    )
    byte_budget: int = Field(default=0, title="Byte budget", description="Read no more bytes of a data set. 0: no limit.", ge=0)
    exact_below_bytes: int = Field(
        default=EXACT_BELOW_BYTES, title="Count whole below (bytes)", description="Data sets no larger are counted whole.", ge=0
    )
    calibration_samples: int = Field(
        default=2048, title="Draws", description="Draws a data set, as long as the precision asks for no more.", ge=1, le=1 << 24
    )
    fallback_tokens_per_byte: float = Field(
        default=DEFAULT_FALLBACK_TOKENS_PER_BYTE,
        title="Fallback (tokens per byte)",
        description="The guess for a data set that can't be measured.",
        gt=0,
    )
    seed: int = Field(default=0, title="Seed", description="Of the draws: equal seeds, equal numbers.", ge=0, le=(1 << 63) - 1)
    shares: Pairs = Field(
        default=(),
        title="Token shares",
        description="NAME=0.6 each: the mixture wanted, by tokens, in any unit. Empty: no mixture is worked out.",
    )
    sample_bytes: Pairs = Field(
        default=(),
        title="Bytes a row",
        description="NAME=2000 each: mean raw bytes a row, of data sets that don't say how many rows they have.",
    )
    budget_tokens: float = Field(
        default=0.0,
        title="Token budget",
        description="Tokens the training will see, to say how often data repeats. 0: unknown.",
        ge=0,
    )

    @field_validator("datasets")
    @classmethod
    def _datasets_are_named(cls, datasets: tuple[str, ...]) -> tuple[str, ...]:
        for text in datasets:
            split_pair(text, what="URL")
        return datasets

    @field_validator("measure")
    @classmethod
    def _measure_is_a_name(cls, measure: str) -> str:
        if measure and not is_function_path(measure):
            raise ValueError(f"{measure!r} names no function; write package.module:function")
        return measure

    @field_validator("pins", "shares", "sample_bytes")
    @classmethod
    def _pairs_are_of_data_sets(cls, pairs: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        numbers = _numbers(pairs, {"pins": "ratio", "shares": "share"}.get(info.field_name or "", "bytes"))
        names = {split_pair(text, what="URL")[0] for text in info.data.get("datasets", ())}
        if names and (unknown := sorted(set(numbers) - names)):
            raise ValueError(f"there is no data set {', '.join(unknown)}; there are {', '.join(sorted(names))}")
        if info.field_name == "shares" and numbers and (missing := sorted(names - set(numbers))):
            raise ValueError(f"no share is given for {', '.join(missing)}; give every data set one")
        return pairs

    @field_validator("ratio_for_all")
    @classmethod
    def _pins_or_one_for_all(cls, ratio: float, info: ValidationInfo) -> float:
        if ratio and info.data.get("pins"):
            raise ValueError("pins and one ratio for all exclude each other")
        return ratio

    @field_validator("budget_tokens")
    @classmethod
    def _budget_is_of_a_mixture(cls, budget_tokens: float, info: ValidationInfo) -> float:
        if budget_tokens and info.data.get("shares") == ():
            raise ValueError("says how often a mixture repeats its data, and no shares are named (--share)")
        return budget_tokens

    @property
    def dataset_urls(self) -> dict[str, list[str]]:
        """URLs by name of the data set, in order."""
        urls: dict[str, list[str]] = {}
        for text in self.datasets:
            name, url = split_pair(text, what="URL")
            urls.setdefault(name, []).append(url)
        return urls

    @property
    def wanted_shares(self) -> dict[str, float]:
        """The token shares wanted, by data set, in the unit they were given in; empty where there are none."""
        return _numbers(self.shares, "share")

    @property
    def known_sample_bytes(self) -> dict[str, float]:
        """Mean raw bytes a row, by data set, where somebody said so."""
        return _numbers(self.sample_bytes, "bytes")

    def estimation(self) -> TokenEstimation:
        """Return the settings in the form that programs use."""
        return TokenEstimation(
            primer=self.ratio_for_all or _numbers(self.pins, "ratio") or "measure",
            measure=self.measure or None,
            calibration_samples=self.calibration_samples,
            fallback_tokens_per_byte=self.fallback_tokens_per_byte,
            target_rel_error=self.target_rel_error,
            confidence=self.confidence,
            byte_budget=self.byte_budget or None,
            exact_below_bytes=self.exact_below_bytes,
        )


class RatioRun(_Frozen):
    """How measuring runs. Nothing here changes a number."""

    store: str = Field(
        default="", title="Store", description="Folder of finished and unfinished work. Empty: $ZEPHON_STORE, else the user cache."
    )
    output: str = Field(default="", title="Output", description="Folder for ratios.json, the report and the exports. Empty: none.")
    publish: str = Field(
        default="",
        title="Publish",
        description="fsspec URL of the one ratio map that every rank and node reads. Empty: none.",
    )
    workers: int = Field(
        default=0, title="Workers", description="Processes that read and count. 0: one a core.", ge=0, le=MOST_WORKERS
    )
    negative_ttl_s: float = Field(
        default=120.0,
        title="Remember failures (s)",
        description="So long a data set that couldn't be read is not tried again. 0: try each time.",
        ge=0,
    )
    refresh: bool = Field(default=False, title="Refresh", description="Measure even what is known, and compare.")
    task_runner: TaskRunner = Field(
        default=TaskRunner.THREAD,
        title="Task runner",
        description="What runs the data sets in a Prefect flow: threads or processes here, or a Ray or Dask cluster.",
    )
    cluster: str = Field(
        default="", title="Cluster", description="Address of the Ray or Dask cluster. Empty: a local one for this run."
    )

    @property
    def worker_count(self) -> int:
        """How many workers may be used: as set, else one a core that this process may run on."""
        return self.workers or len(os.sched_getaffinity(0))
