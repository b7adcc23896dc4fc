"""What a person does in Prefect's UI to build a bank, in a real browser: fill the form, run, look at the run, run again."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from shared_service import Running, wait_for
from steered import Browser

pytestmark = pytest.mark.browser

STEPS = ("scan", "tokenize", "encode", "manifest")


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
    browser.submit()
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
    browser.submit()
    open_run(browser, prefect_service, 2)
    assert task_states(browser) == {"identify": "Completed", **dict.fromkeys(STEPS, "Cached")}
    browser.picture("cached")


def test_with_another_model_only_the_encode_runs_and_shows_its_progress(browser: Browser, prefect_service: Running) -> None:
    copy_to_new_run(browser)
    browser.fill(browser.field("Model"), "tiny_encoder:two")
    prefect_service.hold.touch()
    browser.submit()
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
