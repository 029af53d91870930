"""One look for all pictures: light paper, small sans-serif type, colours that colour-blind readers can tell apart.

Figures are plain `matplotlib.figure.Figure` objects. pyplot, its windows and its global list of figures stay out of it.
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

PAGE = 7.2  # inches: the text width of a page, so that type keeps its size in print

Dashes = tuple[float, tuple[float, ...]]  # a line style: offset, and lengths of dashes and gaps; none is solid

INK, FAINT, PALE = "#262626", "#8c8c8c", "#d9d9d9"
BLUE, SKY, GREEN, ORANGE, RED, PURPLE = "#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7"  # Okabe-Ito

SIGNED = "RdBu_r"  # values around 0
SHARE = "Blues"  # values from 0 to 1
ENERGY = "Greys"  # decibels, with coloured lines on top
DEPTH = "viridis"  # layers in their order; its yellow end is too light for lines

NAMES = {1: ("position",), 2: ("height", "width"), 3: ("depth", "height", "width")}

#: wraps a function that makes a figure: whatever style the user has set, these pictures look the same
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
        "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, and has ψ, σ, × and −
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
    """An empty figure, in inches, that arranges its own panels."""
    figure = Figure(figsize=(width, height), layout="constrained")
    if title:
        figure.suptitle(title)
    return figure


def span(axis: Axis, window: TapRange) -> tuple[float, float]:
    """Where the cells of a window's taps begin and end; a cell reaches half a spacing to either side."""
    start, stop = window
    return axis.first + (start - 0.5) * axis.spacing, axis.first + (stop - 0.5) * axis.spacing


def frame(panel: Axes, rows: tuple[float, float], columns: tuple[float, float], **look: object) -> Rectangle:
    """Draw the rectangle rows × columns and return it."""
    options = {"fill": False, "edgecolor": INK, "linewidth": 0.9, **look}
    box = Rectangle((columns[0], rows[0]), columns[1] - columns[0], rows[1] - rows[0], **options)  # type: ignore[arg-type]
    panel.add_patch(box)
    return box


def plain_ticks(panel: Axes, *, x: Axis | None = None, y: Axis | None = None) -> None:
    """Ticks at the ends and the middle of [−1, 1]; the current sample of a causal axis is called "now"."""
    for axis, scale in ((x, panel.xaxis), (y, panel.yaxis)):
        if axis is not None:
            scale.set_ticks([-1, 0, 1], ["−1", "0", "now" if axis.causal else "1"])
            _turn_inwards(scale)


def end_ticks(scale: XAxis | YAxis, axis: Axis, window: TapRange) -> None:
    """Ticks at the first and last tap of a window."""
    ends = [axis.first + tap * axis.spacing for tap in (window[0], window[1] - 1)]
    names = [f"{end:.2f}".replace("-", "−") for end in ends]
    if axis.causal and window[1] == axis.size:
        names[1] = "now"
    if window[1] - window[0] == 1:
        ends, names = ends[1:], names[1:]
    scale.set_ticks(ends, names)
    _turn_inwards(scale)


def _turn_inwards(scale: XAxis | YAxis) -> None:
    """Keep the labels of the first and last tick within the panel: those of neighbours would meet."""
    labels = scale.get_ticklabels()
    if scale.axis_name == "x" and len(labels) > 1:
        labels[0].set_horizontalalignment("left")
        labels[-1].set_horizontalalignment("right")


def times(sizes: Sequence[int]) -> str:
    """(5, 7) → "5 × 7"."""
    return " × ".join(map(str, sizes))


def some_of(shown: int, total: int, what: str) -> str:
    """How many there are, as in "7 layers", or "24 of 60 layers" where not all are shown."""
    return f"{total} {what}" if shown == total else f"{shown} of {total} {what}"


def shorten(name: str, length: int = 22) -> str:
    """A long module name with its middle left out: "blocks.12.residual.flexconv" → "blocks.12…flexconv"."""
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
    """The largest finite magnitude, for a colour scale; 1 where there is none."""
    peaks = [np.abs(each[np.isfinite(each)]).max(initial=0.0) for each in arrays]
    return float(max(peaks, default=0.0)) or 1.0


def depth_colours(count: int) -> list[tuple[float, ...]]:
    """One colour per layer, dark to light with depth."""
    return [tuple(colour) for colour in mpl.colormaps[DEPTH](np.linspace(0.0, 0.88, count))]
