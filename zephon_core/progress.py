"""How long-running steps say where they are, without knowing who listens.

A step opens a phase with a total and a unit and advances it; a sink turns that into a terminal bar, log lines or nothing.
Steps call `advance` as often as they like: throttling is the sink's business.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

__all__ = ["NULL_PROGRESS", "LoggingProgress", "Phase", "Progress", "TerminalProgress", "format_amount"]


class Phase(Protocol):
    """One stretch of work with a known unit."""

    def advance(self, amount: float) -> None:
        """Add `amount` units to what is done; safe to call from any thread."""


class Progress(Protocol):
    """Where phases are opened. Implementations: `NULL_PROGRESS`, `LoggingProgress`, `TerminalProgress`."""

    def phase(self, label: str, *, total: float | None, unit: str) -> AbstractContextManager[Phase]:
        """Open a phase of `total` units (None where it can't be known), named by `label`; unit is "B", "texts", "tokens"."""

    def note(self, message: str) -> None:
        """Say one thing worth knowing now: a resume, a wait for another process, a fallback."""


class _NullPhase:
    def advance(self, amount: float) -> None:
        pass


class _NullProgress:
    @contextmanager
    def phase(self, label: str, *, total: float | None, unit: str) -> Iterator[Phase]:
        yield _NullPhase()

    def note(self, message: str) -> None:
        pass


NULL_PROGRESS: Progress = _NullProgress()

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_amount(amount: float, unit: str) -> str:
    """Render an amount with a decimal prefix and its unit: `format_amount(1.5e6, "tokens")` is "1.50 M tokens"."""
    for factor, prefix in _PREFIXES:
        if abs(amount) >= factor:
            return f"{amount / factor:.2f} {prefix}{unit}" if unit == "B" else f"{amount / factor:.2f} {prefix} {unit}"
    return f"{amount:.0f} {unit}"


class _LoggingPhase:
    def __init__(self, logger: logging.Logger, label: str, total: float | None, unit: str, interval_s: float) -> None:
        self._logger = logger
        self._label = label
        self._total = total
        self._unit = unit
        self._interval_s = interval_s
        self._started = self._spoke = time.monotonic()
        self._done = 0.0
        self._told: float | None = None

    def advance(self, amount: float) -> None:
        self._done += amount
        now = time.monotonic()
        if now - self._spoke >= self._interval_s:
            self._spoke = now
            self.tell(now)

    def tell(self, now: float) -> None:
        """Log where it is, unless that has been said."""
        if self._told != self._done:
            self._told = self._done
            self._logger.info("%s", self.describe(now))

    def describe(self, now: float) -> str:
        seconds = max(now - self._started, 1e-9)
        rate = self._done / seconds
        text = f"{self._label}: {format_amount(self._done, self._unit)}"
        if self._total:
            text += f" of {format_amount(self._total, self._unit)} ({self._done / self._total:.0%})"
        text += f", {format_amount(rate, self._unit)}/s"
        if self._total and rate > 0 and self._done < self._total:
            text += f", {_duration((self._total - self._done) / rate)} left"
        return text


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


class LoggingProgress:
    """Write progress to a logger: at the start, at most every `interval_s` seconds, and at the end of each phase."""

    def __init__(self, logger: logging.Logger | None = None, *, interval_s: float = 10.0) -> None:
        self._logger = logger or logging.getLogger("zephon_core")
        self._interval_s = interval_s

    @contextmanager
    def phase(self, label: str, *, total: float | None, unit: str) -> Iterator[Phase]:
        """See `Progress.phase`."""
        phase = _LoggingPhase(self._logger, label, total, unit, self._interval_s)
        yield phase
        phase.tell(time.monotonic())

    def note(self, message: str) -> None:
        """See `Progress.note`."""
        self._logger.info("%s", message)


class _TerminalPhase:
    def __init__(self, bar: object, task: object) -> None:
        self._bar = bar
        self._task = task

    def advance(self, amount: float) -> None:
        self._bar.advance(self._task, amount)  # type: ignore[attr-defined]


class TerminalProgress:
    """Draw one bar a phase on standard error with rich: share, amount, rate and time left."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)

    @contextmanager
    def phase(self, label: str, *, total: float | None, unit: str) -> Iterator[Phase]:
        """See `Progress.phase`."""
        from rich.progress import (
            BarColumn,
            ProgressColumn,
            Task,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bar
        from rich.text import Text

        class RateColumn(ProgressColumn):
            def render(self, task: Task) -> Text:
                speed = task.finished_speed or task.speed
                amount = format_amount(task.completed, unit)
                return Text(f"{amount}, {format_amount(speed, unit)}/s" if speed else amount, style="dim")

        columns = (
            TextColumn("[bold]{task.description:<9}"),
            BarColumn(bar_width=28),
            TaskProgressColumn(),
            RateColumn(),
            TimeRemainingColumn() if total else TimeElapsedColumn(),
        )
        with Bar(*columns, console=self._console, refresh_per_second=5) as bar:
            yield _TerminalPhase(bar, bar.add_task(label, total=total))

    def note(self, message: str) -> None:
        """See `Progress.note`."""
        self._console.print(message, style="yellow", highlight=False)
