"""Check that a bank is what it says, at three depths.

sizes: the manifest, every file's size, the shapes of the arrays, and that the ledger of blocks bears out what the manifest says of
completeness. checksums: also every file's SHA-256, and that digests, rows
and texts belong together. reencode: also a sample of rows encoded again and compared with the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.bank.encode import EncodeOutcome, read_outcome, valid_rows
from zephon_core.bank.query import check_model
from zephon_core.bank.reader import FeatureBank, check_size
from zephon_core.errors import CorruptArtifactError, MismatchError, ModelError, SpecError
from zephon_core.fingerprint import file_sha256
from zephon_core.progress import NULL_PROGRESS, Progress

__all__ = ["Check", "Level", "spread_rows", "verify_bank"]


class Level(StrEnum):
    """How deep a check goes; each level includes the ones before it."""

    SIZES = "sizes"
    CHECKSUMS = "checksums"
    REENCODE = "reencode"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: what, whether it holds, and what was seen."""

    name: str
    ok: bool
    seen: str

    def to_json(self) -> dict[str, Any]:
        """Return the check as plain values."""
        return dict(vars(self))


Encode = Callable[[Sequence[npt.NDArray[np.int64]]], npt.NDArray[np.float32]]
LOWEST_COSINE = {"float32": 0.99999, "bfloat16": 0.999, "float16": 0.999}


def verify_bank(
    path: Path,
    level: Level = Level.SIZES,
    *,
    encode: Encode | None = None,
    sample: int = 64,
    progress: Progress = NULL_PROGRESS,
) -> list[Check]:
    """Check the bank in the folder `path`; return what was checked, in order, stopping where going on makes no sense.

    encode: turns token ids into features as the bank's encoder does (see `zephon_core.bank.encode.row_encoder`); needed for
    the level reencode. sample: how many rows to encode again, spread evenly over the length-sorted order, at least 1.
    Raises MissingArtifactError, SpecError.
    """
    if sample < 1:
        raise SpecError("sample", f"is {sample}", wanted="how many rows to encode again, at least 1")
    try:
        bank = FeatureBank.open(path, partial=True)
    except CorruptArtifactError as error:
        return [Check("sizes", False, str(error))]
    manifest = bank.manifest
    checks = [
        Check("sizes", True, f"{len(manifest['files'])} files"),
        Check("complete", manifest["complete"], f"{manifest['encoded_rows']:,} of {manifest['text_count']:,} rows encoded"),
        _check_ledger(bank),
    ]
    if level is not Level.SIZES:
        checks += _check_contents(bank, progress)
    if level is Level.REENCODE and all(check.ok for check in checks if check.name != "complete"):
        if encode is None:
            raise SpecError("encode", "is missing", wanted="an encoder for the level reencode (see `row_encoder`)")
        checks += [_check_model(bank), _check_features(bank, encode, sample)]
    return checks


def _check_model(bank: FeatureBank) -> Check:
    """Compare what lies at the place of the model with the model that the bank was made with."""
    try:
        check_model(bank)
    except (MismatchError, ModelError) as error:
        return Check("model", False, str(error))
    return Check("model", True, f"the bank's, {bank.manifest['model']['sha256'][:16]}")


def _check_ledger(bank: FeatureBank) -> Check:
    """Compare what the manifest says of completeness with what follows from the ledger of blocks that lies beside it."""
    try:
        outcome = read_outcome(bank.path)
        valid = valid_rows(bank.path, bank.path)
    except (CorruptArtifactError, MismatchError) as error:
        return Check("ledger", False, str(error))
    except (OSError, ValueError, LookupError, TypeError) as error:  # a ledger that is whole in size, and yet none
        return Check("ledger", False, f"the ledger of blocks can't be read ({error})")
    said = {name: bank.manifest[name] for name in ("text_count", "hidden_size", "encoded_rows", "poison_rows", "complete")}
    found = _as_manifest(outcome, allow_poison=bank.manifest["spec"]["encode"].get("allow_poison") is True)
    differ = [name for name in said if said[name] != found[name]]
    wrong = [f"{name} is {said[name]} in the manifest and {found[name]} in the ledger" for name in differ]
    if not wrong and not np.array_equal(valid, bank.valid):
        wrong = [f"{int((valid != bank.valid).sum()):,} rows are marked as valid that aren't in the ledger, or the other way round"]
    return Check("ledger", not wrong, "; ".join(wrong) or f"{outcome.blocks_done:,} of {outcome.blocks:,} blocks on record")


