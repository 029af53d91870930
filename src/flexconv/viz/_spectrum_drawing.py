"""The parts of the plot of a spectrum: curves along each axis, 2D images, and the legend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MultipleLocator

from ..nn import Axis, FlexConvNd
from ._spectrum_numbers import Curve, decibels, nyquist_frequency, plane
from .style import Dashes, frame, theme, times

FLOOR = -80.0  # decibels
REACH = 12.0  # the frequency axis includes every bound up to this many times the largest Nyquist frequency

RESOLUTIONS = ("blue", "sky", "ink", "faint")  # the names of the colors of each resolution
BOUNDS: dict[str, tuple[str, Dashes]] = {
    "exact": ("red", (0, ())),
    "authors": ("purple", (0, (5, 2))),
    "paper": ("orange", (0, (1.2, 1.2))),
}
FORMULA_NAMES = {"exact": "exact formula", "authors": "formula of the authors' code", "paper": "formula of the paper"}
MEASURED: Dashes = (0, (3, 1, 1, 1))


class Spectra(NamedTuple):
    """The numbers that one figure shows."""

    layer: FlexConvNd
    mask: bool
    grids: dict[float, list[Axis]]  # by scale
    sampled: dict[float, list[Curve]]  # by scale, one per axis
    continuous: list[Curve]  # one per axis
    bounds: dict[str, list[float]]  # by formula, one per axis
    measured: list[float]  # bandwidth along each axis
    fraction: float  # of the energy below the measured bandwidth

    def nyquist(self, scale: float, d: int) -> float:
        """The Nyquist frequency of one of the grids along axis d."""
        return nyquist_frequency(self.grids[scale][d], self.layer.axes[d])

    def max_nyquist(self, d: int) -> float:
        """The largest Nyquist frequency of all grids along axis d."""
        return max(self.nyquist(scale, d) for scale in self.grids)


def draw_curves(panel: Axes, spectra: Spectra, d: int) -> None:
    """Draw the energy along one axis, of the continuous kernel and of the sampled kernels."""
    largest = spectra.max_nyquist(d)
    marks = [values[d] for values in spectra.bounds.values()] + [spectra.measured[d]]
    farthest = max([largest, *(mark for mark in marks if mark <= REACH * largest)])
    frequency, density = spectra.continuous[d]
    reference = float(np.nanmax(density))
    panel.fill_between(frequency, decibels(density, reference, FLOOR), FLOOR, color=theme().pale, linewidth=0)
    for scale, colour in _resolutions(spectra).items():
        frequency, density = spectra.sampled[scale][d]
        panel.plot(frequency, decibels(density, reference, FLOOR), color=colour, gid=f"spectrum {scale:g}")
        nyquist = spectra.nyquist(scale, d)
        panel.axvline(nyquist, color=colour, linewidth=0.9, gid=f"nyquist {scale:g}")
        text = f"Nyquist,\n{spectra.grids[scale][d].size} taps"
        side = "left" if nyquist == largest else "right"  # the two highest ones may be close to each other
        panel.text(nyquist, 8, text, color=colour, fontsize=6, va="bottom", ha=side)
    for name, values in spectra.bounds.items():
        colour, dashes = _bound_look(name)
        panel.axvline(values[d], color=colour, linestyle=dashes, linewidth=1.1, gid=f"bound {name}")
    panel.axvline(spectra.measured[d], color=theme().green, linestyle=MEASURED, linewidth=1.1, gid="measured")
    panel.set_xlim(0, 1.06 * farthest)
    panel.set_ylim(FLOOR, 6)
    panel.yaxis.set_major_locator(MultipleLocator(20))


def draw_images(figure: Figure, panels: Sequence[Axes], spectra: Spectra) -> None:
    """Draw the energy of a 2D kernel over both frequencies, one image per resolution."""
    energies = [plane(spectra.layer, axes, mask=spectra.mask) for axes in spectra.grids.values()]
    reference = max(float(np.nanmax(each)) for each in energies)
    reach = [1.12 * spectra.max_nyquist(d) for d in range(2)]
    images = []
    for panel, (scale, axes), energy in zip(panels, spectra.grids.items(), energies, strict=True):
        own = spectra.layer.axes
        rows, columns = (_bin_edges(*each) for each in zip(axes, own, energy.shape, strict=True))
        images.append(
            panel.imshow(
                decibels(energy, reference, FLOOR),
                extent=(*columns, rows[1], rows[0]),
                cmap=theme().energy,
                vmin=FLOOR,
                vmax=0,
                interpolation="nearest",
                aspect="auto",
            )
        )
        for other, colour in _resolutions(spectra).items():
            _box(panel, [spectra.nyquist(other, d) for d in range(2)], colour, (0, ()), f"nyquist {other:g}")
        for name, values in spectra.bounds.items():
            _box(panel, values, *_bound_look(name), f"bound {name}")
        _box(panel, spectra.measured, theme().green, MEASURED, "measured")
        panel.set_xlim(-reach[1], reach[1])
        panel.set_ylim(reach[0], -reach[0])
        panel.set_box_aspect(min(max(reach[0] / reach[1], 0.5), 1.0))
        note = " (resolution of the layer)" if scale == 1 else ""
        panel.set_title(f"sampled at {times([axis.size for axis in axes])} taps{note}")
        panel.set_xlabel("frequency along width, cycles per sample")
    panels[0].set_ylabel("frequency along height, cycles per sample")
    figure.colorbar(images[0], ax=list(panels), label="energy, dB", aspect=30, pad=0.01)


def legend(spectra: Spectra) -> list[Line2D]:
    """The entries of the legend, with their values."""
    lines = []
    for scale, colour in _resolutions(spectra).items():
        axes = spectra.grids[scale]
        nyquist = _format([spectra.nyquist(scale, d) for d in range(len(axes))])
        label = f"{times([axis.size for axis in axes])} taps, up to the Nyquist frequency {nyquist}"
        lines.append(Line2D([], [], color=colour, label=label))
    lines.append(Line2D([], [], color=theme().pale, linewidth=5, label="continuous kernel"))
    measured = f"{100 * spectra.fraction:g} % of the energy is below {_format(spectra.measured)}"
    lines.append(Line2D([], [], color=theme().green, linestyle=MEASURED, linewidth=1.1, label=measured))
    for name, values in spectra.bounds.items():
        colour, dashes = _bound_look(name)
        label = f"bound, {FORMULA_NAMES[name]}: {_format(values)}"
        lines.append(Line2D([], [], color=colour, linestyle=dashes, linewidth=1.1, label=label))
    return lines


def _resolutions(spectra: Spectra) -> dict[float, str]:
    """The color of every scale."""
    return {scale: getattr(theme(), name) for scale, name in zip(spectra.grids, RESOLUTIONS, strict=False)}


def _bound_look(formula: str) -> tuple[str, Dashes]:
    """The color and the line style of a bound."""
    colour, dashes = BOUNDS[formula]
    return getattr(theme(), colour), dashes


def _format(values: Sequence[float]) -> str:
    """[0.5, 0.5] → "0.50", [0.5, 0.25] → "0.50 × 0.25"."""
    texts = [f"{value:.2f}" for value in values]
    return texts[0] if len({*texts}) == 1 else " × ".join(texts)


def _box(panel: Axes, half: Sequence[float], colour: str, dashes: Dashes, name: str) -> None:
    (rows, columns) = half
    frame(panel, (-rows, rows), (-columns, columns), edgecolor=colour, linestyle=dashes, linewidth=1.2, gid=name)


def _bin_edges(axis: Axis, own: Axis, count: int) -> tuple[float, float]:
    """The frequencies at which the first bin of a centered transform begins and the last bin ends."""
    width = own.spacing / (count * axis.spacing)
    return -(count // 2 + 0.5) * width, (count - count // 2 - 0.5) * width
