"""From sequences of a teacher's token ids to its logprobs of them: Parquet in, Parquet out.

    identify → tokens → score → logprobs

Steps as in `zephon_core.xtoken.steps`. What comes out is what advantages take as the teacher's logprobs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from zephon_core.blocks import TokenRowsWriter
from zephon_core.errors import BadRowError, SourceChangedError, SpecError
from zephon_core.models import model_content_sha256, read_model_folder
from zephon_core.models.encoder import check_device
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.publish import PublishedKind
from zephon_core.readers.sources import Source, check_all_unchanged, resolve_sources
from zephon_core.store import ArtifactStore, Built, Recipe, build_in_order, clear_partial
from zephon_core.xtoken.datums import check_list_column, row_and_position
from zephon_core.xtoken.files import LOGPROBS_COLUMN, build_scores, forget_scores, scores_recipe
from zephon_core.xtoken.files.parquet_rows import ParquetRows, bad_columns, bad_rows, list_array, parquet_writer
from zephon_core.xtoken.score import open_scores
from zephon_core.xtoken.specs import ChunkAdvantagesRun, ScoreSequencesSpec

__all__ = ["LOGPROBS_NAME", "MANIFEST_NAME", "SequencesResult", "score_sequence_files"]

LOGPROBS_NAME = "logprobs.parquet"
MANIFEST_NAME = "teacher_logprobs.json"

TOKENS_VERSION = 1
LOGPROBS_VERSION = 2

_COLUMNS = ("teacher_tokens", "tokens")
_LOGPROBS = PublishedKind(MANIFEST_NAME, "logprobs")


class SequencesIdentity(BaseModel):
    """What logprobs are made from, by content. column: the one that holds the ids."""

    model_config = ConfigDict(frozen=True)

    sources: tuple[Source, ...]
    column: str
    model_sha256: str


@dataclass(frozen=True)
class SequencesRecipes:
    """The artifacts, known by name before they are made."""

    tokens: Recipe
    score: Recipe
    logprobs: Recipe


@dataclass(frozen=True)
class SequencesResult:
    """What scoring has come to.

    output: the folder that holds logprobs.parquet, where it was published or else in the store. poison: sequences that came out
    as NaN or infinite, by reason; their logprobs are null. forward: what ran the model. receipt: how far a probe is from plain
    float32, in nats. cached, seconds: by step.
    """

    output: str
    fingerprint: str
    sequences: int
    tokens: int
    poison: dict[str, int]
    forward: str
    receipt: dict[str, Any] | None
    cached: dict[str, bool] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values."""
        return dict(vars(self))


def identify(spec: ScoreSequencesSpec, *, store: ArtifactStore, progress: Progress = NULL_PROGRESS) -> SequencesIdentity:
    """Hash the content of sequences and model. Raises InputError for files without sequences, ModelError.

    What a glance tells is told before anything is hashed.
    """
    _column(ParquetRows.peek(spec.sequences))
    read_model_folder(spec.score.model.path)
    sources = resolve_sources(spec.sequences, memo=store.memo, progress=progress)
    rows = ParquetRows.open(sources)
    column = _column(rows)
    rows.check_free(LOGPROBS_COLUMN)
    model_sha256 = model_content_sha256(spec.score.model, hash_file=store.memo.sha256)
    return SequencesIdentity(sources=sources, column=column, model_sha256=model_sha256)


def _column(rows: ParquetRows) -> str:
    """Name the column that holds the sequences."""
    with bad_columns(rows):
        columns = [name for name in _COLUMNS if name in rows.schema.names]
        if len(columns) != 1:
            found = f"have {'both columns' if columns else 'no column'} {_COLUMNS[0]} {'and' if columns else 'or'} {_COLUMNS[1]}"
            raise SpecError("sequences", found, wanted="one of them, with lists of the teacher's token ids")
        check_list_column(rows.schema, columns[0], whole=True)
    return columns[0]


def sequences_recipes(spec: ScoreSequencesSpec, identity: SequencesIdentity) -> SequencesRecipes:
    """Work out every fingerprint; pure and instant."""
    inputs = {f"sequences {number}": source.sha256 for number, source in enumerate(identity.sources)}
    tokens = Recipe.made_of("token_rows", TOKENS_VERSION, inputs, {"column": identity.column})
    scored = scores_recipe("token_scores", {tokens.kind: tokens.fingerprint}, identity.model_sha256, spec.score)
    logprobs = Recipe.made_of("token_logprobs", LOGPROBS_VERSION, {**inputs, scored.kind: scored.fingerprint}, {})
    return SequencesRecipes(tokens, scored, logprobs)