def _as_manifest(outcome: EncodeOutcome, *, allow_poison: bool) -> dict[str, Any]:
    return {
        "text_count": outcome.text_count,
        "hidden_size": outcome.hidden_size,
        "encoded_rows": outcome.encoded_rows,
        "poison_rows": outcome.poison_rows,
        "complete": outcome.encoded_rows == outcome.text_count and (allow_poison or not outcome.poison_rows),
    }


def _check_contents(bank: FeatureBank, progress: Progress) -> Iterator[Check]:
    files = bank.manifest["files"]
    bad = []
    with progress.phase("checksums", total=sum(file["bytes"] for file in files.values()), unit="B") as phase:
        for name, file in files.items():
            check_size(bank.path / name, file["bytes"])
            if file_sha256(bank.path / name) != file["sha256"]:
                bad.append(name)
            phase.advance(file["bytes"])
    yield Check("checksums", not bad, f"another SHA-256 in {', '.join(bad)}" if bad else f"{len(files)} files as recorded")
    if not bad:
        wrong = _first_misfiled(bank, progress)
        yield Check(
            "index",
            wrong is None,
            "every text is found under its digest" if wrong is None else f"row {wrong} is not found by its text",
        )


def _first_misfiled(bank: FeatureBank, progress: Progress) -> int | None:
    """Return the first row whose text isn't filed under its digest, None if all are."""
    step = 4096
    batch: list[str] = []
    start = 0

    def wrong() -> int | None:
        found = bank.rows(batch)
        bad = np.flatnonzero(found != np.arange(start, start + len(batch)))
        return start + int(bad[0]) if len(bad) else None

    with progress.phase("index", total=len(bank), unit="texts") as phase:
        for text in bank.texts():
            batch.append(text)
            if len(batch) == step:
                if (row := wrong()) is not None:
                    return row
                phase.advance(len(batch))
                start += len(batch)
                batch = []
        if batch and (row := wrong()) is not None:
            return row
        phase.advance(len(batch))
    return None if start + len(batch) == len(bank) else start + len(batch)


def spread_rows(lengths: npt.NDArray[np.int32], valid: npt.NDArray[np.bool_], sample: int) -> npt.NDArray[np.int64]:
    """Choose up to `sample` of the valid rows, evenly over the order of their lengths; int64, the shortest first."""
    rows = np.flatnonzero(valid)
    order = rows[np.argsort(lengths[rows], kind="stable")]
    if len(order) <= sample:
        return order.astype(np.int64)
    return order[np.linspace(0, len(order) - 1, sample).round().astype(np.int64)].astype(np.int64)


def _check_features(bank: FeatureBank, encode: Encode, sample: int) -> Check:
    lengths = np.load(bank.path / "lengths.npy", mmap_mode="r")
    offsets = np.load(bank.path / "token_offsets.npy", mmap_mode="r")
    ids = np.load(bank.path / "token_ids.npy", mmap_mode="r")
    rows = spread_rows(lengths, bank.valid, sample)
    if not len(rows):
        return Check("reencode", True, "no row to encode again")
    again = encode([ids[int(offsets[row]) : int(offsets[row + 1])].astype(np.int64) for row in rows])
    stored = bank.features[rows].astype(np.float32)
    deviation = float(np.abs(stored - again).max())
    cosine = float(
        np.min((stored * again).sum(1) / np.maximum(np.linalg.norm(stored, axis=1) * np.linalg.norm(again, axis=1), 1e-30))
    )
    lowest = LOWEST_COSINE.get(bank.manifest["precision"], min(LOWEST_COSINE.values()))
    return Check("reencode", cosine >= lowest, f"{len(rows)} rows: lowest cosine {cosine:.7f}, largest deviation {deviation:.2e}")
