"""Prefect's cache is a projection of the artifact store: a hit exactly where a valid artifact is."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shared_service import wait_for
from toy_core import build_toy, toy_recipe

from tasks.caching import ArtifactPolicy, ArtifactRecords
from zephon_core.locks import is_held
from zephon_core.store import ArtifactStore

Run = Callable[..., list[str]]
PROGRAMS = Path(__file__).resolve().parent / "programs"


def builds(root: Path) -> list[str]:
    log = root / "builds.log"
    return log.read_text().split() if log.exists() else []


@pytest.fixture
def run(flows: Any, tmp_path: Path) -> Run:
    """Run a toy flow; returns the names of the task runs' states, having checked what the runs returned."""

    def run_and_check(kind: str, *texts: str, **options: bool) -> list[str]:
        results = flows.call("toy_steps:run_toys", kind=kind, root=str(tmp_path), texts=texts, **options)
        store = ArtifactStore(tmp_path)
        refs = [store.find("toy", toy_recipe(text).fingerprint) for text in texts]
        assert [url for _, url in results] == [ref.url if ref else None for ref in refs]
        return [state for state, _ in results]

    return run_and_check


def artifact(root: Path, text: str) -> Path:
    return ArtifactStore(root).directory("toy", toy_recipe(text).fingerprint)


@pytest.mark.parametrize("kind", ["direct", "thread", "process", "async"])
def test_a_second_run_is_cached(run: Run, tmp_path: Path, kind: str) -> None:
    assert run(kind, "a", "b") == ["Completed", "Completed"]
    assert run(kind, "a", "b", "c") == ["Cached", "Cached", "Completed"]
    assert sorted(builds(tmp_path)) == ["a", "b", "c"]


@pytest.mark.parametrize("kind", ["direct", "async"])
def test_a_broken_artifact_is_built_again(run: Run, tmp_path: Path, kind: str) -> None:
    run(kind, "gone", "short", "whole")
    shutil.rmtree(artifact(tmp_path, "gone"))
    data = artifact(tmp_path, "short") / "data.bin"
    data.chmod(0o644)
    os.truncate(data, data.stat().st_size - 1)
    assert run(kind, "gone", "short", "whole") == ["Completed", "Completed", "Cached"]
    assert builds(tmp_path) == ["gone", "short", "whole", "gone", "short"]
    assert run(kind, "gone", "short", "whole") == ["Cached"] * 3


def test_prefects_records_may_be_deleted(run: Run, tmp_path: Path) -> None:
    run("direct", "a")
    run("direct", "a")
    shutil.rmtree(tmp_path / "prefect")
    assert run("direct", "a") == ["Cached"]
    for record in (tmp_path / "prefect").iterdir():
        record.write_bytes(b"{")
    assert run("direct", "a") == ["Cached"]
    assert builds(tmp_path) == ["a"]


def test_an_artifact_made_without_prefect_is_cached(run: Run, tmp_path: Path) -> None:
    build_toy(str(tmp_path), "a")
    assert run("direct", "a") == ["Cached"]
    assert run("thread", "a") == ["Cached"]
    assert builds(tmp_path) == ["a"]


def test_another_server_finds_the_artifact(run: Run, flow_env: dict[str, str], tmp_path: Path) -> None:
    """A wiped database is a server that never saw the run."""
    run("direct", "a")
    env = {
        **flow_env,
        "PREFECT_API_URL": "",
        "PREFECT_HOME": str(tmp_path / "home"),
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    }
    assert program(env, "direct", tmp_path, "a").communicate()[0].split() == ["Cached"]
    assert builds(tmp_path) == ["a"]


def program(env: dict[str, str], *arguments: object) -> subprocess.Popen[str]:
    """Start the toy flow as a process of its own, which prints the states."""
    return subprocess.Popen(
        [sys.executable, str(PROGRAMS / "run_toy.py"), *map(str, arguments)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def test_two_runs_at_once_build_once(flow_env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    runs = [program(flow_env, kind, tmp_path, "a") for kind in ("direct", "thread")]
    wait_for(lambda: builds(tmp_path), "a build")
    (tmp_path / "hold").unlink()
    states = [run.communicate()[0].split() for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert all(state in (["Completed"], ["Cached"]) for state in states)
    assert builds(tmp_path) == ["a"]


@pytest.mark.parametrize("kind", ["direct", "process"])
def test_a_killed_holder_does_not_block_the_next_run(run: Run, flow_env: dict[str, str], tmp_path: Path, kind: str) -> None:
    (tmp_path / "hold").touch()
    holder = program(flow_env, kind, tmp_path, "a")
    wait_for(lambda: builds(tmp_path), "a build")
    holder.send_signal(signal.SIGKILL)
    lease = ArtifactStore(tmp_path).lease_path(toy_recipe("a").key)
    wait_for(lambda: not is_held(lease), "the lease")  # the holder's pool goes with it
    holder.communicate()
    (tmp_path / "hold").unlink()
    assert run("direct", "a") == ["Completed"]
    assert builds(tmp_path) == ["a", "a"]
    assert run("direct", "a") == ["Cached"]


@pytest.mark.parametrize("kind", ["direct", "async"])
def test_refresh_builds_again(run: Run, tmp_path: Path, kind: str) -> None:
    run(kind, "a")
    assert run(kind, "a", refresh=True) == ["Completed"]
    assert builds(tmp_path) == ["a", "a"]
    assert run(kind, "a") == ["Cached"]


def test_prefects_own_refresh_setting_builds_again(run: Run, tmp_path: Path) -> None:
    run("direct", "a")
    assert run("direct", "a", setting=True) == ["Completed"]
    assert builds(tmp_path) == ["a", "a"]


def test_only_passing_faults_are_tried_again(flows: Any, tmp_path: Path) -> None:
    def attempt(fault: str) -> str:
        try:
            return str(flows.call("toy_steps:run_with_faults", root=str(tmp_path), text=fault, fault=fault))
        except Exception as error:
            return f"{error.kind}: {error}"  # type: ignore[attr-defined]

    assert attempt("passing") == str(artifact(tmp_path, "passing"))
    assert attempt("absent").startswith("FileNotFoundError")
    assert attempt("bad input") == "InputError: train.jsonl: is empty."
    tries = (tmp_path / "tries.log").read_text().splitlines()
    assert tries == ["passing"] * 3 + ["absent", "bad input"]


def test_a_record_exists_exactly_where_a_valid_artifact_does(tmp_path: Path) -> None:
    recipe = toy_recipe("a")
    records = ArtifactRecords(root=str(tmp_path), kind="toy", fingerprint=recipe.fingerprint)
    with pytest.raises(ValueError, match="no valid artifact"):
        records.read_path(recipe.key)
    records.write_path(recipe.key, b"a record that Prefect wants to write")
    with pytest.raises(ValueError, match="no valid artifact"):
        records.read_path(recipe.key)
    build_toy(str(tmp_path), "a")
    record = records.read_path(recipe.key)
    assert records.read_path(recipe.key) == record
    assert asyncio.run(records.aread_path(recipe.key)) == record
    assert "/" not in recipe.key and "." not in recipe.key


def test_the_policy_survives_the_way_to_a_worker(tmp_path: Path) -> None:
    import cloudpickle

    policy = ArtifactPolicy(key_storage=ArtifactRecords(root=str(tmp_path), kind="toy", fingerprint="ab"), artifact_key="toy-ab")
    there = cloudpickle.loads(cloudpickle.dumps(policy))
    assert there.compute_key(None, {}, {}) == "toy-ab"
    assert there.key_storage == policy.key_storage
