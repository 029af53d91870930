"""flexconv inspect"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ._common import print_table, say
from ._model import ModelName, load_model

if TYPE_CHECKING:
    from ..models import Model


def inspect(
    model: ModelName,
    pictures: Annotated[Path | None, typer.Option(help="Draw masks, kernels and spectra into this folder.")] = None,
) -> None:
    """Sizes, masks, frequencies and parameters, layer by layer."""
    from ..summary import summarize

    network, _ = load_model(model)
    layers = summarize(network)
    titles = ("layer", "channels", "size", "of", "mask centre", "sigma", "frequency", "params")
    rows = [
        (
            layer.name,
            f"{layer.channels[0]}→{layer.channels[1]}",
            "×".join(map(str, layer.extent)),
            "×".join(map(str, layer.grid)),
            _numbers(layer.mean, 2),
            _numbers(layer.sigma, 2),
            _numbers(layer.frequency, 1),
            f"{layer.parameters:,}",
        )
        for layer in layers
    ]
    print_table(titles, rows, right=titles[1:])
    limits = [value for layer in layers for value in layer.nyquist]
    limit = f"{min(limits):g}" if min(limits) == max(limits) else f"{min(limits):g} to {max(limits):g}"
    say(
        f"\n{sum(p.numel() for p in network.parameters()):,} parameters in all\n"
        "size: taps in use, of those there are; centre and sigma: of the mask, on a grid from −1 to 1;\n"
        f"frequency: a bound on the kernel's, in cycles per unit; the taps hold up to {limit}"
    )
    if pictures is not None:
        _draw(network, pictures)


def _numbers(values: Sequence[float] | None, digits: int) -> str:
    return "–" if values is None else " ".join(f"{round(value, digits) + 0.0:.{digits}f}" for value in values)


def _draw(model: Model, folder: Path) -> None:
    from .. import viz
    from ..nn._conv import FlexConvNd

    folder.mkdir(parents=True, exist_ok=True)
    viz.plot_masks(model).savefig(folder / "masks.png")
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, FlexConvNd)]
    for name, layer in layers:
        viz.plot_kernel(layer).savefig(folder / f"{name}-kernel.png")
        viz.plot_spectrum(layer).savefig(folder / f"{name}-spectrum.png")
    say(f"{1 + 2 * len(layers)} pictures in {folder}")
