"""What frequencies a kernel has, by sampling it densely and transforming it. For any generator."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch

from ..nn import Axis, FlexConvNd, GaussianMask, coordinate_grid
from ..ops import fast_length

_FINER_BINS = 4  # zero-padding of the measured spectrum
_CHUNK = 1 << 24  # values transformed at a time


def denser(axis: Axis, factor: int) -> Axis:
    """The same stretch of the axis, with `factor` times as many taps."""
    return Axis(max(axis.size - 1, 1) * factor + 1, axis.causal, axis.spacing / factor)


def dense_kernel(layer: FlexConvNd, axes: Sequence[Axis], *, mask: bool) -> torch.Tensor:
    """The layer's kernel on another grid, uncropped → [channels, *sizes]."""
    dtype, device = layer.generator.compute_dtype, layer._like().device
    windows = [axis.whole for axis in axes]
    values = layer.generator(coordinate_grid(axes, windows, device=device, dtype=dtype))
    if mask and layer.mask is not None:
        lines = [axis.coordinates(axis.whole, device=device, dtype=dtype) for axis in axes]
        values = values * uncropped(layer.mask)(lines, layer.axes)
    return values


def uncropped(mask: GaussianMask) -> GaussianMask:
    """The same window without its threshold; shares the parameters."""
    mask = copy.copy(mask)
    mask.threshold = None
    return mask


def energy_spectrum(values: torch.Tensor, dim: int) -> torch.Tensor:
    """Energy per frequency ≥ 0 along one axis, summed over everything else (Parseval) → [bins]."""
    size = fast_length(_FINER_BINS * values.shape[dim])
    lines = values.movedim(dim, -1).flatten(0, -2)
    energy = values.new_zeros(size // 2 + 1)
    for chunk in lines.split(max(1, _CHUNK // size)):
        energy += torch.view_as_real(torch.fft.rfft(chunk, size)).square().sum((0, 2))
    energy[1:-1] *= 2  # and their negatives; size is even
    return energy


def bandwidth(energy: torch.Tensor, spacing: float, share: float) -> float:
    """The frequency that `share` of the energy lies at or below; NaN where it is not finite."""
    below = energy.double().cpu().cumsum(0)
    if not math.isfinite(below[-1]):
        return math.nan
    first = int((below >= share * below[-1]).int().argmax())
    return first / (2 * (len(energy) - 1) * spacing)
