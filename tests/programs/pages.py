"""Pages as their text, once they are found to be well-formed; and what is drawn of chunks."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "line", "rect", "path", "br", "hr", "circle"}


class Page(HTMLParser):
    """A parsed page; fails on a tag that is closed in the wrong place or never.

    text: its texts. boxes: of a picture of chunks, each box's class, title and its two rows of tokens.
    """

    def __init__(self, document: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.boxes: list[dict[str, Any]] = []
        self.feed(document)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in VOID or (tag in {"rect", "circle"} and not str(self.get_starttag_text()).endswith("/>")):
            self.open.append(tag)
        named = dict(attributes)
        kinds = str(named.get("class", "")).split()
        if "box" in kinds:
            self.boxes.append({"class": kinds[1], "title": named["title"], "style": named.get("style", ""), "rows": []})
        elif tag == "span" and self._in_box():
            self.boxes[-1]["rows"].append([])

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self.open[-1:] == ["i"] and self.open[-3:-1] == ["span", "span"]:
            self.boxes[-1]["rows"][-1].append(data)

    def _in_box(self) -> bool:
        return self.open[-2:] == ["span", "span"]


def parsed(document: str) -> str:
    """The text of a page."""
    return " ".join(Page(document).text)
