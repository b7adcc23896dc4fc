"""Worker processes: results, errors, deaths, and no orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from zephon_core.errors import ModelError, WorkerError
from zephon_core.models import WorkerPool

MODULE = """
import os, sys, time
from contextlib import contextmanager
from zephon_core.errors import ModelError

@contextmanager
def adder(amount):
    if amount == "broken":
        raise ModelError("model", "is broken", remedy="Mend it.")
    def handle(job):
        if job == "error":
            raise ModelError("model", "is broken", remedy="Mend it.")
        if job == "surprise":
            raise ZeroDivisionError("a surprise")
        if job == "threads":
            return os.environ["OMP_NUM_THREADS"]
        if job == "print":
            print("this must not reach standard output", flush=True)
        if job == "sleep":
            time.sleep(600)
        if job == "large":
            return bytes(4 << 20)
        if isinstance(job, bytes):
            return len(job)
        return (os.getpid(), job if isinstance(job, str) else job + amount)
    yield handle
"""


@pytest.fixture(autouse=True)
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pool_target.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


TARGET = "pool_target:adder"


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if all(map(gone, pids)):
            return True
        time.sleep(0.02)
    return False


def test_every_job_is_answered_once_and_all_workers_take_part() -> None:
    with WorkerPool(2, TARGET, 100) as pool:
        pids = pool.process_ids
        answers = list(pool.run(iter(range(40))))
    assert sorted(result for _, (_, result) in answers) == list(range(100, 140))
    assert {pid for _, (pid, _) in answers} == set(pids)
    assert {worker for worker, _ in answers} == {0, 1}
    assert all(map(gone, pids))


def test_a_pool_can_be_used_again_and_with_nothing_to_do() -> None:
    with WorkerPool(2, TARGET, 1) as pool:
        assert list(pool.run([])) == []
        assert [result for _, (_, result) in pool.run([5])] == [6]
        assert [result for _, (_, result) in pool.run([6])] == [7]


def test_large_messages_pass_both_ways_at_once() -> None:
    with WorkerPool(1, TARGET, 1) as pool:
        jobs = ["large", bytes(3 << 20)] * 4
        assert [len(answer) if isinstance(answer, bytes) else answer for _, answer in pool.run(jobs)] == [4 << 20, 3 << 20] * 4


def test_workers_have_one_thread_and_keep_standard_output_clean(capfd: pytest.CaptureFixture[str]) -> None:
    with WorkerPool(1, TARGET, 1) as pool:
        assert [answer for _, answer in pool.run(["threads"])] == ["1"]
        list(pool.run(["print"]))
    assert capfd.readouterr().out == ""


def test_this_librarys_errors_come_through_whole() -> None:
    with pytest.raises(ModelError, match=r"model: is broken\. Mend it\."), WorkerPool(2, TARGET, 1) as pool:
        pids = pool.process_ids
        list(pool.run([1, 2, "error", 3]))
    assert all(map(gone, pids))


def test_an_error_while_opening_comes_through_too() -> None:
    with pytest.raises(ModelError, match="is broken"), WorkerPool(1, TARGET, "broken") as pool:
        list(pool.run([1]))


def test_other_errors_are_told_with_their_trace() -> None:
    with pytest.raises(WorkerError, match="ZeroDivisionError: a surprise") as caught, WorkerPool(1, TARGET, 1) as pool:
        list(pool.run(["surprise"]))
    assert 'raise ZeroDivisionError("a surprise")' in caught.value.__notes__[0]


class OnlyHere:
    """Something that no worker can unpickle."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("1 / 0",)


@pytest.mark.parametrize("message", ["payload", "job"])
def test_a_message_that_a_worker_can_t_read_is_told(message: str) -> None:
    payload, job = (OnlyHere(), 1) if message == "payload" else (1, OnlyHere())
    with pytest.raises(WorkerError, match="ZeroDivisionError"), WorkerPool(1, TARGET, payload) as pool:
        list(pool.run([job]))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_dead_worker_is_noticed_and_the_others_are_ended(how: signal.Signals) -> None:
    with pytest.raises(WorkerError, match=f"was killed by {how.name}"), WorkerPool(2, TARGET, 1) as pool:
        pids = pool.process_ids
        answers = pool.run(["sleep", 1, "sleep", 2, 3])
        next(answers)
        os.kill(pids[0], how)
        list(answers)
    assert all(map(gone, pids))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_die_with_their_parent(tmp_path: Path, how: signal.Signals) -> None:
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + (
        "from zephon_core.models import WorkerPool\n"
        "with WorkerPool(2, 'pool_target:adder', 1) as pool:\n"
        "    for worker, answer in pool.run([1, 2, 'sleep', 'sleep']):\n"
        "        print(*pool.process_ids, flush=True)\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=root) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert not any(map(gone, pids))
        parent.send_signal(how)
        parent.wait()
    assert wait_until_gone(pids)
