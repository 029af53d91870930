"""How far a kernel's frequencies reach, at several resolutions, beside what every formula says."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from .. import sampling
from .._arguments import positive
from ..errors import ArgumentError
from ..nn import FlexConvNd
from ._spectrum_drawing import RESOLUTIONS, View, draw_curves, draw_images, legend
from ._spectrum_numbers import bandwidth, channels_shown, limits, marginal, resampled, top_frequency
from .style import NAMES, PAGE, new_figure, some_of, styled

MEASURED_AT = 8  # times the layer's own density, as in `flexconv.spectrum.measured_bandwidth`
FINEST = 24  # … and at most this much where a limit lies further out


@styled
def plot_spectrum(
    layer: FlexConvNd,
    *,
    scales: Sequence[float] = (1, 2),
    mask: bool = True,
    cutoff: float = 2.0,
    energy: float = 0.99,
) -> Figure:
    """The energy spectrum of a layer's kernel as its grid sees it, at other resolutions too, with every limit drawn.

    Curves, one panel per axis: the energy of the channels together, per frequency along that axis, in decibels. The
    grey area is the kernel itself, sampled so densely that little folds back; each coloured curve is one resolution and
    ends at its Nyquist frequency. Where a curve leaves the grey area, frequencies of the kernel have been folded:
    aliasing. A 2D layer has an image of |ψ̂|² per resolution above that, with Nyquist boxes and limits as rectangles.

    The limits are those of `flexconv.spectrum.max_frequency`, per formula; a generator without formula has none. The
    measured bandwidth is drawn for all. Cropping is left out, as it is there: no formula counts it.

    Arguments:
        scales: resolutions as multiples of the layer's own; 2 has twice as many taps per unit.
        mask: with the layer's mask, in spectra and limits, or the generator alone.
        cutoff: how many standard deviations of an envelope's spectrum count for the limits.
        energy: the share of energy below the measured bandwidth.

    """
    layer = sampling.check_layer(layer, "plot_spectrum")
    if not isinstance(scales, Sequence) or not 1 <= len(scales) <= len(RESOLUTIONS) or len({*scales}) < len(scales):
        raise ArgumentError(f"scales must be 1 to {len(RESOLUTIONS)} different numbers, such as (1, 2); got {scales!r}")
    if not 0 < energy < 1:
        raise ArgumentError(f"energy must lie between 0 and 1, a share of the whole; got {energy}")
    view = _view(layer, scales, mask=mask, cutoff=cutoff, share=energy)
    if not all(map(math.isfinite, view.measured)):
        raise ArgumentError("the kernel has values that are not finite: there is no spectrum to draw")
    kind = f"{type(layer).__name__}, {type(layer.generator).__name__}{'' if mask else ' without the mask'}"
    channels = some_of(len(channels_shown(layer)), layer.generator.channels, "channels")
    images = min(2.9, (PAGE - 0.8) / len(scales)) if layer.dims == 2 else 0.0
    figure = new_figure(PAGE, 3.0 + images, f"Energy spectrum of {kind}, {channels} together")
    if layer.dims == 2:
        rows = figure.add_gridspec(2, 1, height_ratios=(images, 1.9))
        draw_images(figure, [figure.add_subplot(each) for each in rows[0].subgridspec(1, len(scales))], view)
        panels = [figure.add_subplot(each) for each in rows[1].subgridspec(1, 2)]
    else:
        panels = list(figure.subplots(1, layer.dims, squeeze=False)[0])
    for d, panel in enumerate(panels):
        draw_curves(panel, view, d)
        panel.set_xlabel(f"{NAMES[layer.dims][d] if layer.dims > 1 else 'frequency'}, cycles per unit")
    panels[0].set_ylabel("energy, dB")
    figure.legend(handles=legend(view), loc="outside lower center", ncols=3 if layer.dims < 3 else 2, handlelength=2.2)
    return figure


def _view(layer: FlexConvNd, scales: Sequence[float], *, mask: bool, cutoff: float, share: float) -> View:
    grids = {scale: [resampled(axis, positive("scales", scale)) for axis in layer.axes] for scale in scales}
    edges = limits(layer, mask=mask, cutoff=positive("cutoff", cutoff))
    continuous, measured = [], []
    for d, axis in enumerate(layer.axes):
        curve = marginal(layer, d, resampled(axis, MEASURED_AT), mask=mask)
        measured.append(bandwidth(*curve, share))
        farthest = 1.1 * max([*scales, *(values[d] / top_frequency(axis) for values in edges.values())])
        finest = math.ceil(max(*scales, min(farthest, FINEST)))
        continuous.append(curve if finest <= MEASURED_AT else marginal(layer, d, resampled(axis, finest), mask=mask))
    sampled = {
        scale: [marginal(layer, d, axis, mask=mask) for d, axis in enumerate(axes)] for scale, axes in grids.items()
    }
    return View(layer, mask, grids, sampled, continuous, edges, measured, share)
