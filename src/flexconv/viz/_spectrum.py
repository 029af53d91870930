"""The energy spectrum of a kernel at several resolutions, with the bounds that the formulas give."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from .. import sampling
from .._arguments import positive
from ..errors import ArgumentError
from ..nn import FlexConvNd
from ._spectrum_drawing import RESOLUTIONS, Spectra, draw_curves, draw_images, legend
from ._spectrum_numbers import bandwidth, channels_shown, frequency_bounds, marginal, nyquist_frequency, resampled
from .style import NAMES, PAGE, layer_title, new_figure, some_of, styled

MEASURED_AT = 8  # samples per tap, as in `flexconv.spectrum.measured_bandwidth`
FINEST = 24  # samples per tap at most, if a bound lies at a higher frequency


@styled
def plot_spectrum(
    layer: FlexConvNd,
    *,
    scales: Sequence[float] = (1, 2),
    mask: bool = True,
    cutoff: float = 2.0,
    energy: float = 0.99,
    name: str = "",
) -> Figure:
    """Plot the energy spectrum of a kernel, sampled at one or more resolutions, with the bounds on its frequencies.

    There is one panel per axis. It shows the energy at each frequency along that axis, summed over channels, in
    decibels. Frequencies are in cycles per sample of the layer's own grid, whose Nyquist frequency is ½. The gray area
    is the spectrum of the kernel as a continuous function. Each colored curve is the spectrum of the kernel sampled at
    one resolution, and it ends at the Nyquist frequency of that resolution. Where a curve leaves the gray area, the
    sampled kernel is aliased. A 2D layer also has one image of |ψ̂|² per resolution, in which rectangles show the
    Nyquist frequencies and the bounds.

    The bounds are those of `flexconv.spectrum.max_frequency`, one per formula, times the spacing of the taps.
    Generators for which there is no formula have no bound. The measured bandwidth is drawn for every generator.
    Cropping is not included, because the formulas do not include it.

    Arguments:
        layer: a FlexConv layer.
        scales: resolutions, relative to that of the layer. A scale of 2 has twice as many taps per unit.
        mask: whether spectra and bounds include the mask. Otherwise, they describe the generator alone.
        cutoff: the number of standard deviations of an envelope's spectrum that the bounds include.
        energy: the fraction of the energy that lies below the measured bandwidth.
        name: the name of the layer in its model, for the title.

    """
    layer = sampling.check_layer(layer, "plot_spectrum")
    if not isinstance(scales, Sequence) or not 1 <= len(scales) <= len(RESOLUTIONS) or len({*scales}) < len(scales):
        raise ArgumentError(f"scales must be 1 to {len(RESOLUTIONS)} different numbers, such as (1, 2); got {scales!r}")
    if not 0 < energy < 1:
        raise ArgumentError(f"energy must lie between 0 and 1, as a fraction of the total energy; got {energy}")
    spectra = _compute(layer, scales, mask=mask, cutoff=cutoff, fraction=energy)
    if not all(map(math.isfinite, spectra.measured)):
        raise ArgumentError("the kernel has values that are not finite, so it has no spectrum to plot")
    generator = f"{type(layer.generator).__name__}{'' if mask else ' without the mask'}"
    channels = some_of(len(channels_shown(layer)), layer.generator.channels, "channels")
    title = f"Energy spectrum of the kernel of {layer_title(layer, name)}\n{generator}, sum of {channels}"
    images = min(2.9, (PAGE - 0.8) / len(scales)) if layer.dims == 2 else 0.0
    figure = new_figure(PAGE, 3.3 + images, title)
    if layer.dims == 2:
        rows = figure.add_gridspec(2, 1, height_ratios=(images, 1.9))
        draw_images(figure, [figure.add_subplot(each) for each in rows[0].subgridspec(1, len(scales))], spectra)
        panels = [figure.add_subplot(each) for each in rows[1].subgridspec(1, 2)]
    else:
        panels = list(figure.subplots(1, layer.dims, squeeze=False)[0])
    for d, panel in enumerate(panels):
        draw_curves(panel, spectra, d)
        along = f" along {NAMES[layer.dims][d]}" if layer.dims > 1 else ""
        panel.set_xlabel(f"frequency{along}, cycles per sample")
    panels[0].set_ylabel("energy, dB")
    figure.legend(handles=legend(spectra), loc="outside lower center", ncols=2, handlelength=2.2)
    return figure


def _compute(layer: FlexConvNd, scales: Sequence[float], *, mask: bool, cutoff: float, fraction: float) -> Spectra:
    grids = {scale: [resampled(axis, positive("scales", scale)) for axis in layer.axes] for scale in scales}
    bounds = frequency_bounds(layer, mask=mask, cutoff=positive("cutoff", cutoff))
    continuous, measured = [], []
    for d, axis in enumerate(layer.axes):
        curve = marginal(layer, d, resampled(axis, MEASURED_AT), mask=mask)
        measured.append(bandwidth(*curve, fraction))
        farthest = 1.1 * max([*scales, *(values[d] / nyquist_frequency(axis, axis) for values in bounds.values())])
        finest = math.ceil(max(*scales, min(farthest, FINEST)))
        continuous.append(curve if finest <= MEASURED_AT else marginal(layer, d, resampled(axis, finest), mask=mask))
    sampled = {
        scale: [marginal(layer, d, axis, mask=mask) for d, axis in enumerate(axes)] for scale, axes in grids.items()
    }
    return Spectra(layer, mask, grids, sampled, continuous, bounds, measured, fraction)
