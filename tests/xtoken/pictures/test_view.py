"""Pictures of chunks: every token once, in its place, with its numbers; and nothing that a browser would take for markup."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from chats import chatml, gemma, stripping
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import Page, parsed

from zephon_core.errors import InputError, SpecError, TokenizerError
from zephon_core.xtoken import tabulate
from zephon_core.xtoken.alignment.build import TeacherSide
from zephon_core.xtoken.alignment.pairs import tokenize_samples
from zephon_core.xtoken.alignment.samples import named_samples
from zephon_core.xtoken.datums import DatumColumns
from zephon_core.xtoken.pictures.legible import token_words
from zephon_core.xtoken.pictures.view import ViewedDatum, render_view, view_datums, view_sample
from zephon_core.xtoken.plans import PlanColumns

CHAT = [{"role": "user", "content": "Say 1234567 <b>."}, {"role": "assistant", "content": "1234567 & \U0001f601\n</i>\n"}]


def scored(datum: ViewedDatum, seed: int = 0) -> ViewedDatum:
    """The datum with logprobs on both sides, and the advantages that come of them."""
    rng = np.random.default_rng(seed)
    ours, theirs = -rng.exponential(size=len(datum.student_ids)), -rng.exponential(size=len(datum.teacher_ids))
    theirs[:1] = np.nan
    advantages = np.zeros(len(ours))
    for first, last, start, end in datum.ranges.tolist():
        advantages[first:last] = (theirs[start:end].sum() - ours[first:last].sum()) / (last - first)
    return replace(datum, student_logprobs=ours, teacher_logprobs=theirs, advantages=advantages)


def drawn(tokenizer, datum: ViewedDatum, student="qwen", teacher="deepseek", **options: Any) -> list[dict[str, Any]]:
    return Page(render_view([datum], student=tokenizer(student), teacher=tokenizer(teacher), **options)).boxes


def words_of(tokenizer, name: str, ids: Any) -> list[str]:
    return token_words(tabulate(tokenizer(name)).spans(ids))


TEXT = st.text(st.sampled_from("aAb \u00e9\u0301\u4e2d\n3\U0001f44d<|im_end|>&\"'\x00"), max_size=30)


@settings(max_examples=60)
@given(text=TEXT, reply=TEXT, teacher=st.sampled_from(["deepseek", "minilm", "mistral"]), chat=st.booleans())
def test_every_token_is_drawn_once_and_in_order(tokenizer, text, reply, teacher, chat):
    sample = [{"role": "user", "content": text}, {"role": "assistant", "content": reply}] if chat else text
    datum = view_sample(sample, tokenizer("qwen"), tokenizer(teacher), student_template=chatml, teacher_template=gemma)
    boxes = drawn(tokenizer, scored(datum), teacher=teacher)
    for row, name, ids in ((0, "qwen", datum.student_ids), (1, teacher, datum.teacher_ids)):
        assert [token for box in boxes for token in box["rows"][row]] == words_of(tokenizer, name, ids)
    coloured = [box for box in boxes if box["class"] in ("up", "down")]
    assert len(coloured) == len(datum.ranges)
    for box, (first, last, start, end) in zip(coloured, datum.ranges.tolist(), strict=True):
        assert [len(row) for row in box["rows"]] == [last - first, end - start]
    without = sum(len(box["rows"][0]) for box in boxes if box["class"] == "none")
    covered = int((datum.ranges[:, 1] - datum.ranges[:, 0]).sum())
    assert without >= int(datum.loss.sum()) - covered
    if covered == int(datum.loss.sum()):
        assert not without


def test_numbers_in_tooltips(tokenizer):
    datum = scored(view_sample(CHAT, tokenizer("qwen"), tokenizer("deepseek"), student_template=chatml, teacher_template=stripping))
    boxes = [box for box in drawn(tokenizer, datum) if box["class"] in ("up", "down")]
    for box, (first, last, start, end) in zip(boxes, datum.ranges.tolist(), strict=True):
        lines = box["title"].replace("\u2212", "-").splitlines()
        value = datum.advantages[first]
        assert lines[0] == f"advantage {value:+.4g} a token, {value * (last - first):+.4g} in all"
        ours, theirs = datum.student_logprobs[first:last].sum(), datum.teacher_logprobs[start:end].sum()
        assert lines[1] == f"gap {theirs - ours:+.4g}: teacher {theirs:.4f}, student {ours:.4f}"
        assert lines[2].startswith(f"student {first}: ")
        assert lines[3].startswith(f"teacher {start}: ")
        assert f"(id {datum.student_ids[first]}) {datum.student_logprobs[first]:.4f}" in lines[2]
        assert box["class"] == ("down" if value < 0 else "up")


def test_strength_goes_with_the_advantage(tokenizer):
    datum = view_sample("one two three four five six", tokenizer("qwen"), tokenizer("deepseek"))
    datum = replace(datum, advantages=np.array([0.0, 0.5, -1.0, 0.0, 1e9, -2.0]))
    styles = [(box["class"], box["style"]) for box in drawn(tokenizer, datum)]
    assert styles[0] == ("context", "")
    strengths = [float(style.removeprefix("--a:")) for _, style in styles[1:]]
    assert [kind for kind, _ in styles[1:]] == ["up", "down", "up", "up", "down"]
    assert strengths[2] == 0.0 < strengths[0] <= strengths[1] <= strengths[4] <= strengths[3] == 0.7


def test_without_advantages_chunks_take_turns(tokenizer):
    datum = view_sample("one two three", tokenizer("qwen"), tokenizer("deepseek"))
    assert [box["class"] for box in drawn(tokenizer, datum)] == ["context", "even", "odd"]
    page = render_view([datum], student=tokenizer("qwen"), teacher=tokenizer("deepseek"))
    assert "chunks, in turn" in parsed(page)
    assert "advantage of a token" not in parsed(page)


def test_loss_in_no_chunk_is_told_from_context(tokenizer):
    datum = view_sample("one \U0001f601 two", tokenizer("qwen"), tokenizer("minilm"))
    boxes = drawn(tokenizer, datum, teacher="minilm")
    assert [(box["class"], len(box["rows"][0]), len(box["rows"][1])) for box in boxes] == [
        ("context", 1, 1),
        ("none", 2, 1),
        ("even", 1, 1),
    ]
    assert boxes[0]["title"].startswith("carries no loss\nstudent 0: one (id ")
    assert boxes[1]["title"].startswith("carries loss, in no chunk: advantage 0\nstudent 1: ")
    assert "the same text only once normalised" in boxes[2]["title"]


def test_nothing_is_markup(tokenizer):
    nasty = '<script>alert("x")</script> </i></span> &amp; " onmouseover="'
    datum = replace(scored(view_sample(nasty, tokenizer("qwen"), tokenizer("deepseek"))), title=nasty, remark=nasty)
    page = render_view([datum], student=tokenizer("qwen"), teacher=tokenizer("deepseek"), title=nasty, subtitle=nasty)
    assert "<script" not in page
    assert "http" not in page
    assert parsed(page).count(nasty) == 5  # title, heading, subtitle, the datum's title and remark
    assert "".join(token for box in Page(page).boxes for token in box["rows"][0]) == nasty.replace(" ", "\u00b7")


def test_long_context_is_shortened(tokenizer):
    chat = [{"role": "user", "content": " ".join(["word"] * 500)}, {"role": "assistant", "content": " ".join(["word"] * 300)}]
    datum = view_sample(chat, tokenizer("qwen"), tokenizer("deepseek"), student_template=chatml, teacher_template=stripping)
    page = render_view([datum], student=tokenizer("qwen"), teacher=tokenizer("deepseek"))
    boxes = Page(page).boxes
    assert sum(box["class"] in ("even", "odd") for box in boxes) == 300
    shown = sum(max(map(len, box["rows"])) for box in boxes if box["class"] == "context")
    assert shown <= 130
    left_out = int(parsed(page).split(" tokens of context")[0].rsplit(" ", 1)[1])
    assert 500 < shown + left_out < 520


def test_no_more_than_wanted(tokenizer):
    datum = view_sample(" ".join(["word"] * 500), tokenizer("qwen"), tokenizer("deepseek"))
    page = render_view([datum], student=tokenizer("qwen"), teacher=tokenizer("deepseek"), most_tokens=50)
    assert len(Page(page).boxes) == 50
    assert "the rest of 500 tokens isn't drawn" in parsed(page)
    long = view_sample("-" * 5000 + " x", tokenizer("qwen"), tokenizer("minilm"))
    assert max(len(token) for box in drawn(tokenizer, long, teacher="minilm") for row in box["rows"] for token in row) < 60


def test_several_datums_share_a_page(tokenizer):
    datums = [scored(view_sample(text, tokenizer("qwen"), tokenizer("deepseek")), len(text)) for text in ("so be it", "be it so!")]
    page = render_view(datums, student=tabulate(tokenizer("qwen")), teacher=tabulate(tokenizer("deepseek")), title="Both")
    assert page.count('class="legend"') == 1
    assert parsed(page).count("chunks cover") == 2
    assert "prefers-color-scheme: dark" in page
    assert ".box" in page
    assert Page(render_view([], student=tokenizer("qwen"), teacher=tokenizer("qwen"))).boxes == []


def test_rows_of_columns(tokenizer):
    pairs = tokenize_samples(list(named_samples([CHAT, "so be it", CHAT])), tokenizer("qwen"), tokenizer("deepseek"), chatml, gemma)
    datums = DatumColumns(
        ["a", "b", "c"],
        np.array([0, 1, 2]),
        pairs.student.offsets,
        pairs.student.ids,
        pairs.loss,
        np.arange(len(pairs.loss)) * -0.5,
    )
    plans = PlanColumns(["a", "b", "c"], np.arange(3), np.diff(pairs.teacher.offsets), *pairs.chunks)
    teacher = TeacherSide(pairs.teacher.ids, pairs.teacher.offsets)
    advantages, rows = np.arange(len(pairs.loss)) * 1.0, np.arange(len(pairs.teacher.ids)) * -1.0
    found = view_datums(datums, plans, teacher, [2, 1], advantages=advantages, row_offsets=teacher.offsets, teacher_logprobs=rows)
    assert [datum.title for datum in found] == ["c, fragment 2", "b, fragment 1"]
    alone = view_sample(CHAT, tokenizer("qwen"), tokenizer("deepseek"), student_template=chatml, teacher_template=gemma)
    assert np.array_equal(found[0].ranges, alone.ranges)
    assert np.array_equal(found[0].teacher_ids, alone.teacher_ids)
    assert found[1].advantages.tolist() == advantages[pairs.student.of(1)].tolist()
    assert found[1].teacher_logprobs.tolist() == rows[pairs.teacher.of(1)].tolist()
    assert found[1].student_logprobs.tolist() == datums.logprobs[pairs.student.of(1)].tolist()
    (bare,) = view_datums(datums, plans, teacher, [0])
    assert (bare.advantages, bare.teacher_logprobs) == (None, None)


def test_what_can_not_be_drawn(tokenizer):
    def refusing(messages, options):
        raise ValueError("no")

    qwen, minilm = tokenizer("qwen"), tokenizer("minilm")
    with pytest.raises(InputError, match=r"conversation 1: is refused by the teacher's template \(no\)"):
        view_sample(CHAT, qwen, minilm, student_template=chatml, teacher_template=refusing)
    with pytest.raises(TokenizerError, match="has no token"):
        render_view([view_sample("\U0001f601 so be it", qwen, qwen)], student=qwen, teacher=minilm)
    datum = view_sample("so be it", qwen, qwen)
    with pytest.raises(SpecError, match=r"text 1: has chunks up to \[3, 9\], and 3 and 3 tokens"):
        render_view([replace(datum, ranges=np.array([[1, 3, 1, 9]]))], student=qwen, teacher=qwen)
