"""The linter's tables and page: everything that was found is said, and nothing in it is taken for markup."""

from __future__ import annotations

import pytest
from chats import chatml, gemma
from pages import parsed

from zephon_core.xtoken.alignment.samples import Sample
from zephon_core.xtoken.checking.check import PairReport, check_pair
from zephon_core.xtoken.checking.check_report import render_check, show_check
from zephon_core.xtoken.checking.gaps import CAUSE_WORDS

NASTY = '<script>alert("x")</script> & [bold]so[/bold] 😁 '
CHAT = [{"role": "user", "content": NASTY}, {"role": "assistant", "content": f"{NASTY} 😁 {NASTY}"}]


@pytest.fixture
def report(tokenizer) -> PairReport:
    samples = [
        Sample(f"<b>rows</b>.jsonl:{number} [red]", text) for number, text in enumerate((NASTY * 3, "fine text", "333"), start=1)
    ]
    return check_pair(tokenizer("qwen"), tokenizer("minilm"), [*samples, CHAT], student_template=chatml, teacher_template=gemma)


@pytest.fixture
def empty(tokenizer) -> PairReport:
    return check_pair(tokenizer("qwen"), tokenizer("minilm"), [])


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_a_page(report):
    page = render_check(report)
    assert "<script" not in page
    assert "<b>rows" not in page
    text = squeezed(parsed(page))
    for verdict in report.verdicts:
        assert squeezed(f"{verdict.level.value} {verdict.topic} {verdict.found} {verdict.remedy}") in text
    for poor in report.worst:
        assert poor.place in text
        for example in poor.examples:
            assert squeezed(example.text) in text
            assert CAUSE_WORDS[example.cause] in text
    for cause, tokens in report.uncovered.items():
        assert f"{tokens:,}" in text
        assert CAUSE_WORDS[cause] in text
    assert "findings to mend" in text
    assert report.student.content_sha256 in text


def test_a_terminal(report, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    show_check(report)
    shown = squeezed(capsys.readouterr().out)
    for verdict in report.verdicts:
        assert squeezed(f"{verdict.level.value} {verdict.topic} {verdict.found} {verdict.remedy}") in shown
    for poor in report.worst:
        assert f"{poor.place}, {poor.loss_tokens} loss token" in shown
    assert "3 texts and 1 conversation: " in shown
    assert "tokens of a chunk student teacher" in shown


@pytest.mark.parametrize("columns", ["20", "80"])
def test_a_narrow_terminal(report, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    show_check(report)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= int(columns)


def test_nothing_at_all(empty, capsys):
    show_check(empty)
    assert "nothing: 0 tokens" in capsys.readouterr().out
    assert "nothing to learn" in parsed(render_check(empty))
