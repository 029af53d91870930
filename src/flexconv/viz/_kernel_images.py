"""Kernels of 2D and 3D layers as images, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from .. import sampling
from ..nn import Axis, FlexConvNd, TapRange
from .style import (
    FAINT,
    NAMES,
    PAGE,
    SHARE,
    SIGNED,
    end_ticks,
    frame,
    largest,
    new_figure,
    plain_ticks,
    span,
)


class Plane(NamedTuple):
    """What is drawn of a grid: two of its axes; in 3D at the tap `at` of the third."""

    rows: int
    columns: int
    across: int | None = None
    at: int = 0

    def cut(self, values: np.ndarray, start: int = 0) -> np.ndarray:
        """Values [*k], of which the first across is tap `start` → [rows, columns]."""
        return values if self.across is None else np.take(values, self.at - start, axis=self.across)

    def of(self, windows: Sequence[TapRange], axes: Sequence[Axis]) -> tuple[tuple[float, float], tuple[float, float]]:
        """The ends of a window: (top, bottom), (left, right)."""
        return span(axes[self.rows], windows[self.rows]), span(axes[self.columns], windows[self.columns])


def planes(layer: FlexConvNd) -> list[Plane]:
    """The whole grid of a 2D layer; of a 3D one the three planes through the mask's centre."""
    if layer.dims == 2:
        return [Plane(0, 1)]
    centre = sampling.centre_taps(layer)
    return [Plane(1, 2, 0, centre[0]), Plane(0, 2, 1, centre[1]), Plane(0, 1, 2, centre[2])]


def draw_images(
    layer: FlexConvNd, parts: sampling.KernelStages, pairs: Sequence[tuple[int, int]], titles: Sequence[str]
) -> Figure:
    """One row per channel pair and plane, one column per step."""
    rows = [(pair, plane) for pair in pairs for plane in planes(layer)]
    side = (PAGE - 0.5) / 4
    heights = [side * _aspect(plane.cut(parts.product[pair]).shape) + 0.18 for pair, plane in rows]
    figure = new_figure(side * len(titles) + 0.5, sum(heights) + 0.85)
    panels = figure.subplots(len(rows), len(titles), squeeze=False, height_ratios=heights)
    limit = largest(*(values[pair] for pair in pairs for values in (parts.product, parts.kernel)))
    whole = [axis.whole for axis in parts.axes]
    drawn: list[AxesImage] = []
    for (pair, plane), line in zip(rows, panels, strict=True):
        values = [parts.generated[pair], parts.product[pair]][: 2 if parts.mask is not None else 1]
        drawn = [
            draw_plane(panel, plane.cut(v), plane, whole, parts.axes, limit)
            for panel, v in zip(line[::2], values, strict=False)
        ]
        if parts.mask is not None:
            drawn.append(draw_plane(line[1], plane.cut(parts.mask), plane, whole, parts.axes, None))
        for panel in line[:-1]:
            plain_ticks(panel, x=parts.axes[plane.columns], y=parts.axes[plane.rows])
            frame(panel, *plane.of(parts.taps, parts.axes))
        _draw_crop(line[-1], parts, pair, plane, limit)
        for panel in line[1:-1]:
            panel.set_yticklabels([])
        line[0].set_ylabel(_row_name(pair, plane, parts.axes))
    for panel in panels[:-1, :-1].flat if layer.dims == 2 else ():
        panel.set_xticklabels([])
    for panel, title in zip(panels[0], titles, strict=True):
        panel.set_title(title)
    clipped = largest(*(parts.generated[pair] for pair in pairs)) > limit
    _bars(figure, panels, drawn, clipped)
    return figure


def draw_plane(
    panel: Axes,
    values: np.ndarray,
    plane: Plane,
    windows: Sequence[TapRange],
    axes: Sequence[Axis],
    limit: float | None,
) -> AxesImage:
    """Taps as an image on their coordinates; in ±limit, or as shares of 1 where that is None."""
    (top, bottom), (left, right) = plane.of(windows, axes)
    colours, low, high = (SHARE, 0.0, 1.0) if limit is None else (SIGNED, -limit, limit)
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
    """Height of a panel over its width: taps are squares, except in grids that would become a column or a thread."""
    return min(max(shape[0] / shape[1], 1 / 3), 1.0)


def _draw_crop(panel: Axes, parts: sampling.KernelStages, pair: tuple[int, int], plane: Plane, limit: float) -> None:
    if not parts.kernel.size:
        say_nothing_is_left(panel)
        return
    start = 0 if plane.across is None else parts.taps[plane.across][0]
    draw_plane(panel, plane.cut(parts.kernel[pair], start), plane, parts.taps, parts.axes, limit)
    end_ticks(panel.xaxis, parts.axes[plane.columns], parts.taps[plane.columns])
    end_ticks(panel.yaxis, parts.axes[plane.rows], parts.taps[plane.rows])


def say_nothing_is_left(panel: Axes) -> None:
    """For a mask so narrow that it lies between taps."""
    panel.text(0.5, 0.5, "no tap is kept", ha="center", va="center", color=FAINT, transform=panel.transAxes)
    panel.set_xticks([])
    panel.set_yticks([])


def _row_name(pair: tuple[int, int], plane: Plane, axes: Sequence[Axis]) -> str:
    name = f"out {pair[0]}, in {pair[1]}"
    if plane.across is None:
        return name
    axis, names = axes[plane.across], NAMES[3]
    place = f"{axis.first + plane.at * axis.spacing:.2f}".replace("-", "−")
    return f"{name}\nat {names[plane.across]} {place}\n{names[plane.rows]} × {names[plane.columns]}"


def _bars(figure: Figure, panels: np.ndarray, drawn: Sequence[AxesImage], clipped: bool) -> None:
    """Colour bars below: the shared one under every column of kernels, the mask's under its own."""
    look = {"location": "bottom", "shrink": 0.85, "pad": 0.015, "panchor": False}  # panels stay aligned at the top
    figure.colorbar(drawn[0], ax=list(panels[:, 0]), extend="both" if clipped else "neither", aspect=18, **look)
    if len(drawn) > 1:
        figure.colorbar(drawn[-1], ax=list(panels[:, 1]), ticks=[0, 0.5, 1], aspect=18, **look)
        figure.colorbar(drawn[0], ax=list(panels[:, 2:].flat), aspect=36, **look)
    else:
        figure.colorbar(drawn[0], ax=list(panels[:, 1]), aspect=18, **look)
