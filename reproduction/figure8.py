"""Figure 8: kernels and their spectra, with and without the alias penalty."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flexconv.models import Model
from flexconv.resolution import at_resolution

from ._pictures import Pictures, largest_layer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _spectrum(model: Model) -> Figure:
    from flexconv import viz

    name, layer = largest_layer(model)
    return viz.plot_spectrum(layer, scales=(1, 2), name=name)


def _kernel(model: Model) -> Figure:
    from flexconv import viz

    name, layer = largest_layer(model)
    return viz.plot_kernel(layer, channels=1, name=name)


def _finer_kernel(model: Model) -> Figure:
    from flexconv import viz

    name, layer = largest_layer(at_resolution(model, 2))
    return viz.plot_kernel(layer, channels=1, name=name)


FIGURE = Pictures(
    name="figure8",
    title="Figure 8: spectra and kernels at two resolutions, with and without the alias penalty",
    networks={"flexnet7-cifar10-16px": "cross-resolution-cifar10"},
    archived={
        f"flexnet7-cifar10-16px-{penalty}": f"cross-resolution-cifar10/{penalty}"
        for penalty in ("no-penalty", "f-magnet", "f-flexconv", "exact")
    },
    views={"spectrum": _spectrum, "kernel": _kernel, "kernel-twice-as-fine": _finer_kernel},
    notes=("Published: with the penalty, frequencies end near the Nyquist frequency of the grid.",),
)
