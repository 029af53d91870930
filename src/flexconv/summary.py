"""What a trained model has learned, layer by layer, as numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from .nn import refresh_extents
from .nn._conv import FlexConvNd
from .spectrum import max_frequency


@dataclass(frozen=True)
class LayerSummary:
    """One FlexConv; a number per axis where there are several."""

    name: str
    channels: tuple[int, int]  # in, out
    generator: str
    extent: tuple[int, ...]  # taps in use …
    grid: tuple[int, ...]  # … and at most
    mean: tuple[float, ...] | None  # of the mask
    sigma: tuple[float, ...] | None
    frequency: tuple[float, ...] | None  # highest, by formula, mask counted; None where there is no formula
    nyquist: tuple[float, ...]
    parameters: int


@torch.no_grad()
def summarize(model: nn.Module) -> list[LayerSummary]:
    """Size, mask and bandwidth of every FlexConv of a model, in the order of its modules."""
    sizes = refresh_extents(model)
    if not sizes:
        raise ValueError(f"{type(model).__name__} has no FlexConv layer: there are no learned sizes to show")
    layers = dict(model.named_modules())
    return [_summary(name, layers[name], extent) for name, extent in sizes.items()]  # type: ignore[arg-type]


def _summary(name: str, layer: FlexConvNd, extent: tuple[int, ...]) -> LayerSummary:
    try:
        frequency = tuple(max_frequency(layer).tolist())
    except ValueError:  # a SIREN or an MLP
        frequency = None
    return LayerSummary(
        name=name or type(layer).__name__,
        channels=(layer.in_channels, layer.out_channels),
        generator=type(layer.generator).__name__,
        extent=extent,
        grid=layer.kernel_size,
        mean=None if layer.mask is None else tuple(layer.mask.mean.tolist()),
        sigma=None if layer.mask is None else tuple(layer.mask.sigma.abs().tolist()),
        frequency=frequency,
        nyquist=tuple(1 / (2 * axis.spacing) for axis in layer.axes),
        parameters=sum(p.numel() for p in layer.parameters()),
    )
