"""What a feature bank is made of (`BankSpec`) and how the making runs (`RunOptions`).

Each step has a spec of its own, and a step's fingerprint covers exactly that spec and the fingerprints of its inputs.
Nothing in `RunOptions` changes a byte of what is made.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from zephon_core.models import ModelSpec
from zephon_core.models.plugins import is_plugin
from zephon_core.runners import TaskRunner
from zephon_core.tokenizers import TokenizerBackend

__all__ = [
    "BankSpec",
    "EncodeSpec",
    "FieldSpec",
    "Grouping",
    "OnBadRow",
    "Pooling",
    "RunOptions",
    "ScanSpec",
    "StoreDtype",
    "TokenizeSpec",
]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_enum_values=False)


class OnBadRow(StrEnum):
    """What a broken row does to a scan."""

    ERROR = "error"
    QUARANTINE = "quarantine"


class Pooling(StrEnum):
    """How a text's token vectors become one vector."""

    MODEL = "model"
    MEAN = "mean"
    LAST = "last"
    CLS = "cls"


class Grouping(StrEnum):
    """How rows are put together into blocks.

    exact_token_length: only rows of equal length share a forward pass: nothing is padded, and attention sees no mask.
    packed: neighbouring lengths share one forward pass laid end to end; attention still runs per exact length.
    padded: neighbouring lengths share a forward pass, padded to the longest and masked.
    """

    EXACT = "exact_token_length"
    PACKED = "packed"
    PADDED = "padded"


