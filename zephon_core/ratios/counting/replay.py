"""The training's own steps before tokenizing, replayed on every row that is counted."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from zephon_core.errors import FatalCountError, MeasureError, SpecError
from zephon_core.ratios.callables import callable_identity, is_function_path, resolve_function
from zephon_core.ratios.counting.plans import Count, CountPlan, NotTexts, TokenCounter
from zephon_core.ratios.counting.portable import function_name, why_not_picklable, why_not_portable
from zephon_core.ratios.datasets.model import BLANK_ROW
from zephon_core.words import in_words

__all__ = ["Replay", "ReplayedCounter", "ReplayedPlan"]

Step = Callable[[Any], Any]

_WAY_OUT = "Measure with a function of your own (measure=), or pin the ratio."


class Replay:
    """Functions that the training applies to a row before it is tokenized, in order.

    functions: each `package.module:function` or a callable. One takes a row and returns what becomes of it: a row, None or False
    (it is dropped), True (it is kept as it is), or several rows (a list, or an iterator). Its `setup()`, if it has one, is called
    once a worker. Raises SpecError, with the function's name and the way out, for one that can't be replayed: it says so itself
    (`calibration_replayable = False`), can't be imported, or can't be pickled for other workers.
    """

    def __init__(self, functions: Sequence[str | Step] = ()) -> None:
        self._functions = tuple(functions)
        self._lock = threading.Lock()
        self._steps: list[tuple[str, Step]] | None = None
        for function in self._functions:
            _check(function)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the functions, as they were given: each process sets them up anew."""
        return Replay, (self._functions,)

    def __bool__(self) -> bool:
        return bool(self._functions)

    @property
    def description(self) -> str:
        """The functions' names."""
        return ", ".join(map(function_name, self._functions))

    def identity(self) -> list[dict[str, Any]]:
        """Return what the functions compute, as canonical JSON values."""
        return [callable_identity(_resolved(function)) for function in self._functions]

    def why_not_portable(self) -> str:
        """Say why worker processes can't replay this, with the function's name; empty if they can."""
        reasons = ((function, why_not_portable(function)) for function in self._functions if not isinstance(function, str))
        return next((f"{function_name(function)}: {reason}" for function, reason in reasons if reason), "")

    def apply(self, payload: Any) -> list[Any]:
        """Return what becomes of a row. Raises MeasureError for a function that fails."""
        with self._lock:
            if self._steps is None:
                self._steps = [(function_name(function), _set_up(function)) for function in self._functions]
        rows = [payload]
        for name, step in self._steps:
            became: list[Any] = []
            for row in rows:
                try:
                    became += _outcome(step(row), row)
                except Exception as error:  # somebody else's function
                    raise MeasureError(name, f"failed ({in_words(error)})", remedy=_WAY_OUT) from error
            rows = became
        return rows


class ReplayedCounter:
    """Counts rows as another counter does, after a replay. See `TokenCounter`."""

    def __init__(self, counter: TokenCounter, replay: Replay) -> None:
        self._counter = counter
        self._replay = replay
        self.encoder = counter.encoder

    def plan(self, prefix: Sequence[Any]) -> ReplayedPlan:
        """See `TokenCounter.plan`: what votes is what the first rows become; if they are all dropped, as they are."""
        kept = [payload for payload in prefix if payload is not BLANK_ROW]
        rows = [row for payload in kept for row in self._replay.apply(copy.deepcopy(payload))]
        return ReplayedPlan(self._counter.plan(rows or kept), self._replay)


class ReplayedPlan(NotTexts):
    """Counts what becomes of rows. A row that is dropped delivers nothing; one that becomes several, what they deliver together."""

    paths = None

    def __init__(self, plan: CountPlan, replay: Replay) -> None:
        self._plan = plan
        self._replay = replay
        self.outputs = plan.outputs
        self.description = f"{plan.description}, after {replay.description}"

    def count(self, payloads: Sequence[Any]) -> list[Count | None]:
        """See `CountPlan.count`. A row of which a part can't be measured can't be measured."""
        rows: list[Any] = []
        origins: list[int] = []
        for position, payload in enumerate(payloads):
            try:
                became = [] if payload is BLANK_ROW else self._replay.apply(payload)
            except MeasureError as error:
                error.position = position
                raise
            rows += became
            origins += [position] * len(became)
        try:
            counted = self._plan.count(rows)
        except FatalCountError as error:
            error.position = origins[error.position]
            raise
        counts: list[Count | None] = [(0,) * len(self.outputs) for _ in payloads]
        for position, count in zip(origins, counted, strict=True):
            total = counts[position]
            counts[position] = None if count is None or total is None else tuple(map(sum, zip(total, count, strict=True)))
        return counts


def _set_up(function: str | Step) -> Step:
    """Return a function of this worker's own: what its setup() makes need not go into a pickle."""
    step: Step = _resolved(function) if isinstance(function, str) else pickle.loads(pickle.dumps(function))
    if callable(setup := getattr(step, "setup", None)):
        try:
            setup()
        except Exception as error:  # somebody else's function
            raise MeasureError(function_name(function), f"failed to set up ({in_words(error)})", remedy=_WAY_OUT) from error
    return step


def _outcome(result: Any, row: Any) -> list[Any]:
    if isinstance(result, bool | np.bool_):
        return [row] if result else []
    if isinstance(result, Iterator) or (isinstance(result, list | tuple) and not isinstance(row, list | tuple)):
        return list(result)
    return [] if result is None else [result]


def _check(function: str | Step) -> None:
    if isinstance(function, str) and not is_function_path(function):
        raise SpecError("pre_tokenize_ops", f"name {function!r}", wanted="package.module:function")
    step = _resolved(function)
    if not callable(step):
        raise SpecError("pre_tokenize_ops", f"hold a {type(step).__name__}", wanted="functions, or package.module:function")
    if getattr(step, "calibration_replayable", True) is False:
        raise SpecError(function_name(function), "can't be replayed before counting, as it says itself", remedy=_WAY_OUT)
    if not isinstance(function, str) and (reason := why_not_picklable(function)):
        raise SpecError(function_name(function), f"can't be replayed before counting: {reason}", remedy=_WAY_OUT)


def _resolved(function: str | Step) -> Step:
    return resolve_function(function, where="pre_tokenize_ops") if isinstance(function, str) else function
