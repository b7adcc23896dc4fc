"""Ranks that are killed with SIGKILL, come back, are killed again and go on in another world consume every example once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from zephon_core.batching import ConsolidatedTokenBatchState, ConsumptionAudit

PROGRAM = """
import json, sys, time
from pathlib import Path
from zephon_core.atomic import write_json
from zephon_core.batching import ConsumptionAudit, StatefulShardSampler, StatefulTokenBatchSampler, TokenBatchOptions

folder, rank, world, count, pause_s = Path(sys.argv[1]), *map(int, sys.argv[2:5]), float(sys.argv[5])
checkpoint, rest, audit = folder / f"{rank}-of-{world}.json", folder / "rest.json", ConsumptionAudit()
if checkpoint.exists():
    saved = json.loads(checkpoint.read_bytes())
    batches, audit = StatefulTokenBatchSampler.from_state(saved["batches"]), ConsumptionAudit.of(saved["audit"])
elif rest.exists():
    batches = StatefulTokenBatchSampler.reshard(rest.read_bytes(), rank, world)
else:
    shard = StatefulShardSampler("source", count, rank, world, shuffle_seed=6)
    batches = StatefulTokenBatchSampler(shard, folder / "lengths.npy", TokenBatchOptions(maximum_tokens=600, layout="padded"))
prefetched, step = [], 0
while True:
    while len(prefetched) < 4 and (plan := batches.next_plan()) is not None:
        prefetched.append(plan.indices)
    if not prefetched:
        break
    audit = audit.add(batches.epoch, prefetched.pop(0))
    batches.commit()
    step += 1
    if step % 3 == 0 or not prefetched:
        write_json(checkpoint, {"batches": batches.state(), "audit": audit.to_json(), "steps": step})
    time.sleep(pause_s)
"""
COUNT = 4_000


def start(folder: Path, rank: int, world: int, pause_s: float) -> subprocess.Popen[bytes]:
    arguments = [str(folder), str(rank), str(world), str(COUNT), str(pause_s)]
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments])


def run_and_kill(folder: Path, world: int) -> None:
    """Let every rank write some checkpoints, and kill it in the middle of its work."""
    before = {rank: checkpoint(folder, rank, world) for rank in range(world)}
    ranks = [start(folder, rank, world, 0.01) for rank in range(world)]
    try:
        for rank in range(world):
            while checkpoint(folder, rank, world) == before[rank]:
                assert ranks[rank].poll() is None
                time.sleep(0.01)
        time.sleep(0.05)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert [process.returncode for process in ranks] == [-9] * world


def checkpoint(folder: Path, rank: int, world: int) -> bytes:
    path = folder / f"{rank}-of-{world}.json"
    return path.read_bytes() if path.exists() else b""


def test_killed_twice_and_dealt_anew(tmp_path: Path) -> None:
    np.save(tmp_path / "lengths.npy", np.random.default_rng(0).integers(1, 60, COUNT))
    run_and_kill(tmp_path, 2)
    run_and_kill(tmp_path, 2)
    saved = [json.loads(checkpoint(tmp_path, rank, 2)) for rank in range(2)]
    rest = ConsolidatedTokenBatchState.consolidate([state["batches"] for state in saved])
    assert 0 < rest.sampler.consumed < COUNT
    (tmp_path / "rest.json").write_text(json.dumps(rest.to_json()))
    assert start(tmp_path, 0, 1, 0).wait() == 0
    saved.append(json.loads(checkpoint(tmp_path, 0, 1)))
    total = ConsumptionAudit()
    for state in saved:
        total = total + ConsumptionAudit.of(state["audit"])
    assert total == ConsumptionAudit.of_epoch(0, COUNT)
