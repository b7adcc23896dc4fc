"""Dealing of batches to steps, and of the last step's examples to ranks."""

from __future__ import annotations

from itertools import chain, pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_core.batching.cutting.balance import deal_batches, even_parts
from zephon_core.batching.cutting.buckets import BatchStream
from zephon_core.batching.cutting.sorting import generator_state, shuffle
from zephon_core.batching.options import TokenBatchOptions


def cost(lengths: list[int], layout: str) -> int:
    return (sum(lengths) if layout == "packed" else len(lengths) * max(lengths)) if lengths else 0


def stream_of(batches: list[list[int]]) -> tuple[BatchStream, np.ndarray, list[int]]:
    """Batches given by their examples' lengths: the stream, its examples and all lengths."""
    lengths = [length for batch in batches for length in batch]
    sums, tops = ([function(batch) for batch in batches] for function in (sum, max))
    offsets = np.cumsum([0, *map(len, batches)])
    return BatchStream(offsets, np.array(sums, np.int64), np.array(tops, np.int64)), np.arange(len(lengths)), lengths


batches_of = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=50)


@settings(max_examples=200)
@given(
    batches_of, st.integers(1, 9), st.integers(1, 6), st.sampled_from(["packed", "padded"]), st.none() | st.integers(0, 2**64 - 1)
)
def test_deals_every_batch_once_to_like_ones(batches, world_size, window_steps, layout, key):
    stream, order, lengths = stream_of(batches)
    options = TokenBatchOptions(maximum_tokens=100, layout=layout)
    state = None if key is None else generator_state(key)
    dealt = deal_batches(order, stream, options, world_size=world_size, window_steps=window_steps, state=state)
    found = [batch.tolist() for batch in np.split(order, dealt.offsets[1:-1])]
    given_batches = [batch.tolist() for batch in np.split(np.arange(len(lengths)), stream.offsets[1:-1])]
    assert sorted(found) == sorted(given_batches)
    numbers = [given_batches.index(batch) for batch in found]
    assert dealt.real_tokens.tolist() == [sum(batches[number]) for number in numbers]
    assert dealt.longest.tolist() == [max(batches[number]) for number in numbers]
    # the last step: the stream's last batches, or if these hold too few examples the largest of its window
    window, whole = world_size * window_steps, (len(batches) - 1) // world_size * world_size
    begin = (max(1, len(batches) // window) - 1) * window
    tail = numbers[whole:]
    if sum(map(len, batches[whole:])) >= world_size:
        assert tail == list(range(whole, len(batches)))
    else:
        largest = sorted(map(len, batches[begin:]))[whole - begin :]
        assert sorted(len(batches[number]) for number in tail) == largest
    # within each window, sorted by cost and taken world_size at a time: no other grouping has a smaller sum of maxima
    costs = [cost(batches[number], layout) for number in numbers]
    for first in range(0, max(begin, 1) if whole else 0, window):
        here = range(first, whole if first == begin else first + window)
        assert all(first <= numbers[k] and (first == begin or numbers[k] < first + window) for k in here)
        groups = sorted(sorted(costs[k : k + world_size]) for k in range(first, here.stop, world_size))
        assert list(chain.from_iterable(groups)) == sorted(costs[k] for k in here)
        if key is None:
            steps = [numbers[k : k + world_size] for k in range(first, here.stop, world_size)]
            assert steps == sorted(sorted(step) for step in steps)


def test_steps_and_ranks_are_shuffled():
    """Of batches that cost 1, 2, 3, … neither steps nor ranks stay in order, and each rank gets every place in a step."""
    batches = [[length] for length in range(1, 1001)] + [[1]]
    stream, order, _ = stream_of(batches)
    options = TokenBatchOptions(maximum_tokens=2000)
    dealt = deal_batches(order, stream, options, world_size=4, window_steps=250, state=generator_state(3))
    steps = (dealt.real_tokens[:1000] - 1).reshape(250, 4)
    assert (steps // 4 == steps[:, :1] // 4).all()  # neighbours share a step
    assert abs(np.corrcoef(steps[:, 0] // 4, np.arange(250))[0, 1]) < 0.2
    places = np.stack([np.bincount(steps[:, rank] % 4, minlength=4) for rank in range(4)])
    assert places.min() > 30


@settings(max_examples=200)
@given(batches_of, st.integers(1, 5), st.integers(1, 6), st.data())
def test_buckets_are_shuffled_before_anything_is_dealt(batches, world_size, window_steps, data):
    """As if the stream had come shuffled, by what the generator gives first."""
    stream, order, _ = stream_of(batches)
    inner = data.draw(st.lists(st.integers(1, len(batches)), max_size=6))
    buckets = np.unique([0, *inner, len(batches)])
    options, state, other = TokenBatchOptions(maximum_tokens=100), generator_state(3), generator_state(3)
    settings = {"world_size": world_size, "window_steps": window_steps}
    turns = np.arange(len(batches))
    for begin, end in pairwise(buckets.tolist()):
        shuffle(turns, begin, end - (end == len(batches)), other)
    shuffled = [[*range(stream.offsets[turn], stream.offsets[turn + 1])] for turn in turns]
    assert shuffled[-1][-1] == len(order) - 1  # the last batch stays the last
    parts = BatchStream(np.cumsum([0, *map(len, shuffled)]), stream.real_tokens[turns], stream.longest[turns])
    expected = np.array(list(chain.from_iterable(shuffled)))
    wanted = deal_batches(expected, parts, options, state=other, **settings)
    found = deal_batches(order, stream, options, state=state, buckets=buckets, **settings)
    assert order.tolist() == expected.tolist()
    assert all(np.array_equal(mine, its) for mine, its in zip(found, wanted, strict=True))
    assert state == other
    plain, again = np.arange(len(order)), np.arange(len(order))
    deal_batches(plain, stream, options, state=None, buckets=buckets, **settings)
    deal_batches(again, stream, options, state=None, **settings)
    assert plain.tolist() == again.tolist()  # nothing is shuffled without a seed


def best_maximum(lengths: list[int], options: TokenBatchOptions, parts: int) -> int:
    """By trying every assignment."""
    best = 10**9
    for owners in product(range(parts), repeat=len(lengths)):
        groups = [[length for length, owner in zip(lengths, owners, strict=True) if owner == part] for part in range(parts)]
        if max(map(len, groups)) <= (options.maximum_examples or 99):
            best = min(best, max(cost(group, options.layout) for group in groups))
    return best


@settings(max_examples=60)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=7), st.integers(1, 3), st.none() | st.integers(3, 4))
def test_even_parts_of_few_examples(lengths, parts, limit):
    for layout in ("packed", "padded"):
        options = TokenBatchOptions(maximum_tokens=200, maximum_examples=limit, layout=layout)
        if limit and len(lengths) > limit * parts:
            continue
        order, offsets = even_parts(np.array(lengths, np.int32), options, parts)
        groups = [[lengths[one] for one in part] for part in np.split(order, offsets[1:-1])]
        assert sorted(order.tolist()) == list(range(len(lengths)))
        assert sum(not group for group in groups) == max(0, parts - len(lengths))
        assert all(groups[: len(lengths)])
        assert max(map(len, groups)) <= (limit or 99)
        best, found = best_maximum(lengths, options, parts), max(cost(group, layout) for group in groups)
        assert found == best if layout == "padded" else found <= best * (4 / 3)


@settings(max_examples=200)
@given(st.data())
def test_even_parts_keep_to_the_limits_whatever_was_given(data):
    """Batches that fit, as full as they get, and dealt to as many parts or more."""
    layout = data.draw(st.sampled_from(["packed", "padded"]))
    budget = data.draw(st.integers(1, 30))
    options = TokenBatchOptions(maximum_tokens=budget, maximum_examples=data.draw(st.none() | st.integers(1, 4)), layout=layout)
    lengths, batch, batches = [], [], 0
    for length in data.draw(st.lists(st.integers(1, budget), min_size=1, max_size=40)):
        if batch and (cost([*batch, length], layout) > budget or len(batch) == options.maximum_examples):
            batches, batch = batches + 1, []
        batch.append(length)
        lengths.append(length)
    parts = batches + 1 + data.draw(st.integers(0, 5))
    order, offsets = even_parts(np.array(lengths, np.int64), options, parts)
    groups = [[lengths[one] for one in part] for part in np.split(order, offsets[1:-1])]
    assert sorted(order.tolist()) == list(range(len(lengths)))
    assert len(groups) == parts
    assert sum(not group for group in groups) == max(0, parts - len(lengths))
    for group in groups:
        assert cost(group, layout) <= budget
        assert len(group) <= (options.maximum_examples or len(group))


def test_even_parts_are_even_of_many():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 500, 5000)
    for layout in ("packed", "padded"):
        options = TokenBatchOptions(maximum_tokens=10**6, layout=layout)
        order, offsets = even_parts(lengths, options, 64)
        groups = [lengths[part] for part in np.split(order, offsets[1:-1])]
        costs = np.array([group.sum() if layout == "packed" else len(group) * group.max() for group in groups])
        assert costs.max() / costs.mean() - 1 < (1e-4 if layout == "packed" else 0.03)


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_huge_lengths_do_not_wrap(layout):
    options = TokenBatchOptions(maximum_tokens=2**63 - 1, layout=layout)
    lengths = np.array([2**62, 2**62 - 1, 2**62, 7, 2**62], np.int64)
    order, offsets = even_parts(lengths, options, 5)
    assert sorted(np.diff(offsets).tolist()) == [1, 1, 1, 1, 1]
    assert sorted(order.tolist()) == list(range(5))
