"""What a trained model has learned, layer by layer, as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ._multiply_adds import multiply_adds, usual_input
from .errors import ArgumentError
from .nn import FlexConvNd, refresh_extents
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
    share: float | None  # of the network's multiply-adds; None where no input size is known

    @property
    def beyond_nyquist(self) -> tuple[bool, ...]:
        """Where the formula allows frequencies that the taps cannot hold."""
        if self.frequency is None:
            return (False,) * len(self.nyquist)
        return tuple(f > limit for f, limit in zip(self.frequency, self.nyquist, strict=True))


@torch.no_grad()
def summarize(model: nn.Module, *, input_shape: Sequence[int] | None = None) -> list[LayerSummary]:
    """Size, mask, bandwidth and share of the work of every FlexConv of a model, in the order of its modules.

    Arguments:
        input_shape: [batch, channels, *size] of an input, from which the shares follow: those of all convolutions and
            linear maps, kernels at their current size. None: what a network of `flexconv.models` was made for.

    """
    sizes = refresh_extents(model)
    if not sizes:
        raise ArgumentError(f"{type(model).__name__} has no FlexConv layer: there are no learned sizes to show")
    shape = usual_input(model) if input_shape is None else input_shape
    work = {} if shape is None else multiply_adds(model, shape)
    total = sum(work.values())
    shares = {name: count / total for name, count in work.items()}
    layers = dict(model.named_modules())
    return [_summary(name, layers[name], extent, shares.get(name)) for name, extent in sizes.items()]  # type: ignore[arg-type]


def _summary(name: str, layer: FlexConvNd, extent: tuple[int, ...], share: float | None) -> LayerSummary:
    return LayerSummary(
        name=name or type(layer).__name__,
        channels=(layer.in_channels, layer.out_channels),
        generator=type(layer.generator).__name__,
        extent=extent,
        grid=layer.kernel_size,
        mean=None if layer.mask is None else tuple(layer.mask.mean.tolist()),
        sigma=None if layer.mask is None else tuple(layer.mask.sigma.abs().tolist()),
        frequency=frequency_limit(layer),
        nyquist=tuple(1 / (2 * axis.spacing) for axis in layer.axes),
        parameters=sum(p.numel() for p in layer.parameters()),
        share=share,
    )


def frequency_limit(layer: FlexConvNd) -> tuple[float, ...] | None:
    """`max_frequency` per axis; None for a generator without a formula, such as a SIREN or an MLP."""
    try:
        return tuple(max_frequency(layer).tolist())
    except ValueError:
        return None
