"""A teacher's scores as artifacts of the store, and as a column of Parquet files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zephon_core.blocks.tokens import TOKEN_FILES
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.store import ArtifactRef, ArtifactStore, Built, Recipe, discard
from zephon_core.xtoken.score import ScoreRun, ScoreSpec, score_tokens
from zephon_core.xtoken.score.score import SCORE_VERSION

__all__ = ["build_scores", "forget_scores", "scores_recipe"]

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
    store: ArtifactStore,
    progress: Progress = NULL_PROGRESS,
    force: bool = False,
) -> Built:
    """Score the sequences of `tokens`; what an interrupted run has scored isn't scored again. Raises what `score_tokens` does."""
    identity = {"tokens": store.record(tokens).files[TOKEN_FILES[0]].sha256, "model": recipe.inputs[_MODEL]}

    def produce(directory: Path) -> dict[str, Any]:
        hashed = store.memo.sha256
        return asdict(score_tokens(tokens.path, spec, directory, run=run, progress=progress, identity=identity, hash_file=hashed))

    return store.build(recipe, produce, force=force, progress=progress)


def forget_scores(recipe: Recipe, *, store: ArtifactStore, progress: Progress = NULL_PROGRESS) -> None:
    """Remove what an interrupted scoring left, so that a refresh scores every block."""
    with store.lease(recipe.key, progress):
        discard(store.partial_path(recipe))
