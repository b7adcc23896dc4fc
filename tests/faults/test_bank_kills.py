"""Whole builds killed with SIGKILL at random moments, and two builds of one bank at once, as processes of the command line."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from zephon_core.fingerprint import file_sha256

PROGRAMS = Path(__file__).parent.parent / "bank" / "programs"
KILLS = 20


@pytest.fixture
def build(tmp_path, monkeypatch):
    """A function that starts `zephon-flows bank build` on small rows; the encoder takes 50 ms a block."""
    monkeypatch.syspath_prepend(str(PROGRAMS))
    from small_inputs import router_rows, write_rows, write_tokenizer

    write_rows(tmp_path / "train.jsonl", router_rows(1, 150))
    write_rows(tmp_path / "eval.jsonl", router_rows(2, 40))
    write_tokenizer(tmp_path / "tokenizer.json")

    processes = []

    def start(name, *, log=None):
        environment = {
            **os.environ,
            "PYTHONPATH": str(PROGRAMS),
            "WORD_ENCODER_DELAY_S": "0.05",
            "WORD_ENCODER_LOG": str(log or tmp_path / f"{name}.log"),
        }
        command = [
            *(sys.executable, "-m", "zephon_core.cli", "bank", "build", "--json", "--threads", "2"),
            *("--source", f"train={tmp_path / 'train.jsonl'}", "--source", f"eval={tmp_path / 'eval.jsonl'}"),
            *("--model", "word_encoder:words", "--tokenizer", str(tmp_path / "tokenizer.json"), "--max-batch", "4"),
            *("--store", str(tmp_path / f"{name}-store"), "--output", str(tmp_path / name)),
        ]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def finish(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out)


def _lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_killed_twenty_times_the_bank_is_the_same_and_no_block_was_done_twice_but_those_in_hand(build, tmp_path):
    began = time.monotonic()
    whole = build("whole")
    while not (tmp_path / "whole.log").exists():
        time.sleep(0.01)
    start_s = time.monotonic() - began
    finish(whole)
    rng = random.Random(11)
    log = tmp_path / "killed.log"
    for _ in range(KILLS):
        # At some moment before the encode, or after a few blocks of it; never so late that it ends.
        blocks, deadline_s = rng.randint(1, 12), time.monotonic() + rng.uniform(0.1, 2 * start_s)
        before = _lines(log)
        process = build("killed")
        while time.monotonic() < deadline_s and _lines(log) < before + blocks:
            time.sleep(0.005)
        assert process.poll() is None, "finished before the kill: give it more to do"
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert not (tmp_path / "killed").exists()
    result = finish(build("killed"))
    assert result["complete"]
    manifest = json.loads((tmp_path / "killed" / "manifest.json").read_text())
    assert manifest["seconds"]["encode"] is None  # nobody knows how long the killed ones took
    assert 0 < manifest["statistics"]["encode"]["last_run"]["rows"] < manifest["text_count"]
    for name in ("features.f16.npy", "texts.jsonl", "digests.npy", "rows.npy", "token_ids.npy", "lengths.npy", "index.json"):
        assert file_sha256(tmp_path / "killed" / name) == file_sha256(tmp_path / "whole" / name), name
    once = Counter((tmp_path / "whole.log").read_text().split())
    often = Counter((tmp_path / "killed.log").read_text().split())
    assert once.keys() <= often.keys()
    assert (often - once).total() <= 2 * KILLS + (once.total() - len(once))


def test_two_builds_at_once_encode_each_block_once(build, tmp_path):
    finish(build("single"))
    log = tmp_path / "both.log"
    processes = [build("both", log=log) for _ in range(2)]
    results = [finish(process) for process in processes]
    assert all(result["complete"] for result in results)
    assert sorted(result["cached"]["encode"] for result in results) == [False, True]
    assert file_sha256(tmp_path / "both" / "features.f16.npy") == file_sha256(tmp_path / "single" / "features.f16.npy")
    encoded = Counter(log.read_text().split())
    assert encoded == Counter((tmp_path / "single.log").read_text().split())
    assert not list((tmp_path / "both-store" / "leases").glob("*.lease"))
