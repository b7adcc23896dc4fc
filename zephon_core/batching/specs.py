"""Which epoch is cut into batches, and how, as the parameters of flows, forms and files.

`BatchesSpec` decides the batches, `BatchesRun` how planning runs; only the first enters a fingerprint.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, field_validator, model_validator
from pydantic_core import PydanticCustomError

from zephon_core.batching.options import TokenBatchOptions, shown

__all__ = ["BatchesRun", "BatchesSpec", "LengthsSpec", "PlanSpec"]


_BOUNDS = {"ge": "at least", "le": "at most", "gt": "more than", "lt": "less than"}


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_enum_values=False)

    @field_validator("*", mode="wrap")
    @classmethod
    def _found(cls, value: object, check: ValidatorFunctionWrapHandler) -> Any:
        """Say of a number or a choice that is refused what it is; pydantic says only what it should be."""
        try:
            return check(value)
        except ValidationError as error:
            first = error.errors()[0]
            bounds = [f"{words} {first['ctx'][name]}" for name, words in _BOUNDS.items() if name in first.get("ctx", {})]
            wanted = first["ctx"]["expected"] if first["type"] == "literal_error" else " ".join(bounds)
            if first["loc"] or not wanted:
                raise
            raise PydanticCustomError(
                "out_of_range", "is {found}, expected {wanted}", {"found": shown(value), "wanted": wanted}
            ) from None


class LengthsSpec(_Frozen):
    """How many tokens each example has: a table that is there, or texts that are tokenized."""

    table: str = Field(
        default="",
        title="Length table",
        description="An .npy file of one whole number an example, or the folder of a feature bank. Empty: tokenize texts.",
    )
    texts: tuple[str, ...] = Field(
        default=(),
        title="Texts",
        description="In place of a table: JSONL (.gz, .zst), Parquet or Arrow files in order, each a path, glob or fsspec URL. "
        "A row is an example.",
    )
    field: str = Field(
        default="text", title="Field", description="Dotted path of the text in a row.", pattern=r"^[^.\[\]]+(\.[^.\[\]]+)*$"
    )
    tokenizer: str = Field(default="", title="Tokenizer", description="Folder or file of the training's tokenizer, for texts.")
    extra_tokens: int = Field(
        default=0,
        title="Extra tokens",
        description="What the training adds to each example: 2 for BOS and EOS. Counted before the cut.",
        ge=0,
        le=1 << 20,
    )
    cut_at_tokens: int = Field(
        default=0,
        title="Cut at (tokens)",
        description="The training keeps no more of an example than this. 0: all.",
        ge=0,
        le=1 << 31,
    )

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        """Accept the table's path for the whole."""
        return {"table": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _a_table_or_texts(self) -> LengthsSpec:
        if bool(self.table) == bool(self.texts):
            raise ValueError(
                "names both a table and texts; name one" if self.table else "names neither a table nor texts; name one"
            )
        if self.texts and not self.tokenizer:
            raise ValueError("names texts and no tokenizer; name the training's")
        if self.table and self.tokenizer:
            raise ValueError("names a tokenizer, and a table, which needs none")
        return self


class PlanSpec(_Frozen):
    """How an epoch is cut into batches for all ranks."""

    maximum_tokens: int = Field(title="Token budget", description="Token slots of a batch at most.", ge=1, le=1 << 40)
    layout: Literal["packed", "padded"] = Field(
        default="packed",
        title="Layout",
        description="What a batch costs. packed: the sum of its lengths. padded: its examples times the longest.",
    )
    maximum_examples: int = Field(
        default=0, title="Largest batch (examples)", description="Examples of a batch at most. 0: no limit.", ge=0, le=1 << 40
    )
    world_size: int = Field(
        default=1, title="Data ranks", description="Coordinates of data parallelism, not processes.", ge=1, le=1 << 20
    )
    seed: int = Field(default=0, title="Seed", description="Of the epoch's order.", ge=0, le=(1 << 63) - 1)
    epoch: int = Field(
        default=0, title="Epoch", description="The first one is 0. Every epoch has an order of its own.", ge=0, le=1 << 40
    )
    bucket_width: int = Field(
        default=0,
        title="Bucket width (steps)",
        description="The examples of so many steps are sorted by length before they are cut, against padding: 64 is plenty. "
        "0: the order stays as it is.",
        ge=0,
        le=1 << 20,
    )
    window_steps: int = Field(
        default=64,
        title="Balance window (steps)",
        description="The batches of so many steps are dealt to steps by their cost, so that no rank waits. 1: as they come.",
        ge=1,
        le=1 << 20,
    )

    def options(self) -> TokenBatchOptions:
        """Return the budget in the form that programs use."""
        return TokenBatchOptions(
            maximum_tokens=self.maximum_tokens, maximum_examples=self.maximum_examples or None, layout=self.layout
        )


class BatchesSpec(_Frozen):
    """One epoch of a training, cut into token-budget batches for every rank."""

    name: str = Field(
        default="batches",
        title="Name",
        description="Up to 64 letters, digits, dots, - and _, the first a letter or digit: what people call this plan. "
        "It names runs and pages, and changes no batch.",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
    )
    lengths: LengthsSpec = Field(title="Lengths")
    plan: PlanSpec = Field(title="Plan")


class BatchesRun(_Frozen):
    """How planning runs. Nothing here changes a batch."""

    store: str = Field(
        default="", title="Store", description="Folder of finished and unfinished work. Empty: $ZEPHON_STORE, else the user cache."
    )
    output: str = Field(
        default="", title="Output", description="Folder where the plan and its report are published. Empty: only in the store."
    )
    refresh: bool = Field(default=False, title="Refresh", description="Plan even what is planned, and compare.")
