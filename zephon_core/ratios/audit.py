"""Ratios held against the truth: the exact count of a data set, and what a training has delivered."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from zephon_core.errors import InputError, SpecError
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.ratios.documents import RatioDocuments
from zephon_core.ratios.drift import Drift, check_drift
from zephon_core.ratios.estimation import TokenRatio
from zephon_core.ratios.run import measuring_of, openers_of
from zephon_core.ratios.specs import RatioRun, RatioSpec, split_pair
from zephon_core.store import ArtifactStore

__all__ = ["check_drifts", "count_mixture", "read_deliveries", "read_ratios"]

Deliveries = Mapping[str, tuple[list[float], list[float]]]


def count_mixture(spec: RatioSpec, run: RatioRun, *, progress: Progress = NULL_PROGRESS) -> dict[str, Any]:
    """Count every data set whole; returns what `ratios count --json` shows.

    Where a ratio was estimated before, with the same settings, `estimate` tells whether its interval holds the truth.
    Raises FatalCountError, SpecError, InputError and the like: an exact count is of everything or not at all.
    """
    from zephon_core.ratios.count import count_tokens

    started = time.monotonic()
    measuring = measuring_of(spec.model_copy(update={"pins": (), "ratio_for_all": 0.0}), run)
    documents = RatioDocuments(ArtifactStore(run.store))
    ratios: dict[str, Any] = {}
    for name, opener in openers_of(spec, run, progress).items():
        dataset = opener()
        key = measuring.key(dataset)
        counted = count_tokens(
            dataset,
            measuring.counting,
            replay=measuring.replay,
            measure=measuring.estimation.load_measure(),
            run=run,
            progress=progress,
        )
        ratio = counted.tokens_per_byte
        known = documents.read(key)
        ratios[name] = {
            "tokens_per_byte": ratio,
            "source": "measured",
            "interval": [ratio, ratio],
            "draws": 0,
            "units": len(dataset.units),
            "bytes_read": counted.bytes_read,
            "design": "exact",
            "reason": "" if counted.complete else f"{1 - counted.measured_share:.2%} of the bytes could not be counted",
            "key": key,
            "tokens": counted.tokens,
            "loss_tokens": counted.loss_tokens,
            "raw_bytes": counted.raw_bytes,
            "rows": counted.rows,
            "bad_rows": counted.bad_rows,
            "bad_units": counted.bad_units,
            "problems": list(counted.problems),
            "encoder": counted.encoder,
            "counted": counted.what,
            "seconds": round(counted.seconds, 3),
            **({} if known is None else {"estimate": _held_against(known.ratio, ratio)}),
        }
    return {"ratios": ratios, "seconds": round(time.monotonic() - started, 3)}


def _held_against(estimate: TokenRatio, truth: float) -> dict[str, Any]:
    low, high = estimate.interval or (estimate.tokens_per_byte, estimate.tokens_per_byte)
    return {
        "tokens_per_byte": estimate.tokens_per_byte,
        "interval": [low, high],
        "error": estimate.tokens_per_byte / truth - 1 if truth else None,
        "holds": low <= truth <= high,
    }


def read_ratios(path: Path) -> dict[str, TokenRatio]:
    """Read the ratios in a file of `ratios prime --json`, an export as JSON, or a published map. Raises InputError."""
    try:
        found = orjson.loads(path.read_bytes())["ratios"]
        return {name: _ratio(value) for name, value in found.items()}
    except OSError as error:
        raise InputError(str(path), f"can't be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(str(path), f"holds no ratios ({error!r})", wanted="what `ratios prime --json` writes") from None


def _ratio(value: Any) -> TokenRatio:
    if isinstance(value, list):
        return TokenRatio(value[0], value[1], reason=value[2])
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
                tokens, size = float(row["delivered_tokens"]), float(row["scheduled_bytes"])
                stretches = found.setdefault(str(row["dataset"]), ([], []))
            except (ValueError, KeyError, TypeError) as error:
                wanted = "dataset, delivered_tokens and scheduled_bytes"
                raise InputError(f"{log}:{number}", f"can't be used ({error!r})", wanted=wanted) from None
            stretches[0].append(tokens)
            stretches[1].append(size)
    tokens_of, bytes_of = _totals("--delivered", delivered), _totals("--scheduled", scheduled)
    if unmatched := sorted(tokens_of.keys() ^ bytes_of.keys()):
        raise SpecError(", ".join(unmatched), "has tokens or bytes, but not both", wanted="--delivered and --scheduled")
    found |= {name: ([tokens_of[name]], [bytes_of[name]]) for name in tokens_of}
    if not found:
        raise SpecError("deliveries", "are missing", wanted="--log, or --delivered and --scheduled")
    return found


def _lines(path: Path) -> list[bytes]:
    try:
        return [line for line in path.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise InputError(str(path), f"can't be read ({error.strerror})") from None


def _totals(flag: str, pairs: Sequence[str]) -> dict[str, float]:
    try:
        return {name: float(value) for name, value in (split_pair(pair, what="NUMBER") for pair in pairs)}
    except ValueError as error:
        raise SpecError(flag, f"can't be used: {error}") from None


def check_drifts(ratios: Mapping[str, TokenRatio], deliveries: Deliveries, *, tolerance: float = 0.01) -> list[Drift]:
    """Compare each data set's deliveries with its ratio. Raises SpecError for a data set without one."""
    if missing := sorted(set(deliveries) - set(ratios)):
        raise SpecError("ratios", f"lack {', '.join(missing)}", wanted=f"the data sets {', '.join(sorted(ratios))}")
    return [
        check_drift(name, tokens, sizes, ratio=ratios[name], tolerance=tolerance) for name, (tokens, sizes) in deliveries.items()
    ]
