"""An encode killed at any moment goes on where it was, and ends in the same bytes.

Real processes, real SIGKILL. The encoder is a few lines of numpy that note what they encode, so that a process starts quickly
and repeated work is seen; one test kills an encode by a transformer in worker processes.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest

from zephon_core.bank.encode import encode_tokens, read_outcome
from zephon_core.bank.encode.receipts import SHAPE_ROWS
from zephon_core.bank.encode.run import make_plan
from zephon_core.bank.specs import EncodeSpec, RunOptions
from zephon_core.blocks import BlockState, RowFile, RowLayout, block_checksum

ROOT = Path(__file__).parents[2]
SEED = 20

ENCODER = """
import os, time
from pathlib import Path
import numpy as np

class Slow:
    hidden_size = 16
    content_sha256 = "one"
    def encode(self, ids):
        time.sleep(float(os.environ.get("BLOCK_S", "0")))
        with open(Path(__file__).with_name("encoded.log"), "a") as log:
            log.write(f"{ids[0, 0]} {ids.shape[1]}\\n")
        return np.cos(ids.sum(1)[:, None] * np.arange(1, 17) * 0.37).astype(np.float32)
"""

PROGRAM = """
import sys
from pathlib import Path
root, model, run = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
sys.path.insert(0, str(root))
from zephon_core.bank.encode import encode_tokens
from zephon_core.bank.specs import EncodeSpec, RunOptions
spec = EncodeSpec.model_validate({"model": model, "max_batch": 4, "token_budget": 40})
outcome = encode_tokens(root / "tokens", spec, root / "work", run=RunOptions.model_validate_json(run))
print(outcome.complete)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 25, 300).astype(np.int32)
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    np.save(tokens / "lengths.npy", lengths)
    np.save(tokens / "token_offsets.npy", np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64))
    np.save(tokens / "token_ids.npy", rng.integers(0, 99, lengths.sum()).astype(np.uint8))
    (tmp_path / "slow_encoder.py").write_text(ENCODER)
    (tmp_path / "work").mkdir()
    return tmp_path


class Killed:
    """Starts encodes and kills them."""

    def __init__(self, root: Path, model: str, run: str = "{}", *, block_s: float = 0.002) -> None:
        self.root = root
        self.spec = EncodeSpec.model_validate({"model": model, "max_batch": 4, "token_budget": 40})
        self.arguments = [sys.executable, "-c", PROGRAM, str(root), model, run]
        self.environment = {**os.environ, "BLOCK_S": str(block_s)}
        self.chance = random.Random(SEED)

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(self.arguments, cwd=ROOT, env=self.environment, stdout=subprocess.PIPE, text=True)

    def finish(self) -> str:
        done = subprocess.run(self.arguments, cwd=ROOT, env=self.environment, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout.strip()

    def on_record(self) -> set[int]:
        """The blocks on record, after a check that each one's bytes are in the matrix."""
        state = BlockState.read(self.root / "work")
        if state is None or state.finished or not state.document["hidden_size"]:
            return set()
        plan = make_plan(np.load(self.root / "tokens" / "lengths.npy"), self.spec)
        records = state.records().records
        layout = RowLayout.matrix(300, state.document["hidden_size"], np.dtype(np.float16))
        with RowFile(self.root / "work" / "features.f16.npy", layout) as matrix:
            for record in records:
                rows = plan.rows(int(record["block"]))
                assert block_checksum(rows, matrix.read(rows)) == int(record["checksum"])
        return set(records["block"].tolist())

    def matrix_sha256(self) -> str:
        return hashlib.sha256((self.root / "work" / "features.f16.npy").read_bytes()).hexdigest()


def uninterrupted(root: Path, spec: EncodeSpec, run: RunOptions | None = None) -> str:
    folder = root / "whole"
    folder.mkdir()
    assert encode_tokens(root / "tokens", spec, folder, run=run).complete
    return hashlib.sha256((folder / "features.f16.npy").read_bytes()).hexdigest()


def test_killed_at_twenty_moments_and_more_it_ends_in_the_same_bytes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(root))
    encode = Killed(root, "slow_encoder:Slow", block_s=0.012)
    whole = uninterrupted(root, encode.spec)
    log = root / "encoded.log"
    blocks = len(make_plan(np.load(root / "tokens" / "lengths.npy"), encode.spec))
    assert len(log.read_text().splitlines()) >= blocks
    log.unlink()
    kills, known, started = 0, set(), False
    while kills < 20 or not started:
        before = len(log.read_text().splitlines()) if log.exists() else 0
        process = encode.start()
        # Up to the first block nothing can be lost; from there on every moment counts.
        while kills % 5 and process.poll() is None and (not log.exists() or len(log.read_text().splitlines()) == before):
            time.sleep(0.002)
        time.sleep(encode.chance.random() * (0.1 if kills % 5 else 0.5))
        process.kill()
        if process.communicate()[0]:
            break
        kills += 1
        now = encode.on_record()
        assert known <= now, "a block that was on record is no longer"
        known, started = now, started or bool(now)
    assert encode.finish() == "True"
    assert encode.matrix_sha256() == whole
    assert kills >= 20
    encoded = log.read_text().splitlines()[: -2 * SHAPE_ROWS]  # the receipt's probe comes last
    assert len(encoded) - blocks <= 2 * kills, "more was encoded twice than what was in hand"
    assert 0 < len(known) < blocks, "the kills came too early or too late to mean anything"


