"""The contour on which a 2D mask equals the threshold below which it is cropped."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from .. import sampling
from ..nn import FlexConvNd
from .style import span, theme

POINTS = 200  # along each axis, enough for a smooth curve


def draw_threshold(panel: Axes, layer: FlexConvNd, channel: int | None = None) -> None:
    """Draw the contour. Draws nothing if the mask has no threshold or does not reach it on the grid.

    `channel` is an output channel, for masks per channel. None: the largest value over all channels.
    """
    threshold = None if layer.mask is None else layer.mask.threshold
    lines = [dense_coordinates(layer, d) for d in range(2)]
    mask = sampling.sample_mask(layer, lines)
    if threshold is None or mask is None:
        return
    values = sampling.to_numpy(sampling.mask_of(mask, layer.dims, channel))
    if values.min() < threshold < values.max():  # matplotlib warns about a contour without points
        rows, columns = map(sampling.to_numpy, lines)
        panel.contour(columns, rows, values, levels=[threshold], colors=[theme().red], linewidths=0.8)


def threshold_handle(layers: Sequence[FlexConvNd]) -> list[Line2D]:
    """The entry of the legend, with the value if it is the same for all layers. Empty if no mask has a threshold."""
    found = {layer.mask.threshold for layer in layers if layer.mask is not None and layer.mask.threshold is not None}
    if not found:
        return []
    value = f" of {found.pop():g}" if len(found) == 1 else ""
    return [Line2D([], [], color=theme().red, linewidth=0.8, label=f"mask equals its threshold{value}")]


def dense_coordinates(layer: FlexConvNd, d: int) -> torch.Tensor:
    """Coordinates along axis d, dense enough for a smooth curve."""
    taps = sampling.coordinates(layer, layer.axes)[d]
    return torch.linspace(*span(layer.axes[d], layer.axes[d].whole), POINTS, device=taps.device, dtype=taps.dtype)
