"""The steps of a feature bank, each a function from fingerprints to an artifact.

    identify → scan → tokenize → encode → assemble

Once the inputs are identified every fingerprint is known, before any work is done. A step whose artifact is in the store
returns it; the others make it, one process at a time. Both the command line and the Prefect tasks call these functions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zephon_core.bank.encode import EncodeOutcome, encode_tokens, read_outcome
from zephon_core.bank.encode.outcome import read_standing
from zephon_core.bank.extend import copy_files, drop_known, join_features, join_scans, join_statistics, join_tokens
from zephon_core.bank.manifest import empty_fields, features_name, read_manifest
from zephon_core.bank.publish import BankParts, EncodeMovedError, fill_bank_directory, publish_folder
from zephon_core.bank.recipes import BankIdentity, BankRecipes, BaseBank, all_sources, bank_recipes, identify
from zephon_core.bank.scan import scan_texts
from zephon_core.bank.specs import BankSpec, RunOptions
from zephon_core.bank.tokens import tokenize_texts
from zephon_core.blocks import BlockState
from zephon_core.errors import ArtifactError, LeaseHeldError, PoisonError
from zephon_core.locks import is_held
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.readers.sources import check_all_unchanged
from zephon_core.store import ArtifactRef, ArtifactStore, Built, Recipe, clear_partial, discard
from zephon_core.tokenizers import load_identified

__all__ = [
    "BankIdentity",
    "BankRecipes",
    "EncodeResult",
    "assemble",
    "bank_recipes",
    "encode",
    "identify",
    "restart_encode",
    "scan",
    "tokenize",
]

_logger = logging.getLogger(__name__)

_FINISHING_ATTEMPTS = 2


@dataclass(frozen=True)
class EncodeResult:
    """The features artifact, None while rows are missing, and what the ledger says is there."""

    built: Built | None
    outcome: EncodeOutcome


def scan(
    spec: BankSpec,
    identity: BankIdentity,
    run: RunOptions,
    *,
    store: ArtifactStore,
    progress: Progress = NULL_PROGRESS,
    force: bool = False,
) -> Built:
    """Collect the distinct texts of the sources; warns of field paths under which there are none.

    Raises InputError, BadRowError, SourceChangedError.
    """
    built = _scan(spec, identity, run, store=store, progress=progress, force=force)
    if not built.cached:
        for path in empty_fields(store.record(built.ref).statistics):
            _logger.warning("No row of any source holds a text at %s: check the path", path)
    return built


def _scan(
    spec: BankSpec, identity: BankIdentity, run: RunOptions, *, store: ArtifactStore, progress: Progress, force: bool
) -> Built:
    recipes = bank_recipes(spec, identity)
    base = identity.base

    def read(directory: Path) -> dict[str, Any]:
        threads, memory_bytes = run.worker_count, run.memory_mb << 20
        statistics = scan_texts(
            spec.scan, identity.sources, directory, threads=threads, memory_bytes=memory_bytes, progress=progress
        )
        check_all_unchanged(identity.sources, memo=store.memo)
        return statistics

    if base is None or recipes.added is None or recipes.raw_scan is None:
        return store.build(recipes.scan, read, force=force, progress=progress)
    raw = store.build(recipes.raw_scan, read, force=force, progress=progress).ref

    def drop(directory: Path) -> dict[str, Any]:
        return drop_known(raw.path, store.record(raw).statistics, Path(base.path), directory)

    added = store.build(recipes.added.scan, drop, force=force, progress=progress).ref

    def join(directory: Path) -> dict[str, Any]:
        join_scans(Path(base.path), added.path, directory, shift=len(base.sources))
        return join_statistics(_base_statistics(base, "scan"), store.record(added).statistics)

    return store.build(recipes.scan, join, force=force, progress=progress)


def tokenize(
    spec: BankSpec,
    identity: BankIdentity,
    run: RunOptions,
    *,
    store: ArtifactStore,
    progress: Progress = NULL_PROGRESS,
    force: bool = False,
) -> Built:
    """Turn the distinct texts into token ids. Raises MissingArtifactError if they aren't scanned yet."""
    recipes = bank_recipes(spec, identity)
    inner = recipes.added or recipes
    texts = store.needed(inner.scan)
    count = int(store.record(texts).statistics["distinct"])
    base = identity.base
    if base is not None and not count:
        return store.build(recipes.tokens, lambda directory: _same_tokens(base, directory), force=force, progress=progress)

    def produce(directory: Path) -> dict[str, Any]:
        tokenizer = load_identified(spec.tokenizer_path, identity.tokenizer_sha256, store=store)
        source = texts.path / "texts.jsonl"
        return tokenize_texts(source, count, tokenizer, spec.tokenize, directory, run=run, store=store, progress=progress)

    built = store.build(inner.tokens, produce, force=force, progress=progress)
    if base is None:
        return built

    def join(directory: Path) -> dict[str, Any]:
        join_tokens(Path(base.path), built.ref.path, directory)
        return join_statistics(_base_statistics(base, "tokens"), store.record(built.ref).statistics)

    return store.build(recipes.tokens, join, force=force, progress=progress)


