"""1D kernels as curves: generator, mask, their product, and the cropped kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from .. import sampling
from ..nn import Axis, FlexConvNd
from ._kernel_images import draw_empty_kernel
from .style import PAGE, end_ticks, largest, new_figure, span, tap_ticks, theme

MAX_STEMS = 80  # with more taps, only the curve is drawn
CURVE_POINTS = 1200
MAX_OVERSHOOT = 3.0  # the y-axis shows the generator up to this many times the largest masked value


def draw_curves(
    layer: FlexConvNd, stages: sampling.KernelStages, pairs: Sequence[tuple[int, int]], titles: Sequence[str]
) -> Figure:
    """Draw one row per channel pair and one column per step."""
    (axis,), (taps,) = stages.axes, stages.taps
    figure = new_figure(PAGE * (len(titles) + 0.4) / 4.4, 1.25 * len(pairs) + 1.15)
    panels = figure.subplots(len(pairs), len(titles), squeeze=False)
    x = tap_coordinates(axis)
    points = points_between(axis)
    finer = Axis(axis.size + (axis.size - 1) * points, axis.causal, axis.spacing / (points + 1))
    lines = sampling.coordinates(layer, [finer])
    mask_values = sampling.sample_mask(layer, lines)
    generated = sampling.to_numpy(sampling.sample_generator(layer, lines)).reshape(*stages.kernel.shape[:2], -1)
    dense = sampling.to_numpy(lines[0])
    masks = [None if mask_values is None else sampling.to_numpy(sampling.mask_of(mask_values, 1, o)) for o, _ in pairs]
    masked = [generated[pair] * (1 if mask is None else mask) for pair, mask in zip(pairs, masks, strict=True)]
    limits = _y_limits([generated[pair] for pair in pairs], [*masked, *(stages.kernel[pair] for pair in pairs)])
    for pair, mask, row in zip(pairs, masks, panels, strict=True):
        draw_taps(row[0], dense, generated[pair], x, stages.generated[pair])
        if mask is not None and stages.mask is not None:
            draw_taps(row[1], dense, mask, x, stages.mask if stages.mask.ndim == 1 else stages.mask[pair[0]])
            draw_taps(row[2], dense, generated[pair] * mask, x, stages.product[pair])
            row[1].set_ylim(-0.05, 1.08)
            row[1].set_yticks([0, 0.5, 1])
            if layer.mask is not None and layer.mask.threshold is not None:
                row[1].axhline(layer.mask.threshold, color=theme().red, linewidth=0.8, linestyle=":", gid="threshold")
        for panel in row[:-1]:
            panel.axvspan(*span(axis, taps), facecolor=theme().pale, alpha=0.5, edgecolor="none", zorder=0)
            panel.set_xlim(*span(axis, axis.whole))
            tap_ticks(panel.xaxis, axis)
        _draw_cropped(row[-1], stages, pair, x)
        for panel in [row[0], *row[2:]] if mask is not None else row:
            panel.set_ylim(*limits)
        for panel in [*row[2:]] if mask is not None else row[1:]:
            panel.set_yticklabels([])
        row[0].set_ylabel(f"output channel {pair[0]}\ninput channel {pair[1]}", fontsize=7)
    for panel in panels[:-1].flat:
        panel.set_xticklabels([])
    for panel, title in zip(panels[0], titles, strict=True):
        panel.set_title(title)
    for panel in panels[-1]:
        panel.set_xlabel("offset, taps")
    figure.legend(handles=_handles(layer, axis), loc="outside lower center", ncols=4)
    return figure


def _handles(layer: FlexConvNd, axis: Axis) -> list[Line2D | Patch]:
    """The legend: one entry for each kind of mark in the figure."""
    colours = theme()
    handles: list[Line2D | Patch] = [Line2D([], [], color=colours.blue, linewidth=0.9, label="function")]
    if axis.size <= MAX_STEMS:
        dots = {"linestyle": "none", "marker": "o", "markersize": 2.4}
        handles.append(Line2D([], [], color=colours.ink, label="taps", **dots))  # type: ignore[arg-type]
    handles.append(Patch(facecolor=colours.pale, alpha=0.5, label="taps that are kept"))
    if layer.mask is not None and layer.mask.threshold is not None:
        threshold = f"threshold of the mask, {layer.mask.threshold:g}"
        handles.append(Line2D([], [], color=colours.red, linewidth=0.8, linestyle=":", label=threshold))
    return handles


def _y_limits(generated: Sequence[np.ndarray], masked: Sequence[np.ndarray]) -> tuple[float, float]:
    """The range of the y-axis for all kernel values. A generator that is much larger than the kernel is cut off."""
    most = MAX_OVERSHOOT * largest(*masked)
    finite = [each[np.isfinite(each)] for each in (*generated, *masked)]
    values = np.concatenate([np.zeros(1), *finite]).clip(-most, most)
    margin = 0.06 * (np.ptp(values) or 1.0)
    return float(values.min() - margin), float(values.max() + margin)


def points_between(axis: Axis) -> int:
    """The number of points between two taps that makes a curve of about CURVE_POINTS points."""
    return max(0, -(-CURVE_POINTS // axis.size) - 1)


def tap_coordinates(axis: Axis) -> np.ndarray:
    """Coordinates of the taps → [size]."""
    return axis.first + axis.spacing * np.arange(axis.size)


def draw_taps(panel: Axes, dense: np.ndarray, curve: np.ndarray, x: np.ndarray, values: np.ndarray) -> None:
    """Draw a function as a curve, and its values at the taps as dots."""
    panel.axhline(0, color=theme().faint, linewidth=0.5)
    panel.plot(dense, curve, color=theme().blue, linewidth=0.9)
    if len(x) <= MAX_STEMS:
        panel.plot(
            x,
            values,
            linestyle="none",
            marker="o",
            markersize=1.8 if len(x) < 50 else 1.3,
            color=theme().ink,
            label="taps",
        )


def _draw_cropped(panel: Axes, stages: sampling.KernelStages, pair: tuple[int, int], x: np.ndarray) -> None:
    (axis,), (taps,) = stages.axes, stages.taps
    if not stages.kernel.size:
        draw_empty_kernel(panel)
        return
    x, values = x[slice(*taps)], stages.kernel[pair]
    panel.axhline(0, color=theme().faint, linewidth=0.5)
    if len(x) <= MAX_STEMS:
        panel.vlines(x, 0, values, color=theme().blue, linewidth=0.9)
        panel.plot(x, values, linestyle="none", marker="o", markersize=2.4, color=theme().ink, label="taps")
    else:
        panel.plot(x, values, color=theme().blue, linewidth=0.8, label="taps")
    panel.set_xlim(*span(axis, taps))
    end_ticks(panel.xaxis, axis, taps)
