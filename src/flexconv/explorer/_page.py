"""The page itself: a template with style, scripts and data put into it."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from torch import nn

from .._files import refuse_unwritable, write_atomically
from .._records import Record
from ._history import history
from ._model import model_numbers

# one module script, in this order
SCRIPTS = (
    "state.js",
    "colours.js",
    "spectrum.js",
    "svg.js",
    "images.js",
    "curves.js",
    "charts.js",
    "captions.js",
    "page.js",
)


def write_page(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    records: Sequence[Record] = (),
    input_shape: Sequence[int] | None = None,
) -> None:
    """Write a page about a model with FlexConvs, whole or not at all. The model stays as it is.

    Large layers show a selection of their channels, spread evenly, so that the file stays below 5 MB for networks of
    the size of FlexNet-7.

    Arguments:
        path: the file; its folder must be there.
        title: heading of the page; by default the class of the model.
        records: of the training, as in `RunFolder.read_metrics()`: dictionaries such as {"epoch": 3, "train_loss":
            0.4, "sizes": {"stem": [5, 7]}}.
        input_shape: [batch, channels, *size] of an input, for the share of the work that each layer does; as in
            `flexconv.summary.summarize`.

    """
    path = Path(path)
    refuse_unwritable(path, "page.html")
    numbers = model_numbers(model, input_shape=input_shape)
    heading = title or type(model).__name__
    write_atomically(path, build_page({"title": heading, **numbers, "history": history(records)}).encode())


def build_page(data: Mapping[str, Any]) -> str:
    """The template filled in. `data` is JSON that no text within it can end: every "<" is escaped."""
    files = resources.files("flexconv.explorer")
    encoded = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {
        "title": html.escape(data["title"]),
        "style": files.joinpath("page.css").read_text("utf-8"),
        "data": encoded,
        "script": "\n".join(files.joinpath(name).read_text("utf-8") for name in SCRIPTS),
    }
    template = files.joinpath("page.html").read_text("utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)  # in one pass: data is no template
