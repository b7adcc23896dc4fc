"""From datums to advantages, each step a function from fingerprints to an artifact.

    identify → align → score → attach → report

Once the inputs are identified every fingerprint is known, before any work is done. A step whose artifact is in the store
returns it; the others make it, one process at a time. Both the command line and the Prefect tasks call these functions.
There is nothing to score where the teacher's logprobs are given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from zephon_core.atomic import write_bytes
from zephon_core.blocks import TokenRows
from zephon_core.errors import InputError, SourceChangedError, SpecError
from zephon_core.models import model_content_sha256, read_model_folder
from zephon_core.models.encoder import check_device
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.publish import PublishedKind
from zephon_core.readers.sources import Source, check_all_unchanged, resolve_sources
from zephon_core.store import ArtifactRef, ArtifactStore, Built, Recipe, build_in_order, clear_partial
from zephon_core.tokenizers import identify_tokenizer, load_identified
from zephon_core.xtoken.advantages import ChunkAdvantageStats
from zephon_core.xtoken.datums import check_list_column, check_naming_columns
from zephon_core.xtoken.files import (
    ADVANTAGES_COLUMN,
    LOGPROBS_COLUMN,
    TEACHER_TOKENS,
    AttachInputs,
    Templates,
    attached_parts,
    build_scores,
    check_datum_rows,
    check_vocabulary,
    forget_scores,
    load_templates,
    read_drops,
    reads_messages,
    scores_recipe,
    write_advantages,
    write_plans,
)
from zephon_core.xtoken.files.parquet_rows import ParquetRows, bad_columns
from zephon_core.xtoken.pictures import REPORT_NAME, REPORT_VERSION, AdvantageFigures, render_report
from zephon_core.xtoken.specs import ChunkAdvantagesRun, ChunkAdvantagesSpec

__all__ = [
    "MANIFEST_NAME",
    "ChunkAdvantagesIdentity",
    "ChunkAdvantagesRecipes",
    "ChunkAdvantagesResult",
    "advantages_recipes",
    "align",
    "attach",
    "build_chunk_advantages",
    "check_run",
    "identify",
    "publish",
    "report",
    "restart_score",
    "result_of",
    "score",
]

MANIFEST_NAME = "chunk_advantages.json"

ALIGN_VERSION = 2
ATTACH_VERSION = 3

_ADVANTAGES = PublishedKind(MANIFEST_NAME, "advantages")


class ChunkAdvantagesIdentity(BaseModel):
    """What advantages are made from, by content.

    The templates' are "" where datums carry the teacher's tokens. logprobs: empty, and model_sha256 set, where the teacher scores.
    """

    model_config = ConfigDict(frozen=True)

    datums: tuple[Source, ...]
    student_sha256: str
    teacher_sha256: str
    student_template_sha256: str = ""
    teacher_template_sha256: str = ""
    logprobs: tuple[Source, ...] = ()
    model_sha256: str = ""


@dataclass(frozen=True)
class ChunkAdvantagesRecipes:
    """The artifacts, known by name before they are made. score: None where the teacher's logprobs are given."""

    align: Recipe
    score: Recipe | None
    attach: Recipe
    report: Recipe


