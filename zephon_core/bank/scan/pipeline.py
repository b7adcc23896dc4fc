"""Sources to parsed blocks: one thread reads ahead, several parse, and the blocks come out in the order in which they went in."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from zephon_core.bank.scan.fields import FieldTable
from zephon_core.bank.scan.parse import Buffers, ParsedBlock, parse_lines, parse_long_line
from zephon_core.bank.specs import ScanSpec
from zephon_core.errors import ZephonError
from zephon_core.readers.jsonl import LongLine, iter_blocks
from zephon_core.readers.sources import Source

__all__ = ["parsed_blocks"]

_T = TypeVar("_T")

BLOCK_BYTES = 1 << 20
_IN_FLIGHT_BYTES = 64 << 20


@dataclass(frozen=True)
class _Task:
    """One block to parse. source: its number. held_bytes: about what it keeps in memory until it is done with."""

    source: int
    held_bytes: int
    parse: Callable[[], ParsedBlock]


def parsed_blocks(
    spec: ScanSpec, table: FieldTable, sources: Sequence[Source], threads: int
) -> Generator[tuple[int, ParsedBlock], None, None]:
    """Yield (number of the source, block) in order. A block is valid until the next one is asked for.

    Blocks in flight are twice as many as threads, and fewer if they are large, as rows of many megabytes make them.
    """
    buffers = Buffers()
    waiting: deque[tuple[_Task, Future[ParsedBlock]]] = deque()
    with (
        ThreadPoolExecutor(threads, thread_name_prefix="scan") as pool,
        closing(_read_ahead(_failing_last(_tasks(spec, table, sources, buffers)))) as tasks,
    ):
        try:
            for task in tasks:
                waiting.append((task, pool.submit(task.parse)))
                while len(waiting) > 2 * threads or sum(held.held_bytes for held, _ in waiting) > _IN_FLIGHT_BYTES:
                    yield from _finished(waiting, buffers)
            while waiting:
                yield from _finished(waiting, buffers)
        finally:
            for _, future in waiting:
                future.cancel()


def _finished(waiting: deque[tuple[_Task, Future[ParsedBlock]]], buffers: Buffers) -> Iterator[tuple[int, ParsedBlock]]:
    task, future = waiting.popleft()
    block = future.result()
    yield task.source, block
    buffers.give_back(block)


def _tasks(spec: ScanSpec, table: FieldTable, sources: Sequence[Source], buffers: Buffers) -> Iterator[_Task]:
    for number, source in enumerate(sources):
        if source.format == "jsonl":
            yield from _line_tasks(spec, table, number, source, buffers)
        else:
            yield from _batch_tasks(spec, table, number, source)


def _failing_last(tasks: Iterator[_Task]) -> Iterator[_Task]:
    """Let an error of a reader come out as the result of a task, so that the rows before it are dealt with first."""
    try:
        yield from tasks
    except ZephonError as error:
        yield _Task(-1, 0, partial(_fail, error))


def _fail(error: ZephonError) -> ParsedBlock:
    raise error


def _line_tasks(spec: ScanSpec, table: FieldTable, number: int, source: Source, buffers: Buffers) -> Iterator[_Task]:
    limit = spec.max_row_bytes
    for block in iter_blocks(source, block_bytes=BLOCK_BYTES, max_row_bytes=limit, allocate=buffers.allocate):
        if isinstance(block, LongLine):
            yield _Task(number, len(block.head), partial(parse_long_line, block, limit))
        else:
            yield _Task(number, len(block.buffer), partial(parse_lines, block, table, limit, buffers))


def _batch_tasks(spec: ScanSpec, table: FieldTable, number: int, source: Source) -> Iterator[_Task]:
    from zephon_core.bank.scan.columns import parse_batch
    from zephon_core.readers.arrow import iter_arrow
    from zephon_core.readers.parquet import iter_parquet

    limit = spec.max_row_bytes
    if source.format == "parquet":
        parts = iter_parquet(source, paths=table.paths, max_row_bytes=limit)
    else:
        parts = iter_arrow(source, paths=table.paths)
    for part in parts:
        yield _Task(number, 2 * part.batch.nbytes, partial(parse_batch, part, table, limit, source.url))


def _read_ahead(items: Iterator[_T]) -> Generator[_T, None, None]:
    """Run an iterator in a thread of its own, two items ahead; its exception comes out in its place."""
    ready: queue.Queue[tuple[_T | None, BaseException | None]] = queue.Queue(1)
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
