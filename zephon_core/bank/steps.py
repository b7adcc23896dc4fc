"""The steps of a feature bank, each a function from fingerprints to an artifact.

    identify → scan → tokenize → encode → assemble

Once the inputs are identified every fingerprint is known, before any work is done. A step whose artifact is in the store
returns it; the others make it, one process at a time. Both the command line and the Prefect tasks call these functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from zephon_core.bank.encode import ENCODE_VERSION, EncodeOutcome, encode_tokens, read_outcome
from zephon_core.bank.publish import BankParts, fill_bank_directory, publish_folder
from zephon_core.bank.scan import SCAN_VERSION, scan_texts
from zephon_core.bank.specs import BankSpec, RunOptions
from zephon_core.bank.tokenize import TOKENS_VERSION, tokenize_texts
from zephon_core.errors import LeaseHeldError, MissingArtifactError, PoisonError
from zephon_core.fingerprint import fingerprint
from zephon_core.locks import is_held
from zephon_core.models import model_content_sha256
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.readers.sources import Source, check_unchanged, resolve_sources
from zephon_core.store import RECIPE_NAME, ArtifactRef, ArtifactStore, Built, Recipe, discard
from zephon_core.tokenizers import Tokenizer, load_tokenizer

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

BANK_VERSION = 1


class BankIdentity(BaseModel):
    """What a bank's inputs are, by content."""

    model_config = ConfigDict(frozen=True)

    sources: tuple[Source, ...]
    tokenizer_sha256: str
    model_sha256: str


@dataclass(frozen=True)
class BankRecipes:
    """The four artifacts of a bank, known by name before they are made."""

    scan: Recipe
    tokens: Recipe
    features: Recipe
    bank: Recipe

    @property
    def fingerprints(self) -> dict[str, str]:
        """The four fingerprints, by step."""
        return {name: recipe.fingerprint for name, recipe in vars(self).items()}


@dataclass(frozen=True)
class EncodeResult:
    """The features artifact, None while rows are missing, and what the ledger says is there."""

    built: Built | None
    outcome: EncodeOutcome


def identify(spec: BankSpec, *, store: ArtifactStore, progress: Progress = NULL_PROGRESS) -> BankIdentity:
    """Hash the content of sources, tokenizer and model; files whose size, inode and times are known are not read again.

    Raises InputError, TokenizerError or ModelError for what can't be read.
    """
    sources = resolve_sources(spec.scan.sources, memo=store.memo, progress=progress)
    return BankIdentity(
        sources=sources,
        tokenizer_sha256=_tokenizer(spec).content_sha256,
        model_sha256=model_content_sha256(spec.encode.model, hash_file=store.memo.sha256),
    )


def bank_recipes(spec: BankSpec, identity: BankIdentity) -> BankRecipes:
    """Work out every fingerprint of a bank; pure and instant."""
    sources = [{"sha256": s.sha256, "format": s.format, "compression": s.compression} for s in identity.sources]
    scan_spec: dict[str, Any] = spec.scan.model_dump(mode="json", exclude={"sources"})
    scan_recipe = Recipe(
        "scan",
        fingerprint("scan", SCAN_VERSION, sources=sources, spec=scan_spec),
        {f"source {number}": source.sha256 for number, source in enumerate(identity.sources)},
        scan_spec,
    )
    token_spec = {"max_key_tokens": spec.tokenize.max_key_tokens}
    token_inputs = {"scan": scan_recipe.fingerprint, "tokenizer": identity.tokenizer_sha256}
    token_recipe = Recipe(
        "tokens", fingerprint("tokens", TOKENS_VERSION, inputs=token_inputs, spec=token_spec), token_inputs, token_spec
    )
    encode_spec = spec.encode.model_dump(mode="json", exclude={"allow_poison": True, "model": {"path"}})
    encode_inputs = {"tokens": token_recipe.fingerprint, "model": identity.model_sha256}
    features_recipe = Recipe(
        "features", fingerprint("features", ENCODE_VERSION, inputs=encode_inputs, spec=encode_spec), encode_inputs, encode_spec
    )
    bank_spec = {
        "names": [source.name for source in identity.sources],
        "write_index": spec.write_index,
        "allow_poison": spec.encode.allow_poison,
    }
    bank_inputs = {recipe.kind: recipe.fingerprint for recipe in (scan_recipe, token_recipe, features_recipe)}
    bank_recipe = Recipe("bank", fingerprint("bank", BANK_VERSION, inputs=bank_inputs, spec=bank_spec), bank_inputs, bank_spec)
    return BankRecipes(scan_recipe, token_recipe, features_recipe, bank_recipe)


