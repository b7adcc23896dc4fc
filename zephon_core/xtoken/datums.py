"""Training examples: one as a model to look at, many as columns to compute with."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from zephon_core.errors import InputError, SpecError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "DATUM_FIELDS",
    "DatumColumns",
    "TrainDatum",
    "check_datum_columns",
    "check_list_column",
    "check_names",
    "check_naming_columns",
    "list_column",
    "ragged_column",
    "ragged_floats",
    "row_and_position",
    "shown_name",
]

DATUM_FIELDS = ("trial_name", "fragment_index", "model_input_tokens", "loss_mask", "sampled_logprobs")


_LONGEST_SHOWN = 200


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

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> TrainDatum:
        """Copy as pydantic does; arrays of fields that are changed are made anew."""
        return without_arrays(super().model_copy(update=update, deep=deep), update)

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


def without_arrays(copied: _M, update: Mapping[str, Any] | None) -> _M:
    """Let a copy with other fields forget the arrays of those that it was copied from."""
    if update:
        copied.__dict__.pop("arrays", None)
    return copied


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
        arrays = [datum.arrays for datum in datums]
        return DatumColumns(
            trial_name=[datum.trial_name for datum in datums],
            fragment_index=np.array([datum.fragment_index for datum in datums], dtype=np.int64),
            offsets=offsets_of(np.array([len(each.loss) for each in arrays], dtype=np.int64)),
            tokens=joined(tokens, np.int64),
            loss=joined([each.loss for each in arrays], np.bool_),
            logprobs=joined([each.logprobs for each in arrays], np.float64),
        )

    @staticmethod
    def from_arrow(table: pa.Table, *, place: Callable[[int], str] = "datum {}".format) -> DatumColumns:
        """Take a table with the datum's fields as columns. place: names a row of it in messages.

        Raises SpecError for a missing column or one of another type, and for what a `TrainDatum` would refuse.
        """
        check_datum_columns(table.schema)
        names, fragments = table.column("trial_name"), table.column("fragment_index")
        for column, nulls in (("trial_name", names), ("fragment_index", fragments)):
            if nulls.null_count:
                row = int(np.argmax(nulls.is_null().to_numpy()))
                raise SpecError(place(row), f"has no {column}", wanted="one a datum")
        offsets, tokens = list_column(table, "model_input_tokens", np.int64, place=place)
        mask_offsets, mask = list_column(table, "loss_mask", np.float64, place=place)
        logprob_offsets, logprobs = list_column(table, "sampled_logprobs", np.float64, place=place)
        for name, other in (("loss_mask", mask_offsets), ("sampled_logprobs", logprob_offsets)):
            if not np.array_equal(offsets, other):
                row = int(np.argmax(np.diff(offsets) != np.diff(other)))
                found = f"has {np.diff(other)[row]:,} values in {name} for {np.diff(offsets)[row]:,} tokens"
                raise SpecError(place(row), found, wanted="one a token")
        fits = (mask == 0.0) | (mask == 1.0)
        if not fits.all():
            wrong = int(np.argmin(fits))
            row, position = row_and_position(offsets, wrong)
            raise SpecError(place(row), f"has a loss_mask of {mask[wrong]} at position {position}", wanted="0.0 or 1.0")
        numbers = fragments.to_numpy()
        if (large := _past_int64(numbers)) is not None:
            raise SpecError(place(large), f"has fragment_index {numbers[large]}", wanted="a number below 2^63")
        columns = DatumColumns(
            trial_name=names.to_pylist(),
            fragment_index=numbers.astype(np.int64),
            offsets=offsets,
            tokens=tokens,
            loss=mask == 1.0,
            logprobs=logprobs,
        )
        columns._check_names(place)
        return columns

    def _check_names(self, place: Callable[[int], str]) -> None:
        if "" in self.trial_name:
            raise SpecError(place(list(self.trial_name).index("")), "has an empty trial_name", wanted="the episode it comes from")
        if (self.fragment_index < 0).any():
            row = int(np.argmax(self.fragment_index < 0))
            raise SpecError(place(row), f"has fragment_index {self.fragment_index[row]}", wanted="a number from 0 on")


def check_datum_columns(schema: pa.Schema) -> None:
    """Raise SpecError for a table that can't hold datums: a column is missing, or is of another type."""
    missing = [name for name in DATUM_FIELDS if name not in schema.names]
    if missing:
        raise SpecError("datums", f"have no column {', '.join(missing)}", wanted=", ".join(DATUM_FIELDS))
    check_naming_columns(schema)
    for name in DATUM_FIELDS[2:]:
        check_list_column(schema, name, whole=name == "model_input_tokens")


