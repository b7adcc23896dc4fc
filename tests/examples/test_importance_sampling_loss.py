"""The loss that the guide shows: its gradient is the numeric one, masked tokens count for nothing, and training with it works."""

from __future__ import annotations

import itertools
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from examples.importance_sampling_loss import importance_sampling_loss, rows_of
from zephon_core.xtoken import ChunkPlan, ChunkSpan, TrainDatum, attach_chunk_advantages

CHECKOUT = Path(__file__).resolve().parents[2]
VOCABULARY = 23
SETTINGS = {
    "vocab_size": VOCABULARY,
    "n_positions": 32,
    "n_embd": 8,
    "n_layer": 1,
    "n_head": 2,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


@pytest.fixture(scope="module")
def student() -> torch.nn.Module:
    """A small model that computes in float64 throughout, as few do: most norms go through float32."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    return GPT2LMHeadModel(GPT2Config(**SETTINGS)).double().eval()


def sampled_by(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """The model's own logprobs of tokens from the second on, 0.0 for the first."""
    with torch.no_grad():
        logprobs = model(input_ids=tokens[None]).logits[0].log_softmax(-1)
    return torch.cat([torch.zeros(1, dtype=torch.float64), logprobs[:-1].gather(-1, tokens[1:, None])[:, 0]])


@pytest.fixture
def datum(student: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Four tokens of context, a token in no chunk, six in chunks; sampled by somebody else than the student is now."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, VOCABULARY, (11,), generator=generator)
    sampled = sampled_by(student, tokens) + 0.3 * torch.randn(11, generator=generator, dtype=torch.float64)
    advantages = torch.tensor([0, 0, 0, 0, 0, 0.7, 0.7, -1.2, 0.25, 0.25, 0.25], dtype=torch.float64)
    return tokens, sampled, advantages


def test_its_gradient_is_the_numeric_one(student: torch.nn.Module, datum: tuple[torch.Tensor, ...]) -> None:
    """By every weight of a real model, in float64."""
    names = [name for name, _ in student.named_parameters()]

    def loss(*weights: torch.Tensor) -> torch.Tensor:
        def model(**inputs: torch.Tensor) -> object:
            return torch.func.functional_call(student, dict(zip(names, weights, strict=True)), (), inputs)

        return importance_sampling_loss(model, *datum)

    weights = tuple(weight.detach().clone().requires_grad_() for weight in student.parameters())
    assert sum(weight.numel() for weight in weights) > 800
    assert torch.autograd.gradcheck(loss, weights, eps=1e-6, atol=1e-7, rtol=1e-5)


def test_it_is_what_its_formula_says(student: torch.nn.Module, datum: tuple[torch.Tensor, ...]) -> None:
    tokens, sampled, advantages = datum
    mine = sampled_by(student, tokens)
    expected = -sum(
        advantage * math.exp(now - before)
        for now, before, advantage in zip(mine.tolist(), sampled.tolist(), advantages.tolist(), strict=True)
        if advantage
    )
    assert importance_sampling_loss(student, *datum).item() == pytest.approx(expected, rel=1e-12)


def test_what_stands_at_masked_tokens_is_never_looked_at(student: torch.nn.Module, datum: tuple[torch.Tensor, ...]) -> None:
    tokens, sampled, advantages = datum
    loss = importance_sampling_loss(student, *datum)
    for padding in (0.0, -1e9, -math.inf, math.nan):
        padded = torch.where(advantages == 0.0, padding, sampled)
        assert torch.equal(importance_sampling_loss(student, tokens, padded, advantages), loss)


def test_with_nothing_to_learn_nothing_moves(student: torch.nn.Module, datum: tuple[torch.Tensor, ...]) -> None:
    tokens, sampled, _ = datum
    student.zero_grad()
    importance_sampling_loss(student, tokens, sampled, torch.zeros_like(sampled)).backward()
    assert not any(weight.grad is not None and bool(weight.grad.any()) for weight in student.parameters())


def test_each_chunk_weighs_its_gap_whatever_its_length(student: torch.nn.Module, datum: tuple[torch.Tensor, ...]) -> None:
    """Where the student is the sampler, the loss is minus the sum of the gaps."""
    tokens = datum[0]
    sampled = sampled_by(student, tokens)
    spans = [(4, 5, 1, 4), (5, 11, 4, 5)]
    names = ("student_start", "student_end", "teacher_start", "teacher_end")
    chunks = tuple(ChunkSpan(**dict(zip(names, span, strict=True))) for span in spans)
    train = TrainDatum(
        trial_name="one",
        fragment_index=0,
        model_input_tokens=tokens.tolist(),
        loss_mask=[0.0] * 4 + [1.0] * 7,
        sampled_logprobs=sampled.tolist(),
    )
    teacher = [None, -0.5, -1.5, -0.25, -3.0]
    plan = ChunkPlan(trial_name="one", fragment_index=0, chunks=chunks, teacher_token_count=5)
    ((attached,), stats) = attach_chunk_advantages([train], [plan], [teacher])
    loss = importance_sampling_loss(student, tokens, sampled, torch.tensor(attached.advantages, dtype=torch.float64))
    gaps = (-2.25 - float(sampled[4])) + (-3.0 - float(sampled[5:].sum()))
    assert loss.item() == pytest.approx(-gaps, rel=1e-12)
    assert stats.chunk_reverse_kl == pytest.approx(-gaps / 7, rel=1e-12)


def test_training_on_a_file_makes_the_loss_smaller(student: torch.nn.Module, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = []
    for number in range(6):
        tokens = torch.from_numpy(rng.integers(0, VOCABULARY, 9 + number))
        advantages = np.where(np.arange(len(tokens)) < 4, 0.0, rng.normal(size=len(tokens)))
        rows.append((tokens.tolist(), sampled_by(student, tokens).tolist(), advantages.tolist()))
    columns = dict(zip(("model_input_tokens", "sampled_logprobs", "advantages"), map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table({"note": ["kept"] * 6, **columns}), tmp_path / "advantages.parquet")
    for (tokens, logprobs, advantages), row in zip(rows_of(tmp_path / "advantages.parquet"), rows, strict=True):
        assert tokens.tolist() == row[0] and tokens.dtype == torch.int64
        np.testing.assert_array_equal(logprobs.numpy(), np.array(row[1], np.float32))
        np.testing.assert_array_equal(advantages.numpy(), np.array(row[2], np.float32))
    student.float().save_pretrained(tmp_path / "student")
    command = [sys.executable, "-m", "examples.importance_sampling_loss", str(tmp_path / "advantages.parquet")]
    options = ["--model", str(tmp_path / "student"), "--learning-rate", "0.01", "--output", str(tmp_path / "trained")]
    done = subprocess.run([*command, *options], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    student.double()
    assert done.returncode == 0, done.stderr
    losses = [float(value) for value in re.findall(r"^step \d: loss ([+-]\d\.\d{6}) a scored token$", done.stdout, re.MULTILINE)]
    assert len(losses) == 5
    assert all(later < earlier for earlier, later in itertools.pairwise(losses)), losses
    assert (tmp_path / "trained" / "model.safetensors").is_file()
