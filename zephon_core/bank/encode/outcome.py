"""What an encode has done: how much there is, and how the run went that just ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from zephon_core.bank.encode.state import EncodeState, poison_reasons

__all__ = ["EncodeOutcome", "Throughput", "is_as_before", "read_standing", "standing"]

_MOST_SAMPLES = 200


@dataclass(frozen=True)
class EncodeOutcome:
    """What is encoded, and how this run went; JSON-able.

    encoded_rows: all rows on record, of which poison_rows can't be used, for the reasons in `poison`. complete: every row is
    encoded, and none is poison unless that is allowed. largest: largest absolute feature. halvings: how often a block was
    halved because memory ran out. forward: what runs the model. receipt: how far the features are from plain float32 and from
    other batch shapes, once all rows are encoded.

    Of this run alone: devices, rows_now, tokens_now, seconds, tokens_per_second, throughput ([seconds since the start, tokens a
    second] over time), damaged_blocks (found with other bytes than were written, and encoded again).
    """

    text_count: int
    hidden_size: int
    encoded_rows: int
    poison_rows: int
    complete: bool
    blocks: int
    blocks_done: int
    poison: dict[str, int] = field(default_factory=dict)
    largest: float = 0.0
    halvings: int = 0
    forward: str = ""
    receipt: dict[str, Any] | None = None
    devices: list[str] = field(default_factory=list)
    rows_now: int = 0
    tokens_now: int = 0
    seconds: float = 0.0
    tokens_per_second: float = 0.0
    throughput: list[list[float]] = field(default_factory=list)
    damaged_blocks: int = 0


def standing(state: EncodeState, *, allow_poison: bool) -> EncodeOutcome:
    """Work out what is done from what is on disk."""
    table, poison = state.table(), state.poison()
    encoded = int(table["rows"].sum(dtype=np.int64))
    return EncodeOutcome(
        text_count=state.text_count,
        hidden_size=state.hidden_size,
        encoded_rows=encoded,
        poison_rows=len(poison),
        complete=encoded == state.text_count and (allow_poison or not len(poison)),
        blocks=state.block_count,
        blocks_done=int(np.count_nonzero(table["rows"])),
        poison=poison_reasons(poison),
        largest=float(table["largest"].max(initial=0)),
        halvings=int(table["halvings"].sum(dtype=np.int64)),
        forward=state.forward,
        receipt=state.receipt,
    )


def read_standing(directory: Path, *, allow_poison: bool) -> EncodeOutcome | None:
    """Work out what is done in `directory`, at a moment when it was so; None if there is no encode there, or no longer.

    Another process may finish the work meanwhile, which puts its tables in place of the ledgers, and may move the folder.
    Raises CorruptArtifactError.
    """
    while (state := EncodeState.read(directory)) is not None:
        try:
            outcome = standing(state, allow_poison=allow_poison)
        except FileNotFoundError:
            if is_as_before(state):
                raise
            continue
        if is_as_before(state):
            return outcome
    return None


def is_as_before(state: EncodeState) -> bool:
    """Whether the ledgers that `state` was read with are there still."""
    current = EncodeState.read(state.directory)
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
