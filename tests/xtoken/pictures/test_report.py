"""The page on a run, and the same in words."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from chats import chatml, stripping
from pages import Page, parsed

from zephon_core.xtoken.advantages import DROP_REASONS, AttachedColumns, ChunkAdvantageStats, Drop, attach_columns
from zephon_core.xtoken.alignment.build import TeacherSide
from zephon_core.xtoken.alignment.pairs import tokenize_samples
from zephon_core.xtoken.alignment.samples import named_samples
from zephon_core.xtoken.datums import DatumColumns
from zephon_core.xtoken.pictures.figures import AdvantageFigures
from zephon_core.xtoken.pictures.report import describe, render_report
from zephon_core.xtoken.plans import PlanColumns

NASTY = '<script>alert("x")</script> & more'
CHAT = [{"role": "user", "content": "Say 1234567."}, {"role": "assistant", "content": f"1234567, and {NASTY}"}]
SAMPLES = [CHAT, "333 words go on", CHAT[:1], [*CHAT, *CHAT]]
RECEIPT = {
    "probe": {"rows": 16, "tokens": 900},
    "alone": {"largest_deviation": 1.25e-6, "mean_deviation": 2e-8},
    "float32": {"skipped": "the model in float32 takes 120 GB"},
}


@pytest.fixture
def run(tokenizer):
    """A function (clip, center) -> what attaching gave, and the figures of it."""

    def made(clip: float | None = None, center: bool = False) -> tuple[AttachedColumns, AdvantageFigures]:
        pairs = tokenize_samples(list(named_samples(SAMPLES)), tokenizer("qwen"), tokenizer("deepseek"), chatml, stripping)
        rng = np.random.default_rng(5)
        names = [f"trial {NASTY}", "b", "c", "d"]
        logprobs = np.where(pairs.loss, -rng.exponential(size=len(pairs.loss)), 0.0)
        datums = DatumColumns(names, np.arange(4), pairs.student.offsets, pairs.student.ids, pairs.loss, logprobs)
        plans = PlanColumns(names, np.arange(4), np.diff(pairs.teacher.offsets), *pairs.chunks)
        rows = -rng.exponential(size=len(pairs.teacher.ids))
        rows[pairs.teacher.offsets[3] + 20 :] = np.nan
        attached = attach_columns(datums, plans, pairs.teacher.offsets, rows, clip=clip, center=center)
        figures = AdvantageFigures()
        teacher = TeacherSide(pairs.teacher.ids, pairs.teacher.offsets)
        figures.add(datums, plans, teacher, pairs.teacher.offsets, rows, attached.advantages, attached.drops)
        return attached, figures

    return made


@pytest.fixture
def page(tokenizer):
    """A function (attached, figures, ...) -> the page."""

    def rendered(attached: AttachedColumns, figures: AdvantageFigures, **options: Any) -> str:
        drops = [
            {"row": row, "trial_name": f"trial {NASTY}", "fragment_index": row, "reason": Drop(drop).name.lower(), "detail": None}
            for row, drop in enumerate(attached.drops.tolist())
            if drop
        ]
        given = {"drops": drops, "settings": {}, "clip": None, "center": False, "receipt": None} | options
        sides = {"student": tokenizer("qwen"), "teacher": tokenizer("deepseek")}
        return render_report("my run", attached.stats, figures, fingerprint="ab12", **sides, **given)

    return rendered


def test_a_page(run, page):
    attached, figures = run(clip=1.0, center=True)
    stats = attached.stats
    assert (stats.datums, stats.mismatch_drops, stats.empty_coverage_drops) == (2, 1, 1)
    settings = {"student": NASTY, "max_batch": 12345, "center": True}
    document = page(attached, figures, clip=1.0, center=True, settings=settings, receipt=RECEIPT, forward="torch")
    assert "<script" not in document
    assert "http" not in document
    text = parsed(document)
    for words in (
        f"{stats.chunks} {'chunks'}",
        f"{stats.clipped_chunks} chunks (",
        "clipped to ±1. The mean of the chunks' totals was subtracted from each.",
        "2 datums got no advantages and are not among the output's rows.",
        f"trial {NASTY}, fragment 0",
        "b, fragment 1",
        "no_logprob",
        "empty_coverage",
        "Among the largest gaps a token.",
        "16 sequences of 900 tokens were scored again in other ways; torch runs the model.",
        "1.25e-06",
        "the model in float32 takes 120 GB",
        "12,345",
        "max batch",
        "True",
        "ab12",
    ):
        assert words in re.sub(r"\s+", " ", text), words
    coloured = [box for box in Page(document).boxes if box["class"] in ("up", "down")]
    assert len(coloured) == stats.chunks
    assert "fragment index" in text


def test_a_page_of_less(run, page):
    attached, figures = run()
    text = parsed(page(attached, figures, drops=[], settings={}))
    for heading in ("Receipt", "Settings"):
        assert heading not in text
    assert "clipped" not in text
    assert "The first 0; drops.parquet lists all." in text


def test_what_lies_beyond(run, page):
    attached, figures = run()
    figures.advantages.add(np.array([-4000.0, 3000.0]), np.array([2, 3]))
    figures.advantages.add(np.linspace(-1, 1, 5000), np.ones(5000, np.int64))
    figures.inexact = 1
    document = page(attached, figures)
    assert "The columns at the ends hold all that is beyond." in parsed(document)
    assert re.search(r"below \u2212[0-9.]+: \d+ tokens</title>", document)
    assert re.search(r"[0-9.]+ and above: \d+ tokens</title>", document)
    assert "are the same text only once normalised" in parsed(document)


def test_a_page_of_nothing(tokenizer, page):
    nothing = attach_columns(DatumColumns.of([]), PlanColumns.of([]), np.zeros(1, np.int64), np.zeros(0), clip=None, center=False)
    text = parsed(page(nothing, AdvantageFigures()))
    assert "nothing to train on" in text
    assert "Some datums" not in text


def test_a_receipt_of_no_probe(run, page):
    assert "Receipt" not in parsed(page(*run(), receipt={"probe": {"rows": 0, "tokens": 0}}))


def test_every_drop_has_a_reason_in_words():
    assert set(DROP_REASONS) == set(Drop) - {Drop.NONE}


STATS = ChunkAdvantageStats(
    datums=1234,
    mismatch_drops=5,
    empty_coverage_drops=1,
    chunks=1000,
    scored_loss_tokens=9912,
    unscored_loss_tokens=88,
    clipped_chunks=12,
    chunk_reverse_kl=0.12345,
    advantage_mean=-0.0123,
    advantage_std=0.5,
)


def test_in_words():
    assert describe(STATS.model_dump()) == {
        "datums": "1,234 of 1,240 datums got advantages; 5 dropped for what doesn't fit, 1 without a chunk",
        "coverage": "99.12% of 10,000 loss tokens, in 1,000 chunks",
        "gap": "the teacher finds a token 0.1235 nats less likely than the student did, on average",
        "advantages": "mean -0.0123, standard deviation 0.5000; 1.20% of the chunks clipped",
    }
    more = STATS.model_copy(update={"mismatch_drops": 0, "empty_coverage_drops": 0, "clipped_chunks": 0, "chunk_reverse_kl": -2.0})
    assert describe(more.model_dump(mode="json")) == {
        "datums": "1,234 of 1,234 datums got advantages",
        "coverage": "99.12% of 10,000 loss tokens, in 1,000 chunks",
        "gap": "the teacher finds a token 2.0000 nats more likely than the student did, on average",
        "advantages": "mean -0.0123, standard deviation 0.5000",
    }


def test_nothing_in_words():
    none = STATS.model_copy(
        update={"datums": 0, "chunks": 0, "scored_loss_tokens": 0, "unscored_loss_tokens": 0, "chunk_reverse_kl": None}
    )
    assert describe(none.model_dump()) == {
        "datums": "0 of 6 datums got advantages; 5 dropped for what doesn't fit, 1 without a chunk",
        "coverage": "0% of 0 loss tokens, in 0 chunks",
    }
