"""The Gabor filters of a generator: envelopes, sines, their products and spectra."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from .. import sampling
from .._arguments import positive_int
from ..errors import ArgumentError
from ..nn import FlexConvNd
from ..nn.kernels import GaborNet
from ._gabor_numbers import Gabor, effects, gabor
from ._spectrum_numbers import decibels
from .style import frame, layer_title, new_figure, some_of, span, styled, tap_ticks, theme

SIDE = 0.93  # width of a panel in inches
FLOOR = -60.0  # decibels
NYQUIST = 0.5  # cycles per sample
BINS = {1: 400, 2: 160}  # frequencies along each axis of a spectrum
CUTOFFS = {1.0: (0, (1.2, 1.2)), 2.0: (0, ())}  # standard deviations, and the line style of their edge


@styled
def plot_gabors(layer: FlexConvNd, *, channels: int = 4, name: str = "") -> Figure:
    """Plot the Gabor filters of a layer whose generator is a MAGNet or a GaborNet.

        g(x) = exp(−½ Σ_d (γ_d (x_d − μ_d))²) · sin(W x + b)

    There is one row per filter. Each row shows the strongest channel of the filter in four panels:

    - (a) the envelope. A dot marks its center μ, and an ellipse marks one standard deviation. The dot is hollow and at
      the border if the center lies outside the grid.
    - (b) the sine.
    - (c) their product. Gray shows the current size of the kernel.
    - (d) the energy spectrum of the product, in cycles per sample: two Gaussians around ±W. Red lines show the edges
      (|W_d| + h γ_d)/2π for h = 1 standard deviation (dotted) and h = 2 (solid), times the spacing of the taps. Blue
      lines show the Nyquist frequency of the grid, ½. Peaks that are too narrow to be seen are widened.

    The colors of images cover 0 to 1 in (a), −1 to 1 in (b) and (c), and −60 to 0 dB in (d).

    The products of the next channels follow. Channels are sorted by their effect, which is written above them. The
    effect is the energy that the masked kernel loses without this channel, divided by the energy of the masked kernel
    without the generator's output bias. Filters are multiplied, so the effects of a row need not sum to 100 %.

    In 3D, the plots show the plane through the center μ that is orthogonal to the first axis.

    Arguments:
        layer: a FlexConv layer.
        channels: the number of channels to plot for every filter.
        name: the name of the layer in its model, for the title.

    """
    layer = sampling.check_layer(layer, "plot_gabors")
    generator = layer.generator
    if not isinstance(generator, GaborNet):
        raise ArgumentError(
            "plot_gabors needs a layer with Gabor filters, whose generator is a MAGNet or GaborNet; "
            f"the generator of this layer is {type(generator).__name__}"
        )
    shown = min(positive_int("channels", channels), generator.hidden)
    effect = effects(layer)
    order = np.argsort(-effect, axis=1, kind="stable")[:, :shown]
    channels_text = some_of(shown, generator.hidden, "channels")
    title = (
        f"{type(generator).__name__} of {layer_title(layer, name)}: "
        f"{generator.filters} filters, {channels_text} of each\n"
        "percentages: energy that the kernel loses without this channel"
    )
    figure = new_figure((shown + 3) * SIDE + 0.5, generator.filters * (SIDE + 0.3) + 1.15, title)
    panels = figure.subplots(generator.filters, shown + 3, squeeze=False)
    plotter = _Curves(layer) if layer.dims == 1 else _Images(layer)
    for index, (row, best) in enumerate(zip(panels, order, strict=True)):
        filters = [gabor(layer, index, int(channel)) for channel in best]
        plotter.envelope(row[0], filters[0])
        plotter.sine(row[1], filters[0])
        plotter.spectrum(row[3], filters[0])
        for panel, each, channel in zip([row[2], *row[4:]], filters, best, strict=True):
            plotter.product(panel, each)
            panel.set_title(f"channel {channel}\n{_percent(effect[index, channel])}", fontsize=6.5, pad=2.5)
        _set_ticks(row, layer, last=index == generator.filters - 1)
        row[0].set_ylabel(f"filter {index + 1}")
    headings = ("(a) envelope", "(b) sine", "(c) product", "(d) spectrum", "next channels")
    for panel, heading in zip(panels[0], headings, strict=False):
        extra = panel.get_title()
        panel.set_title(f"{heading}\n{extra}" if extra else heading, fontsize=6.5, pad=2.5)
    panels[-1, 0].set_xlabel("offset, taps", fontsize=7)
    panels[-1, 3].set_xlabel("cycles per sample", fontsize=7)
    handles = [*plotter.handles(), *_spectrum_handles()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3 if shown > 3 else 2)
    return figure


def _spectrum_handles() -> list[Line2D]:
    names = ("1 standard deviation of (d)", "2 standard deviations of (d)")
    lines = [
        Line2D([], [], color=theme().red, linewidth=0.8, linestyle=dashes, label=name)
        for name, dashes in zip(names, CUTOFFS.values(), strict=True)
    ]
    return [*lines, Line2D([], [], color=theme().blue, linewidth=0.8, label="Nyquist frequency in (d), ½")]


def _percent(share: float) -> str:
    if share >= 0.01 or share == 0:
        return f"{100 * share:.0f} %"
    return f"{100 * share:.1g} %" if share >= 1e-4 else "< 0.01 %"


def _set_ticks(row: Sequence[Axes], layer: FlexConvNd, *, last: bool) -> None:
    """Label the ticks below the last row, beside the first column of images, and of the spectrum."""
    drawn = layer.axes[-2:]
    for column, panel in enumerate(row):
        if column == 3:
            panel.tick_params(labelsize=6, pad=1.5)
            panel.xaxis.set_major_locator(MaxNLocator(2))
            panel.yaxis.set_major_locator(MaxNLocator(3))
            continue
        tap_ticks(panel.xaxis, drawn[-1])
        if layer.dims > 1:
            tap_ticks(panel.yaxis, drawn[0])
        panel.tick_params(labelbottom=last, labelleft=column == 0 and layer.dims > 1)
        if layer.dims == 1:
            panel.set_yticks([])


def _draw_centre(panel: Axes, x: float, y: float, *, inside: bool) -> None:
    """Draw a dot with a rim that makes it visible on any color. It is hollow if the center lies outside the grid."""
    colours = theme()
    face, edge = (colours.ink, colours.background) if inside else (colours.background, colours.ink)
    look = {"markersize": 3.2, "markerfacecolor": face, "markeredgecolor": edge, "markeredgewidth": 0.6}
    panel.plot(x, y, "o", gid="centre", clip_on=inside, zorder=4, **look)  # type: ignore[arg-type]


def _centre_handle() -> Line2D:
    look = {"color": theme().ink, "linestyle": "none", "marker": "o", "markersize": 2.6}
    return Line2D([], [], label="center of the envelope, hollow if outside", **look)  # type: ignore[arg-type]


class _Images:
    """Draws the filters of a 2D layer, or of a plane through a 3D layer."""

    def __init__(self, layer: FlexConvNd) -> None:
        self.axes = layer.axes[-2:]
        self.crop = [span(axis, taps) for axis, taps in zip(self.axes, layer.taps[-2:], strict=True)]
        self.spacing = np.array([axis.spacing for axis in self.axes])

    def handles(self) -> list[Line2D]:
        return [
            _centre_handle(),
            Line2D([], [], color=theme().ink, linewidth=0.6, label="1 standard deviation of (a)"),
            Line2D([], [], color=theme().faint, linewidth=0.6, label="taps that are kept"),
        ]

    def envelope(self, panel: Axes, each: Gabor) -> None:
        self._image(panel, each.envelope, theme().share, 0.0)
        self._mark(panel, each)

    def sine(self, panel: Axes, each: Gabor) -> None:
        self._image(panel, each.sine, theme().signed, -1.0)

    def product(self, panel: Axes, each: Gabor) -> None:
        self._image(panel, each.product, theme().signed, -1.0)
        frame(panel, *self.crop, edgecolor=theme().faint, linewidth=0.6)
        self._mark(panel, each)

    def spectrum(self, panel: Axes, each: Gabor) -> None:
        reach = 1.15 * max(NYQUIST, (each.edges(2.0) * self.spacing).max())
        axis = np.linspace(-reach, reach, BINS[2])
        blur = 3 * reach / BINS[2] / self.spacing  # one and a half bins, so that narrow peaks can be seen
        image = decibels(each.energy(*(axis / spacing for spacing in self.spacing), blur=blur), 1.0, FLOOR)
        panel.imshow(
            image, cmap=theme().energy, vmin=FLOOR, vmax=0, extent=(-reach, reach, reach, -reach), aspect="auto"
        )
        for h, dashes in CUTOFFS.items():
            rows, columns = each.edges(h) * self.spacing
            look = {"edgecolor": theme().red, "linewidth": 0.8, "linestyle": dashes, "gid": f"edge {h:g}"}
            frame(panel, (-rows, rows), (-columns, columns), **look)
        frame(panel, *[(-NYQUIST, NYQUIST)] * 2, edgecolor=theme().blue, linewidth=0.8, gid="nyquist")
        panel.set_xlim(-reach, reach)
        panel.set_ylim(reach, -reach)
        panel.set_box_aspect(1)
        panel.yaxis.tick_right()

    def _image(self, panel: Axes, values: np.ndarray, colours: Colormap, low: float) -> None:
        (top, bottom), (left, right) = (span(axis, axis.whole) for axis in self.axes)
        panel.imshow(values, cmap=colours, vmin=low, vmax=1.0, extent=(left, right, bottom, top), aspect="auto")
        panel.set_xlim(left, right)
        panel.set_ylim(bottom, top)
        panel.set_box_aspect(1)

    def _mark(self, panel: Axes, each: Gabor) -> None:
        """Draw the center of the envelope, and the ellipse of one standard deviation."""
        row, column = np.clip(each.centre, -1, 1)
        _draw_centre(panel, column, row, inside=bool((np.abs(each.centre) <= 1).all()))
        values, vectors = np.linalg.eigh(each.precision)
        angle = np.linspace(0, 2 * np.pi, 121)
        radii = 1 / np.sqrt(np.maximum(values, 1e-6))
        ellipse = each.centre[:, None] + vectors @ (radii[:, None] * np.stack([np.cos(angle), np.sin(angle)]))
        (line,) = panel.plot(ellipse[1], ellipse[0], color=theme().ink, linewidth=0.6, scalex=False, scaley=False)
        line.set_path_effects([withStroke(linewidth=1.4, foreground=theme().background, alpha=0.6)])


class _Curves:
    """Draws the filters of a 1D layer."""

    def __init__(self, layer: FlexConvNd) -> None:
        (self.axis,) = layer.axes
        self.crop = span(self.axis, layer.taps[0])

    def handles(self) -> list[Line2D]:
        return [
            _centre_handle(),
            Line2D([], [], color=theme().faint, linewidth=0.6, label="± envelope"),
            Line2D([], [], color=theme().pale, linewidth=5, alpha=0.5, label="taps that are kept"),
        ]

    def envelope(self, panel: Axes, each: Gabor) -> None:
        self._curve(panel, each, each.envelope)

    def sine(self, panel: Axes, each: Gabor) -> None:
        self._curve(panel, each, each.sine)

    def product(self, panel: Axes, each: Gabor) -> None:
        panel.axvspan(*self.crop, facecolor=theme().pale, alpha=0.5, edgecolor="none", zorder=0)
        for sign in (-1, 1):
            panel.plot(each.lines[0], sign * each.envelope, color=theme().faint, linewidth=0.6)
        self._curve(panel, each, each.product)

    def spectrum(self, panel: Axes, each: Gabor) -> None:
        spacing = self.axis.spacing
        reach = 1.15 * max(NYQUIST, float(each.edges(2.0)[0]) * spacing)
        frequency = np.linspace(0, reach, BINS[1])
        level = decibels(each.energy(frequency / spacing, blur=reach / BINS[1] / spacing), 1.0, FLOOR)
        panel.fill_between(frequency, level, FLOOR, color=theme().pale, linewidth=0)
        panel.plot(frequency, level, color=theme().ink, linewidth=0.8)
        for h, dashes in CUTOFFS.items():
            edge = float(each.edges(h)[0]) * spacing
            panel.axvline(edge, color=theme().red, linewidth=0.8, linestyle=dashes, gid=f"edge {h:g}")
        panel.axvline(NYQUIST, color=theme().blue, linewidth=0.8, gid="nyquist")
        panel.set_xlim(0, reach)
        panel.set_ylim(FLOOR, 3)
        panel.yaxis.tick_right()

    def _curve(self, panel: Axes, each: Gabor, values: np.ndarray) -> None:
        panel.axhline(0, color=theme().faint, linewidth=0.4)
        panel.plot(each.lines[0], values, color=theme().blue, linewidth=0.9)
        centre = float(each.centre[0])
        _draw_centre(panel, min(max(centre, -1.0), 1.0), 0.0, inside=abs(centre) <= 1)
        panel.set_xlim(*span(self.axis, self.axis.whole))
        panel.set_ylim(-1.1, 1.1)
