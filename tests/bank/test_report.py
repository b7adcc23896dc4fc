"""The page that a person looks at after a build says what it shows, and leaves nothing blank."""

from __future__ import annotations

import json
import re

from zephon_core.bank import build_bank
from zephon_core.bank.report import render_report


def cells(document):
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", document)]


def test_every_cell_of_the_settings_says_something(bank_parameters, tmp_path):
    build_bank(*bank_parameters())
    document = (tmp_path / "bank" / "report.html").read_text()
    settings = dict(row for row in cells(document[document.index("Settings and versions") :]) if len(row) == 2)
    assert settings["remote_code"] == "none"
    assert all(settings.values())


def test_the_receipts_say_what_their_figures_mean(bank_parameters, tmp_path):
    build_bank(*bank_parameters())
    document = (tmp_path / "bank" / "report.html").read_text()
    [words] = re.findall(r"<h2>Receipts</h2><p>(.*?)</p>", document)
    for name in ("rows were computed again", "cosine", "deviation", "what to expect"):
        assert name in words


def test_tables_and_charts_scroll_by_themselves_on_a_narrow_screen(bank_parameters, tmp_path):
    """Of a folder with a long path, too: every chart and every table lies in a block of its own that may be wider than the page."""
    build_bank(*bank_parameters())
    folder = tmp_path / "bank"
    manifest = json.loads((folder / "manifest.json").read_text())
    render_report({**manifest, "model_path": "/models/" + "x" * 200}, folder)
    document = (folder / "report.html").read_text()
    for tag in ("<svg", "<table"):
        assert document.count(tag) == document.count(f'<div class="wide">{tag}') > 0