def encode(
    spec: BankSpec,
    identity: BankIdentity,
    run: RunOptions,
    *,
    store: ArtifactStore,
    progress: Progress = NULL_PROGRESS,
    force: bool = False,
) -> EncodeResult:
    """Encode the blocks that `run` asks for and that no earlier run has encoded; the artifact is made once none is missing.

    Several processes may encode different parts of one bank at once. Raises ModelError, PoisonError, MismatchError.
    """
    recipes = bank_recipes(spec, identity)
    base = identity.base
    if base is None or recipes.added is None:
        return _encode_blocks(spec, recipes, run, store=store, progress=progress, force=force)
    if not force and (ref := store.find("features", recipes.features.fingerprint)):
        return EncodeResult(Built(ref, cached=True), read_outcome(ref.path))
    matrix = features_name(spec.encode.store_dtype)
    if not store.record(store.needed(recipes.added.scan)).statistics["distinct"]:
        built = store.build(
            recipes.features, lambda directory: _same_features(base, directory, matrix), force=force, progress=progress
        )
        return EncodeResult(built, read_outcome(built.ref.path))
    result = _encode_blocks(spec, recipes.added, run, store=store, progress=progress, force=force)
    if result.built is None:
        return result
    built = _joined_features(base, recipes, result.built.ref, store=store, progress=progress, force=force, matrix=matrix)
    return EncodeResult(built, read_outcome(built.ref.path))


def _joined_features(
    base: BaseBank,
    recipes: BankRecipes,
    added: ArtifactRef,
    *,
    store: ArtifactStore,
    progress: Progress,
    matrix: str,
    force: bool = False,
) -> Built:
    def join(directory: Path) -> dict[str, Any]:
        join_features(Path(base.path), added.path, directory, matrix=matrix)
        standing = read_outcome(directory).statistics()
        return {**store.record(added).statistics, **standing, "base": _base_statistics(base, "encode")}

    return store.build(recipes.features, join, force=force, progress=progress)


def _encode_blocks(
    spec: BankSpec, recipes: BankRecipes, run: RunOptions, *, store: ArtifactStore, progress: Progress, force: bool
) -> EncodeResult:
    recipe = recipes.features
    if not force and (ref := store.find("features", recipe.fingerprint)):
        return EncodeResult(Built(ref, cached=True), read_outcome(ref.path))
    tokens = store.needed(recipes.tokens)
    with _encode_lease(store, recipe, run, progress):
        with store.lease(recipe.key, progress):  # a process that did the last part may be putting the whole in place
            if not force and (ref := store.find("features", recipe.fingerprint)):
                return EncodeResult(Built(ref, cached=True), read_outcome(ref.path))
            partial = store.partial(recipe, shared=run.part is not None)
        outcome = encode_tokens(
            tokens.path, spec.encode, partial, run=run, progress=progress, identity=recipe.inputs, hash_file=store.memo.sha256
        )
    if outcome.encoded_rows < outcome.text_count:
        return EncodeResult(None, outcome)
    ref = _commit_features(recipe, outcome, store, progress)
    return EncodeResult(Built(ref, cached=False) if ref else None, read_outcome(ref.path) if ref else outcome)


