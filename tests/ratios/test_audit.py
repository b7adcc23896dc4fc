"""Ratios held against the truth."""

from __future__ import annotations

import math

from zephon_core.ratios.audit import _held_against
from zephon_core.ratios.estimation import TokenRatio


def test_an_exact_figure_holds_itself_however_it_was_rounded() -> None:
    truth = 0.33780
    for estimate in (truth, math.nextafter(truth, 1), math.nextafter(truth, 0)):
        held = _held_against(TokenRatio(estimate, "measured", interval=(estimate, estimate)), truth)
        assert held["holds"] is True
    off = truth * (1 + 1e-9)
    assert _held_against(TokenRatio(off, "measured", interval=(off, off)), truth)["holds"] is False
    assert _held_against(TokenRatio(truth, "measured", interval=(truth * 1.01, truth * 1.02)), truth)["holds"] is False
