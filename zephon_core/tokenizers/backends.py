"""Which encoder turns texts into ids in bulk: the tokenizers library, or a faster one that is proved to give the same ids.

A faster encoder is used only if its structure fits, it gives the same ids on every text of a probe that covers Unicode, the
vocabulary and special tokens (`probe_texts`), and goes on to do so on a sample of the texts themselves (its user's part).
"""

from __future__ import annotations

import itertools
import tempfile
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from zephon_core.errors import MissingExtraError, SpecError, TokenizerError
from zephon_core.fingerprint import fingerprint
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.store import ArtifactStore, Recipe, package_versions
from zephon_core.tokenizers.huggingface import Backend, HuggingFaceBackend, serial_encoding
from zephon_core.tokenizers.probe import PROBE_VERSION, probe_texts
from zephon_core.tokenizers.quicktok_backend import IMPORT_VERSION, QuicktokBackend, import_into

if TYPE_CHECKING:
    from zephon_core.tokenizers.load import Tokenizer

__all__ = ["ChosenBackend", "TokenizerBackend", "choose_backend"]

_LIBRARIES = ("tokenizers", "quicktok-v1")
_PROBE_BATCH_TEXTS = 2000
_WORTH_A_PROOF_BYTES = 32 << 20
_WORTH_LOADING_BYTES = 4 << 20
_TOO_LITTLE = "too little text for a faster backend to pay off"


class TokenizerBackend(StrEnum):
    """What encodes texts in bulk. All give the same ids.

    auto: the fastest one that is proved identical for the tokenizer, where the proof exists or there is enough text for it.
    """

    AUTO = "auto"
    HUGGINGFACE = "huggingface"
    QUICKTOK = "quicktok"


class ChosenBackend(NamedTuple):
    """A backend, in words why this one, and whether a faster one was tried and found unfit."""

    backend: Backend
    reason: str
    fell_back: bool = False


def choose_backend(
    tokenizer: Tokenizer,
    requested: str,
    *,
    text_bytes: int,
    threads: int,
    store: ArtifactStore | None = None,
    progress: Progress = NULL_PROGRESS,
) -> ChosenBackend:
    """Pick what encodes `text_bytes` of texts with this tokenizer, on `threads` threads.

    requested: one of `TokenizerBackend`. auto falls back to huggingface, and says why; a backend asked for by name that can't be
    used, or is found to give other ids, raises MissingExtraError or TokenizerError.
    store: where the proof of a faster backend is kept, and found again; it takes some seconds.
    """
    if requested not in set(TokenizerBackend):
        raise SpecError("tokenizer_backend", f"is {requested!r}", wanted=" or ".join(TokenizerBackend))
    reference = HuggingFaceBackend(tokenizer.huggingface)
    if requested == TokenizerBackend.HUGGINGFACE:
        return ChosenBackend(reference, "as asked")
    if requested == TokenizerBackend.AUTO and text_bytes < _WORTH_LOADING_BYTES:
        return ChosenBackend(reference, _TOO_LITTLE)
    recipe = _quicktok_recipe(tokenizer)
    proved = store is not None and store.find(recipe.kind, recipe.fingerprint) is not None
    worthwhile_bytes = _WORTH_LOADING_BYTES if proved else _WORTH_A_PROOF_BYTES * threads
    if requested == TokenizerBackend.AUTO and text_bytes < worthwhile_bytes:
        return ChosenBackend(reference, _TOO_LITTLE)

    def produce(folder: Path) -> dict[str, int]:
        import_into(folder, tokenizer)
        return {"probe_texts": _verify(QuicktokBackend(tokenizer, reference, folder), reference, tokenizer, threads)}

    try:
        if store is not None:
            quicktok = QuicktokBackend(tokenizer, reference, store.build(recipe, produce, progress=progress).ref.path)
        else:
            with tempfile.TemporaryDirectory() as folder:
                produce(Path(folder))
                quicktok = QuicktokBackend(tokenizer, reference, Path(folder))
    except (MissingExtraError, TokenizerError) as error:
        if requested == TokenizerBackend.AUTO:
            subject = "quicktok" if isinstance(error, MissingExtraError) else "the tokenizer"
            return ChosenBackend(reference, f"{subject} {error.found}", fell_back=True)
        raise
    return ChosenBackend(quicktok, "gives the ids of the Hugging Face encoder on every text of the probe")


def _quicktok_recipe(tokenizer: Tokenizer) -> Recipe:
    """Describe the proof that quicktok serves a tokenizer. It holds for these versions of the libraries alone."""
    versions = {name: version for name, version in package_versions(*_LIBRARIES).items() if name in _LIBRARIES}
    inputs = {"tokenizer": tokenizer.content_sha256}
    spec = {"backend": "quicktok", "probe": PROBE_VERSION, "unicode": unicodedata.unidata_version, "versions": versions}
    return Recipe("encoder", fingerprint("encoder", IMPORT_VERSION, inputs=inputs, spec=spec), inputs, spec)


def _verify(backend: Backend, reference: Backend, tokenizer: Tokenizer, threads: int) -> int:
    """Compare a backend with the reference on the probe, and return the number of texts. Raises TokenizerError on other ids."""

    def compare(texts: list[str]) -> tuple[list[str], tuple[int, int] | None]:
        return texts, backend.encode(texts).first_difference(reference.encode(texts))

    count = 0
    with serial_encoding(), ThreadPoolExecutor(threads) as executor:
        probe = probe_texts(tokenizer.definition())
        for texts, difference in executor.map(compare, iter(lambda: list(itertools.islice(probe, _PROBE_BATCH_TEXTS)), [])):
            if difference is not None:
                executor.shutdown(wait=False, cancel_futures=True)
                text, position = difference
                found = f"{backend.name} gives other ids than huggingface for {texts[text][:80]!r}, first at token {position}"
                raise TokenizerError(tokenizer.origin, found, remedy="Set tokenizer_backend: huggingface.")
            count += len(texts)
    return count
