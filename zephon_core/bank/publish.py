"""Put a bank's folder together, in the store and where a trainer wants it.

A published folder appears in one rename with its manifest inside. Finished banks are hard links into the store where the file
system allows, else copies; what may still grow (the matrix of an unfinished bank) is always copied.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from zephon_core.atomic import fsync_file, publish_directory, remove_tree, write_json
from zephon_core.bank.encode import EncodeOutcome, read_outcome, valid_rows
from zephon_core.bank.manifest import (
    INDEX_NAME,
    MANIFEST_NAME,
    TEXTS_NAME,
    VALID_NAME,
    Coverage,
    bank_manifest,
    features_name,
    read_manifest,
)
from zephon_core.bank.report import REPORT_NAME, render_report
from zephon_core.bank.scan import write_index
from zephon_core.bank.specs import BankSpec, RunOptions
from zephon_core.blocks import BlockState, is_as_before
from zephon_core.errors import ArtifactError, MissingArtifactError, SpecError
from zephon_core.fingerprint import file_sha256
from zephon_core.locks import alone_in
from zephon_core.publish import output_place
from zephon_core.readers.sources import Source
from zephon_core.store import ArtifactRecord, FileRecord, link_or_copy

__all__ = ["BankParts", "EncodeMovedError", "check_output", "fill_bank_directory", "publish_folder"]

_WANTED = "a new folder, an empty one, or one that holds a bank"
_SCAN_FILES = (TEXTS_NAME, "text_offsets.npy", "digests.npy", "rows.npy", "kinds.npy")
_TOKEN_FILES = ("lengths.npy", "token_ids.npy", "token_offsets.npy")


class EncodeMovedError(Exception):
    """Another process has finished the encode, of which an unfinished state was to be copied."""


@dataclass(frozen=True)
class BankParts:
    """Everything a bank's folder is put together from.

    encoded: the folder of the features artifact, or of the unfinished one; encoded_files: its files' records, empty if unfinished.
    assembled: the folder of the finished bank in the store, where there is one: its index is linked, not written again.
    """

    spec: BankSpec
    run: RunOptions
    sources: tuple[Source, ...]
    fingerprints: Mapping[str, str]
    contents: Mapping[str, Any]
    scan: Path
    tokens: Path
    encoded: Path
    encoded_files: Mapping[str, FileRecord]
    outcome: EncodeOutcome
    encoding: Mapping[str, Any]
    assembled: Path | None = None

    @property
    def complete(self) -> bool:
        """Whether every row is encoded, and none is poison unless that is allowed."""
        outcome = self.outcome
        return outcome.encoded_rows == outcome.text_count and (self.spec.encode.allow_poison or not outcome.poison_rows)


def fill_bank_directory(parts: BankParts, directory: Path) -> dict[str, FileRecord]:
    """Fill an empty directory with a bank, the manifest last, and return the records of its files but the manifest's own."""
    scan = ArtifactRecord.read(parts.scan)
    tokens = ArtifactRecord.read(parts.tokens)
    files: dict[str, FileRecord] = {}
    for source, record, names in ((parts.scan, scan, _SCAN_FILES), (parts.tokens, tokens, _TOKEN_FILES)):
        for name in (*names, "bad_rows.jsonl"):
            if name in record.files:
                link_or_copy(source / name, directory / name)
                files[name] = record.files[name]
    if parts.encoded_files:
        for name in (features_name(parts.spec.encode.store_dtype), *_ledger_files(parts.encoded)):
            link_or_copy(parts.encoded / name, directory / name)
            files[name] = parts.encoded_files[name]
    else:
        files |= _copy_unfinished(parts, directory)
        outcome = read_outcome(directory)
        parts = replace(parts, outcome=outcome, encoding=outcome.statistics())
    valid = valid_rows(directory, parts.tokens)
    if not valid.all():
        np.save(directory / VALID_NAME, valid)
        files[VALID_NAME] = _seal(directory / VALID_NAME)
    if parts.spec.write_index:
        if parts.assembled is not None:
            link_or_copy(parts.assembled / INDEX_NAME, directory / INDEX_NAME)
            files[INDEX_NAME] = ArtifactRecord.read(parts.assembled).files[INDEX_NAME]
        else:
            write_index(parts.scan, directory / INDEX_NAME)
            files[INDEX_NAME] = _seal(directory / INDEX_NAME)
    manifest = bank_manifest(
        parts.spec,
        parts.run,
        sources=parts.sources,
        fingerprints=parts.fingerprints,
        contents=parts.contents,
        scan=scan,
        tokens=tokens,
        encoding=parts.encoding,
        coverage=Coverage(
            text_count=parts.outcome.text_count,
            hidden_size=parts.outcome.hidden_size,
            encoded_rows=parts.outcome.encoded_rows,
            poison_rows=parts.outcome.poison_rows,
            complete=parts.complete,
        ),
        files=files,
    )
    render_report(manifest, directory)
    files[REPORT_NAME] = _seal(directory / REPORT_NAME)
    manifest["files"][REPORT_NAME] = files[REPORT_NAME].model_dump()
    write_json(directory / MANIFEST_NAME, manifest)
    return files


