"""Steps before tokenizing, as a training's configuration would name them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


def unchanged(row: Any) -> Any:
    """Keep a row."""
    return row


def shout(row: dict[str, str]) -> dict[str, str]:
    """Capitalise a row."""
    return {"text": row["text"].upper()}


def shout_in_place(row: dict[str, str]) -> dict[str, str]:
    """Capitalise the row that was given."""
    row["text"] = row["text"].upper()
    return row


def is_long(row: dict[str, str]) -> bool:
    """Keep long rows."""
    return len(row["text"]) > 3


def is_long_by_numpy(row: dict[str, str]) -> Any:
    """Keep long rows, with NumPy's own kind of bool."""
    return np.bool_(len(row["text"]) > 3)


def drop_empty(row: dict[str, str]) -> dict[str, str] | None:
    """Drop rows without text."""
    return row if row["text"] else None


def words(row: dict[str, str]) -> list[dict[str, str]]:
    """Make a row of each word."""
    return [{"text": word} for word in row["text"].split()]


def words_one_by_one(row: dict[str, str]) -> Iterator[dict[str, str]]:
    """Yield a row for each word."""
    for word in row["text"].split():
        yield {"text": word}


def prefixed(row: dict[str, str], *, prefix: str) -> dict[str, str]:
    """Put something before a text."""
    return {"text": prefix + row["text"]}


def into_body(row: dict[str, str]) -> dict[str, str]:
    """Move the text to another field."""
    return {"body": row["text"] + " and more", "text_is": "gone"}


def with_an_odd_one(row: dict[str, str]) -> list[Any]:
    """Add a row that can't be measured to an odd one."""
    return [row, {"text": b"\xff"}] if row["text"] == "odd" else [row]


def fails_on_d(row: dict[str, str]) -> dict[str, str]:
    """Fail on one row."""
    if row["text"] == "d":
        raise KeyError("d")
    return row


def not_replayable(row: Any) -> Any:
    """Say that it must not be replayed."""
    return row


not_replayable.calibration_replayable = False  # type: ignore[attr-defined]


class Lookup:
    """Replaces texts, once it is set up."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.table = table
        self.set_ups = 0

    def setup(self) -> None:
        """Count how often this is called."""
        self.set_ups += 1

    def __call__(self, row: dict[str, str]) -> dict[str, str]:
        """Replace a text."""
        if row["text"] == "set ups":
            return {"text": str(self.set_ups)}
        return {"text": self.table.get(row["text"], row["text"])}


class NeverReady:
    """A step that can't be set up."""

    def setup(self) -> None:
        """Fail."""
        raise OSError("no such table")

    def __call__(self, row: Any) -> Any:
        """Keep a row."""
        return row