def _commit_features(recipe: Recipe, outcome: EncodeOutcome, store: ArtifactStore, progress: Progress) -> ArtifactRef | None:
    """Make a finished encode the artifact, unless another process did so.

    Returns None where all rows are there but the encode isn't finished: whoever encoded the last rows is at that, or was killed,
    and then the next run does it.
    """
    partial = store.partial_path(recipe)
    with store.lease(recipe.key, progress) as lease:
        state = BlockState.read(partial)
        if state is None:
            return store.needed(recipe)
        with state.finishing():  # until whoever writes the tables has removed all ledgers
            state = BlockState.read(partial)
            if state is None or not state.finished:
                return None
            state.sweep()
        return store.commit(recipe, outcome.statistics(), lease, seconds=outcome.seconds, progress=progress)


def _same_tokens(base: BaseBank, directory: Path) -> dict[str, Any]:
    copy_files(Path(base.path), directory, ("lengths.npy", "token_ids.npy", "token_offsets.npy"))
    return _base_statistics(base, "tokens")


def _same_features(base: BaseBank, directory: Path, matrix: str) -> dict[str, Any]:
    copy_files(Path(base.path), directory, (matrix, "blocks.npy", "blocks.json", "blocks.poison.npy"))
    return _base_statistics(base, "encode")


def _base_statistics(base: BaseBank, step: str) -> dict[str, Any]:
    statistics: dict[str, Any] = read_manifest(Path(base.path))["statistics"][step]
    return statistics


def restart_encode(spec: BankSpec, identity: BankIdentity, run: RunOptions, *, store: ArtifactStore, progress: Progress) -> None:
    """Forget what an interrupted encode left, so that a refresh computes every block."""
    recipes = bank_recipes(spec, identity)
    recipe = (recipes.added or recipes).features
    with _encode_lease(store, recipe, run, progress):
        discard(store.partial(recipe))


def assemble(
    spec: BankSpec,
    identity: BankIdentity,
    run: RunOptions,
    *,
    store: ArtifactStore,
    progress: Progress = NULL_PROGRESS,
    force: bool = False,
) -> Built | None:
    """Write the manifest: the bank artifact, published to `run.output` if that is set.

    Returns None for a bank that lacks rows: it is only published, as a copy that says it is incomplete.
    Raises PoisonError for a bank with poison rows, unless they are allowed.
    """
    recipes = bank_recipes(spec, identity)
    output = Path(run.output) if run.output else None
    finishing = _FINISHING_ATTEMPTS
    while (features := _features(spec, identity, recipes, store, progress)) is None:
        if _all_rows_there(spec, recipes, store):
            # Other parts have done the rest since this process looked: whoever comes first finishes it.
            if not finishing:
                return None
            finishing -= 1
            encode(spec, identity, run, store=store, progress=progress)
            continue
        # An unfinished extension has nothing to show beside its base.
        if output is None or identity.base is not None or _publish_unfinished(spec, identity, run, recipes, store, output):
            return None
    record = store.record(features)
    parts = replace(
        _parts_of(spec, identity, run, recipes, store, features.path, read_outcome(features.path)),
        encoded_files=record.files,
        encoding=record.statistics,
    )
    if not parts.complete:
        raise PoisonError(
            f"bank {spec.name}",
            f"{parts.outcome.poison_rows:,} of {parts.outcome.text_count:,} rows came out as NaN, infinite or beyond float16",
            remedy="Try dtype float32, or set allow_poison to keep the bank with those rows masked.",
        )

    def produce(directory: Path) -> dict[str, Any]:
        clear_partial(directory)
        fill_bank_directory(parts, directory)
        return {"text_count": parts.outcome.text_count, "hidden_size": parts.outcome.hidden_size}

    built = store.build(recipes.bank, produce, force=force, progress=progress)
    if output is not None and publish_folder(replace(parts, assembled=built.ref.path), output):
        store.note_published(built.ref, output.absolute())
    return built


