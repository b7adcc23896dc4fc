"""Chunks and plans: as models that refuse what can't be, and as columns for many at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from zephon_core.errors import SpecError
from zephon_core.xtoken.datums import TrainDatum, joined, offsets_of, unchecked, without_arrays

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ChunkPlan", "ChunkSpan", "PlanColumns"]

_RANGES = ("student_start", "student_end", "teacher_start", "teacher_end")


class ChunkSpan(BaseModel):
    """A half-open range of student tokens and the half-open range of teacher tokens that cover the same bytes.

    Where a vocabulary normalises texts or writes blanks as marks they are the same but for that (a blank ahead on one side),
    and `exact` is false.
    Position 0 is on neither side: the student's is shifted away on the wire, the teacher's has no context to be scored by.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    student_start: int = Field(ge=1)
    student_end: int = Field(ge=2)
    teacher_start: int = Field(ge=1)
    teacher_end: int = Field(ge=2)
    exact: bool = Field(default=True, description="Whether both ranges are the same bytes, not only the same once normalised.")

    @model_validator(mode="after")
    def _not_empty(self) -> ChunkSpan:
        for side, start, end in (
            ("student", self.student_start, self.student_end),
            ("teacher", self.teacher_start, self.teacher_end),
        ):
            if end <= start:
                raise ValueError(f"the {side}'s range {start} to {end} is {'empty' if end == start else 'inverted'}")
        return self

    @property
    def student_len(self) -> int:
        """How many of the student's tokens it covers."""
        return self.student_end - self.student_start

    @property
    def teacher_len(self) -> int:
        """How many of the teacher's tokens it covers."""
        return self.teacher_end - self.teacher_start


@dataclass(frozen=True, eq=False)
class _Arrays:
    """A plan's chunks; equal to nothing but itself, so that plans are compared by their fields."""

    ranges: npt.NDArray[np.int64]
    exact: npt.NDArray[np.bool_]


class ChunkPlan(BaseModel):
    """A datum's chunks, sorted and disjoint on both sides, with the length of the teacher sequence that they point into."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trial_name: str = Field(min_length=1)
    fragment_index: int = Field(ge=0)
    chunks: tuple[ChunkSpan, ...] = ()
    teacher_token_count: int = Field(ge=0)

    @model_validator(mode="after")
    def _ordered(self) -> ChunkPlan:
        ranges = self.arrays.ranges
        for side, start, end in (("student", 0, 1), ("teacher", 2, 3)):
            disordered = np.flatnonzero(ranges[1:, start] < ranges[:-1, end])
            if len(disordered):
                chunk = int(disordered[0]) + 1
                found = f"chunk {chunk} starts at {side} position {ranges[chunk, start]}"
                raise ValueError(
                    f"{found}, before chunk {chunk - 1} ends at {ranges[chunk - 1, end]}: they overlap or are out of order"
                )
        if len(ranges) and ranges[-1, 3] > self.teacher_token_count:
            found = f"chunk {len(ranges) - 1} ends at teacher position {ranges[-1, 3]}"
            raise ValueError(f"{found}, past the {self.teacher_token_count} tokens of the teacher's sequence")
        return self

    @cached_property
    def arrays(self) -> _Arrays:
        """The chunks as arrays: ranges int64 [chunks, 4] (student from and to, teacher from and to), exact bool [chunks]."""
        ranges = [(span.student_start, span.student_end, span.teacher_start, span.teacher_end) for span in self.chunks]
        return _Arrays(
            np.array(ranges, dtype=np.int64).reshape(-1, 4), np.array([span.exact for span in self.chunks], dtype=np.bool_)
        )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> ChunkPlan:
        """Copy as pydantic does; arrays of chunks that are changed are made anew."""
        return without_arrays(super().model_copy(update=update, deep=deep), update)

    @property
    def scored_student_tokens(self) -> int:
        """How many of the student's tokens some chunk covers."""
        ranges = self.arrays.ranges
        return int((ranges[:, 1] - ranges[:, 0]).sum())

    def validate_against(self, datum: TrainDatum) -> None:
        """Raise SpecError (a ValueError) for another datum, a chunk past its end, and a chunk on a context position."""
        where = f"the plan of trial {self.trial_name}, fragment {self.fragment_index}"
        if (datum.trial_name, datum.fragment_index) != (self.trial_name, self.fragment_index):
            found = f"is used for trial {datum.trial_name}, fragment {datum.fragment_index}"
            raise SpecError(where, found, wanted="the datum that it was made for")
        ranges, loss = self.arrays.ranges, datum.arrays.loss
        if len(ranges) and ranges[-1, 1] > len(loss):
            chunk = int(np.argmax(ranges[:, 1] > len(loss)))
            raise SpecError(
                where, f"has chunk {chunk} end at student position {ranges[chunk, 1]}, past the datum's {len(loss)} tokens"
            )
        losses = offsets_of(loss.astype(np.int64))
        broken = np.flatnonzero(losses[ranges[:, 1]] - losses[ranges[:, 0]] != ranges[:, 1] - ranges[:, 0])
        if len(broken):
            chunk = int(broken[0])
            start, end = ranges[chunk, :2].tolist()
            position = start + int(np.argmin(loss[start:end]))
            found = f"has chunk {chunk} on student position {position}, which is context"
            remedy = "Its logprob there is padding, so end the chunk before it."
            raise SpecError(where, found, wanted="loss positions only", remedy=remedy)


