"""Confusion matrices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ..errors import ArgumentError
from .style import PAGE, legible, new_figure, shorten, styled, theme

MOST_NUMBERS = 20  # classes up to which every cell shows its number
MOST_NAMES = 60  # classes up to which every row has a name
BAR = 0.9  # inches to the right of the matrix, which is square, for the color bar


@styled
def plot_confusion(confusion: torch.Tensor | np.ndarray, class_names: Sequence[str], *, title: str = "") -> Figure:
    """Plot a confusion matrix. The color of a cell is its share of the samples of its true class.

    Arguments:
        confusion: [classes, classes]. Entry [i, j] is the number of samples of class i that were taken for class j.
        class_names: names of the classes.
        title: title of the figure.

    """
    counts = np.asarray(confusion)
    classes = len(class_names)
    if counts.shape != (classes, classes) or not classes:
        raise ArgumentError(
            f"confusion must have one row and one column for each of {classes} classes; got {counts.shape}"
        )
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    names = [shorten(name, 16) for name in class_names]
    side = float(np.clip(1.4 + 0.3 * classes, 3.0, PAGE - BAR))
    figure = new_figure(side + BAR, side, title)
    panel = figure.subplots()
    image = panel.imshow(shares, cmap=theme().share, vmin=0.0, vmax=1.0, interpolation="nearest")
    panel.set_xlabel("predicted class")
    panel.set_ylabel("true class")
    if classes <= MOST_NAMES:
        size = 7 if classes <= MOST_NUMBERS else 4.5
        rotation = 0 if max(map(len, names)) <= 2 else 90
        panel.set_xticks(range(classes), names, rotation=rotation, fontsize=size)
        panel.set_yticks(range(classes), names, fontsize=size)
    if classes <= MOST_NUMBERS:
        for row, column in zip(*np.nonzero(counts), strict=True):
            look = {"ha": "center", "va": "center", "fontsize": 6, "color": legible(theme().share(shares[row, column]))}
            panel.text(column, row, f"{counts[row, column]:,}", **look)
    percent = FuncFormatter(lambda share, _: f"{100 * share:.0f}")
    bar = figure.colorbar(image, ax=panel, shrink=0.6, format=percent, label="share of the true class, %")
    bar.outline.set_linewidth(0.6)  # type: ignore[operator]
    return figure