def _features(
    spec: BankSpec, identity: BankIdentity, recipes: BankRecipes, store: ArtifactStore, progress: Progress
) -> ArtifactRef | None:
    """Return the features, None while rows are missing; what other processes have encoded to the end is finished here."""
    if ref := store.find("features", recipes.features.fingerprint):
        return ref
    inner = (recipes.added or recipes).features
    if not store.find("features", inner.fingerprint):
        outcome = read_standing(store.partial_path(inner), allow_poison=spec.encode.allow_poison)
        unfinished = outcome is not None and outcome.encoded_rows < outcome.text_count
        if unfinished or (outcome is not None and _commit_features(inner, outcome, store, progress) is None):
            return None
    ref = store.needed(inner)
    if identity.base is None:
        return ref
    matrix = features_name(spec.encode.store_dtype)
    return _joined_features(identity.base, recipes, ref, store=store, progress=progress, matrix=matrix).ref


def _all_rows_there(spec: BankSpec, recipes: BankRecipes, store: ArtifactStore) -> bool:
    outcome = read_standing(store.partial_path((recipes.added or recipes).features), allow_poison=spec.encode.allow_poison)
    return outcome is not None and outcome.encoded_rows == outcome.text_count


def _publish_unfinished(
    spec: BankSpec, identity: BankIdentity, run: RunOptions, recipes: BankRecipes, store: ArtifactStore, output: Path
) -> bool:
    """Publish a copy of what is encoded so far; return false if other processes have encoded the rest in the meantime."""
    encoded = store.partial_path(recipes.features)
    outcome = read_standing(encoded, allow_poison=spec.encode.allow_poison)
    if outcome is None:
        return False
    if not outcome.encoded_rows:
        return True  # nothing to show yet
    if outcome.encoded_rows == outcome.text_count:
        return False
    try:
        publish_folder(_parts_of(spec, identity, run, recipes, store, encoded, outcome), output)
    except EncodeMovedError:
        return False
    except ArtifactError:
        if store.find("features", recipes.features.fingerprint) is None:
            raise
        return False  # the finished bank is there already
    return True


def _parts_of(
    spec: BankSpec,
    identity: BankIdentity,
    run: RunOptions,
    recipes: BankRecipes,
    store: ArtifactStore,
    encoded: Path,
    outcome: EncodeOutcome,
) -> BankParts:
    return BankParts(
        spec=spec,
        run=run,
        sources=all_sources(identity),
        fingerprints=recipes.fingerprints,
        contents={
            "tokenizer": {"sha256": identity.tokenizer_sha256, "path": spec.tokenizer_path},
            "model": {"sha256": identity.model_sha256, "path": spec.encode.model.path},
        },
        scan=store.needed(recipes.scan).path,
        tokens=store.needed(recipes.tokens).path,
        encoded=encoded,
        encoded_files={},
        outcome=outcome,
        encoding=outcome.statistics(),
    )


@contextmanager
def _encode_lease(store: ArtifactStore, recipe: Recipe, run: RunOptions, progress: Progress) -> Iterator[None]:
    """One process a part; a run of the whole and runs of its parts, or of other parts, exclude each other.

    Each takes its own lease before it looks for the others', so of two that start at once at most one goes on.
    """
    whole = f"{recipe.key}.whole"
    mine = whole if run.part is None else f"{recipe.key}.part-{run.part}-of-{run.parts}"
    with store.lease(mine, progress):
        for path in store.lease_path(whole).parent.glob(f"{recipe.key}.*.lease"):
            compatible = run.part is not None and path.stem.endswith(f"-of-{run.parts}")
            if path.stem != mine and not compatible and is_held(path):
                raise LeaseHeldError(
                    recipe.key,
                    f"is being encoded by another process ({path.stem.removeprefix(recipe.key + '.')})",
                    remedy="Wait until it is done: work that is finished is never done twice.",
                )
        yield
