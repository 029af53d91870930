"""Losses, accuracies and other metrics during training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from .._records import COUNTS, Record, counted_in, is_number, metrics_by_split
from ..errors import ArgumentError
from .style import PAGE, integer_ticks, new_figure, styled, theme

DECADES = 2.0  # the y-axis is logarithmic if a loss falls by more than this many powers of ten
FEW = 30  # every value of a curve has a marker if there are at most this many
LOOKS = {  # by split: the name of a color of the theme, the marker, and the full name of the split
    "train": ("blue", "o", "train"),
    "validation": ("red", "s", "validation"),
    "val": ("red", "s", "validation"),
    "valid": ("red", "s", "validation"),
    "test": ("green", "D", "test"),
    "": ("ink", "o", ""),
}

Point = tuple[float, float]  # epoch or step, and value


@styled
def plot_curves(records: Sequence[Record], *, metrics: Sequence[str] | None = None) -> Figure:
    """Plot losses, accuracies and other metrics during training.

    There is one panel per metric, with one curve per split. A split with a single value, such as the test at the end of
    a run, is drawn as a single mark. A ring marks the best value on validation data, and of equal values the one with
    the lowest loss, which is how a run selects its epoch. The legend below each panel gives the last value of each
    curve, and the best one with its epoch. Of several values on test data, the best one is marked, too, and called the
    best test epoch: it is not an estimate of the error on new data. Accuracies are in %.

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
    figure = new_figure(PAGE if columns > 1 else PAGE / 2, 3.0 * rows)
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel in panels.flat[len(chosen) :]:
        panel.set_axis_off()
    for panel, metric in zip(panels.flat, chosen, strict=False):
        _draw_metric(panel, records, count, metric, found[metric])
    return figure


def _draw_metric(panel: Axes, records: Sequence[Record], count: str, metric: str, splits: Mapping[str, str]) -> None:
    is_loss, percent = metric.endswith("loss"), metric.endswith("accuracy")
    curves = {split: _points(records, count, key) for split, key in splits.items()}
    handles = []
    for split, points in curves.items():
        handles.append(_draw_split(panel, points, split, metric, percent=percent))
        if split not in ("train", "") and sum(math.isfinite(value) for _, value in points) > 1:
            losses = {at: loss for at, loss in _points(records, count, f"{split}_loss") if math.isfinite(loss)}
            handles.append(_mark_best(panel, points, split, count, losses, lowest=is_loss, percent=percent))
    finite = [value for points in curves.values() for _, value in points if math.isfinite(value)]
    if is_loss and finite and 0 < min(finite) < max(finite) * 10**-DECADES:
        panel.set_yscale("log")
    else:
        panel.yaxis.set_major_locator(
            MaxNLocator(6, steps=[1, 2, 5, 10])
        )  # ticks that depend on the height would move the layout
    if percent:
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g}"))
    name = metric.replace("top5", "top-5").replace("_", " ")
    panel.set_title(name)
    panel.set_ylabel(f"{name}, %" if percent else name)
    panel.set_xlabel(count)
    integer_ticks(panel.xaxis)
    panel.grid(axis="y")
    panel.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.2))


def _points(records: Sequence[Record], count: str, key: str) -> list[Point]:
    return [(float(r[count]), float(r[key])) for r in records if is_number(r.get(key))]  # type: ignore[arg-type]


def _draw_split(panel: Axes, points: Sequence[Point], split: str, metric: str, *, percent: bool) -> Line2D:
    """Draw one curve, or one mark if there is a single value, and return its entry of the legend."""
    colour, marker, name = LOOKS[split]
    steps, values = zip(*points, strict=True)
    single = len(points) == 1
    look = {"color": getattr(theme(), colour), "marker": marker if len(points) <= FEW else None}
    look |= {"linestyle": "none", "markersize": 4.5, "zorder": 3} if single else {"markersize": 2.2}
    panel.plot(steps, values, label=split or metric, **look)  # type: ignore[arg-type]
    last = f"{_show(values[-1], percent)}" if single else f"last {_show(values[-1], percent)}"
    return Line2D([], [], label=f"{name or metric.replace('_', ' ')}: {last}", **look)  # type: ignore[arg-type]


def _mark_best(
    panel: Axes,
    points: Sequence[Point],
    split: str,
    count: str,
    losses: Mapping[float, float],
    *,
    lowest: bool,
    percent: bool,
) -> Line2D:
    """Draw a ring around the best value and return its entry of the legend.

    Of equal values, the one with the lowest of the `losses` is marked, because training selects that epoch.
    """
    finite = [point for point in points if math.isfinite(point[1])]
    sign = 1 if lowest else -1
    step, value = min(finite, key=lambda p: (sign * p[1], losses.get(p[0], math.inf)))
    colour, _, name = LOOKS[split]
    look = {"color": getattr(theme(), colour), "marker": "o", "linestyle": "none", "markerfacecolor": "none"}
    panel.plot(step, value, markersize=6, gid="best", zorder=4, **look)  # type: ignore[arg-type]
    label = f"best {name} {count} {step:g}: {_show(value, percent)}"
    return Line2D([], [], label=label, markersize=6, **look)  # type: ignore[arg-type]


def _show(value: float, percent: bool) -> str:
    return f"{100 * value:.2f} %" if percent else f"{value:.4g}"