def check_naming_columns(schema: pa.Schema) -> None:
    """Raise SpecError where a column that names datums is of another type. Either may be missing."""
    from pyarrow import types

    for name, wanted in (("trial_name", "text"), ("fragment_index", "whole numbers")):
        if name not in schema.names:
            continue
        kind = schema.field(name).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
        fits = types.is_integer(kind) if name == "fragment_index" else text
        if not fits:
            raise SpecError(f"column {name}", f"is {schema.field(name).type}", wanted=wanted)


def check_list_column(schema: pa.Schema, name: str, *, whole: bool = False) -> None:
    """Raise SpecError for a column that holds no lists of numbers. whole: of whole numbers."""
    from pyarrow import types

    kind = schema.field(name).type
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    items = kind.value_type if lists else None
    numbers = items is not None and (
        types.is_integer(items) or types.is_null(items) or (not whole and (types.is_floating(items) or types.is_boolean(items)))
    )
    if not numbers:
        raise SpecError(f"column {name}", f"is {kind}", wanted=f"lists of {'whole ' if whole else ''}numbers")


def check_names(url: str, names: Sequence[str]) -> None:
    """Raise InputError for a file that has several columns of the same name."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        found = f"has {names.count(twice)} columns named {twice}"
        raise InputError(url, found, wanted="one of each name", remedy="Rename them, or drop all but one.")


def shown_name(name: str) -> str:
    """Return a trial's name as it may stand in one line on a terminal: without controls, not too long."""
    written = name if name.isprintable() else repr(name)[1:-1]
    return written if len(written) <= _LONGEST_SHOWN else written[: _LONGEST_SHOWN - 1] + "\u2026"


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
    offsets, values = offsets_of(np.array([len(row) for row in arrays], dtype=np.int64)), joined(arrays, np.float64)
    begun = [place for place, row in enumerate(rows) if isinstance(row, list | tuple) and row]
    values[offsets[begun]] = np.array([rows[place][0] for place in begun], dtype=np.float64)
    return offsets, values


def _floats(row: Sequence[float | None] | npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """Turn a row into an array. What comes first of a list is left to the caller: in a row that a model scored it is None.

    A struct packs floats in less than half the time of numpy, and None only as a bool, for which it takes anything.
    """
    if isinstance(row, list | tuple) and row:
        try:
            return np.frombuffer(struct.Struct(f"?{len(row) - 1}d").pack(*row), dtype=np.float64)
        except struct.error:  # another None
            pass
    return np.array(row, dtype=np.float64)


def pieces(offsets: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Yield each row of a flat column."""
    for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        yield values[start:end]


def list_column(
    table: pa.Table, name: str, dtype: npt.DTypeLike, *, place: Callable[[int], str] = "datum {}".format
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Lay a column of lists out flat: offsets int64 [rows + 1], values. Raises SpecError for a null, naming its row."""
    offsets, values, absent = ragged_column(table, name)
    if absent.any():
        raise SpecError(place(int(np.argmax(absent))), f"has no {name}", wanted="a list of numbers")
    if values.null_count:
        row, position = row_and_position(offsets, int(np.argmax(values.is_null().to_numpy(zero_copy_only=False))))
        raise SpecError(place(row), f"has a null in {name} at position {position}", wanted="a number")
    numbers = values.to_numpy(zero_copy_only=False)
    if dtype is np.int64 and (large := _past_int64(numbers)) is not None:
        row, position = row_and_position(offsets, large)
        raise SpecError(place(row), f"has {numbers[large]} in {name} at position {position}", wanted="numbers below 2^63")
    return offsets, numbers.astype(dtype, copy=False)


def row_and_position(offsets: npt.NDArray[np.int64], place: int) -> tuple[int, int]:
    """Return which row a place of a flat column is in, and where in that row."""
    row = int(np.searchsorted(offsets, place, side="right")) - 1
    return row, place - int(offsets[row])


def _past_int64(numbers: npt.NDArray[Any]) -> int | None:
    """Return the place of the first number that int64 can't hold; None if there is none."""
    if numbers.dtype != np.uint64:
        return None
    large = numbers >= np.uint64(1 << 63)
    return int(np.argmax(large)) if large.any() else None


def ragged_column(table: pa.Table, name: str) -> tuple[npt.NDArray[np.int64], pa.Array, npt.NDArray[np.bool_]]:
    """Lay a column of lists out flat: offsets int64 [rows + 1], the values, and which rows are null, which have none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table.column(name)
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks else pa.array([], type=column.type)
    absent = column.is_null().to_numpy(zero_copy_only=False)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return offsets_of(lengths), column.flatten(), absent
