"""Training examples: one as a model to look at, many as columns to compute with."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from zephon_core.errors import SpecError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DatumColumns", "TrainDatum", "ragged_floats"]

DATUM_FIELDS = ("trial_name", "fragment_index", "model_input_tokens", "loss_mask", "sampled_logprobs")


@dataclass(frozen=True, eq=False)
class _Arrays:
    """What the lists of a datum hold; equal to nothing but itself, so that datums are compared by their fields."""

    loss: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float64]


class TrainDatum(BaseModel):
    """One training sequence, unshifted: context tokens and sampled tokens in order, and three numbers for each of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trial_name: str = Field(min_length=1, description="The episode it comes from.")
    fragment_index: int = Field(ge=0, description="Which piece of that episode it is, from 0.")
    model_input_tokens: list[int] = Field(description="The student's token ids.")
    loss_mask: list[float] = Field(description="1.0 at sampled tokens, 0.0 at context.")
    sampled_logprobs: list[float] = Field(
        description="The sampler's log-probability of each token; 0.0 at context, which is padding."
    )
    advantages: list[float] | None = Field(
        default=None, description="One a token, once attached; 0.0 where nothing is to be learnt."
    )

    @model_validator(mode="after")
    def _aligned(self) -> TrainDatum:
        tokens = len(self.model_input_tokens)
        for name in ("loss_mask", "sampled_logprobs", "advantages"):
            values = getattr(self, name)
            if values is not None and len(values) != tokens:
                raise ValueError(f"{name} has {len(values):,} values for {tokens:,} tokens, expected one a token")
        mask = np.array(self.loss_mask, dtype=np.float64)
        loss = mask == 1.0
        if not (loss | (mask == 0.0)).all():
            position = int(np.argmin(loss | (mask == 0.0)))
            raise ValueError(f"loss_mask is {self.loss_mask[position]} at position {position}, expected exactly 0.0 or 1.0")
        self.__dict__["arrays"] = _Arrays(loss, np.array(self.sampled_logprobs, dtype=np.float64))
        return self

    @cached_property
    def arrays(self) -> _Arrays:
        """The mask and the log-probabilities as arrays; made when the datum is checked."""
        return _Arrays(np.array(self.loss_mask) == 1.0, np.array(self.sampled_logprobs, dtype=np.float64))

    @property
    def loss_token_count(self) -> int:
        """How many positions carry loss."""
        return int(np.count_nonzero(self.arrays.loss))


_M = TypeVar("_M", bound=BaseModel)


def unchecked(model: type[_M], fields: dict[str, Any], names: set[str]) -> _M:
    """Make a frozen model of values that have been checked in bulk: its own checks would take ten times as long.

    fields becomes its own; names, the fields that count as set, is shared.
    """
    made = model.__new__(model)
    object.__setattr__(made, "__dict__", fields)
    object.__setattr__(made, "__pydantic_fields_set__", names)
    object.__setattr__(made, "__pydantic_extra__", None)
    object.__setattr__(made, "__pydantic_private__", None)
    return made


_DATUM_FIELDS = set(TrainDatum.model_fields)


def with_advantages(datum: TrainDatum, advantages: list[float]) -> TrainDatum:
    """Return the datum with these advantages, one a token."""
    return unchecked(TrainDatum, {**datum.__dict__, "advantages": advantages}, _DATUM_FIELDS)


