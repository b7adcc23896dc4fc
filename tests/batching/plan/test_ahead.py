"""Work done ahead: all of it once, results in their order, whoever does it."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from zephon_core.batching import GlobalBatchPlan, TokenBatchOptions
from zephon_core.batching.plan import global_plan
from zephon_core.batching.plan.ahead import helpers, results_ahead


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("blocked", [False, True])
def test_results_come_in_order_and_each_work_is_done_once(threads, blocked):
    done, gate = [], threading.Event()

    def work(number):
        time.sleep(0.001 * (number % 3))
        done.append(number)
        return number

    if not threads:
        assert list(results_ahead([partial(work, number) for number in range(40)], None)) == list(range(40))
    else:
        with ThreadPoolExecutor(threads) as pool:
            if blocked:  # by other work, so that the calling thread does all of it
                for _ in range(threads):
                    pool.submit(gate.wait)
            assert list(results_ahead([partial(work, number) for number in range(40)], pool)) == list(range(40))
            gate.set()
    assert sorted(done) == list(range(40))


def test_nothing_is_begun_far_ahead():
    begun = []
    with ThreadPoolExecutor(2) as pool:
        results = results_ahead((partial(begun.append, number) for number in range(100)), pool)
        next(results)
        time.sleep(0.05)
        assert len(begun) <= 9
        assert len(list(results)) == 99


@pytest.mark.parametrize("pool", [None, 1])
def test_an_error_comes_in_the_place_of_its_result(pool):
    def fail():
        raise ValueError("this one")

    def results(pool):
        return results_ahead([lambda: 1, fail, lambda: 3], pool)

    if pool is None:
        ready = results(None)
        assert next(ready) == 1
        with pytest.raises(ValueError, match="this one"):
            next(ready)
    else:
        with ThreadPoolExecutor(pool) as threads, pytest.raises(ValueError, match="this one"):
            list(results(threads))


@pytest.mark.parametrize("cores", [1, 2, 64])
def test_threads_are_no_more_than_the_process_may_use(cores, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(cores))
    assert helpers() == min(cores - 1, 3)


@pytest.mark.parametrize("bucket_width", [0, 4])
def test_threads_change_nothing_of_a_plan(bucket_width, monkeypatch):
    lengths = np.random.default_rng(0).integers(1, 300, 20_000)
    options = TokenBatchOptions(maximum_tokens=1000, layout="padded")
    monkeypatch.setattr(global_plan, "_LEAST_AT_ONCE", 700)
    monkeypatch.setattr(global_plan, "_MOST_AT_ONCE", 700)
    plans = []
    for threads in (0, 1, 3):
        monkeypatch.setattr(global_plan, "helpers", lambda threads=threads: threads)
        plan = GlobalBatchPlan.build(lengths, options, world_size=3, bucket_width=bucket_width)
        plans += [(plan, plan.reshard(plan.steps // 2, 2))]
    for whole, rest in plans[1:]:
        for one, first in ((whole, plans[0][0]), (rest, plans[0][1])):
            assert one.digest == first.digest
            assert all(np.array_equal(mine, its) for mine, its in zip(one.arrays, first.arrays, strict=True))
