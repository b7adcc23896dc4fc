"""Sources to parsed blocks: one thread reads ahead, several parse, and the blocks come out in the order in which they went in."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TypeVar

from zephon_core.bank.scan_fields import FieldTable
from zephon_core.bank.scan_parse import Buffers, ParsedBlock, parse_lines, parse_long_line
from zephon_core.bank.specs import ScanSpec
from zephon_core.errors import ZephonError
from zephon_core.readers.jsonl import LongLine, iter_blocks
from zephon_core.readers.sources import Source

__all__ = ["parsed_blocks"]

_T = TypeVar("_T")
_Task = tuple[int, Callable[[], ParsedBlock]]

BLOCK_BYTES = 1 << 20


def parsed_blocks(spec: ScanSpec, table: FieldTable, sources: Sequence[Source], threads: int) -> Iterator[tuple[int, ParsedBlock]]:
    """Yield (number of the source, block) in order. A block is valid until the next one is asked for."""
    buffers = Buffers()
    waiting: deque[tuple[int, Future[ParsedBlock]]] = deque()
    with (
        ThreadPoolExecutor(threads, thread_name_prefix="scan") as pool,
        closing(_read_ahead(_failing_last(_tasks(spec, table, sources, buffers)), threads)) as tasks,
    ):
        try:
            for number, task in tasks:
                waiting.append((number, pool.submit(task)))
                if len(waiting) > 2 * threads:
                    yield from _finished(waiting, buffers)
            while waiting:
                yield from _finished(waiting, buffers)
        finally:
            for _, future in waiting:
                future.cancel()


def _finished(waiting: deque[tuple[int, Future[ParsedBlock]]], buffers: Buffers) -> Iterator[tuple[int, ParsedBlock]]:
    number, future = waiting.popleft()
    block = future.result()
    yield number, block
    buffers.give_back(block)


def _tasks(spec: ScanSpec, table: FieldTable, sources: Sequence[Source], buffers: Buffers) -> Iterator[_Task]:
    for number, source in enumerate(sources):
        tasks = _line_tasks(spec, table, source, buffers) if source.format == "jsonl" else _batch_tasks(spec, table, source)
        for task in tasks:
            yield number, task


def _failing_last(tasks: Iterator[_Task]) -> Iterator[_Task]:
    """Let an error of a reader come out as the result of a task, so that the rows before it are dealt with first."""
    try:
        yield from tasks
    except ZephonError as error:
        yield -1, partial(_fail, error)


def _fail(error: ZephonError) -> ParsedBlock:
    raise error


def _line_tasks(spec: ScanSpec, table: FieldTable, source: Source, buffers: Buffers) -> Iterator[Callable[[], ParsedBlock]]:
    limit = spec.max_row_bytes
    for block in iter_blocks(source, block_bytes=BLOCK_BYTES, max_row_bytes=limit, allocate=buffers.allocate):
        if isinstance(block, LongLine):
            yield partial(parse_long_line, block, limit)
        else:
            yield partial(parse_lines, block, table, limit, buffers)


def _batch_tasks(spec: ScanSpec, table: FieldTable, source: Source) -> Iterator[Callable[[], ParsedBlock]]:
    from zephon_core.bank.scan_columns import parse_batch
    from zephon_core.readers.arrow import iter_arrow
    from zephon_core.readers.parquet import iter_parquet

    limit = spec.max_row_bytes
    parts = (
        iter_parquet(source, paths=table.paths, max_row_bytes=limit)
        if source.format == "parquet"
        else iter_arrow(source, paths=table.paths)
    )
    for part in parts:
        yield partial(parse_batch, part, table, limit, source.url)


def _read_ahead(items: Iterator[_T], depth: int) -> Generator[_T, None, None]:
    """Run an iterator in a thread of its own, at most `depth` items ahead; its exception comes out in its place."""
    ready: queue.Queue[tuple[_T | None, BaseException | None]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(item: _T | None, error: BaseException | None) -> None:
        while not stopped.is_set():
            try:
                ready.put((item, error), timeout=0.1)
                return
            except queue.Full:
                continue

    def run() -> None:
        try:
            for item in items:
                put(item, None)
                if stopped.is_set():
                    return
            put(None, None)
        except BaseException as error:
            put(None, error)

    thread = threading.Thread(target=run, name="scan-read", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        stopped.set()
        thread.join()
