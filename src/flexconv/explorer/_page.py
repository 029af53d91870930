"""Write the page: a template with style sheet, scripts and data."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._files import refuse_unwritable, write_atomically
from .._records import Record
from ..spectrum import MUCH_FOLDED_ENERGY
from ._channels import BUDGET
from ._network import Network
from ._opening import opening

# concatenated to one module script, in this order
SCRIPTS = (
    "state.js",
    "address.js",
    "colours.js",
    "spectrum.js",
    "svg.js",
    "images.js",
    "curves.js",
    "charts.js",
    "field.js",
    "captions.js",
    "download.js",
    "table.js",
    "evaluate.js",
    "trial.js",
    "series.js",
    "panel.js",
    "page.js",
)


def write_page(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    records: Sequence[Record] = (),
    results: Mapping[str, Any] | None = None,
    input_shape: Sequence[int] | None = None,
    samples: torch.Tensor | None = None,
    labels: Sequence[int] | None = None,
    compare_with: Network | nn.Module | None = None,
) -> None:
    """Write an interactive HTML page about a model with FlexConv layers. The model is not changed.

    If an error occurs, no file is written and an existing file is kept. Large layers show an even selection of their
    channels, so that the file of a network such as FlexNet-7 is smaller than 5 MB.

    Arguments:
        model: a model with FlexConv layers, or a single layer.
        path: the file to write. Its folder must exist.
        title: the heading of the page. By default, the class name of the model.
        records: the records of a training run, as returned by `RunFolder.read_metrics()`: dictionaries such as
            `{"epoch": 3, "train_loss": 0.4, "sizes": {"stem": [5, 7]}}`.
        results: the results of a training run, as returned by `RunFolder.read_results()`. The heading states their
            `test_accuracy`. `{"accuracy": "98.6 % of 360 test images"}` states it in words. Without results, it states
            the last validation accuracy of the records, if there is one.
        input_shape: the shape [batch, channels, *size] of an input, to compute the share of multiply-adds of each
            layer and the receptive field. By default, the input for which a network of `flexconv.models` was created.
        samples: some samples of the data [batch, channels, *size], from which the receptive field is computed. By
            default, it is computed from noise. If they are images, the page shows how the network classifies them.
            They are raw values as in the data set, which `model.inputs` standardizes; if the model has no such
            attribute, they are inputs of the model. Images of another size are resized.
        labels: the classes of the samples.
        compare_with: a second model, which the page shows beside the first one. Pass a `Network` to give its title,
            records and results. Layers of the same name are shown side by side.

    """
    path = Path(path)
    refuse_unwritable(path, "page.html")
    networks = [Network(model, title, records, results, input_shape, samples, labels)]
    if compare_with is not None:
        networks.append(compare_with if isinstance(compare_with, Network) else Network(compare_with))
    shown = [network.numbers(budget=BUDGET // len(networks)) for network in networks]
    heading = " and ".join(numbers["title"] for numbers in shown)
    more = {"opening": opening(shown), "muchFolded": MUCH_FOLDED_ENERGY}
    page = build_page({"title": heading, "networks": shown, **more})
    write_atomically(path, page.encode("utf-8", "backslashreplace"))  # names of files need not be UTF-8


def build_page(data: Mapping[str, Any]) -> str:
    """Fill in the template. Every "<" in the JSON is escaped, so that no text in `data` can end the script element."""
    files = resources.files("flexconv.explorer")
    encoded = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {
        "title": html.escape(data["title"]),
        "style": files.joinpath("page.css").read_text("utf-8"),
        "data": encoded,
        "script": "\n".join(files.joinpath(name).read_text("utf-8") for name in SCRIPTS),
    }
    template = files.joinpath("page.html").read_text("utf-8")
    # in one pass, because the data may contain {{…}}, too
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)
