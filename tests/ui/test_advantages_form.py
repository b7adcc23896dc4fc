"""What a person does in Prefect's UI to get advantages from a teacher: fill the form, run, read table and page, run again."""

from __future__ import annotations

from pathlib import Path

import pytest
from chunk_inputs import COUNT, make_inputs
from shared_service import Running
from steered import Browser, ends_of_run

pytestmark = pytest.mark.browser

STEPS = ("align", "attach", "report")


@pytest.fixture(scope="module")
def chunks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small inputs of chunk advantages."""
    folder = tmp_path_factory.mktemp("chunks")
    make_inputs(folder)
    return folder


def test_bad_values_are_refused_in_the_form(browser: Browser, prefect_service: Running, chunks: Path) -> None:
    deployment = prefect_service.get("/deployments/name/chunk-advantages/manual")
    browser.open(f"/v2/deployments/deployment/{deployment['id']}")
    browser.click("Run")
    browser.click("Custom run")
    browser.sees("Parameters")
    browser.click("Add item")
    path = "//label[normalize-space()='Datums']/following::textarea[1]"
    browser.fill(
        browser.wait_until(lambda: browser.driver.find_element("xpath", path), "a new line"), str(chunks / "datums.parquet")
    )
    browser.fill(browser.field("Student's tokenizer"), str(chunks / "student"))
    browser.fill(browser.field("Teacher's tokenizer"), str(chunks / "teacher"))
    browser.fill(browser.field("Teacher's logprobs"), str(chunks / "logprobs.parquet"))
    browser.fill(browser.field("Store"), str(chunks / "store"))
    browser.fill(browser.field("Name"), "no good")
    browser.click("Submit")
    browser.sees("'no good' does not match")
    browser.fill(browser.field("Name"), "by-hand")
    browser.sees_no_more("does not match")
    browser.click("float")
    path = "//label[starts-with(normalize-space(), 'Clip')]/following::input[1]"  # a label of a choice has no field of its own
    clip = browser.wait_until(lambda: browser.driver.find_element("xpath", path), "the number")
    browser.fill(clip, "-1")
    browser.click("Submit")
    browser.sees("-1 is less than or equal to the minimum of 0")
    browser.picture("advantages-form-with-a-bad-value")
    assert browser.driver.current_url.split("?")[0].endswith("/run")
    browser.fill(clip, "0.5")
    browser.sees_no_more("less than or equal")


def test_a_run_from_the_form_gives_advantages(browser: Browser, prefect_service: Running) -> None:
    browser.submit()
    states = ends_of_run(browser, prefect_service, "advantages-by-hand", 1, ("identify", *STEPS))
    assert states == dict.fromkeys(("identify", *STEPS), "Completed")


def test_its_table_and_page_tell_what_came_of_it(browser: Browser) -> None:
    browser.click("Artifacts")
    browser.click_link_with("advantages-by-hand-steps")
    for words in ("What each step of advantages by-hand made", *STEPS, "fingerprint"):
        browser.sees(words)
    browser.picture("advantages-table")
    browser.driver.back()
    browser.click_link_with("advantages-by-hand-report")
    browser.sees("Chunk advantages by-hand")
    browser.sees(f"{COUNT} of {COUNT} datums got advantages")
    browser.sees("of the chunks clipped")
    browser.picture("advantages-page")
    browser.driver.back()


def test_the_same_run_again_is_cached(browser: Browser, prefect_service: Running) -> None:
    browser.click("Open menu")
    browser.click("Copy to new run")
    browser.sees("Parameters")
    assert browser.field("Name").get_attribute("value") == "by-hand"
    browser.submit()
    states = ends_of_run(browser, prefect_service, "advantages-by-hand", 2, ("identify", *STEPS))
    assert states == {"identify": "Completed", **dict.fromkeys(STEPS, "Cached")}
