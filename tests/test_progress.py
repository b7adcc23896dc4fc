import logging

import pytest

from zephon_core.progress import NULL_PROGRESS, LoggingProgress, TerminalProgress, format_amount


@pytest.mark.parametrize(
    ("amount", "unit", "text"),
    [(999, "texts", "999 texts"), (1_500, "tokens", "1.50 k tokens"), (2.5e6, "B", "2.50 MB"), (3e12, "B", "3.00 TB")],
)
def test_amounts_are_read_at_a_glance(amount, unit, text):
    assert format_amount(amount, unit) == text


def test_the_log_says_share_and_rate(caplog):
    progress = LoggingProgress(logging.getLogger("zephon_core.test"), interval_s=0)
    with caplog.at_level(logging.INFO), progress.phase("scan", total=200, unit="texts") as phase:
        phase.advance(50)
        phase.advance(150)
    assert "scan: 50 texts of 200 texts (25%)" in caplog.messages[0]
    assert "left" in caplog.messages[0]
    assert "200 texts of 200 texts (100%)" in caplog.messages[-1]


def test_the_log_is_not_flooded(caplog):
    progress = LoggingProgress(logging.getLogger("zephon_core.test"), interval_s=3600)
    with caplog.at_level(logging.INFO), progress.phase("scan", total=None, unit="texts") as phase:
        for _ in range(1000):
            phase.advance(1)
    assert len(caplog.messages) == 1


def test_the_log_does_not_repeat_itself(caplog):
    progress = LoggingProgress(logging.getLogger("zephon_core.test"), interval_s=0)
    with caplog.at_level(logging.INFO), progress.phase("check", total=None, unit="texts") as phase:
        phase.advance(2)
    with caplog.at_level(logging.INFO), progress.phase("nothing", total=None, unit="texts"):
        pass
    assert [record.message.split(",")[0] for record in caplog.records] == ["check: 2 texts", "nothing: 0 texts"]


@pytest.mark.parametrize("progress", [NULL_PROGRESS, TerminalProgress()], ids=["null", "terminal"])
def test_every_sink_takes_a_phase_and_a_note(progress, capsys):
    with progress.phase("scan", total=10, unit="texts") as phase:
        phase.advance(10)
    progress.note("done")
    assert capsys.readouterr().out == ""
