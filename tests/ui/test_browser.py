"""What a person does in Prefect's UI, in a real browser: fill the form, run, look at the run, run again.

`ZEPHON_SCREENSHOTS=FOLDER` keeps the pictures that the documentation shows.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from shared_service import Running, wait_for

pytestmark = pytest.mark.browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--lang=en-US",
    "--window-size=1440,1800",
)


STEPS = ("scan", "tokenize", "encode", "manifest")


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


@pytest.fixture(scope="module")
def browser(prefect_service: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no Chromium with its driver here; on Debian: apt-get install chromium chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (*ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(argument)
    wanted = os.environ.get("ZEPHON_SCREENSHOTS")
    if not wanted:  # drawing a run's graph without a GPU takes most of the time
        options.add_argument("--disable-software-rasterizer")
    pictures = Path(wanted or tmp_path_factory.mktemp("pictures"))
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield Browser(driver, prefect_service.service.ui_url, pictures)
    finally:
        driver.quit()


def test_the_deployments_are_listed(browser: Browser) -> None:
    browser.open("/v2/deployments")
    for name in ("ci", "manual", "nightly"):
        browser.sees(name)
    browser.sees("At 02:15 AM")
    browser.picture("deployments")


def test_a_bad_value_is_refused_in_the_form(browser: Browser, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    browser.click("manual")
    browser.click("Run")
    browser.click("Custom run")
    browser.sees("Parameters")
    browser.click("Add item")
    added = browser.driver.find_element("xpath", "//label[normalize-space()='Sources']/following::textarea[1]")
    browser.fill(added, f"train={inputs / 'train.jsonl'}")
    browser.fill(browser.field("Tokenizer"), str(inputs / "tokenizer.json"))
    browser.fill(browser.field("Model"), "tiny_encoder:one")
    browser.fill(browser.field("Store"), str(tmp_path_factory.mktemp("store")))
    block = browser.field("Largest block (rows)")
    browser.fill(block, "0")
    browser.click("Submit")
    browser.wait_until(
        lambda: block.get_property("validationMessage") == "Value must be greater than or equal to 1.", "the message"
    )
    browser.fill(block, "16")
    browser.fill(browser.field("Name"), "no good")
    browser.click("Submit")
    browser.sees("'no good' does not match")
    browser.picture("form-with-a-bad-value")
    assert browser.driver.current_url.split("?")[0].endswith("/run")


def test_a_run_from_the_form_builds_a_bank(browser: Browser, prefect_service: Running) -> None:
    browser.fill(browser.field("Name"), "from-the-form")
    browser.sees_no_more("does not match")  # until then, the form takes its last message for the value's and submits nothing
    browser.picture("form")
    browser.click("Submit")
    open_run(browser, prefect_service, 1)
    browser.picture("run")
    assert task_states(browser) == {"identify": "Completed", **dict.fromkeys(STEPS, "Completed")}
    browser.picture("task-runs")


def test_its_artifacts_can_be_read(browser: Browser) -> None:
    browser.click("Artifacts")
    browser.click_link_with("bank-from-the-form-steps")
    browser.sees("fingerprint")
    browser.sees("manifest")
    browser.picture("table")
    browser.driver.back()
    browser.click_link_with("bank-from-the-form-report")
    browser.sees("distinct texts")
    browser.sees("report.html")
    browser.picture("page")
    browser.driver.back()


def test_the_same_run_again_is_cached(browser: Browser, prefect_service: Running) -> None:
    copy_to_new_run(browser)
    browser.click("Submit")
    open_run(browser, prefect_service, 2)
    assert task_states(browser) == {"identify": "Completed", **dict.fromkeys(STEPS, "Cached")}
    browser.picture("cached")


def test_with_another_model_only_the_encode_runs_and_shows_its_progress(browser: Browser, prefect_service: Running) -> None:
    copy_to_new_run(browser)
    browser.fill(browser.field("Model"), "tiny_encoder:two")
    prefect_service.hold.touch()
    browser.click("Submit")
    key = "bank-from-the-form-encode-progress"
    progress = wait_for(lambda: latest_artifact(prefect_service, key), "the progress artifact")
    browser.open(f"/v2/artifacts/artifact/{progress['id']}")
    browser.sees(key)
    browser.sees("0 tokens of")
    browser.picture("progress")
    prefect_service.hold.unlink()
    open_run(browser, prefect_service, 3)
    states = task_states(browser)
    assert states == {
        "identify": "Completed",
        "scan": "Cached",
        "tokenize": "Cached",
        "encode": "Completed",
        "manifest": "Completed",
    }


def latest_artifact(service: Running, key: str) -> dict[str, Any] | None:
    found = service.post("/artifacts/filter", {"artifacts": {"key": {"any_": [key]}}, "sort": "CREATED_DESC", "limit": 1})
    return found[0] if found else None


def open_run(browser: Browser, service: Running, number: int) -> None:
    """Open the page of the latest run of the form once it has ended: pages renew themselves but twice a minute."""

    def look() -> str:
        wanted = {"flow_runs": {"name": {"any_": ["bank-from-the-form"]}}, "sort": "START_TIME_DESC"}
        runs = service.post("/flow_runs/filter", wanted)
        if len(runs) < number or runs[0]["state_type"] != "COMPLETED":
            return ""
        steps = service.post("/task_runs/filter", {"flow_runs": {"id": {"any_": [runs[0]["id"]]}}})
        ended = [step for step in steps if step["state_type"] == "COMPLETED"]
        return str(runs[0]["id"]) if len(ended) == 1 + len(STEPS) else ""

    browser.open(f"/v2/runs/flow-run/{wait_for(look, 'the end of the run')}")
    browser.sees("Completed")
    browser.sees("Task Runs")


def copy_to_new_run(browser: Browser) -> None:
    browser.click("Open menu")
    browser.click("Copy to new run")
    browser.sees("Parameters")
    assert browser.field("Name").get_attribute("value") == "from-the-form"


def task_states(browser: Browser) -> dict[str, str]:
    """Read the states of the task runs, by step, once all five are listed as ended."""
    browser.click("Task Runs")

    def read() -> dict[str, str]:
        lines = browser.text().splitlines()
        found = {}
        for line, following in pairwise(lines):
            step, _, rest = line.partition("-from-the-form")
            if rest in ("", "-all") and step in ("identify", *STEPS) and following in ("Completed", "Cached"):
                found[step] = following
        return found if len(found) == 1 + len(STEPS) else {}

    return dict(browser.wait_until(read, "five task runs that have ended"))
