"""Train a student on chunk advantages: an importance-sampling loss over the rows of an advantages.parquet.

    python -m examples.importance_sampling_loss advantages.parquet --model FOLDER [--steps 5] [--learning-rate 1e-4] [--output DIR]

takes a few steps with a local Hugging Face model, each over all rows, and prints the loss a scored token. The loss itself is the
function of that name: ten lines, for a trainer of your own. Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

COLUMNS = ["model_input_tokens", "sampled_logprobs", "advantages"]


# --8<-- [start:loss]
def importance_sampling_loss(
    model: Callable[..., Any], tokens: torch.Tensor, sampled_logprobs: torch.Tensor, advantages: torch.Tensor
) -> torch.Tensor:
    """Sum over a datum's tokens: minus the advantage times how much likelier the model makes the token than the sampler did.

    tokens: int64 [tokens]; sampled_logprobs, advantages: [tokens], as a row has them, in the precision to compute in.
    """
    scored = advantages[1:] != 0.0  # 0.0 is the mask; outside of it sampled_logprobs is padding
    logits = model(input_ids=tokens[None, :-1]).logits[0, scored]  # what the model thinks of token t stands at t - 1
    logprobs = logits.log_softmax(dim=-1, dtype=sampled_logprobs.dtype).gather(-1, tokens[1:][scored][:, None])[:, 0]
    ratios = torch.exp(logprobs - sampled_logprobs[1:][scored])
    return -(ratios * advantages[1:][scored]).sum()


# --8<-- [end:loss]


def rows_of(path: Path) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield each datum's tokens, sampled logprobs and advantages."""
    dtypes = (np.int64, np.float32, np.float32)
    for batch in pq.ParquetFile(path).iter_batches(columns=COLUMNS):
        columns = [batch.column(name) for name in COLUMNS]
        for row in range(batch.num_rows):
            tokens, logprobs, advantages = (
                torch.from_numpy(column[row].values.to_numpy(zero_copy_only=False).astype(dtype))
                for column, dtype in zip(columns, dtypes, strict=True)
            )
            yield tokens, logprobs, advantages


def train(path: Path, model: torch.nn.Module, *, steps: int, learning_rate: float) -> Iterator[float]:
    """Move the model `steps` times, each time by all rows; yield the loss a scored token before each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    total = sum(int((advantages[1:] != 0.0).sum()) for _, _, advantages in rows_of(path))
    for _ in range(steps):
        optimizer.zero_grad()
        loss = 0.0
        for tokens, logprobs, advantages in rows_of(path):
            share = importance_sampling_loss(model, tokens, logprobs, advantages) / total
            share.backward()
            loss += share.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("advantages", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="folder of the student that is trained")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--output", type=Path, help="folder where the trained student is saved [default: nowhere]")
    options = parser.parse_args()
    from transformers import AutoModelForCausalLM

    # Left as it is loaded, for evaluation: dropout would make ratios of chance.
    model = AutoModelForCausalLM.from_pretrained(options.model, local_files_only=True, dtype=torch.float32)
    for step, loss in enumerate(train(options.advantages, model, steps=options.steps, learning_rate=options.learning_rate)):
        print(f"step {step}: loss {loss:+.6f} a scored token", flush=True)
    if options.output:
        model.save_pretrained(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
