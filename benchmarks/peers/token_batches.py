"""Token-budget batches by others: `python token_batches.py fairseq|lhotse|torchdata|loop LENGTHS.npy BUDGET REPEATS`.

Runs in an environment of the peer's own (`batch_environments.py` makes them). Batches are padded, the order is seeded, and each
peer is used as its documentation has it:

    fairseq    examples shuffled, then sorted by length (as its data sets order them), batch_by_size, the batches shuffled; after a
               restart it plans anew and drops the batches before the place (as its EpochBatchIterator does)
    lhotse     DynamicBucketingSampler, 30 buckets; a restart loads its state
    torchdata  SamplerWrapper of a shuffling sampler, a node that fills batches in a plain loop, Loader; a restart loads its state
    loop       examples shuffled, sorted by length in windows, and batches filled in a plain loop; a restart plans anew

Prints JSON: seconds to plan an epoch, seconds to the first batch after a restart in the middle, padding waste, batches.
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

Peer = tuple[Callable[[], Any], Callable[[Any], Iterable[Any]], Callable[[Any], Any]]
WINDOW_EXAMPLES = 20_000


def fairseq(lengths: np.ndarray, budget: int) -> Peer:
    from data_utils_fast import batch_by_size_vec

    sizes = lengths.astype(np.int64)

    def plan() -> list[np.ndarray]:
        rng = np.random.RandomState(0)
        indices = rng.permutation(len(sizes))
        indices = indices[np.argsort(sizes[indices], kind="mergesort")]
        batches = batch_by_size_vec(indices, sizes[indices], budget, -1, 1)
        rng.shuffle(batches)
        return batches

    return plan, lambda batches: batches, lambda batches: plan()[len(batches) // 2 :][0]


def lhotse(lengths: np.ndarray, budget: int) -> Peer:
    from lhotse import CutSet, MonoCut
    from lhotse.dataset import DynamicBucketingSampler

    cuts = CutSet([MonoCut(id=str(number), start=0.0, duration=float(length), channel=0) for number, length in enumerate(lengths)])
    states: dict[int, Any] = {}

    def sampler() -> Any:
        return DynamicBucketingSampler(cuts, max_duration=float(budget), num_buckets=30, shuffle=True, world_size=1, rank=0, seed=0)

    def plan() -> list[Any]:
        return list(sampler())

    def restore(batches: list[Any]) -> Any:
        if not states:
            one = sampler()
            for number, _ in enumerate(one):
                if number == len(batches) // 2:
                    states[0] = one.state_dict()
                    break
        other, state = sampler(), copy.deepcopy(states[0])  # it empties what it loads
        started = time.perf_counter()
        other.load_state_dict(state)
        next(iter(other))
        return time.perf_counter() - started

    return plan, lambda batches: ([int(cut.id) for cut in batch] for batch in batches), restore


def torchdata(lengths: np.ndarray, budget: int) -> Peer:
    import torch
    from torchdata.nodes import BaseNode, Loader, SamplerWrapper

    sizes = lengths.tolist()

    class Batches(BaseNode):  # type: ignore[type-arg]
        """Fills batches in a plain loop."""

        def __init__(self, source: Any) -> None:
            super().__init__()
            self.source, self.waiting = source, None

        def reset(self, initial_state: dict[str, Any] | None = None) -> None:
            super().reset(initial_state)
            self.source.reset(initial_state["source"] if initial_state else None)
            self.waiting = initial_state["waiting"] if initial_state else None

        def next(self) -> list[int]:
            batch, longest = ([self.waiting], sizes[self.waiting]) if self.waiting is not None else ([], 0)
            self.waiting = None
            for example in self.source:
                top = max(longest, sizes[example])
                if batch and top * (len(batch) + 1) > budget:
                    self.waiting = example
                    return batch
                batch.append(example)
                longest = top
            if not batch:
                raise StopIteration
            return batch

        def get_state(self) -> dict[str, Any]:
            return {"source": self.source.state_dict(), "waiting": self.waiting}

    def loader() -> Any:
        generator = torch.Generator().manual_seed(0)
        return Loader(Batches(SamplerWrapper(torch.utils.data.RandomSampler(sizes, generator=generator))))

    states: dict[int, Any] = {}

    def restore(batches: list[Any]) -> Any:
        if not states:
            one = loader()
            for number, _ in enumerate(one):
                if number == len(batches) // 2:
                    states[0] = one.state_dict()
                    break
        other = loader()
        started = time.perf_counter()
        other.load_state_dict(states[0])
        next(iter(other))
        return time.perf_counter() - started

    return lambda: list(loader()), lambda batches: batches, restore


def loop(lengths: np.ndarray, budget: int) -> Peer:
    sizes = lengths.tolist()

    def plan() -> list[list[int]]:
        rng = np.random.default_rng(0)
        order = rng.permutation(len(sizes)).tolist()
        batches: list[list[int]] = []
        for first in range(0, len(order), WINDOW_EXAMPLES):
            batch, longest, filled = [], 0, []
            for example in sorted(order[first : first + WINDOW_EXAMPLES], key=sizes.__getitem__):
                top = max(longest, sizes[example])
                if batch and top * (len(batch) + 1) > budget:
                    filled.append(batch)
                    batch, top = [], sizes[example]
                batch.append(example)
                longest = top
            filled.append(batch)
            batches += [filled[k] for k in rng.permutation(len(filled))]
        return batches

    return plan, lambda batches: batches, lambda batches: plan()[len(batches) // 2]


PEERS = {"fairseq": fairseq, "lhotse": lhotse, "torchdata": torchdata, "loop": loop}


def timed(work: Callable[[], Any]) -> float:
    """Seconds of a piece of work, or those that it measured itself."""
    started = time.perf_counter()
    result = work()
    return result if isinstance(result, float) else time.perf_counter() - started


def main() -> None:
    name, path, budget, repeats = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    lengths = np.load(path)
    plan, indices_of, restore = PEERS[name](lengths, budget)
    batches = plan()
    seconds = [timed(plan) for _ in range(repeats)]
    restores = [timed(lambda: restore(batches)) for _ in range(repeats)]
    real = slots = count = examples = 0
    for batch in indices_of(batches):
        held = lengths[np.asarray(batch)]
        real, slots, count, examples = real + int(held.sum()), slots + len(held) * int(held.max()), count + 1, examples + len(held)
    result = {"plan_s": statistics.median(seconds), "restore_s": statistics.median(restores), "examples": examples}
    json.dump(result | {"padding_waste": 1 - real / slots, "batches": count}, sys.stdout)


if __name__ == "__main__":
    main()