def test_a_block_on_record_is_never_encoded_again(root: Path) -> None:
    encode = Killed(root, "slow_encoder:Slow", block_s=0.01)
    log = root / "encoded.log"
    process = encode.start()
    while len(encode.on_record()) < 10:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate()
    kept = encode.on_record()
    log.unlink()
    assert encode.finish() == "True"
    lengths = np.load(root / "tokens" / "lengths.npy")
    plan = make_plan(lengths, encode.spec)
    again = Counter(int(line.split()[1]) for line in log.read_text().splitlines()[: -2 * SHAPE_ROWS])
    missing = Counter(int(plan.lengths[block]) for block in range(len(plan)) if block not in kept)
    assert again == missing


def test_parts_written_at_once_by_processes_that_die_make_the_whole(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(root))
    encodes = [Killed(root, "slow_encoder:Slow", f'{{"parts": 3, "part": {number}}}', block_s=0.03) for number in range(3)]
    whole = uninterrupted(root, encodes[0].spec)
    processes = [encode.start() for encode in encodes]
    while len(encodes[0].on_record()) < 6:
        assert processes[1].poll() is None
        time.sleep(0.01)
    processes[1].kill()
    for process in processes:
        process.communicate()
    assert not read_outcome(root / "work").complete
    assert encodes[1].finish() == "True"
    assert encodes[0].matrix_sha256() == whole
    assert sorted(path.name for path in (root / "work").iterdir()) == ["blocks.json", "blocks.npy", "features.f16.npy"]


def test_workers_that_die_and_a_parent_that_dies_leave_nothing_behind_but_what_is_done(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(root))
    encode = Killed(root, "slow_encoder:Slow", '{"workers": 2}', block_s=0.03)
    whole = uninterrupted(root, encode.spec)

    worker_killed = encode.start()
    workers = wait_for_workers(worker_killed, encode, 6)
    workers[0].kill()
    assert not worker_killed.communicate()[0]
    assert worker_killed.returncode != 0
    assert psutil.wait_procs(workers, timeout=20)[1] == []
    kept = encode.on_record()

    itself_killed = encode.start()
    workers = wait_for_workers(itself_killed, encode, len(kept) + 6)
    itself_killed.send_signal(signal.SIGKILL)
    itself_killed.communicate()
    assert psutil.wait_procs(workers, timeout=20)[1] == []
    assert kept < encode.on_record()

    assert encode.finish() == "True"
    assert encode.matrix_sha256() == whole


def test_an_encode_by_a_transformer_that_is_killed_ends_in_the_same_bytes(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model = tmp_path_factory.mktemp("bert")
    settings = {"vocab_size": 99, "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 1024}
    BertModel(BertConfig(**settings, max_position_embeddings=32)).save_pretrained(model)
    encode = Killed(root, str(model), '{"workers": 2}')
    whole = uninterrupted(root, encode.spec, RunOptions(workers=1))
    process = encode.start()
    wait_for_workers(process, encode, 1)
    process.kill()
    process.communicate()
    assert encode.finish() == "True"
    assert encode.matrix_sha256() == whole


def wait_for_workers(process: subprocess.Popen[str], encode: Killed, blocks: int) -> list[psutil.Process]:
    """Wait until so many blocks are on record; return the process's workers."""
    while len(encode.on_record()) < blocks:
        assert process.poll() is None
        time.sleep(0.005)
    return psutil.Process(process.pid).children()
