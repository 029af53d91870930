"""Kernels of 1D layers as curves, step by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .. import sampling
from ..nn import Axis, FlexConvNd
from ._kernel_images import say_nothing_is_left
from .style import BLUE, FAINT, INK, PAGE, PALE, end_ticks, largest, new_figure, plain_ticks, span

MOST_STEMS = 80  # taps drawn one by one; above, their curve says more
CURVE_POINTS = 1200
MOST_TIMES_MASKED = 3.0  # how far beyond the masked kernel the scale follows the generator


def draw_curves(
    layer: FlexConvNd, parts: sampling.KernelStages, pairs: Sequence[tuple[int, int]], titles: Sequence[str]
) -> Figure:
    """One row per channel pair, one column per step."""
    (axis,), (taps,) = parts.axes, parts.taps
    figure = new_figure(PAGE * (len(titles) + 0.4) / 4.4, 1.25 * len(pairs) + 0.75)
    panels = figure.subplots(len(pairs), len(titles), squeeze=False)
    x = to_taps(axis)
    between = Axis(axis.size + (axis.size - 1) * refinement(axis), axis.causal, axis.spacing / (refinement(axis) + 1))
    lines = sampling.coordinates(layer, [between])
    fine, window = sampling.to_numpy(sampling.sample_generator(layer, lines)), sampling.sample_mask(layer, lines)
    fine = fine.reshape(*parts.kernel.shape[:2], -1)
    shape = None if window is None else sampling.to_numpy(window)
    dense = sampling.to_numpy(lines[0])
    masked = [fine[pair] * (1 if shape is None else shape) for pair in pairs] + [parts.kernel[pair] for pair in pairs]
    heights = _heights([fine[pair] for pair in pairs], masked)
    for pair, line in zip(pairs, panels, strict=True):
        draw_taps(line[0], dense, fine[pair], x, parts.generated[pair])
        if shape is not None and parts.mask is not None:
            draw_taps(line[1], dense, shape, x, parts.mask)
            draw_taps(line[2], dense, fine[pair] * shape, x, parts.product[pair])
            line[1].set_ylim(-0.05, 1.08)
            line[1].set_yticks([0, 0.5, 1])
            if layer.mask is not None and layer.mask.threshold is not None:
                line[1].axhline(layer.mask.threshold, color=FAINT, linewidth=0.7, linestyle=":")
        for panel in line[:-1]:
            panel.axvspan(*span(axis, taps), facecolor=PALE, alpha=0.5, edgecolor="none", zorder=0)
            panel.set_xlim(*span(axis, axis.whole))
            plain_ticks(panel, x=axis)
        _draw_crop(line[-1], parts, pair, x)
        for panel in [line[0], *line[2:]] if parts.mask is not None else line:
            panel.set_ylim(*heights)
        for panel in [*line[2:]] if parts.mask is not None else line[1:]:
            panel.set_yticklabels([])
        line[0].set_ylabel(f"out {pair[0]}, in {pair[1]}")
    for panel in panels[:-1].flat:
        panel.set_xticklabels([])
    for panel, title in zip(panels[0], titles, strict=True):
        panel.set_title(title)
    return figure


def _heights(whole: Sequence[np.ndarray], masked: Sequence[np.ndarray]) -> tuple[float, float]:
    """A range for all curves of kernels. It may cut the generator's where the mask makes them far smaller."""
    most = MOST_TIMES_MASKED * largest(*masked)
    values = np.concatenate([np.zeros(1), *(each[np.isfinite(each)] for each in (*whole, *masked))]).clip(-most, most)
    margin = 0.06 * (np.ptp(values) or 1.0)
    return float(values.min() - margin), float(values.max() + margin)


def refinement(axis: Axis) -> int:
    """How many points to compute between two taps, so that the curve is smooth and not dearer than it need be."""
    return max(0, -(-CURVE_POINTS // axis.size) - 1)


def to_taps(axis: Axis) -> np.ndarray:
    """Coordinates of the taps, [size]."""
    return axis.first + axis.spacing * np.arange(axis.size)


def draw_taps(panel: Axes, dense: np.ndarray, curve: np.ndarray, x: np.ndarray, values: np.ndarray) -> None:
    """A continuous kernel and the taps sampled from it."""
    panel.axhline(0, color=FAINT, linewidth=0.5)
    panel.plot(dense, curve, color=BLUE, linewidth=0.9)
    if len(x) <= MOST_STEMS:
        panel.plot(
            x, values, linestyle="none", marker="o", markersize=1.8 if len(x) < 50 else 1.3, color=INK, label="taps"
        )


def _draw_crop(panel: Axes, parts: sampling.KernelStages, pair: tuple[int, int], x: np.ndarray) -> None:
    (axis,), (taps,) = parts.axes, parts.taps
    if not parts.kernel.size:
        say_nothing_is_left(panel)
        return
    x, values = x[slice(*taps)], parts.kernel[pair]
    panel.axhline(0, color=FAINT, linewidth=0.5)
    if len(x) <= MOST_STEMS:
        panel.vlines(x, 0, values, color=BLUE, linewidth=0.9)
        panel.plot(x, values, linestyle="none", marker="o", markersize=2.4, color=INK, label="taps")
    else:
        panel.plot(x, values, color=BLUE, linewidth=0.8, label="taps")
    panel.set_xlim(*span(axis, taps))
    end_ticks(panel.xaxis, axis, taps)
