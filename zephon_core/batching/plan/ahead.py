"""Work done before it's asked for, by threads beside the one that asks; what comes of it doesn't depend on them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

__all__ = ["helpers", "results_ahead"]

_MOST_HELPERS = 3
_MOST_AHEAD = 8

_T = TypeVar("_T")


def helpers() -> int:
    """How many threads beside the calling one pay, of those that the process may use."""
    return min(_MOST_HELPERS, len(os.sched_getaffinity(0)) - 1)


def results_ahead(works: Iterable[Callable[[], _T]], pool: ThreadPoolExecutor | None) -> Iterator[_T]:
    """Return the works' results in their order, up to eight made ahead by the pool's threads; None: each when it's asked for.

    Works run at the same time as each other and as the calling thread, which does what none has begun instead of waiting.
    """
    if pool is None:
        yield from (work() for work in works)
        return
    rest, waiting = iter(works), deque[tuple[Callable[[], _T], Future[_T]]]()
    while True:
        for work in islice(rest, _MOST_AHEAD - len(waiting)):
            waiting.append((work, pool.submit(work)))
        if not waiting:
            return
        for place, (work, future) in enumerate(list(waiting)):
            if waiting[0][1].done():
                break
            if future.cancel():
                done: Future[_T] = Future()
                done.set_result(work())
                waiting[place] = (work, done)
        yield waiting.popleft()[1].result()
