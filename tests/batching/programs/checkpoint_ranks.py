"""One rank of a process group that saves its batches with torch.distributed.checkpoint, or goes on where another left off.

    checkpoint_ranks.py save|load FOLDER RANK WORLD_SIZE

writes the numbers of the examples that it consumed to FOLDER/<save|load>-<cut|planned>-<rank>.json.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from test_torch import DATASET, cut_as_they_come, planned

STEPS = 3


def main() -> None:
    action, folder, rank, world_size = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous-{action}", rank=rank, world_size=world_size)
    samplers = {"cut": cut_as_they_come(rank, world_size), "planned": planned(rank, world_size)}
    weights = {"w": torch.zeros(3)}
    if action == "load":
        dcp.load({**samplers, "weights": weights}, checkpoint_id=folder / "checkpoint")
        assert weights["w"].tolist() == [1.0, 2.0, 3.0]
    for name, batches in samplers.items():
        loader = DataLoader(DATASET, batch_sampler=batches, collate_fn=list, num_workers=1, prefetch_factor=2 + rank)
        consumed = []
        for batch in islice(loader, STEPS if action == "save" else None):
            consumed += batch
            batches.commit()
        (folder / f"{action}-{name}-{rank}.json").write_text(json.dumps(consumed))
    if action == "save":
        weights["w"] += torch.arange(1, 4)
        dcp.save({**samplers, "weights": weights}, checkpoint_id=folder / "checkpoint")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
