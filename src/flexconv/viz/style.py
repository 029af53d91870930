"""The common style of all plots: two themes, small sans-serif text and colors for color-blind readers.

Figures are plain `matplotlib.figure.Figure` objects. pyplot, its windows and its global list of figures are not used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple, ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.colors import Colormap, LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from ..errors import ArgumentError

if TYPE_CHECKING:
    from ..nn import Axis, FlexConvNd, TapRange

P = ParamSpec("P")

PAGE = 7.2  # inches, the text width of a page, so that the font size is right in print
DPI = 200  # a figure of the width of a page has 1440 pixels, twice the width of a column of a web page

Dashes = tuple[float, tuple[float, ...]]  # line style: offset, and lengths of dashes and gaps (empty: a solid line)

NAMES = {1: ("position",), 2: ("height", "width"), 3: ("depth", "height", "width")}


# --- themes -----------------------------------------------------------------------------------------------------------


class Theme(NamedTuple):
    """The colors of a figure. The six named colors can be told apart by color-blind readers (Okabe and Ito)."""

    background: str
    ink: str  # text, frames and the most important lines
    faint: str  # lines in the background
    pale: str  # shading and grid lines
    blue: str
    sky: str
    green: str
    orange: str
    red: str
    purple: str
    signed: Colormap  # for values around 0, which has the color of the background
    share: Colormap  # for values from 0 to 1
    energy: Colormap  # for decibels, with colored lines on top
    depth: tuple[float, float]  # the part of viridis that is used for the order of layers


def _gradient(name: str, *colours: str) -> Colormap:
    return LinearSegmentedColormap.from_list(name, colours)


_DARK_PANEL = "#171a21"

THEMES = {
    "light": Theme(
        background="white",
        ink="#262626",
        faint="#8c8c8c",
        pale="#d9d9d9",
        blue="#0072b2",
        sky="#56b4e9",
        green="#009e73",
        orange="#e69f00",
        red="#d55e00",
        purple="#cc79a7",
        signed=mpl.colormaps["RdBu_r"],
        share=mpl.colormaps["Blues"],
        energy=mpl.colormaps["Greys"],
        depth=(0.0, 0.88),  # without the yellow end, which is too light for lines
    ),
    "dark": Theme(
        background=_DARK_PANEL,
        ink="#e8eaed",
        faint="#9aa0a6",
        pale="#454a54",
        blue="#4ba3e3",
        sky="#a6dcff",
        green="#2fc79b",
        orange="#f2c14e",
        red="#ff7f3f",
        purple="#e79bc4",
        signed=_gradient("signed", "#d6ecff", "#3f9bea", "#1f4e79", _DARK_PANEL, "#7a3b16", "#f0873a", "#ffe6c4"),
        share=_gradient("share", _DARK_PANEL, "#1f4e79", "#3f9bea"),
        energy=_gradient("energy", _DARK_PANEL, "#f1f3f4"),
        depth=(0.3, 1.0),  # without the violet end, which is too dark for lines
    ),
}

_current: ContextVar[str] = ContextVar("theme", default="light")


@contextmanager
def use_theme(name: str) -> Iterator[None]:
    """Draw the figures in a `with` block in a theme: `"light"`, the default, or `"dark"`.

        with viz.use_theme("dark"):
            viz.plot_kernel(layer).savefig("kernel.png", transparent=True)

    The background is white or almost black. `transparent=True` omits it, so that the picture fits the page around it.
    """
    if name not in THEMES:
        raise ArgumentError(f"unknown theme {name!r}; choose one of {', '.join(map(repr, THEMES))}")
    token = _current.set(name)
    try:
        yield
    finally:
        _current.reset(token)


def theme() -> Theme:
    """The colors of the current theme."""
    return THEMES[_current.get()]


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Decorate a function that makes a figure, so that it has our style whatever the user's matplotlib settings are."""

    @functools.wraps(draw)
    def in_style(*args: P.args, **options: P.kwargs) -> Figure:
        with mpl.rc_context(_settings(theme())):  # type: ignore[arg-type]
            return draw(*args, **options)

    return in_style


