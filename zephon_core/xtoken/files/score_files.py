"""A teacher's scores as artifacts of the store, and as a column of Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zephon_core.blocks import TokenRows, record_of
from zephon_core.blocks.tokens import TOKEN_FILES
from zephon_core.errors import InputError, SpecError, TokenizerError
from zephon_core.models import read_model_folder
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.readers.sources import Source
from zephon_core.store import ArtifactRef, ArtifactStore, Built, Recipe, discard
from zephon_core.tokenizers import identify_tokenizer, load_identified, load_tokenizer
from zephon_core.xtoken.files.parquet_rows import urls_of
from zephon_core.xtoken.score import ScoreRun, ScoreSpec, score_tokens
from zephon_core.xtoken.score.score import SCORE_VERSION
from zephon_core.xtoken.vocabulary import ABSENT, ADDED, UNKNOWN, Vocabulary, tabulate

__all__ = ["build_scores", "check_vocabulary", "forget_scores", "scores_recipe"]

_MODEL = "model"


def scores_recipe(kind: str, tokens: Mapping[str, str], model_sha256: str, spec: ScoreSpec) -> Recipe:
    """Name the scores of some tokens by content. tokens: the identities that decide them."""
    settings: dict[str, Any] = spec.model_dump(mode="json", exclude={"model": {"path"}})
    return Recipe.made_of(kind, SCORE_VERSION, {**tokens, _MODEL: model_sha256}, settings)


def build_scores(
    recipe: Recipe,
    tokens: ArtifactRef,
    spec: ScoreSpec,
    run: ScoreRun,
    *,
    sources: Sequence[Source],
    unknown: Callable[[int, int], Exception],
    store: ArtifactStore,
    progress: Progress = NULL_PROGRESS,
    force: bool = False,
) -> Built:
    """Score the sequences of `tokens`; what an interrupted run has scored isn't scored again.

    sources: what they come from. unknown: makes the error for an id that the model has not, from the place where it stands in
    all ids, and how many the model knows. Raises it; InputError where there is nothing to score; what `score_tokens` does.
    """
    identity = {"tokens": store.record(tokens).files[TOKEN_FILES[0]].sha256, "model": recipe.inputs[_MODEL]}

    def produce(directory: Path) -> dict[str, Any]:
        ids = TokenRows(tokens.path).ids
        if not len(ids):
            found = f"hold{'s' if len(sources) == 1 else ''} no token that the teacher could score"
            raise InputError(urls_of(sources), found, wanted="one row with tokens, at least")
        known = read_model_folder(spec.model.path).vocabulary_size
        if known and int(ids.max()) >= known:
            raise unknown(int(np.argmax(ids >= known)), known)
        hashed = store.memo.sha256
        scored = score_tokens(tokens.path, spec, directory, run=run, progress=progress, identity=identity, hash_file=hashed)
        return record_of(scored)

    return store.build(recipe, produce, force=force, progress=progress)


def check_vocabulary(spec: ScoreSpec, teacher: str, teacher_sha256: str, *, store: ArtifactStore) -> None:
    """Raise SpecError where the model's folder holds a tokenizer of another vocabulary than the teacher's.

    Other files, other added tokens and another unknown one make no other vocabulary. A folder without tokenizer is believed.
    """
    try:
        if identify_tokenizer(spec.model.path, store) == teacher_sha256:
            return
        own = tabulate(load_tokenizer(spec.model.path, store=store))
    except TokenizerError:
        return
    mine = tabulate(load_identified(teacher, teacher_sha256, store=store))
    number = _first_difference(mine, own)
    if number is not None:
        there = repr(_bytes(own, number)) if number < len(own) and own.kinds[number] != ABSENT else "none"
        found = f"is {spec.model.path}, whose tokenizer has another vocabulary than {teacher}: token {number} is {there}"
        wanted = f"{_bytes(mine, number)!r}, as the teacher's tokenizer has it"
        remedy = "Name the model that goes with the teacher's tokenizer, or that model's tokenizer as the teacher's."
        raise SpecError("score.model", found, wanted=wanted, remedy=remedy)


def _first_difference(mine: Vocabulary, own: Vocabulary) -> int | None:
    """Return the first token of `mine` that is other bytes in `own`, or isn't there; None if there is none."""
    kinds = np.full(len(mine), ABSENT, dtype=np.uint8)
    shared = min(len(mine), len(own))
    kinds[:shared] = own.kinds[:shared]
    judged = (mine.kinds != ABSENT) & (mine.kinds != UNKNOWN) & (kinds != UNKNOWN)
    judged &= ~((mine.kinds == ADDED) & ((kinds == ADDED) | (kinds == ABSENT)))
    numbers = np.flatnonzero(judged).tolist()
    return next((each for each in numbers if kinds[each] == ABSENT or _bytes(mine, each) != _bytes(own, each)), None)


def _bytes(vocabulary: Vocabulary, number: int) -> bytes:
    return vocabulary.blob[vocabulary.offsets[number] : vocabulary.offsets[number + 1]].tobytes()


def forget_scores(recipe: Recipe, *, store: ArtifactStore, progress: Progress = NULL_PROGRESS) -> None:
    """Remove what an interrupted scoring left, so that a refresh scores every block."""
    with store.lease(recipe.key, progress):
        discard(store.partial_path(recipe))
