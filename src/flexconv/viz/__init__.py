"""Plots of layers, networks and training runs, drawn with matplotlib (the extra `viz`).

    from flexconv import viz
    viz.plot_kernel(layer).savefig("kernel.pdf")

Every function returns a `matplotlib.figure.Figure` that fits the width of a page. Save it with `savefig`. The functions
do not use pyplot, and they do not change the model, its gradients or the state of the random number generators.
"""

from ..errors import MissingPackageError

try:
    import matplotlib  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingPackageError("flexconv.viz needs matplotlib", extra="viz") from error

from ._confusion import plot_confusion as plot_confusion
from ._curves import plot_curves as plot_curves
from ._gabors import plot_gabors as plot_gabors
from ._kernel import plot_kernel as plot_kernel
from ._masks import plot_masks as plot_masks
from ._sizes import plot_sizes as plot_sizes
from ._spectrum import plot_spectrum as plot_spectrum

__all__ = ["plot_confusion", "plot_curves", "plot_gabors", "plot_kernel", "plot_masks", "plot_sizes", "plot_spectrum"]
