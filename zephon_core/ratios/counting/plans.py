"""What counting looks like from outside: a spec makes a counter, a counter makes a plan for a data set, a plan counts rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from zephon_core.errors import SpecError
from zephon_core.store import ArtifactStore

__all__ = ["COUNTED", "WITH_LOSS", "Count", "CountPlan", "CountingSpec", "NotTexts", "TokenCounter"]

COUNTED = ("tokens",)
WITH_LOSS = ("tokens", "loss_tokens")

Count = tuple[int, ...]
"""A row's delivered tokens, one number for each of its plan's outputs."""


class CountPlan(Protocol):
    """How the rows of one data set are counted."""

    @property
    def description(self) -> str:
        """What is counted, for people: "text, field: body"."""

    @property
    def paths(self) -> tuple[str, ...] | None:
        """The dotted field paths that it looks at; None: all of a row."""

    @property
    def text_path(self) -> tuple[str, ...] | None:
        """Where the one text of a row stands; () for a row that is a text itself.

        None where more than that text decides, or less than the whole of it: then it may not be windowed.
        """

    @property
    def column(self) -> tuple[str, ...] | None:
        """Where the one text of a row stands, for `count_texts`; None where more than that text decides."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """What is counted: `COUNTED` or `WITH_LOSS`."""

    @property
    def specials(self) -> int:
        """Special tokens that each text gets in addition to its own tokens."""

    def count(self, payloads: Sequence[Any]) -> list[Count | None]:
        """Count the delivered tokens of rows. None: can't be measured; zero is a measurement.

        Raises FatalCountError, with the row's position, for one that the training would refuse; MeasureError for a function of the
        user's that fails.
        """

    def count_texts(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Count the delivered tokens of rows that are these texts: int64 [texts]. Raises FatalCountError."""

    def count_windows(self, texts: Sequence[str], starts: Sequence[int], stops: Sequence[int]) -> npt.NDArray[np.int64]:
        """Count, of each text, the tokens that start in its characters starts[i] to stops[i]: int64 [texts], no special tokens.

        Windows that partition a text add up to its tokens; see `zephon_core.ratios.counting.windows` for how surely.
        """

    def count_window(self, text: str, start: int, stop: int) -> int:
        """Count the tokens of one window."""


class TokenCounter(Protocol):
    """Made once a worker: what counting needs is loaded."""

    @property
    def encoder(self) -> str:
        """The name of what encodes texts in bulk (among `TokenizerBackend`), "" if nothing does."""

    def plan(self, prefix: Sequence[Any]) -> CountPlan:
        """Decide how a data set is counted, from its first rows. Pure: equal rows, equal plan."""


class CountingSpec(Protocol):
    """What is counted. Frozen, and pickled by value."""

    def identity(self, *, store: ArtifactStore | None = None) -> dict[str, Any]:
        """Return what decides the counts, as canonical JSON values; never a path. store: where tokenizers are remembered."""

    def build_counter(self, *, text_bytes: int = 0, threads: int = 1, store: ArtifactStore | None = None) -> TokenCounter:
        """Load what counting needs.

        text_bytes: how much text there is to count, and on how many threads, which decides whether a faster encoder pays off.
        store: where the proof is kept that it counts the same. None of them changes a count.
        """


class NotTexts:
    """The part of a plan that only plans for texts have, refused."""

    description: str
    text_path: tuple[str, ...] | None = None
    column: tuple[str, ...] | None = None
    specials = 0

    def count_texts(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Refuse: a row is more than a text."""
        raise SpecError(self.description, "counts rows, not texts", wanted="a plan with a text_path")

    def count_windows(self, texts: Sequence[str], starts: Sequence[int], stops: Sequence[int]) -> npt.NDArray[np.int64]:
        """Refuse: a row is more than a text."""
        raise SpecError(self.description, "counts rows, not texts", wanted="a plan with a text_path")

    def count_window(self, text: str, start: int, stop: int) -> int:
        """Refuse: a row is more than a text."""
        raise SpecError(self.description, "counts rows, not texts", wanted="a plan with a text_path")
