"""What a bank is made from, by content, and the fingerprints that follow from it before any work is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from zephon_core.bank.encode import ENCODE_VERSION
from zephon_core.bank.manifest import manifest_spec
from zephon_core.bank.reader import FeatureBank
from zephon_core.bank.scan import SCAN_VERSION
from zephon_core.bank.specs import BankSpec, EncodeSpec
from zephon_core.bank.tokens import TOKENS_VERSION
from zephon_core.errors import MismatchError, MissingArtifactError
from zephon_core.fingerprint import fingerprint
from zephon_core.models import model_content_sha256
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.readers.sources import Source, resolve_sources
from zephon_core.store import ArtifactStore, Recipe
from zephon_core.tokenizers import identify_tokenizer

__all__ = ["BankIdentity", "BankRecipes", "BaseBank", "all_sources", "bank_recipes", "identify", "read_base"]

BANK_VERSION = 1
EXTEND_VERSION = 1


class BaseBank(BaseModel):
    """A bank that is extended: where it is, and what it is by content. sources: all that it was made from."""

    model_config = ConfigDict(frozen=True)

    path: str
    fingerprints: dict[str, str]
    sources: tuple[Source, ...]


class BankIdentity(BaseModel):
    """What a bank's inputs are, by content. With a base, `sources` are those that it wasn't made from yet."""

    model_config = ConfigDict(frozen=True)

    sources: tuple[Source, ...]
    tokenizer_sha256: str
    model_sha256: str
    base: BaseBank | None = None

    @property
    def is_current(self) -> bool:
        """Whether there is nothing to do: the base was made from all sources already."""
        return self.base is not None and not self.sources


@dataclass(frozen=True)
class BankRecipes:
    """The artifacts of a bank, known by name before they are made.

    added: where a base is extended, those of the texts that it lacks; and raw_scan, that of the new sources as they are.
    """

    scan: Recipe
    tokens: Recipe
    features: Recipe
    bank: Recipe
    added: BankRecipes | None = None
    raw_scan: Recipe | None = None

    @property
    def fingerprints(self) -> dict[str, str]:
        """The four fingerprints, by step."""
        return {name: getattr(self, name).fingerprint for name in ("scan", "tokens", "features", "bank")}


def identify(spec: BankSpec, *, store: ArtifactStore, progress: Progress = NULL_PROGRESS) -> BankIdentity:
    """Hash the content of sources, tokenizer and model; files whose size, inode and times are known are not read again.

    Raises InputError, TokenizerError or ModelError for what can't be read, MismatchError for a base of other settings.
    """
    sources = resolve_sources(spec.scan.sources, memo=store.memo, progress=progress)
    identity = BankIdentity(
        sources=sources,
        tokenizer_sha256=identify_tokenizer(spec.tokenizer_path, store),
        model_sha256=model_content_sha256(spec.encode.model, hash_file=store.memo.sha256),
    )
    if not spec.base:
        return identity
    base = read_base(spec, identity)
    if base is None:
        progress.note(f"{spec.base} holds no bank yet: one is begun")
        return identity
    known = {(source.sha256, source.format, source.compression) for source in base.sources}
    new = tuple(source for source in sources if (source.sha256, source.format, source.compression) not in known)
    return identity.model_copy(update={"sources": new, "base": base})


def read_base(spec: BankSpec, identity: BankIdentity) -> BaseBank | None:
    """Read the bank that `spec.base` names, None if there is none.

    Raises MismatchError, naming the difference, if it was made otherwise than `spec` says; IncompleteBankError if it lacks rows.
    """
    try:
        manifest = FeatureBank.open(spec.base).manifest
    except MissingArtifactError:
        return None
    encode = manifest_spec(manifest, spec.base).encode
    pairs = {
        "tokenizer": (manifest["tokenizer"]["sha256"], identity.tokenizer_sha256),
        "model": (manifest["model"]["sha256"], identity.model_sha256),
        "max_key_tokens": (manifest["max_key_tokens"], spec.tokenize.max_key_tokens),
        "encode settings": (_encode_settings(encode), _encode_settings(spec.encode)),
    }
    for name, (before, now) in pairs.items():
        if before != now:
            raise MismatchError(
                spec.base, f"was made with {name} {before}, and now it is {now}", remedy="Extend it as it was made, or build anew."
            )
    sources = tuple(Source(**{key: source[key] for key in Source.__dataclass_fields__}) for source in manifest["sources"])
    return BaseBank(path=str(Path(spec.base).absolute()), fingerprints=manifest["fingerprints"], sources=sources)


def bank_recipes(spec: BankSpec, identity: BankIdentity) -> BankRecipes:
    """Work out every fingerprint of a bank; pure and instant."""
    raw_scan = _scan_recipe(spec, identity.sources)
    base = identity.base
    if base is None:
        return _recipes_behind(spec, identity, raw_scan)
    added = _recipes_behind(spec, identity, _joined("scan", "added", base.fingerprints["scan"], raw_scan))
    scan = _joined("scan", "joined", base.fingerprints["scan"], added.scan)
    tokens = _joined("tokens", "joined", base.fingerprints["tokens"], added.tokens)
    features = _joined("features", "joined", base.fingerprints["features"], added.features)
    bank = _bank_recipe(spec, identity, scan, tokens, features)
    return BankRecipes(scan, tokens, features, bank, added=added, raw_scan=raw_scan)


def _recipes_behind(spec: BankSpec, identity: BankIdentity, scan_recipe: Recipe) -> BankRecipes:
    token_spec = {"max_key_tokens": spec.tokenize.max_key_tokens}
    token_inputs = {"scan": scan_recipe.fingerprint, "tokenizer": identity.tokenizer_sha256}
    tokens = Recipe.made_of("tokens", TOKENS_VERSION, token_inputs, token_spec)
    encode_inputs = {"tokens": tokens.fingerprint, "model": identity.model_sha256}
    features = Recipe.made_of("features", ENCODE_VERSION, encode_inputs, _encode_settings(spec.encode))
    return BankRecipes(scan_recipe, tokens, features, _bank_recipe(spec, identity, scan_recipe, tokens, features))


def _scan_recipe(spec: BankSpec, sources: Sequence[Source]) -> Recipe:
    contents = [{"sha256": s.sha256, "format": s.format, "compression": s.compression} for s in sources]
    scan_spec: dict[str, Any] = spec.scan.model_dump(mode="json", exclude={"sources"})
    inputs = {f"source {number}": source.sha256 for number, source in enumerate(sources)}
    return Recipe("scan", fingerprint("scan", SCAN_VERSION, sources=contents, spec=scan_spec), inputs, scan_spec)


def _joined(kind: str, how: str, base_print: str, added: Recipe) -> Recipe:
    inputs = {"base": base_print, "added": added.fingerprint}
    return Recipe(kind, fingerprint(f"{kind} {how}", EXTEND_VERSION, inputs=inputs), inputs, added.spec)


def _bank_recipe(spec: BankSpec, identity: BankIdentity, *steps: Recipe) -> Recipe:
    bank_spec = {
        "names": [source.name for source in all_sources(identity)],
        "write_index": spec.write_index,
        "allow_poison": spec.encode.allow_poison,
    }
    inputs = {recipe.kind: recipe.fingerprint for recipe in steps}
    return Recipe.made_of("bank", BANK_VERSION, inputs, bank_spec)


def _encode_settings(encode: EncodeSpec) -> dict[str, Any]:
    return encode.model_dump(mode="json", exclude={"allow_poison": True, "model": {"path"}})


def all_sources(identity: BankIdentity) -> tuple[Source, ...]:
    """Return all sources of a bank, the base's first."""
    return (*(identity.base.sources if identity.base else ()), *identity.sources)
