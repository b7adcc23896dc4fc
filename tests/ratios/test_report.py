"""The page after priming: whole, self-contained, and honest about guesses."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import ratio_inputs
from ratio_inputs import make_dataset

from zephon_core.ratios.report import render_report
from zephon_core.ratios.run import RatioResult, prime_mixture
from zephon_core.ratios.specs import RatioRun, RatioSpec

VOID = {"meta", "br", "rect", "circle", "line", "path", "i"}


class Page(HTMLParser):
    """Checks that tags are closed, and collects text and attributes."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.links: list[str] = []
        self.circles = 0
        self.feed(content)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.links += [value for name, value in attrs if name in ("src", "href")]
        self.circles += tag == "circle"
        if tag not in ("meta", "circle", "line", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.circles += tag == "circle"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture
def result(tmp_path: Path) -> tuple[RatioSpec, RatioResult]:
    sets = {name: str(make_dataset(tmp_path / "data", name)) for name in ("a<b", "c")}
    spec = RatioSpec.model_validate(
        {
            "datasets": {"one": sets["a<b"], "two": sets["c"], "three": sets["c"]},
            "measure": "ratio_inputs:count_words",
            "pins": {"two": 0.3},
            "shares": {"one": 1, "two": 1, "three": 2},
            "budget_tokens": 1e6,
            "exact_below_bytes": 0,
            "target_rel_error": 0.1,
        }
    )
    assert ratio_inputs.count_words
    return spec, prime_mixture(spec, RatioRun(store=str(tmp_path / "store"), output=str(tmp_path / "out")))


def test_a_report_shows_intervals_bytes_time_and_what_bad_ratios_cost(result: Any, tmp_path: Path) -> None:
    page = Page((tmp_path / "out" / "report.html").read_text())
    assert page.open == [] and page.links == []
    words = " ".join(page.words)
    for part in ("Ratios", "Precision", "What was read", "Time", "What bad ratios would cost", "Mixture", "How each was obtained"):
        assert part in page.words, part
    assert "every ratio is known" in words and "±" in words and "pinned" in words
    assert page.circles == 3 + 2 + 3  # ratios, precision of the measured ones, shares
    assert "Guesses" not in words


def test_guesses_stand_out(tmp_path: Path) -> None:
    place = make_dataset(tmp_path / "data", "a")
    spec = RatioSpec.model_validate({"datasets": [f"a={place}", f"b={place}"], "measure": "ratio_inputs:fail", "pins": ["b=0.3"]})
    with pytest.warns(RuntimeWarning, match="1 of 2"):
        found = prime_mixture(spec, RatioRun(store=str(tmp_path / "store")))
    page = Page(render_report("x <y>", found.priming, None, target_rel_error=0.01, confidence=0.95))
    words = " ".join(page.words)
    assert "1 of 2 are guesses" in words and "this function always fails" in words and "x <y>" in words
