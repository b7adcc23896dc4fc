"""What a person does in Prefect's UI to get token ratios: fill the form, run, read the table and the page, run again."""

from __future__ import annotations

import re

import pytest
from ratio_inputs import make_dataset, make_tokenizer
from shared_service import Running
from steered import Browser, ends_of_run

pytestmark = pytest.mark.browser

SETS = ("web", "code")
MEASURED = [f"calibrate-{name}" for name in SETS]
TASKS = ("identify", *MEASURED, "prime")
RUN = "ratios-by-hand"


def test_bad_values_are_refused_in_the_form(
    browser: Browser, prefect_service: Running, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("ratios")
    deployment = prefect_service.get("/deployments/name/token-ratios/manual")
    browser.open(f"/v2/deployments/deployment/{deployment['id']}")
    browser.click("Run")
    browser.click("Custom run")
    browser.sees("Parameters")
    for number, name in enumerate(SETS, 1):
        browser.click("Add item")
        path = f"//label[normalize-space()='Data sets']/following::textarea[{number}]"
        added = browser.wait_until(lambda path=path: browser.driver.find_element("xpath", path), "a new line")
        browser.fill(added, f"{name}={make_dataset(folder, name)}")
    browser.fill(browser.field("Tokenizer"), str(make_tokenizer(folder)))
    browser.fill(browser.field("Store"), str(folder / "store"))
    browser.fill(browser.field("Name"), "no good")
    browser.click("Submit")
    browser.sees("'no good' does not match")
    browser.fill(browser.field("Name"), "by-hand")
    browser.sees_no_more("does not match")
    browser.fill(browser.field("Confidence"), "2")
    browser.click("Submit")
    browser.sees("2 is greater than or equal to the maximum of 1")
    browser.picture("ratio-form-with-a-bad-value")
    assert browser.driver.current_url.split("?")[0].endswith("/run")


def test_a_run_from_the_form_measures_each_data_set(browser: Browser, prefect_service: Running) -> None:
    browser.fill(browser.field("Confidence"), "0.9")
    browser.sees_no_more("greater than or equal")
    browser.submit()
    assert ends_of_run(browser, prefect_service, RUN, 1, TASKS) == dict.fromkeys(TASKS, "Completed")


def test_its_table_and_page_tell_ratios_with_intervals(browser: Browser, prefect_service: Running) -> None:
    browser.click("Artifacts")
    browser.click_link_with("ratios-by-hand-steps")
    for words in ("Tokens a byte of each data set of by-hand", "tokens a byte", *SETS, "fingerprint"):
        browser.sees(words)
    browser.picture("ratio-table")
    browser.driver.back()
    browser.click_link_with("ratios-by-hand-report")
    browser.sees("Token ratios of by-hand")
    interval = re.compile(r"^(web|code) (0\.\d{6}) (0\.\d{6}) to (0\.\d{6}) measured$", re.MULTILINE)
    rows = browser.wait_until(lambda: interval.findall(browser.text()), "the intervals")
    assert [row[0] for row in rows] == list(SETS) and all(low <= ratio <= high for _, ratio, low, high in rows)
    browser.picture("ratio-page")
    browser.driver.back()


def test_the_same_run_again_is_cached(browser: Browser, prefect_service: Running) -> None:
    browser.click("Open menu")
    browser.click("Copy to new run")
    browser.sees("Parameters")
    assert browser.field("Name").get_attribute("value") == "by-hand"
    browser.submit()
    expected = {"identify": "Completed", **dict.fromkeys(MEASURED, "Cached"), "prime": "Completed"}
    assert ends_of_run(browser, prefect_service, RUN, 2, TASKS) == expected
    browser.picture("ratio-cached")
