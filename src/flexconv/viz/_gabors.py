"""What a Gabor network's kernel is made of: envelope times sine, filter by filter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .. import sampling
from .._arguments import positive_int
from ..errors import ArgumentError
from ..nn import FlexConvNd
from ..nn.kernels import GaborNet
from ._gabor_numbers import Gabor, effects, gabor
from ._spectrum_numbers import decibels, top_frequency
from .style import (
    BLUE,
    ENERGY,
    FAINT,
    INK,
    PALE,
    RED,
    SHARE,
    SIGNED,
    frame,
    new_figure,
    plain_ticks,
    some_of,
    span,
    styled,
)

SIDE = 0.93  # inches of a panel
FLOOR = -60.0  # decibels
CUTOFFS = {1.0: (0, (1.2, 1.2)), 2.0: (0, ())}  # standard deviations, and the line they are drawn with


@styled
def plot_gabors(layer: FlexConvNd, *, channels: int = 4) -> Figure:
    """The Gabor filters of a MAGNet or GaborNet layer, one row per filter of the network.

        g(x) = exp(−½ Σ_d (γ_d (x_d − μ_d))²) · sin(W x + b)

    Every row takes the strongest channel of a filter apart: (a) envelope, (b) sine, (c) their product, and (d) the
    spectrum of that, two Gaussians around ±W, with the edges (|W_d| + h γ_d)/2π for h = 1 (dotted) and 2 standard
    deviations and the Nyquist frequency of the layer's grid. The next channels follow as products. Marks are
    the centres μ (hollow at the border for one outside), ellipses one standard deviation; grey shows the crop.

    Channels are sorted by effect: the energy of what the kernel loses without that channel of that filter, as a share
    of the kernel's own (without the constant that the generator adds), both under the mask. Filters multiply, so the
    effects of a row need not add up to 1.
    A 3D layer is cut through each centre μ, across its first axis.

    Arguments:
        channels: how many channels of every filter to draw.

    """
    layer = sampling.check_layer(layer, "plot_gabors")
    generator = layer.generator
    if not isinstance(generator, GaborNet):
        raise ArgumentError(
            "plot_gabors draws the Gabor filters of a MAGNet or GaborNet; "
            f"the generator of this layer is {type(generator).__name__}, which has none"
        )
    shown = min(positive_int("channels", channels), generator.hidden)
    effect = effects(layer)
    order = np.argsort(-effect, axis=1, kind="stable")[:, :shown]
    channels_text = some_of(shown, generator.hidden, "channels")
    title = (
        f"{type(generator).__name__} of {type(layer).__name__}: {generator.filters} filters, {channels_text} of each"
    )
    figure = new_figure((shown + 3) * SIDE + 0.5, generator.filters * (SIDE + 0.2) + 0.5, title)
    panels = figure.subplots(generator.filters, shown + 3, squeeze=False)
    drawing = _Curves(layer) if layer.dims == 1 else _Images(layer)
    for index, (line, best) in enumerate(zip(panels, order, strict=True)):
        parts = [gabor(layer, index, int(channel)) for channel in best]
        drawing.envelope(line[0], parts[0])
        drawing.sine(line[1], parts[0])
        drawing.spectrum(line[3], parts[0])
        for panel, part, channel in zip([line[2], *line[4:]], parts, best, strict=True):
            drawing.product(panel, part)
            panel.set_title(f"ch. {channel}: {_percent(effect[index, channel])}", fontsize=6.5, pad=2.5)
        _tidy(line, layer, last=index == generator.filters - 1)
        line[0].set_ylabel(f"filter {index + 1}")
    for panel, name in zip(panels[0], ("(a) envelope", "(b) sine", "(c) product", "(d) spectrum"), strict=False):
        extra = panel.get_title()
        panel.set_title(f"{name}\n{extra}" if extra else name, fontsize=7)
    return figure


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else f"{100 * share:.1g} %"


def _tidy(line: Sequence[Axes], layer: FlexConvNd, *, last: bool) -> None:
    """Ticks where they help: below the last row, and beside the first column of images."""
    drawn = layer.axes[-2:]
    for column, panel in enumerate(line):
        if column == 3:
            panel.tick_params(labelsize=6, pad=1.5)
            panel.xaxis.set_major_locator(MaxNLocator(2))
            panel.yaxis.set_major_locator(MaxNLocator(3))
            continue
        plain_ticks(panel, x=drawn[-1], y=drawn[0] if layer.dims > 1 else None)
        panel.tick_params(labelbottom=last, labelleft=column == 0 and layer.dims > 1)
        if layer.dims == 1:
            panel.set_yticks([])


class _Images:
    """Filters of a 2D layer, or of a plane of a 3D one."""

    def __init__(self, layer: FlexConvNd) -> None:
        self.axes = layer.axes[-2:]
        self.crop = [span(axis, taps) for axis, taps in zip(self.axes, sampling.current_taps(layer)[-2:], strict=True)]
        self.nyquist = [top_frequency(axis) for axis in self.axes]

    def envelope(self, panel: Axes, part: Gabor) -> None:
        self._image(panel, part.envelope, SHARE, 0.0)
        self._mark(panel, part)

    def sine(self, panel: Axes, part: Gabor) -> None:
        self._image(panel, part.sine, SIGNED, -1.0)

    def product(self, panel: Axes, part: Gabor) -> None:
        self._image(panel, part.product, SIGNED, -1.0)
        frame(panel, *self.crop, edgecolor=FAINT, linewidth=0.6)
        self._mark(panel, part)

    def spectrum(self, panel: Axes, part: Gabor) -> None:
        reach = 1.15 * part.edges(2.0).max()
        axis = np.linspace(-reach, reach, 160)
        picture = decibels(part.energy(axis, axis), 1.0, FLOOR)
        panel.imshow(picture, cmap=ENERGY, vmin=FLOOR, vmax=0, extent=(-reach, reach, reach, -reach), aspect="auto")
        for h, dashes in CUTOFFS.items():
            rows, columns = part.edges(h)
            look = {"edgecolor": RED, "linewidth": 0.8, "linestyle": dashes, "gid": f"edge {h:g}"}
            frame(panel, (-rows, rows), (-columns, columns), **look)
        rows, columns = self.nyquist
        frame(panel, (-rows, rows), (-columns, columns), edgecolor=BLUE, linewidth=0.8, gid="nyquist")
        panel.set_xlim(-reach, reach)
        panel.set_ylim(reach, -reach)
        panel.set_box_aspect(1)
        panel.yaxis.tick_right()

    def _image(self, panel: Axes, values: np.ndarray, colours: str, low: float) -> None:
        (top, bottom), (left, right) = (span(axis, axis.whole) for axis in self.axes)
        panel.imshow(values, cmap=colours, vmin=low, vmax=1.0, extent=(left, right, bottom, top), aspect="auto")
        panel.set_xlim(left, right)
        panel.set_ylim(bottom, top)
        panel.set_box_aspect(1)

    def _mark(self, panel: Axes, part: Gabor) -> None:
        inside = bool((np.abs(part.centre) <= 1).all())
        row, column = np.clip(part.centre, -1, 1)
        face = INK if inside else "white"
        panel.plot(column, row, "o", markersize=2.2, color=INK, markerfacecolor=face, markeredgewidth=0.6, gid="centre")
        values, vectors = np.linalg.eigh(part.precision)
        turn = np.linspace(0, 2 * np.pi, 121)
        reach = 1 / np.sqrt(np.maximum(values, 1e-6))
        ellipse = part.centre[:, None] + vectors @ (reach[:, None] * np.stack([np.cos(turn), np.sin(turn)]))
        panel.plot(ellipse[1], ellipse[0], color=INK, linewidth=0.6, scalex=False, scaley=False)


class _Curves:
    """Filters of a 1D layer."""

    def __init__(self, layer: FlexConvNd) -> None:
        (self.axis,) = layer.axes
        self.crop = span(self.axis, sampling.current_taps(layer)[0])
        self.nyquist = top_frequency(self.axis)

    def envelope(self, panel: Axes, part: Gabor) -> None:
        self._curve(panel, part, part.envelope)

    def sine(self, panel: Axes, part: Gabor) -> None:
        self._curve(panel, part, part.sine)

    def product(self, panel: Axes, part: Gabor) -> None:
        panel.axvspan(*self.crop, facecolor=PALE, alpha=0.5, edgecolor="none", zorder=0)
        for sign in (-1, 1):
            panel.plot(part.lines[0], sign * part.envelope, color=FAINT, linewidth=0.6)
        self._curve(panel, part, part.product)

    def spectrum(self, panel: Axes, part: Gabor) -> None:
        reach = 1.25 * float(part.edges(2.0)[0])
        frequency = np.linspace(0, reach, 400)
        level = decibels(part.energy(frequency), 1.0, FLOOR)
        panel.fill_between(frequency, level, FLOOR, color=PALE, linewidth=0)
        panel.plot(frequency, level, color=INK, linewidth=0.8)
        for h, dashes in CUTOFFS.items():
            panel.axvline(float(part.edges(h)[0]), color=RED, linewidth=0.8, linestyle=dashes, gid=f"edge {h:g}")
        if self.nyquist <= reach:
            panel.axvline(self.nyquist, color=BLUE, linewidth=0.8, gid="nyquist")
        panel.set_xlim(0, reach)
        panel.set_ylim(FLOOR, 3)
        panel.yaxis.tick_right()

    def _curve(self, panel: Axes, part: Gabor, values: np.ndarray) -> None:
        panel.axhline(0, color=FAINT, linewidth=0.4)
        panel.plot(part.lines[0], values, color=BLUE, linewidth=0.9)
        inside = abs(part.centre[0]) <= 1
        place = float(np.clip(part.centre[0], -1, 1))
        face = INK if inside else "white"
        panel.plot(place, 0, "o", markersize=2.2, color=INK, markerfacecolor=face, markeredgewidth=0.6, gid="centre")
        panel.set_xlim(*span(self.axis, self.axis.whole))
        panel.set_ylim(-1.1, 1.1)
