"""Pictures: pages and drawings of chunks and advantages for a person to look at.

view       both tokenizations of a text, one above the other (view.css: how it looks)
report     the page on attached advantages
figures    what that page draws, gathered part by part
charts     what it shares with the page on a pair of tokenizers
legible    bytes of tokens as something to read
"""

from __future__ import annotations

from zephon_core.xtoken.pictures.figures import AdvantageFigures
from zephon_core.xtoken.pictures.report import REPORT_NAME, REPORT_VERSION, describe, render_report
from zephon_core.xtoken.pictures.view import ViewedDatum, render_view, view_datums, view_sample

__all__ = [
    "REPORT_NAME",
    "REPORT_VERSION",
    "AdvantageFigures",
    "ViewedDatum",
    "describe",
    "render_report",
    "render_view",
    "view_datums",
    "view_sample",
]
