"""Plots of layers, networks and training runs, drawn with matplotlib (the extra `viz`).

    from flexconv import viz
    viz.plot_kernel(layer).savefig("kernel.pdf")

Every function returns a `matplotlib.figure.Figure` that fits the width of a page. Save it with `savefig`, as PDF or SVG
for a paper. PNG files have 200 pixels per inch, which is sharp on high-resolution screens. The functions do not use
pyplot, and they do not change the model, its gradients or the state of the random number generators.

The look does not depend on your matplotlib settings. There are two themes, light and dark. `use_theme("dark")` changes
the theme in a `with` block, and `savefig(…, transparent=True)` omits the background. `save_themes` saves both variants.

Positions are offsets from the current sample in taps, and sizes are in taps. Frequencies are in cycles per sample of
the layer's grid, whose Nyquist frequency is ½.
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
from ._save import save_themes as save_themes
from ._sizes import plot_sizes as plot_sizes
from ._spectrum import plot_spectrum as plot_spectrum
from .style import use_theme as use_theme

__all__ = [
    "plot_confusion",
    "plot_curves",
    "plot_gabors",
    "plot_kernel",
    "plot_masks",
    "plot_sizes",
    "plot_spectrum",
    "save_themes",
    "use_theme",
]