@dataclass(frozen=True)
class PlanColumns:
    """The plans of many datums. offsets: int64 [plans + 1], where each plan's chunks begin in the flat columns.

    ranges: int64 [chunks, 4], student from and to, teacher from and to. exact: bool [chunks].
    fragment_index, teacher_token_count: int64 [plans].
    """

    trial_name: Sequence[str]
    fragment_index: npt.NDArray[np.int64]
    teacher_token_count: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    ranges: npt.NDArray[np.int64]
    exact: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.trial_name)

    @staticmethod
    def of(plans: Sequence[ChunkPlan], *, with_exact: bool = True) -> PlanColumns:
        """Lay plans out flat. Without `exact` that column is empty, which is enough to attach advantages."""
        arrays = [plan.arrays for plan in plans]
        return PlanColumns(
            trial_name=[plan.trial_name for plan in plans],
            fragment_index=np.array([plan.fragment_index for plan in plans], dtype=np.int64),
            teacher_token_count=np.array([plan.teacher_token_count for plan in plans], dtype=np.int64),
            offsets=offsets_of(np.array([len(each.ranges) for each in arrays], dtype=np.int64)),
            ranges=joined([each.ranges for each in arrays], np.int64).reshape(-1, 4),
            exact=joined([each.exact for each in arrays] if with_exact else [], np.bool_),
        )

    def plans(self) -> Iterator[ChunkPlan]:
        """Yield the plans as models. Raises SpecError for what a `ChunkPlan` would refuse."""
        self.check()
        bounds = self.offsets.tolist()
        for row, name in enumerate(self.trial_name):
            start, end = bounds[row], bounds[row + 1]
            ranges, exact = self.ranges[start:end], self.exact[start:end]
            fields = {
                "trial_name": name,
                "fragment_index": int(self.fragment_index[row]),
                "chunks": tuple(map(_checked_span, ranges.tolist(), exact.tolist())),
                "teacher_token_count": int(self.teacher_token_count[row]),
                "arrays": _Arrays(ranges, exact),
            }
            yield unchecked(ChunkPlan, fields, _PLAN_FIELDS)

    def to_arrow(self) -> pa.Table:
        """As a table: trial_name, fragment_index, teacher_token_count, chunks (a list of structs of int32 ranges and exact)."""
        import pyarrow as pa

        columns = [pa.array(self.ranges[:, column].astype(np.int32)) for column in range(4)]
        chunks = pa.StructArray.from_arrays([*columns, pa.array(self.exact)], names=[*_RANGES, "exact"])
        return pa.table(
            {
                "trial_name": pa.array(self.trial_name, pa.string()),
                "fragment_index": pa.array(self.fragment_index),
                "teacher_token_count": pa.array(self.teacher_token_count),
                "chunks": pa.LargeListArray.from_arrays(pa.array(self.offsets), chunks),
            }
        )

    @staticmethod
    def from_arrow(table: pa.Table) -> PlanColumns:
        """Take what `to_arrow` gave, also after a round trip through a file. Raises SpecError for another table."""
        import pyarrow as pa

        try:
            lists = table.column("chunks").combine_chunks().cast(pa.large_list(_chunk_type()))
            if isinstance(lists, pa.ChunkedArray):
                lists = lists.chunk(0) if lists.num_chunks else pa.array([], type=lists.type)
            chunks, offsets = lists.flatten(), lists.offsets.to_numpy().astype(np.int64)
            columns = PlanColumns(
                trial_name=table.column("trial_name").to_pylist(),
                fragment_index=table.column("fragment_index").to_numpy().astype(np.int64),
                teacher_token_count=table.column("teacher_token_count").to_numpy().astype(np.int64),
                offsets=offsets - offsets[0],
                ranges=np.stack([chunks.field(name).to_numpy().astype(np.int64) for name in _RANGES], axis=1),
                exact=chunks.field("exact").to_numpy(zero_copy_only=False).astype(np.bool_),
            )
        except (KeyError, pa.ArrowException) as error:
            raise SpecError("plans", f"are no table of chunk plans ({error})", wanted="what PlanColumns.to_arrow gives") from error
        columns.check()
        return columns

    def check(self) -> None:
        """Raise SpecError for what a `ChunkPlan` would refuse, in any of them."""
        first = np.zeros(len(self.ranges), dtype=np.bool_)
        first[self.offsets[:-1][self.offsets[:-1] < self.offsets[1:]]] = True
        previous = np.ones_like(self.ranges[:, [1, 3]])
        previous[1:] = self.ranges[:-1, [1, 3]]
        previous[first] = 1
        broken = (self.ranges[:, [0, 2]] < previous).any(axis=1) | (self.ranges[:, [1, 3]] <= self.ranges[:, [0, 2]]).any(axis=1)
        broken |= self.ranges[:, 3] > np.repeat(self.teacher_token_count, np.diff(self.offsets))
        if broken.any():
            chunk = int(np.argmax(broken))
            row = int(np.searchsorted(self.offsets, chunk, side="right")) - 1
            found = f"has chunk {chunk - int(self.offsets[row])} at {self.ranges[chunk].tolist()}"
            wanted = "chunks in order, without overlap, from position 1 on and within the teacher's sequence"
            raise SpecError(f"the plan of trial {self.trial_name[row]}, fragment {self.fragment_index[row]}", found, wanted=wanted)


_SPAN_FIELDS = {*_RANGES, "exact"}  # one set for all: frozen models don't change theirs
_PLAN_FIELDS = set(ChunkPlan.model_fields)


def _checked_span(ranges: list[int], exact: bool) -> ChunkSpan:
    fields = {
        "student_start": ranges[0],
        "student_end": ranges[1],
        "teacher_start": ranges[2],
        "teacher_end": ranges[3],
        "exact": exact,
    }
    return unchecked(ChunkSpan, fields, _SPAN_FIELDS)


def _chunk_type() -> Any:
    import pyarrow as pa

    return pa.struct([*((name, pa.int32()) for name in _RANGES), ("exact", pa.bool_())])