@dataclass(frozen=True)
class ChunkAdvantagesResult:
    """What a run has come to.

    output: the folder that holds advantages.parquet, where it was published or else in the store. stats: `ChunkAdvantageStats` as
    plain values. drops: how many datums were dropped, by reason. doubt: what is probably wrong with the inputs where datums are
    dropped as a rule, or hardly anything is covered; else empty. cached, seconds: by step.
    """

    output: str
    fingerprint: str
    stats: Mapping[str, Any]
    drops: Mapping[str, int]
    doubt: str = ""
    cached: dict[str, bool] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values."""
        return {**vars(self), "stats": dict(self.stats), "drops": dict(self.drops)}


def identify(spec: ChunkAdvantagesSpec, *, store: ArtifactStore, progress: Progress = NULL_PROGRESS) -> ChunkAdvantagesIdentity:
    """Hash the content of datums, tokenizers, templates, and logprobs or model; files known and unchanged are not read again.

    Looks at the files' columns and numbers of rows, too. Raises InputError, TokenizerError or ModelError for what can't be used,
    SpecError for templates that are missing, or that nothing needs; what a glance tells before anything is hashed.
    """
    _glance(spec, store)
    datums = resolve_sources(spec.datums, memo=store.memo, progress=progress)
    rows = ParquetRows.open(datums)
    check_datum_rows(rows)
    rows.check_free(ADVANTAGES_COLUMN)
    templates = _templates(spec, messages=reads_messages(rows))
    logprobs: tuple[Source, ...] = ()
    model_sha256 = ""
    if spec.score is not None:
        model_sha256 = model_content_sha256(spec.score.model, hash_file=store.memo.sha256)
    else:
        logprobs = resolve_sources([spec.teacher_logprobs], memo=store.memo, progress=progress)
        _check_logprobs(ParquetRows.open(logprobs), rows)
    teacher_sha256 = identify_tokenizer(spec.teacher, store)
    if spec.score is not None:
        check_vocabulary(spec.score, spec.teacher, teacher_sha256, store=store)
    own, teachers = templates.sha256 if templates else ("", "")
    return ChunkAdvantagesIdentity(
        datums=datums,
        student_sha256=identify_tokenizer(spec.student, store),
        teacher_sha256=teacher_sha256,
        student_template_sha256=own,
        teacher_template_sha256=teachers,
        logprobs=logprobs,
        model_sha256=model_sha256,
    )


def _glance(spec: ChunkAdvantagesSpec, store: ArtifactStore) -> None:
    """Find what is wrong with the inputs that can be told without reading them whole."""
    for tokenizer in (spec.student, spec.teacher):
        identify_tokenizer(tokenizer, store)
    rows = ParquetRows.peek(spec.datums)
    check_datum_rows(rows)
    _templates(spec, messages=reads_messages(rows))
    if spec.score is None:
        _check_logprobs(ParquetRows.peek([spec.teacher_logprobs]), rows)
    else:
        read_model_folder(spec.score.model.path)


def _templates(spec: ChunkAdvantagesSpec, *, messages: bool) -> Templates | None:
    """Read both sides' templates where datums carry messages."""
    if messages:
        return load_templates(spec.student, spec.student_template, spec.teacher, spec.teacher_template)
    for setting in ("student_template", "teacher_template"):
        if getattr(spec, setting):
            found = "is given, and the datums carry teacher_tokens, which need no template"
            raise SpecError(setting, found, remedy="Leave it out, or give the datums' messages in place of tokens.")
    return None


def _check_logprobs(logprobs: ParquetRows, rows: ParquetRows) -> None:
    url = logprobs.sources[0].url
    if LOGPROBS_COLUMN not in logprobs.schema.names:
        found = f"has no column {LOGPROBS_COLUMN}, but {', '.join(logprobs.schema.names)}"
        raise InputError(url, found, wanted="one, with a list of logprobs a datum", remedy="Rename it, or name another file.")
    with bad_columns(logprobs):
        check_list_column(logprobs.schema, LOGPROBS_COLUMN)
        check_naming_columns(logprobs.schema)
        if TEACHER_TOKENS in logprobs.schema.names:
            check_list_column(logprobs.schema, TEACHER_TOKENS, whole=True)
    if logprobs.count != rows.count:
        found = f"has {logprobs.count:,} rows for {rows.count:,} datums"
        raise InputError(url, found, wanted="one a datum, in their order", remedy="Name the file that was made for these datums.")


def advantages_recipes(spec: ChunkAdvantagesSpec, identity: ChunkAdvantagesIdentity) -> ChunkAdvantagesRecipes:
    """Work out every fingerprint; pure and instant. Scores don't depend on the student: another one finds them in the store."""
    datums = {f"datums {number}": source.sha256 for number, source in enumerate(identity.datums)}
    teachers = {"teacher": identity.teacher_sha256, "teacher_template": identity.teacher_template_sha256}
    students = {"student": identity.student_sha256, "student_template": identity.student_template_sha256}
    planned = Recipe.made_of("chunk_plan", ALIGN_VERSION, {**datums, **teachers, **students}, {})
    scored, given = None, {f"logprobs {number}": source.sha256 for number, source in enumerate(identity.logprobs)}
    receipt: dict[str, str] = {}
    if spec.score is not None:
        scored = scores_recipe("chunk_scores", {**datums, **teachers}, identity.model_sha256, spec.score)
        given = receipt = {scored.kind: scored.fingerprint}
    made = {planned.kind: planned.fingerprint, **given}
    attached = Recipe.made_of("chunk_advantages", ATTACH_VERSION, made, {"clip": spec.clip, "center": spec.center})
    shown = {"name": spec.name, **_shown(spec)}
    page = Recipe.made_of("chunk_report", REPORT_VERSION, {attached.kind: attached.fingerprint, **receipt}, shown)
    return ChunkAdvantagesRecipes(planned, scored, attached, page)


def _shown(spec: ChunkAdvantagesSpec) -> dict[str, Any]:
    """Return what the report says of the settings: names, no paths, which may move."""
    named = {"student": Path(spec.student).name, "teacher": Path(spec.teacher).name}
    if spec.score is None:
        return {**named, "logprobs": "given"}
    return {**named, "model": Path(spec.score.model.path).name}


