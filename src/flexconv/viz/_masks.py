"""The learned masks of a whole network, layer by layer: which sizes it chose."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import nn

from .. import sampling
from .._arguments import positive_int
from ..nn import Axis, FlexConvNd, TapRange
from .style import (
    BLUE,
    FAINT,
    GREEN,
    NAMES,
    PAGE,
    PALE,
    RED,
    SHARE,
    frame,
    new_figure,
    plain_ticks,
    shorten,
    some_of,
    span,
    styled,
    times,
)

COLUMNS = 7
AXIS_COLOURS = (BLUE, RED, GREEN)
POINTS = 200


@styled
def plot_masks(model: nn.Module, *, most: int = 28) -> Figure:
    """The mask of every FlexConv of a model in the model's order, with the layer's name and current size.

    2D masks are images of the whole grid, with the crop as a box and the contour where the window falls to its
    threshold. 1D masks are curves with the crop shaded, 3D masks a curve per axis through the centre. A layer without
    mask shows what its generator uses of the grid.

    Arguments:
        most: how many layers at most. Of a deeper model, so many are shown that lie evenly over its depth.

    """
    layers = sampling.flexconv_layers(model, "plot_masks")
    names = [list(layers)[index] for index in sampling.spread(positive_int("most", most), len(layers))]
    columns = min(COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    side = PAGE / COLUMNS if columns > 3 else PAGE / 4.5
    title = f"Masks of {type(model).__name__}, {some_of(len(names), len(layers), 'FlexConv layers')}"
    figure = new_figure(max(columns * side, 2.6), rows * (side + 0.42) + 0.35, title if columns > 2 else "")
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel in panels.flat[len(names) :]:
        panel.set_axis_off()
    for index, (panel, name) in enumerate(zip(panels.flat, names, strict=False)):
        layer = layers[name]
        (_draw_plane if layer.dims == 2 else _draw_profiles)(panel, layer)
        size = times(layer.extent) + (" taps" if layer.dims == 1 else "")
        panel.set_title(f"{shorten(name, 16)}\n{'' if layer.mask else 'no mask, '}{size}", fontsize=7, pad=3)
        panel.set_box_aspect(1)
        if index % columns:
            panel.set_yticklabels([])
    deepest = max(layers[name].dims for name in names)
    if deepest == 3:
        handles = [
            Line2D([], [], color=colour, label=name) for colour, name in zip(AXIS_COLOURS, NAMES[3], strict=True)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _draw_plane(panel: Axes, layer: FlexConvNd) -> None:
    axes, taps = layer.axes, sampling.current_taps(layer)
    (top, bottom), (left, right) = (span(axis, axis.whole) for axis in axes)
    window = sampling.sample_mask(layer, sampling.coordinates(layer, axes))
    if window is None:
        frame(panel, *_ends(axes, taps), fill=True, facecolor=PALE, linewidth=0)
    else:
        values = sampling.to_numpy(window)
        panel.imshow(values, cmap=SHARE, vmin=0, vmax=1, extent=(left, right, bottom, top), aspect="auto")
        _draw_threshold(panel, layer)
    frame(panel, *_ends(axes, taps), gid="crop")
    plain_ticks(panel, x=axes[1], y=axes[0])
    panel.set_xlim(left, right)
    panel.set_ylim(bottom, top)


def _draw_threshold(panel: Axes, layer: FlexConvNd) -> None:
    """The line where the window has fallen to the value that it is cropped at."""
    threshold = None if layer.mask is None else layer.mask.threshold
    dense = [_line(layer, d) for d in range(2)]
    window = sampling.sample_mask(layer, dense)
    if threshold is None or window is None:
        return
    values = sampling.to_numpy(window)
    if values.min() < threshold < values.max():  # matplotlib warns of a line that is nowhere
        rows, columns = map(sampling.to_numpy, dense)
        panel.contour(columns, rows, values, levels=[threshold], colors=[RED], linewidths=0.8)


def _draw_profiles(panel: Axes, layer: FlexConvNd) -> None:
    """The window along every axis, through its centre."""
    axes, taps = layer.axes, sampling.current_taps(layer)
    lines, centres = sampling.coordinates(layer, axes), sampling.centre_taps(layer)
    centre = [line[tap : tap + 1] for line, tap in zip(lines, centres, strict=True)]
    for d, colour in zip(range(layer.dims), AXIS_COLOURS, strict=False):
        low, high = span(axes[d], taps[d])
        if layer.dims == 1:
            panel.axvspan(low, high, facecolor=PALE, alpha=0.5, edgecolor="none", zorder=0, gid="crop")
        else:  # crops side by side, as bars below the curves
            panel.plot([low, high], [-0.06 * (d + 1)] * 2, color=colour, linewidth=2, solid_capstyle="butt", gid="crop")
        line = _line(layer, d)
        window = sampling.sample_mask(layer, [line if e == d else centre[e] for e in range(layer.dims)])
        values = np.ones(len(line)) if window is None else sampling.to_numpy(window.flatten())
        panel.plot(sampling.to_numpy(line), values, color=colour, linewidth=1.0, label=NAMES[layer.dims][d])
    if layer.mask is not None and layer.mask.threshold is not None:
        panel.axhline(layer.mask.threshold, color=FAINT, linewidth=0.7, linestyle=":")
    ends = [span(axis, axis.whole) for axis in axes]
    panel.set_xlim(min(low for low, _ in ends), max(high for _, high in ends))
    panel.set_ylim(-0.05 if layer.dims == 1 else -0.27, 1.08)
    panel.set_yticks([0, 0.5, 1], ["0", "½", "1"])
    plain_ticks(panel, x=axes[0] if len({axis.causal for axis in axes}) == 1 else axes[-1])


def _line(layer: FlexConvNd, d: int) -> torch.Tensor:
    """Coordinates of an axis, dense enough for a smooth curve."""
    dtype, device = layer.generator.compute_dtype, layer._like().device
    return torch.linspace(*span(layer.axes[d], layer.axes[d].whole), POINTS, device=device, dtype=dtype)


def _ends(axes: Sequence[Axis], taps: Sequence[TapRange]) -> list[tuple[float, float]]:
    return [span(axis, each) for axis, each in zip(axes, taps, strict=True)]
