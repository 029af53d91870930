"""Figure 3: a generator that does not have to model empty space models the rest of an image better."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from flexconv.errors import MissingFileError
from flexconv.train import FitRecipe
from flexconv.train.targets import load_targets

from ._item import NOTHING
from ._ledger import Ledger, Log
from ._measures import Measure
from ._table import Column, Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARGINS = {"": "the flower alone", "/margin-1": "canvas twice as wide", "/margin-3": "canvas four times as wide"}


def region_psnr(log: Log) -> float | None:
    """PSNR of the 8-bit reconstruction inside the square of the flower; None if the picture is missing."""
    drawn = _drawn(log)
    if drawn is None:
        return None
    target = _middle(_target(log), log)
    error = float(np.square(_middle(drawn, log) - target).mean())
    return -10 * math.log10(max(error, 1e-12))


def draw(ledger: Ledger) -> Figure:
    """The square of the flower: the target, and the reconstruction on each canvas."""
    from flexconv.viz.style import PAGE, new_figure

    found = {label: ledger.finished(f"fit-flower{variant}")[:1] for variant, label in MARGINS.items()}
    logs = {label: logs[0] for label, logs in found.items() if logs and _drawn(logs[0]) is not None}
    if not logs:
        raise MissingFileError(f"there are no reconstructions in {ledger.runs}: python -m reproduction figure3 --run")
    figure = new_figure(PAGE, 2.0)
    panels = figure.subplots(1, len(logs) + 1)
    first = next(iter(logs.values()))
    pictures = {"ground truth": _middle(_target(first), first)}
    pictures |= {f"{label}\n{region_psnr(log):.1f} dB": _middle(_drawn(log), log) for label, log in logs.items()}
    for panel, (title, pixels) in zip(panels, pictures.items(), strict=True):
        panel.imshow(np.moveaxis(pixels, 0, -1))
        panel.set_title(title)
        panel.set_axis_off()
    return figure


def _target(log: Log) -> np.ndarray:
    assert isinstance(log.recipe, FitRecipe)
    return load_targets(log.recipe.target, **log.recipe.target_options).values[0].numpy()


def _drawn(log: Log) -> np.ndarray | None:
    """The reconstruction, [3, height, width] with values in [0, 1]."""
    from flexconv.data import read_image

    path = log.path / "reconstructions" / "flower.png"
    return read_image(path, mode="RGB").numpy() / 255 if path.is_file() else None


def _middle(picture: np.ndarray | None, log: Log) -> np.ndarray:
    """The square of the flower on a canvas."""
    assert picture is not None
    assert isinstance(log.recipe, FitRecipe)
    size = log.recipe.target_options["size"]
    start = (picture.shape[-1] - size) // 2
    return picture[:, start : start + size, start : start + size]


FIGURE = Table(
    name="figure3",
    title="Figure 3: a flower on canvases of three sizes, PSNR inside the square of the flower",
    columns=(Column("PSNR, dB", Measure(region_psnr, 2)),),
    rows=tuple(Row(label, "MAGNet", (NOTHING,), f"fit-flower{variant}") for variant, label in MARGINS.items()),
    notes=(
        "The paper shows pictures without numbers, of a photograph that is not published. Our flower is synthetic.",
    ),
    seeds=(0,),
    draw=draw,
    published="no numbers",
)