def align(
    spec: ChunkAdvantagesSpec,
    identity: ChunkAdvantagesIdentity,
    *,
    store: ArtifactStore,
    progress: Progress = NULL_PROGRESS,
    force: bool = False,
) -> Built:
    """Plan every datum's chunks, and write what the teacher reads. Raises BadRowError, InputError, SourceChangedError."""

    def produce(directory: Path) -> dict[str, Any]:
        clear_partial(directory)
        rows = ParquetRows.open(identity.datums)
        templates = _templates(spec, messages=reads_messages(rows))
        now = templates.sha256 if templates else ("", "")
        if now != (identity.student_template_sha256, identity.teacher_template_sha256):
            raise SourceChangedError("the chat templates")
        statistics = write_plans(
            rows,
            student=load_identified(spec.student, identity.student_sha256, store=store),
            teacher=load_identified(spec.teacher, identity.teacher_sha256, store=store),
            templates=templates,
            directory=directory,
            progress=progress,
        )
        check_all_unchanged(identity.datums, memo=store.memo)
        return statistics

    return store.build(advantages_recipes(spec, identity).align, produce, force=force, progress=progress)


def score(
    spec: ChunkAdvantagesSpec,
    identity: ChunkAdvantagesIdentity,
    run: ChunkAdvantagesRun,
    *,
    store: ArtifactStore,
    progress: Progress = NULL_PROGRESS,
    force: bool = False,
) -> Built:
    """Have the teacher score what it reads; what an interrupted run has scored isn't scored again.

    Only where `score` of the spec is set. Raises MissingArtifactError if nothing is aligned yet, ModelError, MismatchError.
    """
    recipes = advantages_recipes(spec, identity)
    if spec.score is None or recipes.score is None:
        raise SpecError("score", "is not set, so there is nothing to score", remedy="The teacher's logprobs are given.")
    tokens, model = store.needed(recipes.align), spec.score.model.path

    def unknown(place: int, known: int) -> SpecError:
        found = f"is {model}, which knows {known} ids, and the teacher's tokenizer gives {TokenRows(tokens.path).ids[place]}"
        remedy = "Name the model that goes with the teacher's tokenizer."
        return SpecError("score.model", found, wanted="a model of the teacher's vocabulary", remedy=remedy)

    return build_scores(
        *(recipes.score, tokens, spec.score, run.scoring()),
        sources=identity.datums,
        unknown=unknown,
        store=store,
        progress=progress,
        force=force,
    )


def restart_score(
    spec: ChunkAdvantagesSpec, identity: ChunkAdvantagesIdentity, *, store: ArtifactStore, progress: Progress = NULL_PROGRESS
) -> None:
    """Forget what an interrupted scoring left, so that a refresh scores every block."""
    recipe = advantages_recipes(spec, identity).score
    if recipe is not None:
        forget_scores(recipe, store=store, progress=progress)


def attach(
    spec: ChunkAdvantagesSpec,
    identity: ChunkAdvantagesIdentity,
    *,
    store: ArtifactStore,
    progress: Progress = NULL_PROGRESS,
    force: bool = False,
) -> Built:
    """Write the datums with their advantages, and those that were dropped. Raises MissingArtifactError, SourceChangedError."""
    recipes = advantages_recipes(spec, identity)
    inputs = attach_inputs(spec, identity, store=store)

    def produce(directory: Path) -> dict[str, Any]:
        clear_partial(directory)
        statistics = write_advantages(inputs, clip=spec.clip, center=spec.center, directory=directory, progress=progress)
        check_all_unchanged((*identity.datums, *identity.logprobs), memo=store.memo)
        planned = store.record(store.needed(recipes.align)).statistics
        doubts = [_sentence(each.get("doubt", "")) for each in (statistics, planned)]
        return {**statistics, "doubt": " ".join(filter(None, doubts))}

    return store.build(recipes.attach, produce, force=force, progress=progress)


def attach_inputs(spec: ChunkAdvantagesSpec, identity: ChunkAdvantagesIdentity, *, store: ArtifactStore) -> AttachInputs:
    """Return what advantages are made from. Raises MissingArtifactError where the steps before haven't been run."""
    recipes = advantages_recipes(spec, identity)
    return AttachInputs(
        rows=ParquetRows.open(identity.datums),
        plans=store.needed(recipes.align).path,
        scores=store.needed(recipes.score).path if recipes.score else None,
        logprobs=ParquetRows.open(identity.logprobs) if identity.logprobs else None,
    )


