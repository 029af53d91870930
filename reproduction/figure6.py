"""Figure 6: the masks that FlexNets of three depths learn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flexconv.models import Model

from ._pictures import Pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _masks(model: Model) -> Figure:
    from flexconv import viz

    return viz.plot_masks(model)


FIGURE = Pictures(
    name="figure6",
    title="Figure 6: learned masks by depth",
    networks={f"flexnet{n}-cifar10": f"flexnet{n}-cifar10" for n in (3, 5, 7)},
    views={"masks": _masks},
    notes=("Published: kernels are very small in shallow layers and grow with depth.",),
)
