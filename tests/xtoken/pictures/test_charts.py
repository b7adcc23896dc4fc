"""Figures in words, and the histograms that two pages share."""

from __future__ import annotations

import re

import pytest
from pages import parsed

from zephon_core.xtoken.pictures.charts import lengths_section, many, mean_length, percent


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.0, "0%"), (1e-9, "0.01%"), (0.5, "50.00%"), (0.12345, "12.35%"), (0.99999, "99.99%"), (1.0, "100%")],
)
def test_only_all_is_all(share, words):
    assert percent(share) == words


def test_counts():
    assert [many(count, "token") for count in (0, 1, 1000)] == ["0 tokens", "1 token", "1,000 tokens"]


def test_means():
    assert mean_length([1, 0, 1]) == 2.0
    assert mean_length([]) == 0.0


def test_histograms():
    drawn = lengths_section([5, 1] + [0] * 20, [4] + [0] * 20 + [1, 1], "all")
    assert "1.17 of the student's on average, 8.17 of the teacher's" in parsed(drawn)
    bars = re.findall(r"<title>(.*?)</title>", drawn)
    assert bars[:3] == ["1 token: 5 chunks", "2 tokens: 1 chunk", "3 tokens: 0 chunks"]
    assert len(bars) == 8 + 16
    assert bars[-1] == "16 and more tokens: 2 chunks"
    assert "16+" in parsed(drawn)
    assert lengths_section([0, 0], [0, 0], "none") == ""
