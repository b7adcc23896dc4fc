"""A scan killed at any moment leaves nothing that disturbs the next one."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCAN = """
import sys
from pathlib import Path
from zephon_core.bank.scan import scan_texts
from zephon_core.bank.specs import ScanSpec
from zephon_core.readers.sources import resolve_sources
spec = ScanSpec(sources=(sys.argv[1],), on_bad_row="quarantine")
print("started", flush=True)
scan_texts(spec, resolve_sources(spec.sources), Path(sys.argv[2]), threads=2, memory_bytes=1 << 20)
print("finished", flush=True)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Rows that make a table of a megabyte spill a dozen times, with repetitions and bad rows."""
    path = tmp_path_factory.mktemp("kill") / "rows.jsonl"
    rng = random.Random(3)
    with path.open("w") as file:
        for number in range(40_000):
            texts = [f"text {rng.randrange(250_000)} of {number % 7}" for _ in range(8)]
            query = number if number % 5000 == 77 else f"query {number}"
            file.write(json.dumps({"query": query, "candidates": [{"text": text} for text in texts]}) + "\n")
    return path


def start(source: Path, out: Path) -> subprocess.Popen:
    process = subprocess.Popen([sys.executable, "-c", SCAN, str(source), str(out)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "started\n"
    return process


def finish(source: Path, out: Path) -> float:
    """Run a scan to its end; return the seconds that it took."""
    started = time.monotonic()
    with start(source, out) as process:
        started = time.monotonic()
        assert process.communicate(timeout=120)[0] == "finished\n"
    return time.monotonic() - started


def files(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


def test_killed_at_any_moment_a_scan_is_done_again(source, tmp_path):
    finish(source, tmp_path / "clean")
    seconds = finish(source, tmp_path / "clean")
    expected = files(tmp_path / "clean")
    assert set(expected) == {"texts.jsonl", "text_offsets.npy", "kinds.npy", "digests.npy", "rows.npy", "bad_rows.jsonl"}
    killed = 0
    for moment in range(8):
        with start(source, tmp_path / "out") as process:
            time.sleep(seconds * moment / 7)
            process.send_signal(signal.SIGKILL)
            killed += process.wait() == -signal.SIGKILL
        if moment % 3 == 2:
            finish(source, tmp_path / "out")
            assert files(tmp_path / "out") == expected
    assert killed >= 4
    finish(source, tmp_path / "out")
    assert files(tmp_path / "out") == expected
