"""Worker processes of one thread each.

One thread a process keeps results independent of how many workers there are, and holds its speed beside a busy neighbour. A
worker is a fresh interpreter (no fork of a threaded parent, no second import of its main module) that opens what it is told
to open and then answers jobs. It dies with its parent, however that dies, and the parent notices when a worker does.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from types import TracebackType
from typing import Any

from zephon_core.errors import WorkerError, ZephonError

__all__ = ["WorkerPool", "worker_main"]

_AHEAD = 2  # jobs a worker is given before it has answered the first, so that it never waits for the parent
_FAREWELL_S = 5.0
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_BOOT = "import sys; sys.path[:] = {path!r}; from zephon_core.models.pool import worker_main; worker_main({fd}, {parent})"


class WorkerPool:
    """Processes that each open `target` with `payload` and then turn jobs into results.

    count: how many. target: "module:function"; function(payload) returns a context manager whose value is called with each job.
    payload, jobs and results are pickled. To be used in a with statement: leaving it ends the workers.
    """

    def __init__(self, count: int, target: str, payload: Any) -> None:
        self._target = target
        self._workers: list[_Worker] = []
        try:
            for number in range(count):
                self._workers.append(_Worker(number, target, payload))
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.kill()

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def process_ids(self) -> list[int]:
        """The workers' process ids."""
        return [worker.process.pid for worker in self._workers]

    def run(self, jobs: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Yield (worker, result) as results come, in any order. Jobs are taken from the iterable as workers get free.

        Raises the error a worker raised if it is one of this library's, else WorkerError; also for a worker that died.
        """
        source = iter(jobs)
        for _ in range(_AHEAD):
            for worker in self._workers:
                self._feed(worker, source)
        while busy := {worker.connection: worker for worker in self._workers if worker.jobs}:
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]
                result = worker.receive()
                worker.jobs -= 1
                self._feed(worker, source)
                yield worker.number, result

    def close(self) -> None:
        """Tell the workers that there is nothing more to do and wait for them."""
        for worker in self._workers:
            with contextlib.suppress(OSError):  # gone already
                worker.connection.send(_STOP)
        deadline = time.monotonic() + _FAREWELL_S
        for worker in self._workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.1, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """End the workers at once."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.wait()
            worker.connection.close()
        self._workers = []

    def _feed(self, worker: _Worker, source: Iterator[Any]) -> None:
        try:
            job = next(source)
        except StopIteration:
            return
        worker.send(job)
        worker.jobs += 1


class _Stop:
    """The last message to a worker."""


_STOP = _Stop()


@dataclass(frozen=True)
class _Unreadable:
    """In place of a message to a worker that it could not unpickle."""

    error: Exception


class _Worker:
    def __init__(self, number: int, target: str, payload: Any) -> None:
        self.number = number
        self.jobs = 0
        self._target = target
        self.connection, theirs = Pipe(duplex=True)
        code = _BOOT.format(path=sys.path, fd=theirs.fileno(), parent=os.getpid())
        environment = {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, "1"), "TOKENIZERS_PARALLELISM": "false"}
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # standard output belongs to the parent's result
                pass_fds=[theirs.fileno()],
            )
        finally:
            theirs.close()
        self.send((target, payload))

    def send(self, message: Any) -> None:
        try:
            self.connection.send(message)
        except OSError as error:
            raise self._death() from error

    def receive(self) -> Any:
        try:
            kind, value = self.connection.recv()
        except (EOFError, OSError) as error:
            raise self._death() from error
        if kind == "result":
            return value
        raised, trace = value
        if trace:
            raised.add_note(f"In worker process {self.number}:\n{trace}")
        raise raised

    def _death(self) -> WorkerError:
        try:
            status = self.process.wait(_FAREWELL_S)
        except subprocess.TimeoutExpired:
            return WorkerError(self._name(), "stopped answering")
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        remedy = "Run it again: what is finished is kept."
        if status == -signal.SIGKILL:
            remedy = f"If memory ran out, use fewer workers. {remedy}"
        return WorkerError(self._name(), how, remedy=remedy)

    def _name(self) -> str:
        return f"worker {self.number} (process {self.process.pid})"


def worker_main(descriptor: int, parent: int) -> None:
    """Be a worker: answer jobs on an inherited connection until told to stop."""
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt from the keyboard is the parent's to handle
    connection = Connection(descriptor)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, inbox), daemon=True).start()
    try:
        target, payload = _taken(inbox)
        with _resolve(target)(payload) as handle:
            while not isinstance(job := _taken(inbox), _Stop):
                connection.send(("result", handle(job)))
    except Exception as error:  # whatever it is, the parent raises it
        connection.send(("error", _portable(error)))
        sys.exit(1)


def _listen(connection: Connection, inbox: queue.SimpleQueue[Any]) -> None:
    """Take messages in while the worker computes: a parent that sends never waits for one that is busy sending itself."""
    while True:
        try:
            inbox.put(connection.recv())
        except (EOFError, OSError):  # the parent is gone, and nobody waits for what this process computes
            os._exit(1)
        except Exception as error:  # a message that can't be unpickled here; its classes' own code may raise anything
            inbox.put(_Unreadable(error))


def _taken(inbox: queue.SimpleQueue[Any]) -> Any:
    """Take the next message. Raises what kept it from being read."""
    message = inbox.get()
    if isinstance(message, _Unreadable):
        raise message.error
    return message


def _resolve(target: str) -> Callable[[Any], AbstractContextManager[Callable[[Any], Any]]]:
    module, _, name = target.partition(":")
    function: Callable[[Any], AbstractContextManager[Callable[[Any], Any]]] = getattr(importlib.import_module(module), name)
    return function


def _portable(error: Exception) -> tuple[Exception, str]:
    """Return an error that the parent can unpickle, with its trace; this library's own errors say enough without one."""
    if isinstance(error, ZephonError):
        return error, ""
    trace = "".join(traceback.format_exception(error))
    found = WorkerError(f"worker process {os.getpid()}", f"failed: {type(error).__name__}: {error}")
    return found, trace


def _die_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends, where the kernel can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
