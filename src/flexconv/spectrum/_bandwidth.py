"""The bandwidth of a kernel, measured by sampling it densely and transforming it. This works for every generator."""

from __future__ import annotations

import math

import torch

from .._arguments import positive_int
from ..errors import ArgumentError, ArgumentTypeError
from ..nn import FlexConvNd
from ..ops import fast_length
from ..sampling import dense_kernel, oversampled
from ._bounds import check_mask_option
from ._energy import cropped_kernel

_ZERO_PADDING = 4  # the transform is at least this many times as long as the signal, for finer frequency bins
_CHUNK = 1 << 24  # number of values transformed at a time


@torch.no_grad()
def measured_bandwidth(
    layer: FlexConvNd, *, energy: float = 0.99, mask: bool = True, oversample: int = 8, crop: bool = False
) -> list[float]:
    """The frequency below which the share `energy` of the kernel's energy lies, along each axis, over all channels.

    The kernel is sampled on the layer's whole grid, `oversample` times as densely as the layer does and without
    cropping. Frequencies above the Nyquist frequency of the layer's own grid are therefore measured where they are,
    not where they would alias to. This works for every generator. With `crop=True`, the kernel is cropped as in
    `energy_beyond_nyquist`. An axis of a single sample has no frequencies.
    """
    if not isinstance(layer, FlexConvNd):
        raise ArgumentTypeError(f"measured_bandwidth expects a FlexConv layer; got {type(layer).__name__}")
    if not 0 < energy < 1:
        raise ArgumentError(f"energy must be a share of the total, between 0 and 1; got {energy}")
    check_mask_option(mask)
    if crop and not mask:
        raise ArgumentError("crop=True measures the kernel with its mask; it cannot be combined with mask=False")
    axes = [oversampled(axis, positive_int("oversample", oversample)) for axis in layer.axes]
    values = cropped_kernel(layer, oversample) if crop else dense_kernel(layer, axes, mask=mask)
    return [
        bandwidth(energy_spectrum(values, d + 1), axis.spacing, energy) if values.shape[d + 1] > 1 else 0.0
        for d, axis in enumerate(axes)
    ]


def energy_spectrum(values: torch.Tensor, dim: int) -> torch.Tensor:
    """Energy per frequency ≥ 0 along dimension `dim`, summed over all other dimensions (Parseval) → [bins].

    Bin n of N holds the frequency n / (2 (N − 1)) cycles per sample. Energy at negative frequencies is included.
    """
    size = fast_length(_ZERO_PADDING * values.shape[dim])
    lines = values.movedim(dim, -1).flatten(0, -2)
    energy = values.new_zeros(size // 2 + 1)
    for chunk in lines.split(max(1, _CHUNK // size)):
        energy += torch.view_as_real(torch.fft.rfft(chunk, size)).square().sum((0, 2))
    energy[1:-1] *= 2  # the negative frequencies; size is even
    return energy


def bandwidth(energy: torch.Tensor, spacing: float, share: float) -> float:
    """The lowest frequency at or below which `share` of the energy lies; NaN if the energy is not finite.

    `energy` comes from `energy_spectrum`, `spacing` is the distance between samples.
    """
    below = energy.double().cpu().cumsum(0)
    if not math.isfinite(below[-1]):
        return math.nan
    first = int((below >= share * below[-1]).int().argmax())
    return first / (2 * (len(energy) - 1) * spacing)