class StoreDtype(StrEnum):
    """The floating-point type of the feature matrix on disk."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"


class FieldSpec(_Frozen):
    """Where texts stand in a row, and what kind of text they are."""

    path: str = Field(
        title="Field path",
        description="Names joined by dots, with [] after the name of a list to go into its elements: query, candidates[].text.",
        pattern=r"^[^.\[\]]+(\[\])?(\.[^.\[\]]+(\[\])?)*$",
    )
    kind: str = Field(
        default="",
        title="Kind",
        description="Letters, digits, - and _: what the texts are counted as. Empty: the path's first name, in the singular.",
        max_length=64,
        pattern=r"^[A-Za-z0-9_-]*$",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        """Accept `path` or `path:kind` for the whole."""
        if isinstance(value, str):
            path, _, kind = value.partition(":")
            value = {"path": path.strip(), "kind": kind.strip()}
        if isinstance(value, dict) and not value.get("kind") and isinstance(value.get("path"), str):
            first = value["path"].split(".")[0].removesuffix("[]")
            value = {**value, "kind": first.removesuffix("s") or first}
        return value


def _fields_from_text(value: Any) -> Any:
    return [part for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class ScanSpec(_Frozen):
    """Which texts a bank holds."""

    sources: tuple[str, ...] = Field(
        title="Sources",
        description="Files in order, each a path, glob or fsspec URL, optionally NAME=URL: JSONL (.gz, .zst), Parquet, Arrow.",
        min_length=1,
    )
    fields: Annotated[tuple[FieldSpec, ...], BeforeValidator(_fields_from_text)] = Field(
        default=(FieldSpec(path="query", kind="query"), FieldSpec(path="candidates[].text", kind="candidate")),
        title="Fields",
        description="Where texts stand in a row, in the order in which a row's texts are numbered.",
        min_length=1,
        max_length=64,
    )
    on_bad_row: OnBadRow = Field(
        default=OnBadRow.ERROR,
        title="On a bad row",
        description="error: stop at the first broken row. quarantine: set it aside in bad_rows.jsonl, count it and go on.",
    )
    max_row_bytes: int = Field(
        default=64 << 20,
        title="Longest row (bytes)",
        description="A longer row is a bad row.",
        ge=1 << 10,
        le=1 << 30,
    )


class TokenizeSpec(_Frozen):
    """How texts become token ids."""

    tokenizer: str = Field(
        default="",
        title="Tokenizer",
        description="Folder or tokenizer.json. Empty: the model's own.",
    )
    max_key_tokens: int = Field(
        default=256,
        title="Longest text (tokens)",
        description="A text's first so many tokens are encoded; the rest is cut off, and counted as truncated.",
        ge=1,
        le=1 << 20,
    )


class EncodeSpec(_Frozen):
    """The frozen model, and what decides the features it gives."""

    model: ModelSpec = Field(title="Model")
    pooling: Pooling = Field(
        default=Pooling.MODEL,
        title="Pooling",
        description="How token vectors become one vector. model: as the model's folder says (sentence-transformers), else mean.",
    )
    normalize: bool = Field(default=True, title="Normalise", description="Scale each feature vector to length 1.")
    store_dtype: StoreDtype = Field(default=StoreDtype.FLOAT16, title="Stored as", description="Floating-point type of the matrix.")
    grouping: Grouping = Field(
        default=Grouping.EXACT,
        title="Grouping",
        description="How texts share a forward pass: by exactly equal length, packed, or padded.",
    )
    max_batch: int = Field(default=128, title="Largest block (rows)", description="At most so many rows a block.", ge=1, le=1 << 16)
    token_budget: int = Field(default=8192, title="Token budget", description="At most so many tokens a block.", ge=1, le=1 << 24)
    allow_poison: bool = Field(
        default=False,
        title="Allow poison rows",
        description="Call a bank complete although some rows came out as NaN, infinite or beyond float16; readers mask them.",
    )

    @field_validator("pooling", "grouping")
    @classmethod
    def _a_plugin_pools_by_itself(cls, value: Any, info: ValidationInfo) -> Any:
        model = info.data.get("model")
        if model is not None and is_plugin(model.path) and value != cls.model_fields[str(info.field_name)].default:
            raise ValueError(f"is {value}, which {model.path} can't do: it gives one vector a text, for equally long texts")
        return value


class BankSpec(_Frozen):
    """A feature bank: every distinct text of the sources, encoded once by a frozen transformer."""

    name: str = Field(
        default="bank",
        title="Name",
        description="Up to 64 letters, digits, dots, - and _, the first a letter or digit: what people call this bank. "
        "It names runs and pages, and changes nothing in the bank.",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
    )
    scan: ScanSpec = Field(title="Scan")
    tokenize: TokenizeSpec = Field(default=TokenizeSpec(), title="Tokenize")
    encode: EncodeSpec = Field(title="Encode")
    write_index: bool = Field(
        default=True,
        title="Write index.json",
        description="One JSON object of every text's SHA-1 and row. Switch off for very large banks: readers use the mapped index.",
    )

    base: str = Field(
        default="",
        title="Extend",
        description="Folder of a bank to extend: its rows stay, only texts it lacks are encoded. If there is none, one is begun.",
    )

    @model_validator(mode="after")
    def _a_plugin_brings_no_tokenizer(self) -> BankSpec:
        if is_plugin(self.encode.model.path) and not self.tokenize.tokenizer:
            raise ValueError(
                f"the model {self.encode.model.path} brings no tokenizer; name one with --tokenizer (spec.tokenize.tokenizer)"
            )
        return self

    @property
    def tokenizer_path(self) -> str:
        """The tokenizer's folder or file: as set, else the model's folder."""
        return self.tokenize.tokenizer or self.encode.model.path


class RunOptions(_Frozen):
    """How a build runs. Nothing here changes what is made."""

    store: str = Field(
        default="", title="Store", description="Folder of finished and unfinished work. Empty: $ZEPHON_STORE, else the user cache."
    )
    output: str = Field(
        default="", title="Output", description="Folder where the finished bank is published. Empty: only in the store."
    )
    workers: int = Field(
        default=0,
        title="Workers",
        description="Processes (encode on CPU) and threads (scan, tokenize). 0: one a core.",
        ge=0,
        le=4096,
    )
    tokenizer_backend: TokenizerBackend = Field(
        default=TokenizerBackend.AUTO,
        title="Tokenizer backend",
        description="What turns texts into ids, all giving the same. auto: the fastest one proved identical for the tokenizer.",
    )
    device: str = Field(
        default="auto", title="Device", description="auto, cpu, cuda or cuda:N.", pattern=r"^(auto|cpu|cuda(:\d+)?)$"
    )
    gpu_memory_gb: float = Field(
        default=0.0, title="GPU memory (GB)", description="Never use more of a GPU's memory than this. 0: no limit.", ge=0
    )
    memory_mb: int = Field(
        default=1024,
        title="Scan memory (MiB)",
        description="What the scan's table of digests may take before it spills to disk.",
        ge=16,
        le=1 << 20,
    )
    limit_texts: int = Field(
        default=0,
        title="Only the first texts",
        description="Encode only the first so many rows now; the bank stays incomplete, and says so. 0: all.",
        ge=0,
    )
    rows: str = Field(
        default="",
        title="Row range",
        description="START:END of the length-sorted order to encode now, for example 750021:1044327. Empty: all.",
        pattern=r"^(\d+:\d+)?$",
    )
    parts: int = Field(default=1, title="Parts", description="Split the encode into so many independent parts.", ge=1, le=4096)
    part: int | None = Field(
        default=None, title="Part", description="Encode only this part (0 is the first). Empty: all of them.", ge=0
    )
    refresh: bool = Field(default=False, title="Refresh", description="Recompute even what is there, and compare.")
    task_runner: TaskRunner = Field(
        default=TaskRunner.THREAD,
        title="Task runner",
        description="What runs the parts in a Prefect flow: threads or processes here, or a Ray or Dask cluster.",
    )
    cluster: str = Field(
        default="", title="Cluster", description="Address of the Ray or Dask cluster. Empty: a local one for this run."
    )

    @property
    def worker_count(self) -> int:
        """How many workers a step may use: as set, else one a core that this process may run on."""
        return self.workers or len(os.sched_getaffinity(0))

    @model_validator(mode="after")
    def _part_is_one_of_parts(self) -> RunOptions:
        if self.part is not None and self.part >= self.parts:
            raise ValueError(f"part is {self.part} of {self.parts} parts; the last one is {self.parts - 1}")
        return self
