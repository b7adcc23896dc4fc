"""The service that these tests share with those of the flows, and one browser.

`ZEPHON_SCREENSHOTS=FOLDER` keeps the pictures that the documentation shows.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / part / "programs") for part in ("flows", "deployments", "ratios", "ui")]

from shared_service import Running, prefect_service  # noqa: E402, F401 - the fixture
from steered import Browser  # noqa: E402
from tiny_inputs import make_inputs  # noqa: E402

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


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small inputs of a bank."""
    folder = tmp_path_factory.mktemp("inputs")
    make_inputs(folder)
    return folder


@pytest.fixture(scope="session")
def browser(prefect_service: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:  # noqa: F811
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