def score_sequence_files(
    spec: ScoreSequencesSpec, run: ChunkAdvantagesRun | None = None, *, progress: Progress = NULL_PROGRESS
) -> SequencesResult:
    """Score the sequences and write their files again with the logprobs, published to `run.output` if that is set.

    logprobs.parquet has the rows of the files in order, all their columns, and teacher_logprobs: null for the first token, which
    nothing precedes, and throughout for a sequence that came out as NaN or infinite. Steps that are done already come from the
    store; interrupted anywhere, the same call goes on where it was. Raises BadRowError, InputError, ModelError, SpecError.
    """
    run = run or ChunkAdvantagesRun()
    if run.output:
        _LOGPROBS.check_output(run.output)
    check_device(run.device)
    store = ArtifactStore(run.store)
    identity = identify(spec, store=store, progress=progress)
    recipes = sequences_recipes(spec, identity)
    if run.refresh:
        forget_scores(recipes.score, store=store, progress=progress)
    steps: dict[str, Callable[[], Built]] = {
        "tokens": lambda: _tokens(identity, recipes, run, store, progress),
        "score": lambda: build_scores(
            *(recipes.score, store.needed(recipes.tokens), spec.score, run.scoring()),
            sources=identity.sources,
            unknown=lambda place, known: _unknown_id(identity, place, known, spec.score.model.path),
            store=store,
            progress=progress,
            force=run.refresh,
        ),
        "logprobs": lambda: _logprobs(identity, recipes, run, store, progress),
    }
    cached, seconds = build_in_order(steps)
    logprobs = store.needed(recipes.logprobs)
    if run.output:
        folder = str(_LOGPROBS.publish(store, spec.name, {"logprobs": logprobs}, Path(run.output)))
    scored = store.record(store.needed(recipes.score)).statistics
    counted = store.record(store.needed(recipes.tokens)).statistics
    return SequencesResult(
        output=folder if run.output else logprobs.url,
        fingerprint=logprobs.fingerprint,
        sequences=counted["sequences"],
        tokens=counted["tokens"],
        poison=scored["poison"],
        forward=scored["forward"],
        receipt=scored["receipt"],
        cached=cached,
        seconds=seconds,
    )


def _tokens(
    identity: SequencesIdentity, recipes: SequencesRecipes, run: ChunkAdvantagesRun, store: ArtifactStore, progress: Progress
) -> Built:
    """Lay the ids of all sequences out; one without any has no row, and no logprobs later."""

    def produce(directory: Path) -> dict[str, Any]:
        clear_partial(directory)
        rows = ParquetRows.open(identity.sources)
        with (
            closing(TokenRowsWriter(directory)) as writer,
            progress.phase("tokens", total=rows.count, unit="sequences") as phase,
        ):
            for part in rows.parts([identity.column]):
                offsets, ids = part.ids(identity.column)
                outside = (ids < 0) | (ids >= 1 << 32)
                if outside.any():
                    wrong = int(np.argmax(outside))
                    row, _ = row_and_position(offsets, wrong)
                    with bad_rows():
                        raise SpecError(part.place(row), f"holds token id {ids[wrong]}", wanted="ids from 0 on")
                lengths = np.diff(offsets)
                writer.append(ids, lengths[lengths > 0])
                phase.advance(len(lengths))
            statistics = {"sequences": rows.count, "tokens": writer.tokens}
        check_all_unchanged(identity.sources, memo=store.memo)
        return statistics

    return store.build(recipes.tokens, produce, force=run.refresh, progress=progress)


def _unknown_id(identity: SequencesIdentity, place: int, known: int, model: str) -> Exception:
    """Return the error for an id that the model has not, which stands at a place of all ids."""
    for part in ParquetRows.open(identity.sources).parts([identity.column]):
        offsets, ids = part.ids(identity.column)
        if place < len(ids):
            row, position = row_and_position(offsets, place)
            found = f"has {ids[place]} in {identity.column} at position {position}, which {model} has not"
            remedy = "Name the model whose tokenizer gave these ids."
            return BadRowError(part.place(row), found, wanted=f"ids below {known}", remedy=remedy)
        place -= len(ids)
    return SourceChangedError(identity.sources[0].url)


def _logprobs(
    identity: SequencesIdentity, recipes: SequencesRecipes, run: ChunkAdvantagesRun, store: ArtifactStore, progress: Progress
) -> Built:
    tokens, scored = store.needed(recipes.tokens), store.needed(recipes.score)

    def produce(directory: Path) -> dict[str, Any]:
        import pyarrow as pa

        clear_partial(directory)
        rows, done = ParquetRows.open(identity.sources), 0
        schema = rows.schema_with(LOGPROBS_COLUMN, pa.list_(pa.float64()))
        scores = open_scores(scored.path, tokens.path).logprobs
        with (
            parquet_writer(directory / LOGPROBS_NAME, schema) as writer,
            progress.phase("logprobs", total=rows.count, unit="sequences") as phase,
        ):
            for part in rows.parts():
                lengths = np.diff(part.ids(identity.column)[0])
                values = np.asarray(scores[done : done + int(lengths.sum())], np.float64)
                done += len(values)
                lists = list_array(lengths, pa.array(values, mask=np.isnan(values)))
                writer.write_table(part.with_column(LOGPROBS_COLUMN, lists, schema))
                phase.advance(len(lengths))
        check_all_unchanged(identity.sources, memo=store.memo)
        return {"sequences": rows.count}

    return store.build(recipes.logprobs, produce, force=run.refresh, progress=progress)
