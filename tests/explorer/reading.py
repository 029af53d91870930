"""Read the data of a page from its file, and what a browser shows of it."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import shutil

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


def table(path):
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    return header, rows
