"""Kernel sizes during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from .. import sampling
from .._arguments import positive_int
from ..errors import ArgumentError, ArgumentTypeError
from .style import NAMES, PAGE, depth_colours, integer_ticks, new_figure, shorten, some_of, styled

History = Mapping[str, Sequence[tuple[float, int | Sequence[int]]]]


@styled
def plot_sizes(history: History, *, most: int = 16, count: str = "step") -> Figure:
    """Plot kernel sizes during training.

    There is one panel per axis and one line per layer. Deeper layers are lighter.

    Arguments:
        history: for each layer name, a list of pairs (step, size). The size is an int, or a tuple with one int per
            axis, such as the values of `refresh_extents(model)`. Layers are plotted in the order of the dictionary.
        most: the largest number of layers to plot. In a deeper model, the plotted layers are spread evenly over depth.
        count: what the first number of a pair counts, such as `"epoch"`. It is written below the plot.

    """
    curves = {name: _check_sizes(name, points) for name, points in history.items()}
    if not any(curves.values()):
        raise ArgumentError("the history is empty; plot_sizes expects {layer name: [(step, size), …]}")
    names = [list(curves)[index] for index in sampling.spread(positive_int("most", most), len(curves))]
    largest = max((max(size) for name in names for _, size in curves[name]), default=1)
    dims = max(len(size) for points in curves.values() for _, size in points)
    title = f"Kernel size during training, {some_of(len(names), len(curves), 'layers')}"
    figure = new_figure(PAGE, 2.9 if dims < 3 else 2.5, title)
    panels = figure.subplots(1, dims, squeeze=False, sharey=True)[0]
    for name, colour in zip(names, depth_colours(len(names)), strict=True):
        for d, panel in enumerate(panels):
            points = [(step, size[d]) for step, size in curves[name] if len(size) > d]
            label = shorten(name) if d == 0 else None
            steps, sizes = [step for step, _ in points], [size for _, size in points]
            panel.plot(steps, sizes, color=colour, drawstyle="steps-post", label=label)
    for d, panel in enumerate(panels):
        panel.set_xlabel(count)
        integer_ticks(panel.xaxis)
        panel.set_title(NAMES[dims][d] if dims > 1 else "")
        panel.set_ylim(0, 1.05 * largest)
        integer_ticks(panel.yaxis)
        panel.grid(axis="y")
    panels[0].set_ylabel("kernel size, taps")
    figure.legend(loc="outside right upper", title="layer", alignment="left", handlelength=1.4)
    return figure


def _check_sizes(name: str, points: Sequence[tuple[float, int | Sequence[int]]]) -> list[tuple[float, tuple[int, ...]]]:
    try:
        curve = [(step, (size,) if isinstance(size, int) else tuple(size)) for step, size in points]
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            f"the history of layer {name!r} must be a list of pairs (step, size); got {points!r}"
        ) from None
    if wrong := [size for _, size in curve if not 1 <= len(size) <= 3]:
        raise ArgumentError(f"the sizes of layer {name!r} must have 1 to 3 axes; got {wrong[0]}")
    return curve
