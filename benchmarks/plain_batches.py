"""The plain Python loops that stepping is measured against: what one writes by hand, example by example, and can go on from.

Each gives what a `TokenBatchPlan` holds (examples, real tokens, longest, slots) and counts what is issued and committed. Lengths
come from a list, which is the fastest to look up in; `gathered` has numpy look up all of them beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

Batch = tuple[list[int], int, int, int]


class PlainLoop:
    """Fills batches from a shuffled order, in one pass by one of the methods below."""

    def __init__(self, lengths: np.ndarray, sizes: list[int], budget: int, seed: int = 0) -> None:
        self.lengths, self.sizes, self.budget = lengths, sizes, budget
        self.rng = np.random.default_rng(seed)
        self.order = self.rng.permutation(len(lengths))
        self.issued = self.committed = 0

    def commit(self) -> None:
        """Count the first issued batch as consumed."""
        if self.committed == self.issued:
            raise ValueError("nothing is issued")
        self.committed += 1

    def packed(self) -> Iterator[Batch]:
        """Fill packed batches."""
        sizes, budget = self.sizes, self.budget
        batch, real, longest = [], 0, 0
        for example in self.order.tolist():
            size = sizes[example]
            if real + size > budget:
                self.issued += 1
                yield batch, real, longest, real
                batch, real, longest = [], 0, 0
            batch.append(example)
            real += size
            if size > longest:
                longest = size
        self.issued += 1
        yield batch, real, longest, real

    def gathered(self) -> Iterator[Batch]:
        """Do as `packed`, with lengths that numpy looked up."""
        budget = self.budget
        batch, real, longest = [], 0, 0
        for example, size in zip(self.order.tolist(), self.lengths[self.order].tolist(), strict=True):
            if real + size > budget:
                self.issued += 1
                yield batch, real, longest, real
                batch, real, longest = [], 0, 0
            batch.append(example)
            real += size
            if size > longest:
                longest = size
        self.issued += 1
        yield batch, real, longest, real

    def padded(self) -> Iterator[Batch]:
        """Fill padded batches."""
        for batch, real, longest in self._cut_padded(self.order.tolist()):
            self.issued += 1
            yield batch, real, longest, longest * len(batch)

    def bucketed(self, window_examples: int) -> Iterator[Batch]:
        """Do as `padded`, of windows sorted by length, and shuffle each window's batches."""
        for first in range(0, len(self.order), window_examples):
            window = sorted(self.order[first : first + window_examples].tolist(), key=self.sizes.__getitem__)
            batches = list(self._cut_padded(window))
            for number in self.rng.permutation(len(batches)).tolist():
                batch, real, longest = batches[number]
                self.issued += 1
                yield batch, real, longest, longest * len(batch)

    def _cut_padded(self, order: list[int]) -> Iterator[tuple[list[int], int, int]]:
        sizes, budget = self.sizes, self.budget
        batch, real, longest = [], 0, 0
        for example in order:
            size = sizes[example]
            top = size if size > longest else longest
            if top * (len(batch) + 1) > budget:
                yield batch, real, longest
                batch, real, top = [], 0, size
            batch.append(example)
            real += size
            longest = top
        yield batch, real, longest
