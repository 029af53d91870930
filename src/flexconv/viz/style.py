"""The common style of all plots: a white background, small sans-serif text and colors for color-blind readers.

Figures are plain `matplotlib.figure.Figure` objects. pyplot, its windows and its global list of figures are not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

if TYPE_CHECKING:
    from ..nn import Axis, TapRange

PAGE = 7.2  # inches, the text width of a page, so that the font size is right in print

Dashes = tuple[float, tuple[float, ...]]  # line style: offset, and lengths of dashes and gaps (empty: a solid line)

INK, FAINT, PALE = "#262626", "#8c8c8c", "#d9d9d9"
BLUE, SKY, GREEN, ORANGE, RED, PURPLE = "#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7"  # Okabe-Ito

SIGNED = "RdBu_r"  # color map for values around 0
SHARE = "Blues"  # for values from 0 to 1
ENERGY = "Greys"  # for decibels, with colored lines on top
DEPTH = "viridis"  # for the order of layers, without its yellow end, which is too light for lines

NAMES = {1: ("position",), 2: ("height", "width"), 3: ("depth", "height", "width")}

#: decorates a function that makes a figure, so that the user's matplotlib settings do not change its look
styled = mpl.rc_context(
    {
        "axes.axisbelow": True,
        "axes.edgecolor": INK,
        "axes.facecolor": "white",
        "axes.grid": False,
        "axes.labelcolor": INK,
        "axes.labelsize": 8,
        "axes.linewidth": 0.6,
        "axes.spines.right": True,
        "axes.spines.top": True,
        "axes.titlecolor": INK,
        "axes.titlesize": 8,
        "axes.titleweight": "normal",
        "figure.constrained_layout.h_pad": 0.03,
        "figure.constrained_layout.w_pad": 0.03,
        "figure.dpi": 150,
        "figure.edgecolor": "white",
        "figure.facecolor": "white",
        "figure.labelsize": 8,
        "figure.titlesize": 9,
        "figure.titleweight": "normal",
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],  # included in matplotlib; contains ψ, σ, × and −
        "font.size": 8,
        "grid.color": PALE,
        "grid.linestyle": "-",
        "grid.linewidth": 0.5,
        "legend.fontsize": 7.5,
        "legend.frameon": False,
        "lines.linewidth": 1.2,
        "savefig.edgecolor": "auto",
        "savefig.facecolor": "auto",
        "text.color": INK,
        "text.usetex": False,
        "xtick.color": INK,
        "xtick.labelcolor": INK,
        "xtick.labelsize": 7,
        "xtick.major.size": 2.5,
        "xtick.major.width": 0.6,
        "ytick.color": INK,
        "ytick.labelcolor": INK,
        "ytick.labelsize": 7,
        "ytick.major.size": 2.5,
        "ytick.major.width": 0.6,
    }
)


def new_figure(width: float, height: float, title: str = "") -> Figure:
    """An empty figure with constrained layout. Width and height are in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    if title:
        figure.suptitle(title)
    return figure


def span(axis: Axis, taps: TapRange) -> tuple[float, float]:
    """The coordinates of the outer edges of a range of taps. Each tap covers half a spacing to either side."""
    start, stop = taps
    return axis.first + (start - 0.5) * axis.spacing, axis.first + (stop - 0.5) * axis.spacing


def frame(panel: Axes, rows: tuple[float, float], columns: tuple[float, float], **look: object) -> Rectangle:
    """Draw a rectangle with the given edges and return it."""
    options = {"fill": False, "edgecolor": INK, "linewidth": 0.9, **look}
    box = Rectangle((columns[0], rows[0]), columns[1] - columns[0], rows[1] - rows[0], **options)  # type: ignore[arg-type]
    panel.add_patch(box)
    return box


def plain_ticks(panel: Axes, *, x: Axis | None = None, y: Axis | None = None) -> None:
    """Set ticks at −1, 0 and 1. The current sample of a causal axis, at 1, is labelled "now"."""
    for axis, scale in ((x, panel.xaxis), (y, panel.yaxis)):
        if axis is not None:
            scale.set_ticks([-1, 0, 1], ["−1", "0", "now" if axis.causal else "1"])
            _align_inwards(scale)


def end_ticks(scale: XAxis | YAxis, axis: Axis, taps: TapRange) -> None:
    """Set ticks at the first and the last tap of a range."""
    ends = [axis.first + tap * axis.spacing for tap in (taps[0], taps[1] - 1)]
    names = [f"{end:.2f}".replace("-", "−") for end in ends]
    if axis.causal and taps[1] == axis.size:
        names[1] = "now"
    if taps[1] - taps[0] == 1:
        ends, names = ends[1:], names[1:]
    scale.set_ticks(ends, names)
    _align_inwards(scale)


def _align_inwards(scale: XAxis | YAxis) -> None:
    """Keep the first and last tick label within the panel, so that labels of neighboring panels do not overlap."""
    labels = scale.get_ticklabels()
    if scale.axis_name == "x" and len(labels) > 1:
        labels[0].set_horizontalalignment("left")
        labels[-1].set_horizontalalignment("right")


def times(sizes: Sequence[int]) -> str:
    """(5, 7) → "5 × 7"."""
    return " × ".join(map(str, sizes))


def some_of(shown: int, total: int, what: str) -> str:
    """Say how many there are: "7 layers" if all are shown, otherwise "24 of 60 layers"."""
    return f"{total} {what}" if shown == total else f"{shown} of {total} {what}"


def shorten(name: str, length: int = 22) -> str:
    """Shorten a module name by omitting its middle: "blocks.12.residual.flexconv" → "blocks.12…flexconv"."""
    if len(name) <= length:
        return name
    *parents, last = name.split(".")
    for count in range(len(parents), 0, -1):
        start = ".".join(parents[:count])
        room = length - len(start) - 1
        if room >= min(len(last), length // 3):
            return f"{start}…{last[-room:]}"
    return f"{name[: length // 2 - 1]}…{name[-(length // 2) :]}"


def largest(*arrays: np.ndarray) -> float:
    """The largest finite absolute value, for a color scale. Returns 1 if there is none."""
    peaks = [np.abs(each[np.isfinite(each)]).max(initial=0.0) for each in arrays]
    return float(max(peaks, default=0.0)) or 1.0


def depth_colours(count: int) -> list[tuple[float, ...]]:
    """One color per layer. Deeper layers are lighter."""
    return [tuple(colour) for colour in mpl.colormaps[DEPTH](np.linspace(0.0, 0.88, count))]
