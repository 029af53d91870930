"""A figure of the times of `flexconv bench peers`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..errors import ArgumentError
from ..viz.style import PAGE, new_figure, styled, theme, times

COLUMNS = 2
PANEL = 1.75  # height in inches


@styled
def plot_peers(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw the times of all layers, one panel per case and precision. Layers without a time are marked."""
    cases: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        case = row["case"]
        key = case["batch"], case["channels"], tuple(case["size"]), case["taps"], case["depthwise"], row["precision"]
        cases.setdefault(key, []).append(row)
    if not cases:
        raise ArgumentError("there are no rows to draw; plot_peers expects those of bench_peers")
    lines = math.ceil(len(cases) / COLUMNS)
    figure = new_figure(PAGE, 0.5 + PANEL * lines, "Forward and backward of one layer in eager mode, ms (logarithmic)")
    panels = figure.subplots(lines, COLUMNS, squeeze=False, sharey=True)
    for panel in panels.flat[len(cases) :]:
        panel.set_axis_off()
    for panel, (key, layers) in zip(panels.flat, cases.items(), strict=False):
        _draw(panel, key, layers)
    panels[0, 0].invert_yaxis()
    return figure


def _draw(panel: Axes, key: tuple[Any, ...], layers: Sequence[dict[str, Any]]) -> None:
    batch, channels, size, taps, depthwise, precision = key
    kind = f"{'depthwise' if depthwise else 'dense'} {len(size)}D"
    panel.set_title(f"{kind}, {batch} × {channels} × {times(size)}, {times([taps] * len(size))} taps, {precision}")
    measured = [row["ms"] for row in layers if row["ms"] is not None]
    start = min(measured, default=1.0) / 2
    colours = theme()
    for place, row in enumerate(layers):
        if row["ms"] is None:
            panel.text(start, place, " not measured", va="center", size="small", color=colours.faint)
            continue
        own = row["layer"].startswith("FlexConv")
        panel.barh(place, row["ms"] - start, left=start, height=0.7, color=colours.blue if own else colours.faint)
        panel.text(row["ms"], place, f" {_text(row['ms'])}", va="center", size="small")
    panel.set_yticks(range(len(layers)), [row["layer"] for row in layers])
    panel.set_xscale("log")
    panel.set_xlim(start, 4 * max(measured, default=1.0))
    panel.tick_params(axis="x", labelbottom=False, which="both", length=0)


def _text(ms: float) -> str:
    return f"{ms:.3g}" if ms < 1000 else f"{ms:,.0f}"
