"""Read the data of a page from its file, and what a browser shows of it."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import shutil
import time

import pytest

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "headless=new no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
    "disable-component-update disable-sync hide-scrollbars"
)
needs_browser = pytest.mark.skipif(
    not (BROWSER and DRIVER and importlib.util.find_spec("selenium")),
    reason="needs chromium, chromedriver and selenium",
)


class keys:  # noqa: N801
    """The codes of keys, as in selenium."""

    TAB, END = "\ue004", "\ue010"
    ARROW_LEFT, ARROW_UP, ARROW_RIGHT, ARROW_DOWN = "\ue012", "\ue013", "\ue014", "\ue015"


def embedded(path):
    """The JSON data embedded in a page."""
    (text,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL
    )
    return json.loads(text)


def network(path):
    """The numbers of the only network of a page."""
    (only,) = embedded(path)["networks"]
    return only


def find(browser, selector):
    return browser.find_element("css selector", selector)


def shown_text(browser, selector):
    """The text of the first element that a selector finds, "" if there is none.

    One script reads it, so the page cannot replace the element in between.
    """
    return browser.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", selector)


def wait_until(condition, *, seconds=30):
    """Call `condition` until it returns something true, and return that; return the last value after `seconds`."""
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return value


def table(path):
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    return header, rows
