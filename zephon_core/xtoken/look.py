"""What `xtoken show` draws: a text or a conversation in both tokenizations, or datums with the advantages that they got."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from zephon_core.errors import InputError, MissingArtifactError, SpecError
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.store import ArtifactStore
from zephon_core.tokenizers import load_identified, load_tokenizer
from zephon_core.xtoken.advantages import DROP_REASONS, Drop
from zephon_core.xtoken.alignment import SampleInput, named_samples, read_samples
from zephon_core.xtoken.files import attached_parts, late_template
from zephon_core.xtoken.pictures import ViewedDatum, render_view, view_datums, view_sample
from zephon_core.xtoken.specs import ChunkAdvantagesSpec, PairSpec
from zephon_core.xtoken.steps import advantages_recipes, attach_inputs, identify

__all__ = ["FIRST_ROWS", "draw_attached", "draw_samples"]

FIRST_ROWS = (0, 1, 2)


def draw_samples(pair: PairSpec, texts: Sequence[str], source: str, rows: Sequence[int]) -> tuple[str, list[str]]:
    """Draw texts, and those rows of a source (from 0) that it has; return the page and the titles on it.

    rows: none for the first ones. Raises InputError for a row that isn't there, SpecError for a conversation without template.
    """
    for text in texts:
        _check_writable(text)
    if not texts and not source:
        raise SpecError("--text", "is missing, and so are --texts and --datums", remedy="Name what is to be drawn.")
    student, teacher = load_tokenizer(pair.student), load_tokenizer(pair.teacher)
    templates = {
        "student_template": late_template(pair.student, pair.student_template, "student_template"),
        "teacher_template": late_template(pair.teacher, pair.teacher_template, "teacher_template"),
    }
    samples: list[SampleInput] = list(texts)
    if source:
        wanted = sorted(set(rows)) or list(FIRST_ROWS)
        found = {row: sample for row, sample in enumerate(islice(read_samples(source), wanted[-1] + 1)) if row in wanted}
        _check_there(source, rows, found)
        samples += found.values()
    viewed = [view_sample(sample, student, teacher, **templates) for sample in named_samples(samples)]
    return render_view(viewed, student=student, teacher=teacher), [datum.title for datum in viewed]


def draw_attached(
    spec: ChunkAdvantagesSpec, rows: Sequence[int], *, store: ArtifactStore, progress: Progress = NULL_PROGRESS
) -> tuple[str, list[str]]:
    """Draw datums with the advantages that they got; return the page and the titles on it.

    rows: numbers of datums from 0, over all files; none for the first ones.
    Raises MissingArtifactError where the advantages aren't attached yet, InputError for a row that isn't there.
    """
    identity = identify(spec, store=store, progress=progress)
    try:
        attached = store.needed(advantages_recipes(spec, identity).attach)
    except MissingArtifactError as error:
        lacking = "holds no advantages of these datums with these settings"
        remedy = "Run `zephon-flows xtoken attach` with these settings first."
        raise MissingArtifactError(error.where, lacking, remedy=remedy) from None
    inputs = attach_inputs(spec, identity, store=store)
    wanted = sorted(set(rows)) or list(FIRST_ROWS)
    found: dict[int, ViewedDatum] = {}
    for part, teacher, advantages, drops in attached_parts(inputs, attached.path):
        here = [row - part.part.first for row in wanted if 0 <= row - part.part.first < len(part.datums)]
        viewed = view_datums(
            *(part.datums, part.plans, teacher, here),
            advantages=advantages,
            row_offsets=part.row_offsets,
            teacher_logprobs=part.rows,
        )
        for row, datum in zip(here, viewed, strict=True):
            drop = Drop(int(drops[row]))
            remark = f"Dropped: {DROP_REASONS[drop]}." if drop else ""
            found[part.part.first + row] = datum.remarked(remark)
        if part.part.first + len(part.datums) > wanted[-1]:
            break
    _check_there(", ".join(spec.datums), rows, found)
    student = load_identified(spec.student, identity.student_sha256, store=store)
    teacher_tokenizer = load_identified(spec.teacher, identity.teacher_sha256, store=store)
    page = render_view(list(found.values()), student=student, teacher=teacher_tokenizer, title=spec.name)
    return page, [datum.title for datum in found.values()]


def _check_writable(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        found = f"is no valid UTF-8 at character {error.start + 1:,}"
        raise SpecError("--text", found, wanted="text as UTF-8", remedy="Put the text into a file, for --texts.") from None


def _check_there(source: str, rows: Sequence[int], found: Mapping[int, object]) -> None:
    missing = sorted(set(rows) - set(found))
    if missing or not found:
        named = f"row {missing[0]:,}" if missing else "rows"
        raise InputError(source, f"has no {named}", wanted="a row that is there, counted from 0")
