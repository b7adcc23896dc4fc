"""Where the parts of a step run: threads and processes of this machine, or a Ray or Dask cluster, by Prefect's task runners."""

from __future__ import annotations

import multiprocessing
import os
import threading
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import Any, Protocol

from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner

from tasks.reporting import route_core_logs, stop_tasks_in_threads
from zephon_core.bank.specs import RunOptions
from zephon_core.errors import MissingExtraError
from zephon_core.runners import TaskRunner as RunnerName

__all__ = ["RunnerOptions", "choose_runner", "prepare_process", "run_of_part", "runner_resources", "stop_parts", "workers_of_part"]

_RAY_OBJECT_STORE_BYTES = 200 << 20


class RunnerOptions(Protocol):
    """What of a flow's options says where its parts run."""

    @property
    def task_runner(self) -> StrEnum:
        """thread, process, ray or dask."""

    @property
    def cluster(self) -> str:
        """Address of a Ray or Dask cluster, "" for a local one."""

    @property
    def worker_count(self) -> int:
        """How many parts may run at once here."""


def choose_runner(run: RunnerOptions, parts: int) -> TaskRunner[Any]:
    """Return the task runner that `run` asks for, not started. Raises MissingExtraError where its package is not installed."""
    at_once = parts_at_once(run, parts)
    if run.task_runner == RunnerName.RAY:
        return _ray_runner(run.cluster, at_once)
    if run.task_runner == RunnerName.DASK:
        return _dask_runner(run.cluster, at_once)
    if run.task_runner == RunnerName.PROCESS:
        return ProcessPoolTaskRunner(max_workers=at_once, initializer=prepare_process)
    return ThreadPoolTaskRunner(max_workers=at_once)


def workers_of_part(run: RunnerOptions, parts: int) -> int:
    """Return how many workers one of `parts` may use: those that run at once here share the cores. 0: all of its machine's."""
    if run.task_runner in (RunnerName.THREAD, RunnerName.PROCESS):
        return max(1, run.worker_count // parts_at_once(run, parts))
    return 0


def run_of_part(run: RunOptions, part: int) -> RunOptions:
    """Return the options under which part `part` of `run.parts` runs; parts that run at once here share the cores."""
    update: dict[str, Any] = {"part": part}
    if workers := workers_of_part(run, run.parts):
        update["workers"] = workers
    return run.model_copy(update=update)


def runner_resources(run: RunOptions) -> AbstractContextManager[Any]:
    """Return the context in which parts are submitted: on Ray each claims one GPU when it is to use one, else Ray shows it none."""
    if run.task_runner is RunnerName.RAY and run.device.startswith("cuda"):
        from prefect_ray.context import remote_options

        return remote_options(num_gpus=1)
    return nullcontext()


def parts_at_once(run: RunnerOptions, parts: int) -> int:
    """Return how many of `parts` run at once on this machine."""
    return max(1, min(parts, run.worker_count))


def _ray_runner(cluster: str, at_once: int) -> TaskRunner[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        from prefect_ray import RayTaskRunner
    except ImportError:
        raise _missing("ray", "prefect-ray") from None
    if cluster:
        return RayTaskRunner(address=cluster)
    # Parts pass a few kilobytes through Ray, and their data through files.
    local = {"include_dashboard": False, "num_cpus": at_once, "object_store_memory": _RAY_OBJECT_STORE_BYTES}
    return RayTaskRunner(init_kwargs=local)


def _dask_runner(cluster: str, at_once: int) -> TaskRunner[Any]:
    try:
        from prefect_dask import DaskTaskRunner
    except ImportError:
        raise _missing("dask", "prefect-dask") from None
    if cluster:
        return DaskTaskRunner(address=cluster)
    return DaskTaskRunner(cluster_kwargs={"n_workers": at_once, "threads_per_worker": 1, "dashboard_address": None})


def _missing(runner: str, package: str) -> MissingExtraError:
    return MissingExtraError(
        "run.task_runner", f"is {runner}, and {package} is not installed", remedy=f"Install it: pip install {package}"
    )


def stop_parts() -> None:
    """Stop the parts that run in threads and processes of this process: what they have finished is kept, and can be resumed."""
    stop_tasks_in_threads()
    for child in multiprocessing.active_children():
        child.terminate()


def prepare_process() -> None:
    """Run in each process of a pool: end with the flow's process, however that ends, and log to the run."""
    parent = multiprocessing.parent_process()
    if parent is not None:

        def follow() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=follow, name="follow parent", daemon=True).start()
    route_core_logs()