def scan(
    spec: BankSpec,
    identity: BankIdentity,
    run: RunOptions,
    *,
    store: ArtifactStore,
    progress: Progress = NULL_PROGRESS,
    force: bool = False,
) -> Built:
    """Collect the distinct texts of the sources. Raises InputError, BadRowError, SourceChangedError."""

    def produce(directory: Path) -> dict[str, Any]:
        statistics = scan_texts(
            spec.scan,
            identity.sources,
            directory,
            threads=run.worker_count,
            memory_bytes=run.memory_mb << 20,
            progress=progress,
        )
        for source in identity.sources:
            check_unchanged(source, memo=store.memo)
        return statistics

    return store.build(bank_recipes(spec, identity).scan, produce, force=force, progress=progress)


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
    texts = _needed(store, recipes.scan)
    count = int(store.record(texts).statistics["distinct"])

    def produce(directory: Path) -> dict[str, Any]:
        return tokenize_texts(
            texts.path / "texts.jsonl", count, _tokenizer(spec), spec.tokenize, directory, run=run, progress=progress
        )

    return store.build(recipes.tokens, produce, force=force, progress=progress)


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
    if not force and (ref := store.find("features", recipes.features.fingerprint)):
        return EncodeResult(Built(ref, cached=True), read_outcome(ref.path))
    tokens = _needed(store, recipes.tokens)
    with _encode_lease(store, recipes.features, run, progress):
        if not force and (ref := store.find("features", recipes.features.fingerprint)):
            return EncodeResult(Built(ref, cached=True), read_outcome(ref.path))
        partial = store.partial(recipes.features)
        outcome = encode_tokens(tokens.path, spec.encode, partial, run=run, progress=progress, identity=recipes.features.inputs)
    if outcome.encoded_rows < outcome.text_count:
        return EncodeResult(None, outcome)
    with store.lease(recipes.features.key, progress) as lease:
        if partial.exists():
            store.commit(recipes.features, asdict(outcome), lease, seconds=outcome.seconds, progress=progress)
    return EncodeResult(Built(_needed(store, recipes.features), cached=False), outcome)


def restart_encode(spec: BankSpec, identity: BankIdentity, run: RunOptions, *, store: ArtifactStore, progress: Progress) -> None:
    """Forget what an interrupted encode left, so that a refresh computes every block."""
    recipe = bank_recipes(spec, identity).features
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
    parts = _bank_parts(spec, identity, run, recipes, store)
    output = Path(run.output) if run.output else None
    if parts.outcome.encoded_rows < parts.outcome.text_count:
        if output is not None:
            publish_folder(parts, output)
        return None
    if not parts.complete:
        raise PoisonError(
            f"bank {spec.name}",
            f"{parts.outcome.poison_rows:,} of {parts.outcome.text_count:,} rows came out as NaN, infinite or beyond float16",
            remedy="Try dtype float32, or set allow_poison to keep the bank with those rows masked.",
        )

    def produce(directory: Path) -> dict[str, Any]:
        for leftover in directory.iterdir():
            if leftover.name != RECIPE_NAME:
                leftover.unlink()
        fill_bank_directory(parts, directory)
        return {"text_count": parts.outcome.text_count, "hidden_size": parts.outcome.hidden_size}

    built = store.build(recipes.bank, produce, force=force, progress=progress)
    if output is not None and publish_folder(replace(parts, assembled=built.ref.path), output):
        store.note_published(built.ref, output.absolute())
    return built


def _bank_parts(spec: BankSpec, identity: BankIdentity, run: RunOptions, recipes: BankRecipes, store: ArtifactStore) -> BankParts:
    scan_ref = _needed(store, recipes.scan)
    tokens_ref = _needed(store, recipes.tokens)
    features_ref = store.find("features", recipes.features.fingerprint)
    if features_ref:
        record = store.record(features_ref)
        encoded, files, encoding = features_ref.path, record.files, {**record.statistics, "seconds": record.seconds}
    else:
        encoded = store.partial_path(recipes.features)
        files, encoding = {}, asdict(read_outcome(encoded))
    return BankParts(
        spec=spec,
        run=run,
        sources=identity.sources,
        fingerprints=recipes.fingerprints,
        contents={
            "tokenizer": {"sha256": identity.tokenizer_sha256, "path": spec.tokenizer_path},
            "model": {"sha256": identity.model_sha256, "path": spec.encode.model.path},
        },
        scan=scan_ref.path,
        tokens=tokens_ref.path,
        encoded=encoded,
        encoded_files=files,
        outcome=read_outcome(encoded),
        encoding=encoding,
    )


def _needed(store: ArtifactStore, recipe: Recipe) -> ArtifactRef:
    ref = store.find(recipe.kind, recipe.fingerprint)
    if ref is None:
        raise MissingArtifactError(str(store.root), f"holds no valid {recipe.key}", remedy="Run the steps before this one first.")
    return ref


def _tokenizer(spec: BankSpec) -> Tokenizer:
    return load_tokenizer(spec.tokenizer_path)


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
