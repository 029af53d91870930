"""Losses, accuracies and other metrics during training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .._records import COUNTS, Record, counted_in, is_number, metrics_by_split
from ..errors import ArgumentError
from .style import BLUE, GREEN, INK, PAGE, RED, new_figure, styled

COLOURS = {"train": BLUE, "validation": RED, "val": RED, "valid": RED, "test": GREEN, "": INK}
DECADES = 2.0  # the y-axis is logarithmic if a loss falls by more than this many powers of ten


@styled
def plot_curves(records: Sequence[Record], *, metrics: Sequence[str] | None = None) -> Figure:
    """Plot losses, accuracies and other metrics during training.

    There is one panel per metric, with one curve per split. A ring marks the best value on validation and test data.

    Arguments:
        records: dictionaries such as `{"epoch": 3, "train_loss": 0.4, "validation_accuracy": 0.8}`. Each one needs
            `"step"` or `"epoch"`. The other keys are `metric` or `split_metric`. A record may lack some of them.
        metrics: the metrics to plot, such as `("loss",)`. By default, all metrics that have splits.

    """
    records = list(records)
    if not records:
        raise ArgumentError("there are no records to plot; plot_curves expects a list of dictionaries")
    count = counted_in(records)
    if count is None:
        raise ArgumentError(
            f"every record needs {' or '.join(map(repr, COUNTS))}; the first record has {sorted(records[0])}"
        )
    found = metrics_by_split(records)
    chosen = list(metrics) if metrics is not None else [name for name, splits in found.items() if {*splits} - {""}]
    if missing := [name for name in chosen if name not in found]:
        raise ArgumentError(
            f"no record has the metric {missing[0]!r}; available metrics: {', '.join(map(repr, found)) or 'none'}"
        )
    if not chosen:
        raise ArgumentError(
            f"no record has a metric of a split, such as 'train_loss'; the first record has {sorted(records[0])}"
        )
    columns = min(len(chosen), 3)
    rows = math.ceil(len(chosen) / columns)
    figure = new_figure(PAGE if columns > 1 else PAGE / 2, 2.5 * rows)
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel in panels.flat[len(chosen) :]:
        panel.set_axis_off()
    for panel, metric in zip(panels.flat, chosen, strict=False):
        _draw_metric(panel, records, count, metric, found[metric])
    return figure


def _draw_metric(panel: Axes, records: Sequence[Record], count: str, metric: str, splits: Mapping[str, str]) -> None:
    smallest, largest = math.inf, 0.0
    for split, key in splits.items():
        points = [(float(r[count]), float(r[key])) for r in records if is_number(r.get(key))]  # type: ignore[arg-type]
        steps, values = zip(*points, strict=True)
        marker = "o" if len(points) < 15 else None
        panel.plot(steps, values, color=COLOURS[split], marker=marker, markersize=2.5, label=split or metric)
        finite = [value for value in values if math.isfinite(value)]
        smallest, largest = min([smallest, *finite]), max([largest, *finite])
        if split not in ("train", "") and finite:
            _mark_best(panel, points, COLOURS[split], lowest=metric.endswith("loss"))
    if metric.endswith("loss") and 0 < smallest < largest * 10**-DECADES:
        panel.set_yscale("log")
    panel.set_title(metric.replace("_", " "))
    panel.set_xlabel(count)
    panel.grid(axis="y")
    panel.legend(loc="upper right" if metric.endswith("loss") else "lower right")  # "best" is slow and warns of it


def _mark_best(panel: Axes, points: Sequence[tuple[float, float]], colour: str, *, lowest: bool) -> None:
    """Draw a ring around the best value and write the value beside it."""
    finite = [point for point in points if math.isfinite(point[1])]
    step, value = min(finite, key=lambda p: p[1]) if lowest else max(finite, key=lambda p: p[1])
    panel.plot(step, value, "o", markersize=4.5, markerfacecolor="none", color=colour, gid="best")
    offset = (0, 6) if lowest else (0, -9)
    panel.annotate(
        f"best {value:.4g}", (step, value), offset, textcoords="offset points", ha="center", color=colour, fontsize=7
    )