def report(
    spec: ChunkAdvantagesSpec,
    identity: ChunkAdvantagesIdentity,
    *,
    store: ArtifactStore,
    progress: Progress = NULL_PROGRESS,
    force: bool = False,
) -> Built:
    """Draw the page on the advantages: what is covered, how they are spread, what was dropped, some datums in colour."""
    recipes = advantages_recipes(spec, identity)
    attached = store.needed(recipes.attach)
    inputs = attach_inputs(spec, identity, store=store)
    scored = store.record(store.needed(recipes.score)).statistics if recipes.score else {}

    def produce(directory: Path) -> dict[str, Any]:
        clear_partial(directory)
        figures = AdvantageFigures()
        with progress.phase("report", total=inputs.rows.count, unit="datums") as phase:
            for part, teacher, advantages, drops in attached_parts(inputs, attached.path):
                figures.add(part.datums, part.plans, teacher, part.row_offsets, part.rows, advantages, drops)
                phase.advance(len(part.datums))
        drawn = render_report(
            spec.name,
            attached_stats(store, attached),
            figures,
            student=load_identified(spec.student, identity.student_sha256, store=store),
            teacher=load_identified(spec.teacher, identity.teacher_sha256, store=store),
            fingerprint=attached.fingerprint,
            drops=read_drops(attached.path)[0],
            settings=_shown(spec),
            clip=spec.clip,
            center=spec.center,
            receipt=scored.get("receipt"),
            forward=scored.get("forward", ""),
        )
        write_bytes(directory / REPORT_NAME, drawn.encode())
        return {}

    return store.build(recipes.report, produce, force=force, progress=progress)


def attached_stats(store: ArtifactStore, attached: ArtifactRef) -> ChunkAdvantageStats:
    """Return what came of attaching, as an artifact's record says."""
    stats = store.record(attached).statistics["stats"]
    return ChunkAdvantageStats.model_validate({name: stats[name] for name in ChunkAdvantageStats.model_fields})


def publish(spec: ChunkAdvantagesSpec, identity: ChunkAdvantagesIdentity, run: ChunkAdvantagesRun, *, store: ArtifactStore) -> str:
    """Make `run.output` these advantages and their report; return the folder. Raises SpecError for a folder of something else."""
    recipes = advantages_recipes(spec, identity)
    artifacts = {"advantages": store.needed(recipes.attach), "report": store.needed(recipes.report)}
    return str(_ADVANTAGES.publish(store, spec.name, artifacts, Path(run.output)))


def check_run(run: ChunkAdvantagesRun) -> None:
    """Raise SpecError for options that would fail after hours of work: an output that can't be, a GPU that isn't there."""
    if run.output:
        _ADVANTAGES.check_output(run.output)
    check_device(run.device)


def build_chunk_advantages(
    spec: ChunkAdvantagesSpec, run: ChunkAdvantagesRun | None = None, *, progress: Progress = NULL_PROGRESS
) -> ChunkAdvantagesResult:
    """Do all steps, those that are done already from the store, and publish the advantages to `run.output` if that is set.

    Interrupted anywhere, the same call goes on where it was. Raises the errors of the steps.
    """
    run = run or ChunkAdvantagesRun()
    check_run(run)
    store = ArtifactStore(run.store)
    identity = identify(spec, store=store, progress=progress)
    if run.refresh:
        restart_score(spec, identity, store=store, progress=progress)
    todo: dict[str, Callable[..., Built]] = {"align": align, "score": partial(score, run=run), "attach": attach, "report": report}
    if spec.score is None:
        del todo["score"]
    options: dict[str, Any] = {"store": store, "progress": progress, "force": run.refresh}
    cached, seconds = build_in_order({name: partial(step, spec, identity, **options) for name, step in todo.items()})
    folder = publish(spec, identity, run, store=store) if run.output else ""
    return result_of(spec, identity, store=store, folder=folder, cached=cached, seconds=seconds)


def result_of(
    spec: ChunkAdvantagesSpec,
    identity: ChunkAdvantagesIdentity,
    *,
    store: ArtifactStore,
    folder: str,
    cached: dict[str, bool],
    seconds: dict[str, float],
) -> ChunkAdvantagesResult:
    """Put the result of a run together. folder: where the advantages were published, "" if they lie in the store alone."""
    attached = store.needed(advantages_recipes(spec, identity).attach)
    made = store.record(attached).statistics
    return ChunkAdvantagesResult(
        output=folder or attached.url,
        fingerprint=attached.fingerprint,
        stats=made["stats"],
        drops=made["drops"],
        doubt=made.get("doubt", ""),
        cached=cached,
        seconds=seconds,
    )


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:].rstrip('.')}." if words else ""
