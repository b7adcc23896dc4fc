"""A browser on Prefect's UI, steered by what a person reads."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from shared_service import Running, wait_for


class Browser:
    """A browser on the UI, steered by what a person reads: names of links, buttons and fields."""

    def __init__(self, driver: Any, base_url: str, pictures: Path) -> None:
        self.driver = driver
        self._base_url = base_url
        self._pictures = pictures

    def open(self, path: str) -> None:
        self.driver.get(self._base_url + path)

    def wait_until(self, condition: Callable[[], Any], what: str, timeout_s: float = 30.0) -> Any:
        from selenium.common.exceptions import (
            ElementClickInterceptedException,
            NoSuchElementException,
            StaleElementReferenceException,
        )

        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if found := condition():
                    return found
            except (NoSuchElementException, StaleElementReferenceException):
                pass  # the page is being drawn
            except ElementClickInterceptedException:
                self._point_elsewhere()
            if time.monotonic() > deadline:
                self.picture("waited-too-long")
                pytest.fail(f"waited too long for {what}; the page says:\n{self.text()[:3000]}")
            time.sleep(0.1)

    def _point_elsewhere(self) -> None:
        """Move the mouse away: a passing message stays as long as the mouse is over it."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).move_to_element(self.driver.find_element("link text", "Dashboard")).perform()

    def text(self) -> str:
        return str(self.driver.find_element("tag name", "body").text)

    def sees(self, words: str) -> None:
        self.wait_until(lambda: words in self.text(), repr(words))

    def sees_no_more(self, words: str) -> None:
        self._point_elsewhere()
        self.wait_until(lambda: words not in self.text(), f"{words!r} to be gone")

    def click(self, words: str, selector: str = "button, a, [role=menuitem], [role=tab]") -> None:
        def click() -> bool:
            elements = self.driver.find_elements("css selector", selector)
            element = next((element for element in elements if element.text.strip() == words), None)
            if element is None:
                return False
            self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
            element.click()
            return True

        self.wait_until(click, f"{words!r} to click")

    def submit(self) -> None:
        """Click Submit until the form is left, as a person would: one that still looks at its last value takes no notice."""
        clicked = -math.inf

        def left() -> bool:
            nonlocal clicked
            if not self.driver.current_url.split("?")[0].endswith("/run"):
                return True
            if time.monotonic() > clicked + 20:
                self.click("Submit")
                clicked = time.monotonic()
            return False

        self.wait_until(left, "the form to be left", timeout_s=180)

    def click_link_with(self, words: str) -> None:
        """Click the link that these words are a part of."""

        def click() -> bool:
            link = next((link for link in self.driver.find_elements("tag name", "a") if words in link.text), None)
            if link is not None:
                link.click()
            return link is not None

        self.wait_until(click, f"a link with {words!r}")

    def field(self, label: str, number: int = 0) -> Any:
        def find() -> Any:
            labels = [
                each for each in self.driver.find_elements("tag name", "label") if each.text.removesuffix(" (Optional)") == label
            ]
            inputs = [self.driver.find_elements("id", each.get_attribute("for")) for each in labels]
            usable = [each[0] for each in inputs if each and each[0].tag_name in ("input", "textarea")]
            return usable[number] if len(usable) > number else None

        return self.wait_until(find, f"the field {label!r}")

    def fill(self, element: Any, value: str) -> None:
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.send_keys("\ue009a")  # control and A, as a person would to replace what is there
        element.send_keys(value)

    def picture(self, name: str) -> None:
        self.driver.save_screenshot(str(self._pictures / f"{name}.png"))


def ends_of_run(browser: Browser, service: Running, name: str, number: int, tasks: Sequence[str]) -> dict[str, str]:
    """Open the page of the latest run of this name once it and its tasks have ended, and read the tasks' states there.

    name: of the flow run, as in "ratios-by-hand"; its tasks' names end in what follows the first dash. number: how many runs of
    this name there are by then. tasks: the names of all its tasks, without that ending.
    """

    def look() -> str:
        wanted = {"flow_runs": {"name": {"any_": [name]}}, "sort": "START_TIME_DESC"}
        runs = service.post("/flow_runs/filter", wanted)
        if len(runs) < number or runs[0]["state_type"] != "COMPLETED":
            return ""
        steps = service.post("/task_runs/filter", {"flow_runs": {"id": {"any_": [runs[0]["id"]]}}})
        return str(runs[0]["id"]) if sum(step["state_type"] == "COMPLETED" for step in steps) == len(tasks) else ""

    browser.open(f"/v2/runs/flow-run/{wait_for(look, 'the end of the run')}")
    browser.sees("Completed")
    browser.click("Task Runs")
    ending = name[name.index("-") :]

    def read() -> dict[str, str]:
        lines = browser.text().splitlines()
        states = {line.replace(ending, "", 1): state for line, state in pairwise(lines) if ending in line}
        found = {task: state for task, state in states.items() if task in tasks and state in ("Completed", "Cached")}
        return found if len(found) == len(tasks) else {}

    return dict(browser.wait_until(read, "the task runs that have ended"))
