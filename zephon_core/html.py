"""Self-contained report pages: one HTML file, no script, no request; charts are inline SVG.

Colours follow the reader's light or dark scheme. Every mark carries its figures as a tooltip (`<title>`), and every chart says in
words what it shows, so that nothing depends on telling colours apart.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

__all__ = ["Bar", "Range", "bars", "columns", "line", "page", "ranges", "section", "stacked", "table", "tiles"]

_COLOURS = ("--one", "--two", "--three", "--four", "--five")
_WIDTH = 920


def page(title: str, body: Sequence[str], *, badge: str = "", good: bool = True, subtitle: str = "", style: str = "") -> str:
    """Return a whole HTML document. `body` and `subtitle` are HTML; `title` and `badge` are text; `style` is CSS of its own."""
    style = resources.files("zephon_core").joinpath("report.css").read_text(encoding="utf-8") + style
    mark = f'<span class="badge{"" if good else " bad"}">{html.escape(badge)}</span>' if badge else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{style}</style></head>\n"
        f"<body><main><h1>{html.escape(title)}{mark}</h1><p>{subtitle}</p>\n" + "\n".join(body) + "\n</main></body></html>\n"
    )


def section(heading: str, explanation: str, *content: str) -> str:
    """Return a section: a heading, one sentence that says what is shown, and HTML."""
    return f"<section><h2>{html.escape(heading)}</h2><p>{html.escape(explanation)}</p>{''.join(content)}</section>"


def tiles(values: Sequence[tuple[str, str]]) -> str:
    """Return big figures side by side: (figure, what it is)."""
    cells = "".join(
        f'<div class="tile"><b>{html.escape(figure)}</b><span>{html.escape(what)}</span></div>' for figure, what in values
    )
    return f'<div class="tiles">{cells}</div>'


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table; numbers stand to the right."""
    numeric = [bool(rows) and all(isinstance(row[column], int | float) for row in rows) for column in range(len(headings))]
    head = "".join(f"<th{_class(n)}>{html.escape(heading)}</th>" for heading, n in zip(headings, numeric, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{_class(n)}>{html.escape(_cell(value))}</td>" for value, n in zip(row, numeric, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _class(numeric: bool) -> str:
    return ' class="n"' if numeric else ""


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


@dataclass(frozen=True)
class Bar:
    """One bar: its label, its height in the chart's unit, its figure in words, and whether it is to stand out."""

    label: str
    value: float
    tooltip: str
    accent: bool = False


def columns(values: Sequence[Bar], *, height: int = 200, describe: str) -> str:
    """Return a column chart (a histogram): bars side by side, with labels thinned out to fit."""
    if not values:
        return ""
    top = max(bar.value for bar in values) or 1.0
    slot = _WIDTH / len(values)
    every = max(1, math.ceil(len(values) * 56 / _WIDTH))
    marks = [_rule(0, _WIDTH, height + 0.5)]
    for number, bar in enumerate(values):
        tall = (height - 20) * bar.value / top
        marks.append(_rect(number * slot + slot * 0.08, height - tall, slot * 0.84, tall, _colour(bar), bar.tooltip))
        if number % every == 0:
            marks.append(_text(number * slot + slot / 2, height + 15, bar.label, anchor="middle"))
    return _svg(height + 20, describe, marks)


def bars(values: Sequence[Bar], *, describe: str) -> str:
    """Return a horizontal bar chart, one labelled bar a line."""
    if not values:
        return ""
    top = max(bar.value for bar in values) or 1.0
    marks = []
    for number, bar in enumerate(values):
        y = number * 26
        wide = (_WIDTH - 420) * bar.value / top
        marks.append(_text(0, y + 16, bar.label))
        marks.append(_rect(200, y + 4, max(wide, 1), 16, _colour(bar), bar.tooltip))
        marks.append(_text(210 + wide, y + 16, bar.tooltip))
    return _svg(26 * len(values), describe, marks)


@dataclass(frozen=True)
class Range:
    """One range: its label, its middle and ends in the chart's unit, its figures in words, and whether it is to stand out."""

    label: str
    low: float
    middle: float
    high: float
    tooltip: str
    accent: bool = False


def ranges(values: Sequence[Range], *, describe: str, limits: Sequence[float] = ()) -> str:
    """Return a chart of ranges on one scale that holds zero, one labelled line each: a dot for the middle, a bar from end to end.

    limits: places on the scale that are marked by a line from top to bottom.
    """
    if not values:
        return ""
    bottom = min(0.0, *(value.low for value in values), *limits)
    top = max(0.0, *(value.high for value in values), *limits)
    left, wide, height = 200, _WIDTH - 620, 26 * len(values)

    def place(amount: float) -> float:
        return left + wide * (amount - bottom) / ((top - bottom) or 1.0)

    marks = [f'<line class="axis" x1="{place(x):.1f}" x2="{place(x):.1f}" y1="0" y2="{height}"/>' for x in (0.0, *limits)]
    for number, value in enumerate(values):
        y = number * 26 + 12
        colour = "--two" if value.accent else "--one"
        marks.append(_text(0, y + 4, value.label))
        marks.append(_rule(left, left + wide, y))
        marks.append(_rect(place(value.low), y - 4, place(value.high) - place(value.low), 8, colour, value.tooltip, opacity=0.4))
        marks.append(f'<circle cx="{place(value.middle):.1f}" cy="{y}" r="4" style="fill:var({colour})"/>')
        marks.append(_text(left + wide + 14, y + 4, value.tooltip))
    return _svg(height, describe, marks)


def stacked(values: Sequence[Bar], *, describe: str) -> str:
    """Return one bar divided into shares, with a legend that carries the figures."""
    total = sum(bar.value for bar in values)
    if total <= 0:
        return ""
    x = 0.0
    marks, legend = [], []
    for number, bar in enumerate(values):
        colour = _COLOURS[number % len(_COLOURS)]
        wide = _WIDTH * bar.value / total
        words = f"{bar.label} {bar.tooltip} ({bar.value / total:.1%})"
        marks.append(_rect(x, 0, wide - 1.5, 26, colour, words))
        legend.append(f'<span><i style="background:var({colour})"></i>{html.escape(words)}</span>')
        x += wide
    return _svg(26, describe, marks) + f'<div class="legend">{"".join(legend)}</div>'


def line(points: Sequence[tuple[float, float]], *, x_label: str, y_label: str, describe: str, height: int = 180) -> str:
    """Return a line chart of (x, y) from zero up."""
    if len(points) < 2:
        return ""
    right = max(x for x, _ in points) or 1.0
    top = max(y for _, y in points) or 1.0
    left, floor = 70, height
    marks = []
    for share in (0.0, 0.5, 1.0):
        y = 10 + (floor - 10) * (1 - share)
        marks += [_rule(left, _WIDTH, y), _text(left - 8, y + 4, f"{top * share:,.0f}", anchor="end")]
    place = [(left + (_WIDTH - left - 10) * x / right, 10 + (floor - 10) * (1 - y / top)) for x, y in points]
    path = " ".join(f"{'L' if number else 'M'}{x:.1f} {y:.1f}" for number, (x, y) in enumerate(place))
    marks.append(f'<path d="{path}" style="fill:none;stroke:var(--one);stroke-width:2"/>')
    marks += [_text(left, floor + 18, "0"), _text(_WIDTH, floor + 18, f"{right:,.0f} {x_label}", anchor="end")]
    marks.append(_text(left, floor + 34, y_label))
    return _svg(height + 40, describe, marks)


def _colour(bar: Bar) -> str:
    return "--two" if bar.accent else "--one"


def _rect(x: float, y: float, width: float, height: float, colour: str, tooltip: str, *, opacity: float = 1.0) -> str:
    size = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{max(height, 0.0):.1f}"'
    fill = f"fill:var({colour})" if opacity == 1.0 else f"fill:var({colour});fill-opacity:{opacity}"
    return f'<rect {size} rx="2" style="{fill}"><title>{html.escape(tooltip)}</title></rect>'


def _text(x: float, y: float, content: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(content)}</text>'


def _rule(x1: float, x2: float, y: float) -> str:
    return f'<line class="axis" x1="{x1}" x2="{x2}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _svg(height: int, describe: str, marks: Sequence[str]) -> str:
    chart = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{html.escape(describe)}">{"".join(marks)}</svg>'
    return f'<div class="wide">{chart}</div>'
