"""Batches over an order, contiguous and bucketed, against a plain restatement."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_core.batching.cutting.buckets import form_batches
from zephon_core.batching.cutting.cut import cut_batches
from zephon_core.batching.lengths import LengthTable
from zephon_core.batching.options import TokenBatchOptions

layouts = st.sampled_from(["packed", "padded"])


def fits(lengths: list[int], options: TokenBatchOptions) -> bool:
    cost = sum(lengths) if options.layout == "packed" else len(lengths) * max(lengths)
    return cost <= options.maximum_tokens and len(lengths) <= (options.maximum_examples or len(lengths))


def plain_cut(
    examples: list[int], lengths: list[int], options: TokenBatchOptions, *, closed: bool
) -> tuple[list[list[int]], list[int]]:
    """Batches and what is left open."""
    batches, batch = [], []
    for example in examples:
        if batch and not fits([lengths[one] for one in [*batch, example]], options):
            batches.append(batch)
            batch = []
        batch.append(example)
    return ([*batches, batch], []) if closed and batch else (batches, batch)


def plain_buckets(order: list[int], lengths: list[int], options: TokenBatchOptions, window: int) -> list[list[int]]:
    """The batches of bucketed windows, not shuffled."""
    batches, held, read, least, downwards = [], [], 0, 0, True
    while read < len(order) or held:
        while read < len(order):
            full = sum(lengths[one] for one in held) >= window * options.maximum_tokens
            if options.maximum_examples:
                full = full or len(held) >= window * options.maximum_examples
            if full and len(held) >= least:
                break
            held.append(order[read])
            read += 1
        held.sort(key=lambda one: lengths[one])
        if downwards:
            held.reverse()
        found, left = plain_cut(held, lengths, options, closed=read == len(order))
        if not found:
            least = 2 * len(held)
            continue
        batches, held, least, downwards = batches + found, left, 0, not downwards
    return batches


@st.composite
def cases(draw):
    options = TokenBatchOptions(
        maximum_tokens=draw(st.integers(1, 60)), maximum_examples=draw(st.none() | st.integers(1, 6)), layout=draw(layouts)
    )
    lengths = draw(st.lists(st.integers(1, options.maximum_tokens), max_size=80))
    dtype = draw(st.sampled_from([np.int32, np.int64]))
    order = draw(st.permutations(range(len(lengths))))
    return options, LengthTable.of(np.array(lengths, dtype)), order


def formed(order, table, options, window, stretch=1 << 40):
    """The stream of an order, and where its windows begin; lengths come a stretch at a time, and no example before its length."""
    told = np.array(order)

    def stretches():
        order[:] = table.count + 5
        for begin in range(0, len(order), stretch):
            order[begin : begin + stretch] = told[begin : begin + stretch]
            yield table.values[told[begin : begin + stretch]]

    return form_batches(order, stretches(), options, longest=table.longest, window_batches=window)


def as_lists(order, offsets) -> list[list[int]]:
    return [batch.tolist() for batch in np.split(np.asarray(order), offsets[1:-1])] if len(offsets) > 1 else []


def check_figures(stream, order, table, options):
    batches = as_lists(order, stream.offsets)
    lengths = [[int(table.values[one]) for one in batch] for batch in batches]
    assert stream.real_tokens.tolist() == [sum(batch) for batch in lengths]
    assert stream.longest.tolist() == [max(batch) for batch in lengths]
    costs = [sum(batch) if options.layout == "packed" else len(batch) * max(batch) for batch in lengths]
    assert stream.token_slots(options).tolist() == costs
    assert all(fits(batch, options) for batch in lengths)


@given(cases())
def test_without_buckets_it_is_the_greedy_cut(case):
    options, table, order = case
    array = np.array(order, np.uint32)
    stream, windows = formed(array, table, options, 0)
    assert windows.tolist() == [0, len(stream.longest)]
    assert array.tolist() == list(order)
    assert stream.offsets.tolist() == cut_batches(table, array, options).tolist()
    assert as_lists(array, stream.offsets) == plain_cut(list(order), table.values.tolist(), options, closed=True)[0]
    check_figures(stream, array, table, options)


@settings(max_examples=300)
@given(cases(), st.integers(1, 9))
def test_buckets_as_restated(case, window):
    options, table, order = case
    array = np.array(order, np.uint32)
    stream, _ = formed(array, table, options, window)
    expected = plain_buckets(list(order), table.values.tolist(), options, window)
    assert as_lists(array, stream.offsets) == expected
    check_figures(stream, array, table, options)


@given(cases(), st.integers(0, 9), st.integers(1, 30))
def test_however_the_lengths_come(case, window, stretch):
    """The same batches and windows, wherever one stretch of lengths ends and the next begins."""
    options, table, order = case
    arrays = [np.array(order, np.int64) for _ in range(2)]
    (whole, windows), (stream, others) = (
        formed(array, table, options, window, size) for array, size in zip(arrays, (1 << 40, stretch), strict=True)
    )
    assert arrays[0].tolist() == arrays[1].tolist()
    assert windows.tolist() == others.tolist()
    assert all(np.array_equal(one, other) for one, other in zip(whole, stream, strict=True))
    assert windows[0] == 0
    assert windows[-1] == len(whole.longest)
    assert (np.diff(windows) > 0).all() or not len(order)


def test_many_batches_in_one_window_and_many_windows():
    """More batches than the first arrays hold, and more examples in a batch than the first arrays hold."""
    rng = np.random.default_rng(0)
    table = LengthTable.of(rng.integers(1, 40, 30_000).astype(np.int32))
    for options, window in (
        (TokenBatchOptions(maximum_tokens=40), 10**9),
        (TokenBatchOptions(maximum_tokens=40, layout="padded"), 1),
        (TokenBatchOptions(maximum_tokens=2**62, layout="padded"), 3),
        (TokenBatchOptions(maximum_tokens=100_000), 1),
        (TokenBatchOptions(maximum_tokens=2**62, maximum_examples=5000), 2),
    ):
        order = rng.permutation(30_000)
        array = order.astype(np.uint32)
        stream, _ = formed(array, table, options, window)
        assert as_lists(array, stream.offsets) == plain_buckets_fast(order, table.values, options, window)


def plain_buckets_fast(order, lengths, options, window):
    """`plain_buckets` for many examples: the same windows, with running sums."""
    batches, held, read, least, downwards = [], [], 0, 0, True
    while read < len(order) or held:
        tokens = int(lengths[held].sum()) if held else 0
        limit = window * (options.maximum_examples or 2**62)
        while read < len(order) and (len(held) < least or (tokens < window * options.maximum_tokens and len(held) < limit)):
            held.append(int(order[read]))
            tokens += int(lengths[order[read]])
            read += 1
        held = [held[k] for k in np.argsort(lengths[held], kind="stable")]
        if downwards:
            held.reverse()
        found, batch, total, longest = [], [], 0, 0
        for one in held:
            length = int(lengths[one])
            cost = total + length if options.layout == "packed" else (len(batch) + 1) * max(longest, length)
            if batch and (cost > options.maximum_tokens or len(batch) == options.maximum_examples):
                found.append(batch)
                batch, total, longest = [], 0, 0
            batch.append(one)
            total, longest = total + length, max(longest, length)
        if read == len(order) and batch:
            found.append(batch)
            batch = []
        if not found:
            least = 2 * len(held)
            continue
        batches, held, least, downwards = batches + found, batch, 0, not downwards
    return batches


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_huge_lengths_do_not_wrap(layout):
    """Windows and sums beyond 2**63."""
    big = 2**62 + 2**61
    table = LengthTable.of(np.array([big, 1, big, 5, big, big], np.int64))
    options = TokenBatchOptions(maximum_tokens=2**63 - 1, layout=layout)
    for window in (0, 1, 1 << 40):
        array = np.arange(6)
        stream, _ = formed(array, table, options, window)
        assert sorted(array.tolist()) == list(range(6))
        assert int(stream.real_tokens.min()) > 0
        assert sum(stream.real_tokens.tolist()) == 4 * big + 6


def test_no_examples_no_batches():
    table = LengthTable.of([])
    for window in (0, 4):
        stream, windows = formed(np.zeros(0, np.uint32), table, TokenBatchOptions(maximum_tokens=5), window)
        assert windows.tolist() == ([0] if window else [0, 0])
        assert stream.offsets.tolist() == [0]
        assert not len(stream.real_tokens)
        assert not len(stream.longest)
