"""2D and 3D kernels as images: generator, mask, their product, and the cropped kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch

from .. import sampling
from ..nn import Axis, FlexConvNd, TapRange
from ._threshold import draw_threshold, threshold_handle
from .style import NAMES, PAGE, end_ticks, frame, largest, new_figure, offset_label, span, tap_ticks, theme


class Plane(NamedTuple):
    """The part of a grid that one image shows: two axes. In 3D, `at` is the tap along the third axis, `across`."""

    rows: int
    columns: int
    across: int | None = None
    at: int = 0

    def cut(self, values: np.ndarray, start: int = 0) -> np.ndarray:
        """Take this plane of values [*k] → [rows, columns]. The first value along `across` belongs to tap `start`."""
        return values if self.across is None else np.take(values, self.at - start, axis=self.across)

    def edges(self, taps: Sequence[TapRange], axes: Sequence[Axis]) -> tuple[tuple[float, float], tuple[float, float]]:
        """The coordinates (top, bottom), (left, right) of the outer edges of ranges of taps."""
        return span(axes[self.rows], taps[self.rows]), span(axes[self.columns], taps[self.columns])


def planes(layer: FlexConvNd) -> list[Plane]:
    """The planes to draw: the whole grid in 2D, the three planes through the center of the mask in 3D."""
    if layer.dims == 2:
        return [Plane(0, 1)]
    centre = sampling.centre_taps(layer)
    return [Plane(1, 2, 0, centre[0]), Plane(0, 2, 1, centre[1]), Plane(0, 1, 2, centre[2])]


def draw_images(
    layer: FlexConvNd, stages: sampling.KernelStages, pairs: Sequence[tuple[int, int]], titles: Sequence[str]
) -> Figure:
    """Draw one row per channel pair and plane, and one column per step."""
    rows = [(pair, plane) for pair in pairs for plane in planes(layer)]
    side = (PAGE - 0.5) / 4
    heights = [side * _aspect(plane.cut(stages.product[pair]).shape) + 0.18 for pair, plane in rows]
    figure = new_figure(side * len(titles) + 0.5, sum(heights) + 1.35)
    panels = figure.subplots(len(rows), len(titles), squeeze=False, height_ratios=heights)
    limit = largest(*(values[pair] for pair in pairs for values in (stages.product, stages.kernel)))
    whole = [axis.whole for axis in stages.axes]
    drawn: list[AxesImage] = []
    for (pair, plane), row in zip(rows, panels, strict=True):
        values = [stages.generated[pair], stages.product[pair]][: 2 if stages.mask is not None else 1]
        drawn = [
            draw_plane(panel, plane.cut(v), plane, whole, stages.axes, limit)
            for panel, v in zip(row[::2], values, strict=False)
        ]
        if stages.mask is not None:
            mask = stages.mask if stages.mask.ndim == layer.dims else stages.mask[pair[0]]
            drawn.append(draw_plane(row[1], plane.cut(mask), plane, whole, stages.axes, None))
            if layer.dims == 2:
                draw_threshold(row[1], layer, pair[0])
        for panel in row[:-1]:
            tap_ticks(panel.xaxis, stages.axes[plane.columns])
            tap_ticks(panel.yaxis, stages.axes[plane.rows])
            frame(panel, *plane.edges(stages.taps, stages.axes))
        _draw_cropped(row[-1], stages, pair, plane, limit)
        for panel in row[1:-1]:
            panel.set_yticklabels([])
        row[0].set_ylabel(_row_label(pair, plane, stages.axes))
    for panel in panels[:-1, :-1].flat if layer.dims == 2 else ():
        panel.set_xticklabels([])
    for panel, title in zip(panels[0], titles, strict=True):
        panel.set_title(title)
    for panel in panels[-1]:
        panel.set_xlabel("offset, taps")
    clipped = largest(*(stages.generated[pair] for pair in pairs)) > limit
    _draw_colour_bars(figure, panels, drawn, clipped)
    handles = [Patch(fill=False, edgecolor=theme().ink, linewidth=0.9, label="taps that are kept")]
    handles += threshold_handle([layer]) if layer.dims == 2 else []
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def draw_plane(
    panel: Axes,
    values: np.ndarray,
    plane: Plane,
    taps: Sequence[TapRange],
    axes: Sequence[Axis],
    limit: float | None,
) -> AxesImage:
    """Draw values at their coordinates. The colors cover −limit to limit, or 0 to 1 if `limit` is None."""
    (top, bottom), (left, right) = plane.edges(taps, axes)
    colours, low, high = (theme().share, 0.0, 1.0) if limit is None else (theme().signed, -limit, limit)
    panel.set_box_aspect(_aspect(values.shape))
    panel.set_anchor("N")
    return panel.imshow(
        values,
        cmap=colours,
        vmin=low,
        vmax=high,
        extent=(left, right, bottom, top),
        interpolation="nearest",
        aspect="auto",
    )


def _aspect(shape: Sequence[int]) -> float:
    """Height divided by width of a panel. Taps are square, unless the grid is very long along one axis."""
    return min(max(shape[0] / shape[1], 1 / 3), 1.0)


def _draw_cropped(
    panel: Axes, stages: sampling.KernelStages, pair: tuple[int, int], plane: Plane, limit: float
) -> None:
    if not stages.kernel.size:
        draw_empty_kernel(panel)
        return
    start = 0 if plane.across is None else stages.taps[plane.across][0]
    draw_plane(panel, plane.cut(stages.kernel[pair], start), plane, stages.taps, stages.axes, limit)
    end_ticks(panel.xaxis, stages.axes[plane.columns], stages.taps[plane.columns])
    end_ticks(panel.yaxis, stages.axes[plane.rows], stages.taps[plane.rows])


def draw_empty_kernel(panel: Axes) -> None:
    """Say that the kernel is empty, because the mask is so narrow that it lies between taps."""
    panel.text(0.5, 0.5, "no tap is kept", ha="center", va="center", color=theme().faint, transform=panel.transAxes)
    panel.set_xticks([])
    panel.set_yticks([])


def _row_label(pair: tuple[int, int], plane: Plane, axes: Sequence[Axis]) -> str:
    if plane.across is None:
        return f"output {pair[0]}, input {pair[1]}\noffset, taps"
    axis, names = axes[plane.across], NAMES[3]
    position = offset_label(axis, axis.first + plane.at * axis.spacing)
    where = f"{names[plane.rows]} × {names[plane.columns]}\nat {names[plane.across]} {position}, taps"
    return f"output {pair[0]}, input {pair[1]}\n{where}"


def _draw_colour_bars(figure: Figure, panels: np.ndarray, drawn: Sequence[AxesImage], clipped: bool) -> None:
    """Draw the color bars below: one for the kernel values, one for the mask."""
    look = {
        "location": "bottom",
        "shrink": 0.85,
        "pad": 0.03 if len(panels) > 1 else 0.08,
        "panchor": False,
    }  # keeps panels aligned at the top
    extend = "both" if clipped else "neither"
    figure.colorbar(drawn[0], ax=list(panels[:, 0]), extend=extend, aspect=18, label="generator", **look)
    if len(drawn) > 1:
        figure.colorbar(drawn[-1], ax=list(panels[:, 1]), ticks=[0, 0.5, 1], aspect=18, label="mask", **look)
        figure.colorbar(drawn[0], ax=list(panels[:, 2:].flat), aspect=36, label="kernel", **look)
    else:
        figure.colorbar(drawn[0], ax=list(panels[:, 1]), aspect=18, label="kernel", **look)
