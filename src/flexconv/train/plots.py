"""The plots of a finished run."""

from __future__ import annotations

from torch import nn

from ..nn import FlexConvNd
from .folder import RunFolder


def draw_plots(folder: RunFolder, model: nn.Module) -> None:
    """Draw curves, kernel sizes over time, masks, and the largest kernel as PNG. Does nothing without matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return
    from .. import viz

    folder.plots.mkdir(exist_ok=True)
    records = folder.read_metrics()
    figures = {}
    if records:
        figures["curves"] = viz.plot_curves(records)
    layers = {name: module for name, module in model.named_modules() if isinstance(module, FlexConvNd)}
    if layers:
        history = {name: [(record["step"], tuple(record["sizes"][name])) for record in records] for name in layers}
        if records:
            figures["sizes"] = viz.plot_sizes(history)
        figures["masks"] = viz.plot_masks(model)
        figures["kernel"] = viz.plot_kernel(max(layers.values(), key=lambda layer: sum(layer.extent)))
    for name, figure in figures.items():
        figure.savefig(folder.plots / f"{name}.png", dpi=110)