@dataclass(frozen=True)
class DatumColumns:
    """Many datums, one after the other. offsets: int64 [datums + 1], where each begins in the flat columns.

    tokens: int64; loss: bool; logprobs: float64; fragment_index: int64 [datums].
    """

    trial_name: Sequence[str]
    fragment_index: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    loss: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.trial_name)

    @staticmethod
    def of(datums: Sequence[TrainDatum], *, with_tokens: bool = True) -> DatumColumns:
        """Lay datums out flat. Without tokens that column is empty, which is enough to attach advantages."""
        tokens = [np.array(datum.model_input_tokens, dtype=np.int64) for datum in datums] if with_tokens else []
        return DatumColumns(
            trial_name=[datum.trial_name for datum in datums],
            fragment_index=np.fromiter((datum.fragment_index for datum in datums), dtype=np.int64, count=len(datums)),
            offsets=offsets_of(np.fromiter((len(datum.arrays.loss) for datum in datums), dtype=np.int64, count=len(datums))),
            tokens=joined(tokens, np.int64),
            loss=joined([datum.arrays.loss for datum in datums], np.bool_),
            logprobs=joined([datum.arrays.logprobs for datum in datums], np.float64),
        )

    @staticmethod
    def from_arrow(table: pa.Table) -> DatumColumns:
        """Take a table with the datum's fields as columns. Raises SpecError for a missing column, and for rows that don't fit."""
        missing = [name for name in DATUM_FIELDS if name not in table.column_names]
        if missing:
            raise SpecError("datums", f"have no column {', '.join(missing)}", wanted=", ".join(DATUM_FIELDS))
        offsets, tokens = _list_column(table, "model_input_tokens", np.int64)
        mask_offsets, mask = _list_column(table, "loss_mask", np.float64)
        logprob_offsets, logprobs = _list_column(table, "sampled_logprobs", np.float64)
        for name, other in (("loss_mask", mask_offsets), ("sampled_logprobs", logprob_offsets)):
            if not np.array_equal(offsets, other):
                row = int(np.argmax(np.diff(offsets) != np.diff(other)))
                found = f"has {np.diff(other)[row]:,} values in {name} for {np.diff(offsets)[row]:,} tokens"
                raise SpecError(f"datum {row}", found, wanted="one a token")
        fits = (mask == 0.0) | (mask == 1.0)
        if not fits.all():
            position = int(np.argmin(fits))
            row = int(np.searchsorted(offsets, position, side="right")) - 1
            raise SpecError(f"datum {row}", f"has a loss_mask of {mask[position]}", wanted="0.0 or 1.0")
        return DatumColumns(
            trial_name=table.column("trial_name").to_pylist(),
            fragment_index=table.column("fragment_index").to_numpy().astype(np.int64),
            offsets=offsets,
            tokens=tokens,
            loss=mask == 1.0,
            logprobs=logprobs,
        )


def offsets_of(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return where pieces of these lengths begin, laid end to end, and where the last ends."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def joined(arrays: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Lay arrays end to end."""
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=dtype)


def ragged_floats(
    rows: Sequence[Sequence[float | None] | npt.NDArray[np.floating[Any]]],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Lay rows of numbers out flat: offsets int64 [rows + 1], values float64. None becomes NaN."""
    arrays = [_floats(row) for row in rows]
    return offsets_of(np.fromiter(map(len, arrays), dtype=np.int64, count=len(arrays))), joined(arrays, np.float64)


def _floats(row: Sequence[float | None] | npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    if isinstance(row, list) and len(row) > 1:
        try:  # half the time of numpy's own way; only the first is None in a row that a model scored
            first = np.nan if row[0] is None else row[0]
            return np.frombuffer(struct.pack(f"{len(row)}d", first, *row[1:]), dtype=np.float64)
        except struct.error:  # another None
            pass
    return np.array(row, dtype=np.float64)


def pieces(offsets: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Yield each row of a flat column."""
    for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        yield values[start:end]


def _list_column(table: pa.Table, name: str, dtype: npt.DTypeLike) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    import pyarrow as pa

    column = table.column(name).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks else pa.array([], type=column.type)
    if (
        not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type))
        or column.null_count
        or column.flatten().null_count
    ):
        raise SpecError(f"column {name}", f"is {column.type}, or holds nulls", wanted="lists of numbers, none of them null")
    offsets = column.offsets.to_numpy().astype(np.int64)
    return offsets - offsets[0], column.flatten().to_numpy(zero_copy_only=False).astype(dtype, copy=False)
