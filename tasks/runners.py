"""Where the parts of a step run: threads and processes of this machine, or a Ray or Dask cluster, by Prefect's task runners."""

from __future__ import annotations

import multiprocessing
import os
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner

from tasks.reporting import route_core_logs, stop_tasks_in_threads
from zephon_core.bank.specs import RunOptions
from zephon_core.bank.specs import TaskRunner as RunnerName
from zephon_core.errors import MissingExtraError

__all__ = ["choose_runner", "prepare_process", "run_of_part", "runner_resources", "stop_parts"]

_RAY_OBJECT_STORE_BYTES = 200 << 20


def choose_runner(run: RunOptions) -> TaskRunner[Any]:
    """Return the task runner that `run` asks for, not started. Raises MissingExtraError where its package is not installed."""
    if run.task_runner is RunnerName.RAY:
        return _ray_runner(run)
    if run.task_runner is RunnerName.DASK:
        return _dask_runner(run)
    if run.task_runner is RunnerName.PROCESS:
        return ProcessPoolTaskRunner(max_workers=_parts_at_once(run), initializer=prepare_process)
    return ThreadPoolTaskRunner(max_workers=_parts_at_once(run))


def run_of_part(run: RunOptions, part: int) -> RunOptions:
    """Return the options under which part `part` of `run.parts` runs; parts that run at once here share the cores."""
    update: dict[str, Any] = {"part": part}
    if run.task_runner in (RunnerName.THREAD, RunnerName.PROCESS):
        update["workers"] = max(1, run.worker_count // _parts_at_once(run))
    return run.model_copy(update=update)


def runner_resources(run: RunOptions) -> AbstractContextManager[Any]:
    """Return the context in which parts are submitted: on Ray each claims one GPU when it is to use one, else Ray shows it none."""
    if run.task_runner is RunnerName.RAY and run.device.startswith("cuda"):
        from prefect_ray.context import remote_options

        return remote_options(num_gpus=1)
    return nullcontext()


def _parts_at_once(run: RunOptions) -> int:
    return max(1, min(run.parts, run.worker_count))


def _ray_runner(run: RunOptions) -> TaskRunner[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        from prefect_ray import RayTaskRunner
    except ImportError:
        raise _missing("ray", "prefect-ray") from None
    if run.cluster:
        return RayTaskRunner(address=run.cluster)
    # Parts pass a few kilobytes through Ray, and their data through files.
    local = {"include_dashboard": False, "num_cpus": _parts_at_once(run), "object_store_memory": _RAY_OBJECT_STORE_BYTES}
    return RayTaskRunner(init_kwargs=local)


def _dask_runner(run: RunOptions) -> TaskRunner[Any]:
    try:
        from prefect_dask import DaskTaskRunner
    except ImportError:
        raise _missing("dask", "prefect-dask") from None
    if run.cluster:
        return DaskTaskRunner(address=run.cluster)
    return DaskTaskRunner(cluster_kwargs={"n_workers": _parts_at_once(run), "threads_per_worker": 1, "dashboard_address": None})


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
