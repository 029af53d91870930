"""A headless browser for the tests of the page."""

from __future__ import annotations

import pytest

from .reading import BROWSER, DRIVER, FLAGS, find, wait_until


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    services = pytest.importorskip("selenium.webdriver.chrome.service")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in FLAGS.split():
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=services.Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def visit(browser, pages):
    """Open a page of the folder `pages`, which every module of tests writes for itself."""

    def open_page(name, *, width=1200, scheme="light", address=""):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get("about:blank")  # a change of the part after "#" alone would not load the page again
        browser.get((pages / f"{name}.html").as_uri() + address)
        return browser

    yield open_page
    assert [entry["message"] for entry in browser.get_log("browser")] == []


@pytest.fixture
def download(browser, tmp_path):
    """Press a button of the figure that contains an element, and return the saved file."""
    settings = {"behavior": "allow", "downloadPath": str(tmp_path)}
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", settings)

    def press(selector, kind):
        before = set(tmp_path.iterdir())
        buttons = "arguments[0].closest('figure').querySelectorAll('.download')"
        browser.execute_script(f"{buttons}[arguments[1]].click()", find(browser, selector), ["png", "csv"].index(kind))

        def saved():  # chromium reserves the name by an empty file, and replaces that when everything is written
            new = [path for path in tmp_path.glob(f"*.{kind}") if path not in before]
            return [path for path in new if path.stat().st_size]

        files = wait_until(saved)
        assert files, f"no {kind} file was saved for {selector}"
        return files[0]

    return press
