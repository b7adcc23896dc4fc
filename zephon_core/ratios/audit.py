"""Ratios held against the truth: the exact count of a data set, and what a training has delivered."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from zephon_core.errors import InputError, SpecError, TransientInputError
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.ratios.documents import RatioDocuments
from zephon_core.ratios.drift import ROUNDING, Drift, check_drift
from zephon_core.ratios.estimation import TokenRatio
from zephon_core.ratios.measuring import Measuring, naming_fields, tell_of
from zephon_core.ratios.run import measuring_of, openers_of, warn_of_specials
from zephon_core.ratios.specs import RatioRun, RatioSpec, split_pair
from zephon_core.store import ArtifactStore
from zephon_core.words import in_words

if TYPE_CHECKING:
    from zephon_core.ratios.count import ExactCount
    from zephon_core.ratios.datasets import Dataset

__all__ = ["check_drifts", "count_mixture", "read_deliveries", "read_ratios"]

Deliveries = Mapping[str, tuple[list[float], list[float]]]


def count_mixture(spec: RatioSpec, run: RatioRun, *, progress: Progress = NULL_PROGRESS) -> dict[str, Any]:
    """Count every data set whole; returns what `ratios count --json` shows.

    What can't be read is left out, and said: `design` is "exact" for a count of everything alone, `counted_share` is the share of
    the bytes that was counted, `reason` says what wasn't, and `tokens_per_byte` is None where nothing could be. Where a ratio was
    estimated before, with the same settings, `estimate` tells whether its interval holds the truth.
    Raises FatalCountError, SpecError, TokenizerError and the like, and InputError for a path that doesn't exist.
    """
    started = time.monotonic()
    measuring = measuring_of(spec.model_copy(update={"pins": (), "ratio_for_all": 0.0}), run)
    warn_of_specials(measuring)
    documents = RatioDocuments(ArtifactStore(run.store))
    opened: dict[str, Dataset | TransientInputError] = {}
    for name, opener in openers_of(spec, run, progress).items():  # all of them first: what is wrong with one shows at once
        try:
            opened[name] = opener()
        except TransientInputError as error:
            opened[name] = error
    ratios = {}
    for name, dataset in opened.items():
        try:
            ratios[name] = _counted(dataset, measuring, documents, run, progress)
        except InputError as error:
            ratios[name] = {**_NOTHING_COUNTED, "reason": str(error)}
    return {"ratios": ratios, "seconds": round(time.monotonic() - started, 3)}


_NOTHING_COUNTED: dict[str, Any] = {
    "tokens_per_byte": None,
    "source": "none",
    "interval": None,
    "draws": 0,
    "units": 0,
    "bytes_read": 0,
    "design": "",
    "counted_share": 0.0,
}


def _counted(
    dataset: Dataset | TransientInputError, measuring: Measuring, documents: RatioDocuments, run: RatioRun, progress: Progress
) -> dict[str, Any]:
    from zephon_core.ratios.count import count_tokens

    if isinstance(dataset, TransientInputError):
        raise dataset
    tell_of(dataset)
    with naming_fields(dataset):
        counted = count_tokens(
            dataset,
            measuring.counting,
            replay=measuring.replay,
            measure=measuring.estimation.load_measure(),
            run=run,
            progress=progress,
        )
    ratio = counted.tokens_per_byte
    figures: dict[str, Any] = {
        "tokens_per_byte": ratio,
        "source": "measured",
        "interval": [ratio, ratio] if counted.complete else None,
        "draws": 0,
        "units": len(dataset.units),
        "bytes_read": counted.bytes_read,
        "design": "exact" if counted.complete else "",
        "counted_share": counted.counted_share,
    }
    key = measuring.key(dataset)
    known = documents.read(key) if counted.rows else None
    return {
        **(figures if counted.rows else _NOTHING_COUNTED),
        "reason": _left_out(counted),
        "key": key,
        "tokens": counted.tokens,
        "loss_tokens": counted.loss_tokens,
        "loss_tokens_per_byte": counted.loss_tokens_per_byte,
        "raw_bytes": counted.raw_bytes,
        "rows": counted.rows,
        "bad_rows": counted.bad_rows,
        "bad_units": counted.bad_units,
        "unreadable": counted.unreadable,
        "problems": list(counted.problems),
        "encoder": counted.encoder,
        "counted": counted.what,
        "seconds": round(counted.seconds, 3),
        **({} if known is None else {"estimate": _held_against(known.ratio, ratio)}),
    }


def _left_out(counted: ExactCount) -> str:
    """Say what was not counted, and why; "" if all was."""
    reasons = Counter(counted.bad_rows) + Counter(counted.bad_units) + Counter(counted.unreadable)
    told = "; ".join(f"{reason} ({count:,})" if count > 1 else reason for reason, count in reasons.most_common(3))
    if not counted.rows:
        return f"nothing of it could be counted as {counted.what}: {told}" if told else "it has no rows"
    if counted.complete:
        return ""
    share = 1 - counted.counted_share
    return f"{f'{_percent(share)} of the bytes' if share else 'what has no size'} could not be counted: {told}"


def _percent(share: float) -> str:
    return "less than 0.01%" if 0 < share < 0.0001 else f"{share:.2%}"


def _held_against(estimate: TokenRatio, truth: float) -> dict[str, Any]:
    low, high = estimate.interval or (estimate.tokens_per_byte, estimate.tokens_per_byte)
    # Two ways to one figure: sums may have been divided in another order.
    slack = ROUNDING * truth if low == high else 0.0
    return {
        "tokens_per_byte": estimate.tokens_per_byte,
        "interval": [low, high],
        "error": estimate.tokens_per_byte / truth - 1 if truth else None,
        "holds": low - slack <= truth <= high + slack,
    }


def read_ratios(path: Path) -> dict[str, TokenRatio]:
    """Read the ratios in a file of `ratios prime --json`, an export as JSON, or a published map. Raises InputError."""
    try:
        found = orjson.loads(path.read_bytes())["ratios"]
        return {name: _ratio(value) for name, value in found.items()}
    except OSError as error:
        raise InputError(str(path), f"can't be read ({error.strerror})") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(str(path), f"holds no ratios ({in_words(error)})", wanted="what `ratios prime --json` writes") from None


def _ratio(value: Any) -> TokenRatio:
    if isinstance(value, list):
        return TokenRatio.from_state(value[:2])
    interval = value.get("interval")
    return TokenRatio(value["tokens_per_byte"], value["source"], interval=None if interval is None else tuple(interval))


def read_deliveries(log: Path | None, delivered: Sequence[str], scheduled: Sequence[str]) -> Deliveries:
    """Collect what the training delivered of each data set: (tokens, bytes) of every stretch, by name.

    log: JSONL with dataset, delivered_tokens, scheduled_bytes a line. delivered, scheduled: NAME=NUMBER each, totals.
    Raises InputError for a line that says something else, SpecError where tokens or bytes of a data set are missing.
    """
    found: dict[str, tuple[list[float], list[float]]] = {}
    if log is not None:
        for number, line in enumerate(_lines(log), 1):
            try:
                row = orjson.loads(line)
                name, tokens, size = row["dataset"], _number(row["delivered_tokens"]), _number(row["scheduled_bytes"])
                if not isinstance(name, str):
                    raise ValueError(f"{name!r} is no name of a data set")
            except (ValueError, LookupError, TypeError) as error:
                wanted = "dataset, delivered_tokens and scheduled_bytes"
                raise InputError(f"{log}:{number}", f"can't be used ({in_words(error)})", wanted=wanted) from None
            stretches = found.setdefault(name, ([], []))
            stretches[0].append(tokens)
            stretches[1].append(size)
    tokens_of, bytes_of = _totals("--delivered", delivered), _totals("--scheduled", scheduled)
    if unmatched := sorted(tokens_of.keys() ^ bytes_of.keys()):
        raise SpecError(", ".join(unmatched), "has tokens or bytes, but not both", wanted="--delivered and --scheduled")
    if both := sorted(tokens_of.keys() & found.keys()):
        raise SpecError(", ".join(both), f"stands in {log}, and has totals", wanted="one of the two")
    found |= {name: ([tokens_of[name]], [bytes_of[name]]) for name in tokens_of}
    if not found:
        raise SpecError("deliveries", "are missing", wanted="--log, or --delivered and --scheduled")
    return found


def _lines(path: Path) -> list[bytes]:
    try:
        return [line for line in path.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise InputError(str(path), f"can't be read ({error.strerror})") from None


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is no number from zero up")
    return float(value)


def _totals(flag: str, pairs: Sequence[str]) -> dict[str, float]:
    totals: dict[str, float] = {}
    try:
        for name, value in (split_pair(pair, what="NUMBER") for pair in pairs):
            if name in totals:
                raise ValueError(f"{name} stands there twice; give its total")
            totals[name] = _number(float(value))
    except ValueError as error:
        raise SpecError(flag, f"can't be used: {error}") from None
    return totals


def check_drifts(ratios: Mapping[str, TokenRatio], deliveries: Deliveries, *, tolerance: float = 0.01) -> list[Drift]:
    """Compare each data set's deliveries with its ratio. Raises SpecError for a data set without one."""
    if missing := sorted(set(deliveries) - set(ratios)):
        raise SpecError(
            "ratios", f"lack {', '.join(missing)}", wanted=f"one for each; there are {', '.join(sorted(ratios)) or 'none'}"
        )
    return [
        check_drift(name, tokens, sizes, ratio=ratios[name], tolerance=tolerance) for name, (tokens, sizes) in deliveries.items()
    ]