def _copy_unfinished(parts: BankParts, directory: Path) -> dict[str, FileRecord]:
    """Copy an encode at which other processes may be at work: first the ledgers, so that all they name is in the matrix."""
    state = BlockState.read(parts.encoded)
    if state is None or state.finished:
        raise EncodeMovedError
    names = [*_ledger_files(parts.encoded), features_name(parts.spec.encode.store_dtype)]
    try:
        for name in names:
            shutil.copyfile(parts.encoded / name, directory / name)
    except FileNotFoundError:
        if is_as_before(state):
            raise
        raise EncodeMovedError from None
    if not is_as_before(state):
        raise EncodeMovedError
    return {name: _seal(directory / name) for name in names}


def publish_folder(parts: BankParts, output: Path) -> bool:
    """Make `output` this bank, in one step; return whether anything had to be done.

    A folder that holds this very bank already is left alone, and one that holds something else than a bank is not touched.
    Raises SpecError (not a bank's folder), ArtifactError (a complete bank would be replaced by an unfinished one of itself),
    EncodeMovedError (there is nothing unfinished any more).
    """
    output = output.expanduser().absolute()
    if _is_there(parts, output):
        return False
    output.parent.mkdir(parents=True, exist_ok=True)
    staging = output.with_name(f".{output.name}.staging-{os.getpid()}-{secrets.token_hex(4)}")
    staging.mkdir()
    try:
        fill_bank_directory(parts, staging)
        with alone_in(output.parent):  # what is there is looked at and replaced at one go
            if _is_there(parts, output):
                remove_tree(staging)
                return False
            publish_directory(staging, output)
    except BaseException:
        remove_tree(staging)
        raise
    return True


def check_output(output: str) -> None:
    """Raise SpecError for a place where no bank can be published, before any work is done."""
    path = output_place(output, wanted=_WANTED)
    if path.exists():
        _bank_there(path)


def _bank_there(output: Path) -> dict[str, Any] | None:
    """Return the manifest of the bank at `output`, None for a folder that is absent or empty. Raises SpecError for other files."""
    if not output.exists():
        return None
    if not output.is_dir():
        raise SpecError(str(output), "is no folder", wanted=_WANTED)
    try:
        return read_manifest(output)
    except MissingArtifactError:
        if any(output.iterdir()):
            raise SpecError(
                str(output), "holds files that are no bank", remedy="Name an empty folder, or one that holds a bank."
            ) from None
    return None


def _is_there(parts: BankParts, output: Path) -> bool:
    """Whether `output` is this very bank. Raises SpecError for other files, ArtifactError for a finished state of this bank."""
    old = _bank_there(output)
    if old is None:
        return False
    if _same_bank(old, parts) and _sizes_hold(output, old):
        return True
    if old["complete"] and not parts.complete and old["fingerprints"]["features"] == parts.fingerprints["features"]:
        raise ArtifactError(
            str(output),
            f"is complete, and this run has only {parts.outcome.encoded_rows:,} of {parts.outcome.text_count:,} rows",
            remedy="Name another output, or finish the encode first.",
        )
    return False


def _same_bank(old: Mapping[str, Any], parts: BankParts) -> bool:
    return bool(
        old["fingerprints"] == dict(parts.fingerprints)
        and old["complete"] == parts.complete
        and old["encoded_rows"] == parts.outcome.encoded_rows
        and old["model_path"] == parts.spec.encode.model.path
        and old["name"] == parts.spec.name
        and [source["url"] for source in old["sources"]] == [source.url for source in parts.sources]
    )


def _sizes_hold(folder: Path, manifest: Mapping[str, Any]) -> bool:
    try:
        return all((folder / name).stat().st_size == record["bytes"] for name, record in manifest["files"].items())
    except FileNotFoundError:
        return False


def _ledger_files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("blocks*"))


def _seal(path: Path) -> FileRecord:
    fsync_file(path)
    return FileRecord(bytes=path.stat().st_size, sha256=file_sha256(path))
