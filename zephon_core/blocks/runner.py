"""What runs the blocks: worker processes of one thread each, or a model in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from zephon_core.blocks.finished import BlockJob, BlockResult
from zephon_core.models import WorkerPool

__all__ = ["BlockRunner", "Facts", "Handle", "Here", "Workers", "device_name", "machine_has_gpu", "workers_that_fit"]

_QUEUED_TOKENS = 1 << 16  # handed to a GPU at once, so that it never waits for this process
_USABLE_MEMORY = 0.8

Handle = Callable[[Any], Any]
"""What a loaded model answers to: the jobs of a unit with their results, None with its `Facts`, other requests in their own way."""


@dataclass(frozen=True)
class Facts:
    """What a loaded model is. settled: what mustn't change while the work lasts, `forward` among it; ragged: see `unit_jobs`."""

    settled: Mapping[str, Any]
    ragged: bool = False


class BlockRunner(Protocol):
    """Works on units; `facts` says with what, `devices` where."""

    facts: Facts
    devices: list[str]

    def run(self, units: Iterable[Sequence[BlockJob]]) -> Iterator[tuple[int, list[BlockResult]]]:
        """Yield (worker, results) for each unit as they are done, in any order."""

    def ask(self, request: Any) -> Any:
        """Return a model's answer to a request of another kind."""


class Here:
    """Runs blocks in this process. queued: hand over many at once, to a device that works while this process doesn't."""

    def __init__(self, handle: Handle, device: str, *, queued: bool) -> None:
        self._handle = handle
        self.facts: Facts = handle(None)
        self.devices = [device_name(device)]
        self._queued = queued and not self.facts.ragged

    def run(self, units: Iterable[Sequence[BlockJob]]) -> Iterator[tuple[int, list[BlockResult]]]:
        """See `BlockRunner.run`."""
        for jobs in _joined(units) if self._queued else units:
            yield 0, self._handle(jobs)

    def ask(self, request: Any) -> Any:
        """See `BlockRunner.ask`."""
        return self._handle(request)


class Workers:
    """Runs blocks in the processes of a pool."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self.facts: Facts = [facts for _, facts in pool.run([None] * len(pool))].pop()
        self.devices = ["cpu"] * len(pool)

    def run(self, units: Iterable[Sequence[BlockJob]]) -> Iterator[tuple[int, list[BlockResult]]]:
        """See `BlockRunner.run`."""
        return self._pool.run(units)

    def ask(self, request: Any) -> Any:
        """See `BlockRunner.ask`."""
        ((_, answer),) = self._pool.run([request])
        return answer


def workers_that_fit(most: int, each_bytes: int) -> int:
    """Return how many of `most` workers of so many bytes each this machine's free memory holds: at least one."""
    available = _available_bytes()
    return min(most, max(1, int(available * _USABLE_MEMORY / each_bytes))) if available else most


def machine_has_gpu() -> bool:
    """Tell whether torch can use a GPU here; it isn't imported where there is no driver."""
    if not Path("/proc/driver/nvidia").exists():
        return False
    import torch

    return torch.cuda.is_available()


def device_name(device: str) -> str:
    """Return a device's name for people: cpu, or cuda:N and what it is."""
    if device == "cpu":
        return device
    import torch

    return f"{device} {torch.cuda.get_device_name(device)}"


def _available_bytes() -> int:
    """Return what the machine's memory has left, 0 if that isn't known."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 0)


def _joined(units: Iterable[Sequence[BlockJob]]) -> Iterator[list[BlockJob]]:
    """Join units whose blocks run one by one anyway."""
    waiting: list[BlockJob] = []
    rows = 0
    for jobs in units:
        waiting += jobs
        rows += sum(len(job.rows) for job in jobs)
        if rows * 8 >= _QUEUED_TOKENS:
            yield waiting
            waiting, rows = [], 0
    if waiting:
        yield waiting
