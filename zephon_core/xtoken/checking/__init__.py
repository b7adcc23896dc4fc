"""Checking: a look at a pair of tokenizers before a GPU is rented.

check          what others call: samples stream through and are counted
gaps           loss tokens that no chunk covers, and why not
verdicts       what is good and what is bad about the pair, and what to do about it
check_report   tables for a terminal, and a page
"""

from __future__ import annotations

from zephon_core.xtoken.checking.check import PairReport, check_pair
from zephon_core.xtoken.checking.check_report import render_check, show_check

__all__ = ["PairReport", "check_pair", "render_check", "show_check"]
