"""Ragged ids: finding differences, and putting parts in order."""

from __future__ import annotations

from itertools import chain, zip_longest

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.tokenizers import RaggedIds
from zephon_core.tokenizers.ragged import interleaved

id_lists = st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=6)


def ragged(rows: list[list[int]]) -> RaggedIds:
    return RaggedIds(np.array(list(chain.from_iterable(rows)), dtype=np.uint32), np.array(list(map(len, rows)), dtype=np.int32))


def naive_difference(ours: list[list[int]], theirs: list[list[int]]) -> tuple[int, int] | None:
    for text, (first, second) in enumerate(zip(ours, theirs, strict=True)):
        for position, (one, other) in enumerate(zip_longest(first, second)):
            if one != other:
                return text, position
    return None


@given(id_lists, st.data())
def test_the_first_difference_is_found(ours: list[list[int]], data: st.DataObject) -> None:
    theirs = [data.draw(st.one_of(st.just(row), st.lists(st.integers(0, 3), max_size=4))) for row in ours]
    assert ragged(ours).first_difference(ragged(theirs)) == naive_difference(ours, theirs)


@given(id_lists)
def test_rows_and_starts(rows: list[list[int]]) -> None:
    ids = ragged(rows)
    assert [ids.row(i).tolist() for i in range(len(rows))] == rows
    assert [ids.ids[start : start + len(row)].tolist() for start, row in zip(ids.starts(), rows, strict=True)] == rows


@given(id_lists, st.integers(1, 5), st.randoms())
def test_parts_come_out_in_the_order_of_their_rows(rows: list[list[int]], part_count: int, random: object) -> None:
    owner = [random.randrange(part_count) for _ in rows]  # type: ignore[attr-defined]
    parts = []
    for part in range(part_count):
        chosen = [row for row in range(len(rows)) if owner[row] == part]
        parts.append((np.array(chosen, dtype=np.int64), ragged([rows[row] for row in chosen])))
    limit = [min(len(row), 2) for row in rows]
    assert interleaved(parts, np.array(limit, dtype=np.int64)).tolist() == [token_id for row in rows for token_id in row[:2]]


def test_missing_ids_are_zeros_and_the_later_part_counts() -> None:
    rows = np.array([0, 1], dtype=np.int64)
    first, second = ragged([[1, 2], []]), ragged([[3, 4, 5]])
    ids = interleaved([(rows, first), (rows[:1], second)], np.array([3, 1], dtype=np.int64))
    assert ids.tolist() == [3, 4, 5, 0]