def _settings(colours: Theme) -> dict[str, object]:
    return {
        "axes.axisbelow": True,
        "axes.edgecolor": colours.ink,
        "axes.facecolor": colours.background,
        "axes.grid": False,
        "axes.labelcolor": colours.ink,
        "axes.labelsize": 8,
        "axes.linewidth": 0.6,
        "axes.spines.right": True,
        "axes.spines.top": True,
        "axes.titlecolor": colours.ink,
        "axes.titlesize": 8,
        "axes.titleweight": "normal",
        "figure.constrained_layout.h_pad": 0.03,
        "figure.constrained_layout.w_pad": 0.03,
        "figure.dpi": DPI,
        "figure.edgecolor": colours.background,
        "figure.facecolor": colours.background,
        "figure.labelsize": 8,
        "figure.titlesize": 9,
        "figure.titleweight": "normal",
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],  # included in matplotlib; contains ψ, σ, × and −
        "font.size": 8,
        "grid.color": colours.pale,
        "grid.linestyle": "-",
        "grid.linewidth": 0.5,
        "legend.fontsize": 7,
        "legend.frameon": False,
        "legend.labelcolor": colours.ink,
        "lines.linewidth": 1.2,
        "savefig.edgecolor": "auto",
        "savefig.facecolor": "auto",
        "text.color": colours.ink,
        "text.usetex": False,
        "xtick.color": colours.ink,
        "xtick.labelcolor": colours.ink,
        "xtick.labelsize": 7,
        "xtick.major.size": 2.5,
        "xtick.major.width": 0.6,
        "ytick.color": colours.ink,
        "ytick.labelcolor": colours.ink,
        "ytick.labelsize": 7,
        "ytick.major.size": 2.5,
        "ytick.major.width": 0.6,
    }


# --- parts of figures -------------------------------------------------------------------------------------------------


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
    options = {"fill": False, "edgecolor": theme().ink, "linewidth": 0.9, **look}
    box = Rectangle((columns[0], rows[0]), columns[1] - columns[0], rows[1] - rows[0], **options)  # type: ignore[arg-type]
    panel.add_patch(box)
    return box


def tap_ticks(scale: XAxis | YAxis, axis: Axis) -> None:
    """Set ticks at the first and the last tap of an axis and in the middle, labelled by their offset in taps."""
    middle = [] if axis.causal and axis.size % 2 == 0 else [(axis.first + axis.last) / 2]  # between two taps
    _set_offsets(scale, axis, [axis.first, *middle, axis.last] if axis.size > 1 else [axis.first])


def end_ticks(scale: XAxis | YAxis, axis: Axis, taps: TapRange) -> None:
    """Set ticks at the first and the last tap of a range, labelled by their offset in taps."""
    ends = [axis.first + tap * axis.spacing for tap in (taps[0], taps[1] - 1)]
    _set_offsets(scale, axis, ends if taps[1] - taps[0] > 1 else ends[1:])


def offset_label(axis: Axis, coordinate: float) -> str:
    """The distance from the current sample in taps: "−16", "7.5", or "now" for the current sample of a causal axis."""
    offset = (coordinate - axis.current) / axis.spacing
    if axis.causal and abs(offset) < 1e-6:
        return "now"
    return f"{round(offset, 1) + 0.0:.1f}".removesuffix(".0").replace("-", "−")


def _set_offsets(scale: XAxis | YAxis, axis: Axis, coordinates: Sequence[float]) -> None:
    scale.set_ticks(coordinates, [offset_label(axis, each) for each in coordinates])
    _align_inwards(scale)


def integer_ticks(scale: XAxis | YAxis, *, most: int = 8) -> None:
    """Set ticks at integers only: there is no epoch 2.5."""
    scale.set_major_locator(MaxNLocator(most, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))


def _align_inwards(scale: XAxis | YAxis) -> None:
    """Keep the first and last tick label within the panel, so that labels of neighboring panels do not overlap."""
    labels = scale.get_ticklabels()
    if scale.axis_name == "x" and len(labels) > 1:
        labels[0].set_horizontalalignment("left")
        labels[-1].set_horizontalalignment("right")


def layer_title(layer: FlexConvNd, name: str) -> str:
    """Name and class of a layer: "blocks.3.conv1 (FlexConv2d)", or its class if it has no name."""
    kind = type(layer).__name__
    return f"{name} ({kind})" if name else kind


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


def legible(background: tuple[float, ...]) -> str:
    """The color of text on a background of any color: the ink or the background of the theme."""

    def distance(colour: str) -> float:
        return abs(sum(background[:3]) - sum(to_rgb(colour)))

    return max(theme().ink, theme().background, key=distance)


def depth_colours(count: int) -> list[tuple[float, ...]]:
    """One color per layer. Deeper layers are lighter."""
    return [tuple(colour) for colour in mpl.colormaps["viridis"](np.linspace(*theme().depth, count))]
