"""Read the data of a page from its file."""

from __future__ import annotations

import json
import re


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
