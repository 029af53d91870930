"""The learned masks of all layers of a network, and the kernel sizes that follow from them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import nn

from .. import sampling
from .._arguments import positive_int
from ..nn import Axis, FlexConvNd, TapRange
from ._threshold import dense_coordinates, draw_threshold, threshold_handle
from .style import NAMES, PAGE, frame, new_figure, shorten, some_of, span, styled, tap_ticks, theme, times

COLUMNS = 7  # at most


@styled
def plot_masks(model: nn.Module, *, most: int = 28) -> Figure:
    """Plot the mask of every FlexConv layer of a model, with the layer's name and current kernel size.

    A 2D mask is an image of the whole grid. A box shows the taps that are kept, and a contour shows where the mask
    falls to its threshold. A 1D mask is a curve with the kept taps shaded. A 3D mask is one curve per axis through its
    center, with bars for the kept taps. A layer without a mask shows the part of the grid that its generator uses.

    Arguments:
        model: a model with FlexConv layers, or a single layer.
        most: the largest number of layers to plot. In a deeper model, the plotted layers are spread evenly over depth.

    """
    layers = sampling.flexconv_layers(model, "plot_masks")
    names = [list(layers)[index] for index in sampling.spread(positive_int("most", most), len(layers))]
    rows = math.ceil(len(names) / COLUMNS)
    columns = math.ceil(len(names) / rows)
    side = PAGE / COLUMNS if columns > 3 else PAGE / 4.5
    title = f"Masks of {type(model).__name__}, {some_of(len(names), len(layers), 'FlexConv layers')}"
    handles = _handles([layers[name] for name in names])
    legend_rows = math.ceil(len(handles) / 3) if columns > 3 else len(handles)
    height = rows * (side + 0.42) + 0.5 + 0.17 * legend_rows
    figure = new_figure(max(columns * side, 2.6), height, title if columns > 2 else "")
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel in panels.flat[len(names) :]:
        panel.set_axis_off()
    for index, (panel, name) in enumerate(zip(panels.flat, names, strict=False)):
        layer = layers[name]
        (_draw_plane if layer.dims == 2 else _draw_profiles)(panel, layer)
        size = f"{times(layer.extent)} taps"
        panel.set_title(f"{shorten(name, 16)}\n{'' if layer.mask else 'no mask, '}{size}", fontsize=7, pad=3)
        panel.set_box_aspect(1)
        if index % columns:
            panel.set_yticklabels([])
    for panel in panels[-1]:
        panel.set_xlabel("offset, taps", fontsize=7)
    figure.legend(handles=handles, loc="outside lower center", ncols=3 if columns > 3 else 1)
    return figure


def _handles(layers: Sequence[FlexConvNd]) -> list[Line2D]:
    """The legend: one entry for each kind of line in the figure."""
    dims = {layer.dims for layer in layers}
    thresholds = {layer.dims for layer in layers if layer.mask is not None and layer.mask.threshold is not None}
    handles = []
    if 3 in dims:
        handles += [Line2D([], [], color=c, label=name) for c, name in zip(_axis_colours(), NAMES[3], strict=True)]
        handles.append(Line2D([], [], color=theme().faint, linewidth=2, label="bars: taps that are kept"))
    if 2 in dims:
        handles.append(Line2D([], [], color=theme().ink, linewidth=0.9, label="taps that are kept"))
    if 1 in dims:
        handles.append(Line2D([], [], color=theme().pale, linewidth=5, alpha=0.5, label="taps that are kept"))
    if 2 in thresholds:
        handles += threshold_handle([layer for layer in layers if layer.dims == 2])
    if {1, 3} & thresholds:
        handles.append(Line2D([], [], color=theme().faint, linewidth=0.7, linestyle=":", label="threshold of the mask"))
    return handles


def _axis_colours() -> tuple[str, str, str]:
    """The colors of depth, height and width."""
    return theme().blue, theme().red, theme().green


def _draw_plane(panel: Axes, layer: FlexConvNd) -> None:
    axes, taps = layer.axes, layer.taps
    (top, bottom), (left, right) = (span(axis, axis.whole) for axis in axes)
    mask = sampling.sample_mask(layer, sampling.coordinates(layer, axes))
    if mask is None:
        frame(panel, *_edges(axes, taps), fill=True, facecolor=theme().pale, linewidth=0)
    else:
        values = sampling.to_numpy(sampling.mask_of(mask, layer.dims))
        look = {"cmap": theme().share, "vmin": 0, "vmax": 1, "interpolation": "nearest", "aspect": "auto"}
        panel.imshow(values, extent=(left, right, bottom, top), **look)
        draw_threshold(panel, layer)
    frame(panel, *_edges(axes, taps), gid="crop")
    tap_ticks(panel.xaxis, axes[1])
    tap_ticks(panel.yaxis, axes[0])
    panel.set_xlim(left, right)
    panel.set_ylim(bottom, top)


def _draw_profiles(panel: Axes, layer: FlexConvNd) -> None:
    """Draw the mask along every axis, through its center."""
    axes, taps = layer.axes, layer.taps
    lines, centres = sampling.coordinates(layer, axes), sampling.centre_taps(layer)
    centre = [line[tap : tap + 1] for line, tap in zip(lines, centres, strict=True)]
    for d, colour in zip(range(layer.dims), _axis_colours(), strict=False):
        low, high = span(axes[d], taps[d])
        if layer.dims == 1:
            panel.axvspan(low, high, facecolor=theme().pale, alpha=0.5, edgecolor="none", zorder=0, gid="crop")
        else:  # one bar per axis, below the curves
            panel.plot([low, high], [-0.06 * (d + 1)] * 2, color=colour, linewidth=2, solid_capstyle="butt", gid="crop")
        line = dense_coordinates(layer, d)
        mask = sampling.sample_mask(layer, [line if e == d else centre[e] for e in range(layer.dims)])
        values = np.ones(len(line)) if mask is None else sampling.to_numpy(sampling.mask_of(mask, layer.dims).flatten())
        panel.plot(sampling.to_numpy(line), values, color=colour, linewidth=1.0, label=NAMES[layer.dims][d])
    if layer.mask is not None and layer.mask.threshold is not None:
        panel.axhline(layer.mask.threshold, color=theme().faint, linewidth=0.7, linestyle=":")
    ends = [span(axis, axis.whole) for axis in axes]
    panel.set_xlim(min(low for low, _ in ends), max(high for _, high in ends))
    panel.set_ylim(-0.05 if layer.dims == 1 else -0.27, 1.08)
    panel.set_yticks([0, 0.5, 1], ["0", "½", "1"])
    if len({*axes}) == 1:
        tap_ticks(panel.xaxis, axes[0])
    else:  # axes of different sizes share the panel
        panel.set_xticks([-1, 1], ["first tap", "last tap"])


def _edges(axes: Sequence[Axis], taps: Sequence[TapRange]) -> list[tuple[float, float]]:
    """The outer edges of a range of taps, axis by axis."""
    return [span(axis, each) for axis, each in zip(axes, taps, strict=True)]
