"""What each FlexConv of a model has learned, in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ._multiply_adds import multiply_adds, usual_input
from .errors import ArgumentError
from .nn import FlexConvNd, refresh_extents
from .sampling import typical_mask
from .spectrum import MUCH_FOLDED_ENERGY, energy_beyond_nyquist, folded_energy, max_frequency


@dataclass(frozen=True)
class LayerSummary:
    """One FlexConv. Tuples have one number per axis."""

    name: str
    channels: tuple[int, int]  # in, out
    generator: str
    extent: tuple[int, ...]  # taps in use
    grid: tuple[int, ...]  # taps of the grid, the largest possible extent
    mean: tuple[float, ...] | None  # of the mask, or of the widest mask of a channel; None without a mask
    sigma: tuple[float, ...] | None
    frequency: tuple[float, ...] | None  # upper bound of the kernel's, mask included; None if there is no formula
    nyquist: tuple[float, ...]
    energy_beyond_nyquist: float  # measured, as a share of the kernel's energy
    folded_energy: float  # the part of it that costs accuracy at other resolutions
    parameters: int
    share: float | None  # of the multiply-adds of the network; None if the input size is not known

    @property
    def aliased(self) -> bool:
        """Whether so much energy lies far beyond the Nyquist frequency that the layer depends on its resolution."""
        return self.folded_energy > MUCH_FOLDED_ENERGY


@torch.no_grad()
def summarize(model: nn.Module, *, input_shape: Sequence[int] | None = None) -> list[LayerSummary]:
    """Return the size, mask, bandwidth and share of the work of every FlexConv, in the order of the modules.

    Arguments:
        input_shape: the shape [batch, channels, *size] of an input, for the shares of the multiply-adds. They count all
            convolutions and linear layers, with kernels at their current size. By default, networks of
            `flexconv.models` use the size that they were made for, and other models have no shares.

    """
    sizes = refresh_extents(model)
    if not sizes:
        raise ArgumentError(f"{type(model).__name__} has no FlexConv layer, so there is nothing to summarize")
    shape = usual_input(model) if input_shape is None else input_shape
    work = {} if shape is None else multiply_adds(model, shape)
    total = sum(work.values())
    shares = {name: count / total for name, count in work.items()}
    layers = dict(model.named_modules())
    return [_summary(name, layers[name], extent, shares.get(name)) for name, extent in sizes.items()]  # type: ignore[arg-type]


def _summary(name: str, layer: FlexConvNd, extent: tuple[int, ...], share: float | None) -> LayerSummary:
    mask = None if layer.mask is None else typical_mask(layer.mask)
    return LayerSummary(
        name=name or type(layer).__name__,
        channels=(layer.in_channels, layer.out_channels),
        generator=type(layer.generator).__name__,
        extent=extent,
        grid=layer.kernel_size,
        mean=None if mask is None else tuple(mask[0].tolist()),
        sigma=None if mask is None else tuple(mask[1].abs().tolist()),
        frequency=frequency_limit(layer),
        nyquist=tuple(1 / (2 * axis.spacing) for axis in layer.axes),
        energy_beyond_nyquist=energy_beyond_nyquist(layer),
        folded_energy=folded_energy(layer),
        parameters=sum(p.numel() for p in layer.parameters()),
        share=share,
    )


def frequency_limit(layer: FlexConvNd) -> tuple[float, ...] | None:
    """`max_frequency` per axis; None for a generator without a formula, such as a SIREN or an MLP."""
    try:
        return tuple(max_frequency(layer).tolist())
    except ArgumentError:
        return None
