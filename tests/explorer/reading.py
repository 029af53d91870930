"""What a page holds, read back from its file."""

from __future__ import annotations

import json
import re


def embedded(path):
    """The data of a page, as a browser would find them."""
    (text,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL
    )
    return json.loads(text)
