"""Figure 9: the parts of a Gabor filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flexconv.models import Model

from ._pictures import Pictures, largest_layer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _gabors(model: Model) -> Figure:
    from flexconv import viz

    name, layer = largest_layer(model)
    return viz.plot_gabors(layer, name=name)


FIGURE = Pictures(
    name="figure9",
    title="Figure 9: the parts of the Gabor filters of a MAGNet: envelope, sine, product, spectrum",
    networks={"flexnet7-cifar10": "flexnet7-cifar10"},
    views={"gabors": _gabors},
)
