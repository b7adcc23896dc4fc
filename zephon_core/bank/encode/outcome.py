"""What an encode has done: how much there is, and how the run went that just ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zephon_core import blocks
from zephon_core.blocks import Standing

__all__ = ["EncodeOutcome", "encode_outcome", "read_standing"]


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

    def statistics(self) -> dict[str, Any]:
        """Return what an artifact's record and a manifest say: what is encoded, and as `last_run` how the run went that ended last.

        There is no `last_run` where this process encoded nothing, for then it knows nothing of those that did.
        """
        return blocks.record_of(self)


def encode_outcome(standing: Standing, **this_run: Any) -> EncodeOutcome:
    """Say how much is encoded, and what this run did of it."""
    return EncodeOutcome(
        text_count=standing.row_count,
        hidden_size=int(standing.document["hidden_size"]),
        encoded_rows=standing.rows_done,
        poison_rows=standing.poison_rows,
        complete=standing.complete,
        blocks=standing.blocks,
        blocks_done=standing.blocks_done,
        poison=standing.poison,
        largest=standing.largest,
        halvings=standing.halvings,
        forward=str(standing.document["forward"]),
        receipt=standing.document["receipt"],
        **this_run,
    )


def read_standing(directory: Path, *, allow_poison: bool) -> EncodeOutcome | None:
    """Work out what is encoded in `directory`, at a moment when it was so; None if there is no encode there, or no longer.

    Raises CorruptArtifactError.
    """
    standing = blocks.read_standing(directory, allow_poison=allow_poison)
    return None if standing is None else encode_outcome(standing)
