"""flexconv inspect"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ArgumentError
from ._common import percent, print_table, say
from ._explore import write_page
from ._model import ModelName, load_model

if TYPE_CHECKING:
    from ..models import Model
    from ..summary import LayerSummary


def inspect(
    model: ModelName,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an interactive HTML page about the model to this file.")
    ] = None,
    pictures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw the masks, kernels and spectra into this folder.")
    ] = None,
) -> None:
    """Show the size, mask, frequencies and cost of every layer."""
    from ..summary import summarize

    if pictures is not None and pictures.exists() and not pictures.is_dir():
        raise ArgumentError(f"--pictures {pictures}: this is a file, not a folder; choose another name")
    network, recipe = load_model(model)
    layers = summarize(network)
    titles = ("layer", "in→out", "size", "of", "center", "sigma", "beyond", "folded", "bound", "params", "work")
    rows = [
        (
            layer.name,
            f"{layer.channels[0]}→{layer.channels[1]}",
            "×".join(map(str, layer.extent)),
            "×".join(map(str, layer.grid)),
            _numbers(layer.mean, 2),
            _sigma(layer),
            percent(layer.energy_beyond_nyquist),
            _folded(layer),
            _bound(layer),
            f"{layer.parameters:,}",
            _share(layer.share),
        )
        for layer in layers
    ]
    print_table(titles, rows, right=titles[1:])
    say(
        f"\n{sum(p.numel() for p in network.parameters()):,} parameters in total; {_verdict(layers)}\n"
        "size: taps in use; of: taps of the grid; center and sigma: of the mask, on a grid from −1 to 1;\n"
        "beyond: share of the kernel's energy beyond the Nyquist frequency, measured;\n"
        "folded: the part that aliases to the lower half of the band, ! if it costs accuracy at other\n"
        "resolutions; bound: upper bound of the frequencies in units of the Nyquist frequency;\n"
        "work: share of the multiply-adds of the network, with kernels at their current size"
    )
    if pictures is not None:
        _draw(network, pictures)
    if html is not None:
        write_page([(model, network, recipe)], html)


def _folded(layer: LayerSummary) -> str:
    """The energy far beyond the Nyquist frequency, marked with ! if it is much."""
    return f"{percent(layer.folded_energy)}{'!' if layer.aliased else ''}"


def _verdict(layers: Sequence[LayerSummary]) -> str:
    """Whether the network computes the same at higher resolutions."""
    from ..spectrum import MUCH_TOTAL_ENERGY, SOME_TOTAL_ENERGY

    total = sum(layer.folded_energy for layer in layers)
    verdict = "band-limited" if total <= SOME_TOTAL_ENERGY else "nearly band-limited"
    verdict = verdict if total <= MUCH_TOTAL_ENERGY else "not band-limited"
    return f"{verdict}: folded energies add up to {percent(total)}"


def _bound(layer: LayerSummary) -> str:
    """The bound in units of the Nyquist frequency, along the axis where it is highest."""
    if layer.frequency is None:
        return "–"
    return f"{max(f / limit for f, limit in zip(layer.frequency, layer.nyquist, strict=True)):.1f}"


def _sigma(layer: LayerSummary) -> str:
    """Two decimals, or two significant digits for a narrow mask on a long grid."""
    if layer.sigma is None:
        return "–"
    return " ".join(f"{sigma:.2f}" if sigma >= 0.1 else f"{sigma:.2g}" for sigma in layer.sigma)


def _share(share: float | None) -> str:
    if share is None:
        return "–"
    return "<1%" if share < 0.01 else f"{share:.0%}"


def _numbers(values: Sequence[float] | None, digits: int) -> str:
    return "–" if values is None else " ".join(f"{round(value, digits) + 0.0:.{digits}f}" for value in values)


def _draw(model: Model, folder: Path) -> None:
    from .. import viz
    from ..nn import FlexConvNd

    folder.mkdir(parents=True, exist_ok=True)
    viz.plot_masks(model).savefig(folder / "masks.png")
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, FlexConvNd)]
    for name, layer in layers:
        viz.plot_kernel(layer, name=name).savefig(folder / f"{name}-kernel.png")
        viz.plot_spectrum(layer, name=name).savefig(folder / f"{name}-spectrum.png")
    say(f"{1 + 2 * len(layers)} pictures are in {folder}")
