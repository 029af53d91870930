"""The parts of a spectrum's picture: curves per axis, images of both frequencies, and what their lines mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..nn import Axis, FlexConvNd
from ._spectrum_numbers import Curve, decibels, plane, top_frequency
from .style import BLUE, ENERGY, FAINT, GREEN, INK, ORANGE, PALE, PURPLE, RED, SKY, Dashes, frame, times

FLOOR = -80.0  # decibels
REACH = 12.0  # curves go as far as a limit, unless it lies beyond so many times the largest Nyquist frequency

RESOLUTIONS = (BLUE, SKY, INK, FAINT)
LIMITS: dict[str, tuple[str, Dashes]] = {
    "exact": (RED, (0, ())),
    "authors": (PURPLE, (0, (5, 2))),
    "paper": (ORANGE, (0, (1.2, 1.2))),
}
MEASURED: Dashes = (0, (3, 1, 1, 1))


class View(NamedTuple):
    """What one figure shows."""

    layer: FlexConvNd
    mask: bool
    grids: dict[float, list[Axis]]  # by scale
    sampled: dict[float, list[Curve]]  # by scale, per axis
    continuous: list[Curve]  # per axis
    limits: dict[str, list[float]]  # by formula, per axis
    measured: list[float]  # per axis
    share: float  # of the energy below that

    def nyquist(self, d: int) -> float:
        """The largest one along an axis."""
        return max(top_frequency(axes[d]) for axes in self.grids.values())


def draw_curves(panel: Axes, view: View, d: int) -> None:
    """Energy along one axis: the kernel's own, and that of its samples."""
    marks = [values[d] for values in view.limits.values()] + [view.measured[d]]
    farthest = max([view.nyquist(d), *(mark for mark in marks if mark <= REACH * view.nyquist(d))])
    frequency, density = view.continuous[d]
    reference = float(np.nanmax(density))
    panel.fill_between(frequency, decibels(density, reference, FLOOR), FLOOR, color=PALE, linewidth=0)
    for (scale, curves), colour in zip(view.sampled.items(), RESOLUTIONS, strict=False):
        frequency, density = curves[d]
        panel.plot(frequency, decibels(density, reference, FLOOR), color=colour, gid=f"spectrum {scale:g}")
        panel.axvline(top_frequency(view.grids[scale][d]), color=colour, linewidth=0.9, gid=f"nyquist {scale:g}")
    for name, values in view.limits.items():
        colour, dashes = LIMITS[name]
        panel.axvline(values[d], color=colour, linestyle=dashes, linewidth=1.1, gid=f"limit {name}")
    panel.axvline(view.measured[d], color=GREEN, linestyle=MEASURED, linewidth=1.1, gid="measured")
    panel.set_xlim(0, 1.06 * farthest)
    panel.set_ylim(FLOOR, 6)


def draw_images(figure: Figure, panels: Sequence[Axes], view: View) -> None:
    """Energy over both frequencies of a 2D kernel, one image per resolution."""
    energies = [plane(view.layer, axes, mask=view.mask) for axes in view.grids.values()]
    reference = max(float(np.nanmax(each)) for each in energies)
    reach = [1.12 * view.nyquist(d) for d in range(2)]
    images = []
    for panel, (scale, axes), energy in zip(panels, view.grids.items(), energies, strict=True):
        rows, columns = (_bin_edges(axis, count) for axis, count in zip(axes, energy.shape, strict=True))
        images.append(
            panel.imshow(
                decibels(energy, reference, FLOOR),
                extent=(*columns, rows[1], rows[0]),
                cmap=ENERGY,
                vmin=FLOOR,
                vmax=0,
                interpolation="nearest",
                aspect="auto",
            )
        )
        for (other, grid), colour in zip(view.grids.items(), RESOLUTIONS, strict=False):
            _box(panel, [top_frequency(axis) for axis in grid], colour, (0, ()), f"nyquist {other:g}")
        for name, values in view.limits.items():
            _box(panel, values, *LIMITS[name], f"limit {name}")
        _box(panel, view.measured, GREEN, MEASURED, "measured")
        panel.set_xlim(-reach[1], reach[1])
        panel.set_ylim(reach[0], -reach[0])
        panel.set_box_aspect(min(max(reach[0] / reach[1], 0.5), 1.0))
        panel.set_title(f"{times([axis.size for axis in axes])} taps" + (" (the layer's own)" if scale == 1 else ""))
        panel.set_xlabel("width, cycles per unit")
    panels[0].set_ylabel("height, cycles per unit")
    figure.colorbar(images[0], ax=list(panels), label="energy, dB", aspect=30, pad=0.01)


def legend(view: View) -> list[Line2D]:
    """A line for everything drawn, with its numbers."""
    lines = []
    for axes, colour in zip(view.grids.values(), RESOLUTIONS, strict=False):
        taps, tops = times([axis.size for axis in axes]), _numbers([top_frequency(axis) for axis in axes])
        lines.append(Line2D([], [], color=colour, label=f"{taps} taps: Nyquist {tops}"))
    lines.append(Line2D([], [], color=PALE, linewidth=5, label="the kernel itself"))
    measured = f"{100 * view.share:g} % of the energy: {_numbers(view.measured)}"
    lines.append(Line2D([], [], color=GREEN, linestyle=MEASURED, linewidth=1.1, label=measured))
    for name, values in view.limits.items():
        colour, dashes = LIMITS[name]
        label = f"limit, {name}: {_numbers(values)}"
        lines.append(Line2D([], [], color=colour, linestyle=dashes, linewidth=1.1, label=label))
    return lines


def _numbers(values: Sequence[float]) -> str:
    """[8.0, 8.0] → "8.0", [8.0, 4.0] → "8.0 × 4.0"."""
    texts = [f"{value:.1f}" for value in values]
    return texts[0] if len({*texts}) == 1 else " × ".join(texts)


def _box(panel: Axes, half: Sequence[float], colour: str, dashes: Dashes, name: str) -> None:
    (rows, columns) = half
    frame(panel, (-rows, rows), (-columns, columns), edgecolor=colour, linestyle=dashes, linewidth=1.2, gid=name)


def _bin_edges(axis: Axis, count: int) -> tuple[float, float]:
    """Where the first bin of a centred transform begins and the last one ends."""
    width = 1 / (count * axis.spacing)
    return -(count // 2 + 0.5) * width, (count - count // 2 - 0.5) * width
