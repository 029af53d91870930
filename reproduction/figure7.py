"""Figure 7: how a kernel is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flexconv.models import Model

from ._pictures import Pictures, largest_layer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _steps(model: Model) -> Figure:
    from flexconv import viz

    name, layer = largest_layer(model)
    return viz.plot_kernel(layer, name=name)


FIGURE = Pictures(
    name="figure7",
    title="Figure 7: how a kernel is made: generator, mask, product, crop",
    networks={"flexnet7-cifar10": "flexnet7-cifar10"},
    views={"kernel": _steps},
)
