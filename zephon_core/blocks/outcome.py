"""What is done of a piece of work, and how a run went."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zephon_core.blocks.state import BlockState, poison_reasons

__all__ = ["Standing", "Throughput", "is_as_before", "read_standing", "record_of", "standing"]

_MOST_SAMPLES = 200
_OF_THIS_RUN = {  # fields of an outcome, and what they are called in `last_run`
    "devices": "devices",
    "rows_now": "rows",
    "tokens_now": "tokens",
    "seconds": "seconds",
    "tokens_per_second": "tokens_per_second",
    "throughput": "throughput",
    "damaged_blocks": "damaged_blocks",
}


@dataclass(frozen=True)
class Standing:
    """How much is done.

    rows_done: all rows on record, of which poison_rows can't be used, for the reasons in `poison`. complete: every row is
    done, and none is poison unless that is allowed. largest: largest absolute value. halvings: how often a block was halved
    because memory ran out. document: what blocks.json says.
    """

    row_count: int
    rows_done: int
    poison_rows: int
    complete: bool
    blocks: int
    blocks_done: int
    poison: dict[str, int]
    largest: float
    halvings: int
    document: dict[str, Any]


def standing(state: BlockState, *, allow_poison: bool) -> Standing:
    """Work out what is done from what is on disk."""
    table, poison = state.table(), state.poison()
    done = int(table["rows"].sum(dtype=np.int64))
    return Standing(
        row_count=state.row_count,
        rows_done=done,
        poison_rows=len(poison),
        complete=done == state.row_count and (allow_poison or not len(poison)),
        blocks=state.block_count,
        blocks_done=int(np.count_nonzero(table["rows"])),
        poison=poison_reasons(poison),
        largest=float(table["largest"].max(initial=0)),
        halvings=int(table["halvings"].sum(dtype=np.int64)),
        document=state.document,
    )


def record_of(outcome: Any) -> dict[str, Any]:
    """Return what an artifact's record says of an outcome, a dataclass: what is done, and as `last_run` how this run went.

    There is no `last_run` where this process did nothing: it knows nothing of those that did.
    """
    values = asdict(outcome)
    last_run = {shown: values.pop(name) for name, shown in _OF_THIS_RUN.items()}
    return {**values, "last_run": last_run} if last_run["devices"] else values


def read_standing(directory: Path, *, allow_poison: bool) -> Standing | None:
    """Work out what is done in `directory`, at a moment when it was so; None if there is no such work there, or no longer.

    Another process may finish the work meanwhile, which puts its tables in place of the ledgers, and may move the folder.
    Raises CorruptArtifactError.
    """
    while (state := BlockState.read(directory)) is not None:
        try:
            found = standing(state, allow_poison=allow_poison)
        except FileNotFoundError:
            if is_as_before(state):
                raise
            continue
        if is_as_before(state):
            return found
    return None


def is_as_before(state: BlockState) -> bool:
    """Whether the ledgers that `state` was read with are there still."""
    current = BlockState.read(state.directory)
    return current is not None and current.finished == state.finished


class Throughput:
    """Tokens a second over time, in a bounded number of samples: they get longer as time goes on."""

    def __init__(self) -> None:
        self._interval_s = 1.0
        self._amounts: list[float] = []

    def add(self, at_s: float, tokens: int) -> None:
        """Count tokens done `at_s` seconds after the start."""
        while int(at_s / self._interval_s) >= _MOST_SAMPLES:
            self._amounts += [0.0] * (len(self._amounts) % 2)
            self._amounts = [sum(pair) for pair in zip(self._amounts[::2], self._amounts[1::2], strict=True)]
            self._interval_s *= 2
        place = int(at_s / self._interval_s)
        self._amounts += [0.0] * (place + 1 - len(self._amounts))
        self._amounts[place] += tokens

    def samples(self) -> list[list[float]]:
        """Return [start of the sample in seconds, tokens a second] pairs."""
        return [[place * self._interval_s, round(amount / self._interval_s, 1)] for place, amount in enumerate(self._amounts)]
