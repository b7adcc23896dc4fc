"""The greedy cut, against the same in plain Python."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.batching import TokenBatchOptions, cut_batches
from zephon_core.batching.cutting.cut import cut_sorted, cut_stretch, lengths_of
from zephon_core.errors import LengthError

LARGE = 2**63 - 1


def plain_cut(lengths: list[int], options: TokenBatchOptions) -> list[int]:
    """Offsets of the batches, in numbers without a limit."""
    offsets, batch = [0], []
    for place, length in enumerate(lengths):
        wider = [*batch, length]
        cost = sum(wider) if options.layout == "packed" else len(wider) * max(wider)
        many = options.maximum_examples is not None and len(wider) > options.maximum_examples
        if batch and (cost > options.maximum_tokens or many):
            offsets.append(place)
            wider = [length]
        batch = wider
    return [*offsets, len(lengths)] if batch else offsets


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], TokenBatchOptions]:
    scale = draw(st.sampled_from([1, 50, 2**30, 2**61]))
    longest = draw(st.integers(scale, 3 * scale))
    lengths = draw(st.lists(st.integers(1, longest), max_size=60))
    budget = draw(st.integers(longest, min(LARGE, longest * 8)))
    examples = draw(st.none() | st.integers(1, 6))
    return lengths, TokenBatchOptions(maximum_tokens=budget, maximum_examples=examples, layout=draw(LAYOUTS))


LAYOUTS: Any = st.sampled_from(["packed", "padded"])


@given(case=cases(), dtype=st.sampled_from([np.int32, np.int64]), seed=st.none() | st.integers(0, 99))
def test_the_cut_is_the_plain_one(case: tuple[list[int], TokenBatchOptions], dtype: Any, seed: int | None) -> None:
    lengths, options = case
    if dtype is np.int32 and max(lengths, default=0) >= 2**31:
        dtype = np.int64
    table = np.array(lengths, dtype)
    order = None if seed is None else np.random.default_rng(seed).permutation(len(lengths)).astype(np.uint32)
    ordered = lengths if order is None else [lengths[k] for k in order]
    assert cut_batches(table, order, options).tolist() == plain_cut(ordered, options)


@given(case=cases(), closed=st.booleans())
def test_a_stretch_is_measured_and_its_open_end_left(case: tuple[list[int], TokenBatchOptions], closed: bool) -> None:
    lengths, options = case
    cut = cut_stretch(np.array(lengths, np.int64), options, closed=closed)
    offsets = plain_cut(lengths, options)
    if not closed and len(offsets) > 1:
        offsets.pop()
    batches = [lengths[begin:end] for begin, end in pairwise(offsets)]
    assert cut.ends.tolist() == offsets[1:]
    assert cut.real_tokens.tolist() == [sum(batch) for batch in batches]
    assert cut.longest.tolist() == [max(batch) for batch in batches]


@given(case=cases(), closed=st.booleans(), downwards=st.booleans(), dtype=st.sampled_from([np.int32, np.int64]))
def test_sorted_lengths_are_cut_as_any(
    case: tuple[list[int], TokenBatchOptions], closed: bool, downwards: bool, dtype: Any
) -> None:
    lengths, options = case
    dtype = np.int64 if max(lengths, default=0) >= 2**31 else dtype
    ordered = np.array(sorted(lengths, reverse=downwards), dtype)
    wanted = cut_stretch(ordered, options, closed=closed)
    found = np.zeros((3, len(lengths)), np.int64)
    limits = options.maximum_tokens, options.maximum_examples or LARGE, options.layout == "padded"
    count = cut_sorted(ordered, *limits, downwards, closed, *found)
    assert found[:, :count].tolist() == [each.tolist() for each in wanted]


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_batches_and_tables_larger_than_what_is_cut_at_once(layout: Any) -> None:
    lengths = np.random.default_rng(0).integers(1, 9, 700_000)
    order = np.random.default_rng(1).permutation(700_000)
    many = TokenBatchOptions(maximum_tokens=10, layout=layout)
    assert cut_batches(lengths, None, many).tolist() == plain_cut(lengths.tolist(), many)
    whole = TokenBatchOptions(maximum_tokens=10**9, layout=layout)
    assert cut_batches(lengths, order, whole).tolist() == [0, 700_000]
    halves = TokenBatchOptions(maximum_tokens=10**9, maximum_examples=300_000, layout=layout)
    assert cut_batches(lengths, order, halves).tolist() == [0, 300_000, 600_000, 700_000]


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_sums_beyond_int64_end_a_batch_instead_of_wrapping(layout: Any) -> None:
    most = TokenBatchOptions(maximum_tokens=LARGE, layout=layout)
    assert cut_batches([2**62, 2**62, 2**62], None, most).tolist() == [0, 1, 2, 3]
    assert cut_batches([LARGE, 1, LARGE], None, most).tolist() == [0, 1, 2, 3]
    assert cut_batches([2**62, 2**62 - 1, 1], None, most).tolist() == plain_cut([2**62, 2**62 - 1, 1], most)
    wide = TokenBatchOptions(maximum_tokens=2**31 - 1, layout=layout)
    assert cut_batches([2**31 - 1] * 3, None, wide).tolist() == [0, 1, 2, 3]


def test_a_length_that_cant_be_batched_is_named() -> None:
    with pytest.raises(LengthError, match="example 2: has length 11"):
        cut_batches([1, 2, 11], None, TokenBatchOptions(maximum_tokens=10))


@pytest.mark.parametrize("dtype", [np.uint32, np.int64, np.uint8])
def test_lengths_are_looked_up(dtype: Any) -> None:
    values = np.array([5, 6, 7], np.int32)
    found = lengths_of(values, np.array([2, 0, 2], dtype))
    assert (found.dtype, found.tolist()) == (np.int32, [7, 5, 7])
