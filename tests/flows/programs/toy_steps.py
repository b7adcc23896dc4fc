"""The toy step as Prefect tasks and flows of every sort."""

from __future__ import annotations

import asyncio
from pathlib import Path

from prefect import flow, task
from prefect.settings import PREFECT_TASKS_REFRESH_CACHE, temporary_settings
from prefect.task_runners import ProcessPoolTaskRunner, ThreadPoolTaskRunner
from toy_core import build_toy, toy_recipe

from tasks.caching import bind, is_transient, refreshing
from tasks.runners import prepare_process
from zephon_core.errors import InputError
from zephon_core.store import ArtifactRef, ArtifactStore


@task
def make(root: str, text: str) -> ArtifactRef:
    return build_toy(root, text, force=refreshing())


@task
async def make_async(root: str, text: str) -> ArtifactRef:
    return build_toy(root, text, force=refreshing())


@task(retries=2, retry_delay_seconds=0.01, retry_condition_fn=is_transient)
def make_with_faults(root: str, text: str, fault: str) -> ArtifactRef:
    """Fail as `fault` says, counting the tries."""
    with (Path(root) / "tries.log").open("a") as log:
        log.write(f"{fault}\n")
    tries = (Path(root) / "tries.log").read_text().count(fault)
    if fault == "passing" and tries < 3:
        raise OSError(5, "Input/output error")
    if fault == "absent":
        raise FileNotFoundError(2, "No such file or directory")
    if fault == "bad input":
        raise InputError("train.jsonl", "is empty")
    return build_toy(root, text)


@flow
def toy_flow(root: str, texts: list[str], refresh: bool = False) -> list[tuple[str, ArtifactRef]]:
    """Make artifacts through the flow's task runner; returns the name of each run's state, and the artifact."""
    store = ArtifactStore(root)
    futures = [bind(make, toy_recipe(text), store, refresh=refresh).submit(root, text) for text in texts]
    return [(future.result() and future.state.name, future.result()) for future in futures]


@flow
async def toy_flow_async(root: str, texts: list[str], refresh: bool = False) -> list[tuple[str, ArtifactRef]]:
    store = ArtifactStore(root)
    states = [await bind(make_async, toy_recipe(text), store, refresh=refresh)(root, text, return_state=True) for text in texts]
    return [(state.name, await state.aresult()) for state in states]


@flow
def toy_flow_direct(root: str, texts: list[str], refresh: bool = False) -> list[tuple[str, ArtifactRef]]:
    store = ArtifactStore(root)
    states = [bind(make, toy_recipe(text), store, refresh=refresh)(root, text, return_state=True) for text in texts]
    return [(state.name, state.result()) for state in states]


@flow
def faulty_flow(root: str, text: str, fault: str) -> ArtifactRef:
    return bind(make_with_faults, toy_recipe(text), ArtifactStore(root))(root, text, fault)


RUNNERS = {
    "thread": toy_flow.with_options(task_runner=ThreadPoolTaskRunner(max_workers=2)),
    "process": toy_flow.with_options(task_runner=ProcessPoolTaskRunner(max_workers=2, initializer=prepare_process)),
    "direct": toy_flow_direct,
}


def run_toys(kind: str, root: str, texts: list[str], refresh: bool = False, setting: bool = False) -> list[tuple[str, str]]:
    """Run the toy flow of `kind`; returns the name of each task run's state, and the artifact's folder."""
    with temporary_settings({PREFECT_TASKS_REFRESH_CACHE: setting}):
        results = asyncio.run(toy_flow_async(root, texts, refresh)) if kind == "async" else RUNNERS[kind](root, texts, refresh)
    return [(state, ref.url) for state, ref in results]


def run_with_faults(root: str, text: str, fault: str) -> str:
    return faulty_flow(root, text, fault).url
