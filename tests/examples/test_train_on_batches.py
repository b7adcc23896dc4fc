"""The training loop that the guide shows: killed, taken up by another world, and what it trained on accounted for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import torch

from zephon_core.bank import FeatureBank
from zephon_core.batching import ConsumptionAudit, GlobalBatchCursor, LengthTable
from zephon_core.batching.torch import read_states

CHECKOUT = Path(__file__).resolve().parents[2]


def test_a_run_that_lost_a_rank_has_trained_on_the_same_as_one_that_did_not(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.train_on_batches", str(tmp_path)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "the same, and each example once an epoch"
    assert re.search("one killed after step 13; the last checkpoint is of step 10, in epoch 0", done.stdout)

    count = len(FeatureBank.open(tmp_path / "bank"))
    once = sum((ConsumptionAudit.of_epoch(epoch, count) for epoch in range(3)), ConsumptionAudit())
    for name in ("whole", "broken"):
        assert json.loads((tmp_path / f"{name}.json").read_bytes())["digest"] == once.digest
    saved = torch.load(tmp_path / "broken.pt", weights_only=True)  # the last one, of three ranks in a later epoch
    (state,) = read_states([saved["batches"]])
    cursor = GlobalBatchCursor.from_state(state, LengthTable.of(tmp_path / "bank" / "lengths.npy"), 0)
    assert cursor.plan.world_size == 3 and cursor.epoch > 0
