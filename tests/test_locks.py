import signal
import subprocess
import sys
import threading
import time

import pytest

from zephon_core.errors import LeaseHeldError, LeaseLostError
from zephon_core.locks import Lease, LeaseOwner, is_held

HOLDER = """
import sys, time
from pathlib import Path
from zephon_core.locks import Lease
with Lease(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def lease_path(tmp_path):
    return tmp_path / "leases" / "work.lease"


def hold(lease_path):
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(lease_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def end(process):
    process.kill()
    process.wait()
    process.stdout.close()


def test_one_thread_at_a_time(lease_path):
    inside = []
    most = []

    def work():
        with Lease(lease_path):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.01)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8
    assert not is_held(lease_path)


def test_a_live_holder_is_named_when_the_wait_runs_out(lease_path):
    process = hold(lease_path)
    try:
        assert is_held(lease_path)
        with pytest.raises(LeaseHeldError, match=f"process {process.pid}"), Lease(lease_path, timeout_s=0.1):
            pass
    finally:
        end(process)


def test_a_killed_holder_is_followed_at_once(lease_path):
    process = hold(lease_path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not is_held(lease_path)
    with Lease(lease_path, timeout_s=0) as lease:
        lease.check()


def test_waiting_is_announced_once(lease_path):
    process = hold(lease_path)
    owners = []
    threading.Timer(0.3, process.kill).start()
    with Lease(lease_path, on_wait=owners.append):
        pass
    process.wait()
    process.stdout.close()
    assert [owner.pid for owner in owners] == [process.pid]


def another_host(lease_path, beat=0, token="theirs"):
    lease_path.parent.mkdir(exist_ok=True)
    LeaseOwner(token, "elsewhere", "node-7", 1, beat).write(lease_path)


def test_a_beating_holder_on_another_host_is_left_alone(lease_path):
    another_host(lease_path)
    stop = threading.Event()

    def beat():
        count = 0
        while not stop.wait(0.05):
            count += 1
            another_host(lease_path, beat=count)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(LeaseHeldError, match="node-7"), Lease(lease_path, ttl_s=3.0, timeout_s=4.0):
            pass
    finally:
        stop.set()
        thread.join()


def test_a_holder_on_another_host_whose_heart_stands_still_is_taken_over(lease_path):
    another_host(lease_path)
    with Lease(lease_path, ttl_s=0.2, timeout_s=5) as lease:
        lease.check()


def test_a_holder_that_was_taken_over_finds_out_before_it_publishes(lease_path):
    with Lease(lease_path, ttl_s=60) as lease:
        another_host(lease_path)
        with pytest.raises(LeaseLostError, match="node-7"):
            lease.check()


def test_a_broken_document_does_not_block(lease_path):
    lease_path.parent.mkdir()
    lease_path.write_text("{")
    with Lease(lease_path, timeout_s=0) as lease:
        lease.check()
