"""Energy spectra of sampled kernels. They are densities over frequency, so grids of any spacing can be compared.

Frequencies are in cycles per sample of the layer's own grid, on whatever grid the kernel is sampled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from .. import sampling
from ..nn import Axis, FlexConvNd
from ..ops import fast_length
from ..spectrum import available_formulas, energy_spectrum, max_frequency

Curve = tuple[np.ndarray, np.ndarray]  # frequencies [n] ≥ 0 in cycles per sample, and the energy density there

BUDGET = 1 << 21  # approximate number of values in memory at once
MAX_CHANNELS, MIN_CHANNELS = 256, 16
HIDDEN_VALUES = 256  # approximate number of values that a generator holds per point
# Samples per tap along the axes that are integrated over, so that |ψ|² is not aliased. 3D uses 1 to save time.
ACROSS = {1: 1, 2: 4, 3: 1}
MAX_BINS = 320  # bins of an image along an axis


def resampled(axis: Axis, scale: float) -> Axis:
    """The same part of an axis with `scale` times as many taps per unit. The current sample remains a tap."""
    sides = 1 if axis.causal or axis.size % 2 == 0 else 2
    intervals = sides * math.floor(max(axis.size - 1, 1) / sides * scale + 1e-9)
    return Axis(intervals + 1, axis.causal, axis.spacing / scale)


def nyquist_frequency(axis: Axis, own: Axis) -> float:
    """The Nyquist frequency of an axis, in cycles per sample of the layer's own axis."""
    return own.spacing / (2 * axis.spacing)


def channels_shown(layer: FlexConvNd) -> list[int]:
    """The channels of the generator that are included: all of them, or an even selection if the layer is large."""
    taps = math.prod(layer.kernel_size)
    return sampling.spread(min(MAX_CHANNELS, max(MIN_CHANNELS, BUDGET // taps)), layer.generator.channels)


@torch.no_grad()
def marginal(layer: FlexConvNd, d: int, axis: Axis, *, mask: bool) -> Curve:
    """The energy density along axis d, with that axis sampled as `axis` says → frequencies [n], density [n].

    E(f) = Σ_channels ∫ |ψ̂(f, x)|² dx

    The integral is over the other axes x, which are sampled more densely than in the layer.
    """
    axes = [axis if e == d else resampled(own, ACROSS[layer.dims]) for e, own in enumerate(layer.axes)]
    lines = sampling.coordinates(layer, axes)
    across = 0 if d else layer.dims - 1  # split along another axis, because the transform needs all of axis d
    slabs = [lines[across]] if layer.dims == 1 else lines[across].split(_slab(layer, lines, across))
    parts = [_kernel(layer, [*lines[:across], slab, *lines[across + 1 :]], mask=mask) for slab in slabs]
    total = torch.stack([energy_spectrum(part.double(), d + 1) for part in parts]).sum(0)
    total[1:-1] /= 2  # these bins include the negative frequencies
    density = total * axis.spacing**2 * math.prod(other.spacing for e, other in enumerate(axes) if e != d)
    return np.linspace(0, nyquist_frequency(axis, layer.axes[d]), len(total)), sampling.to_numpy(density)


@torch.no_grad()
def plane(layer: FlexConvNd, axes: Sequence[Axis], *, mask: bool) -> np.ndarray:
    """|ψ̂|² of a 2D kernel, summed over channels → [rows, columns], with frequency 0 in the middle."""
    lines = sampling.coordinates(layer, axes)
    values = _kernel(layer, lines, mask=mask)
    sizes = [fast_length(max(len(line), min(4 * len(line), MAX_BINS))) for line in lines]
    energy = values.new_zeros(sizes, dtype=torch.float64)
    for piece in values.split(max(1, BUDGET // math.prod(sizes))):
        energy += torch.view_as_real(torch.fft.fft2(piece, sizes)).square().sum((0, 3))
    return sampling.to_numpy(torch.fft.fftshift(energy)) * math.prod(axis.spacing**2 for axis in axes)


def bandwidth(frequency: np.ndarray, density: np.ndarray, fraction: float) -> float:
    """The frequency below which this fraction of the energy lies. NaN if the energy is not finite."""
    below = np.cumsum(np.concatenate([density[:1], 2 * density[1:-1], density[-1:]]))
    return float(frequency[np.argmax(below >= fraction * below[-1])]) if np.isfinite(below[-1]) else math.nan


def decibels(density: np.ndarray, reference: float, floor: float) -> np.ndarray:
    """10 log₁₀(density / reference), clipped below at the floor."""
    return 10 * np.log10(np.maximum(density / (reference or 1.0), 10 ** (floor / 10)))


@torch.no_grad()
def frequency_bounds(layer: FlexConvNd, *, mask: bool, cutoff: float) -> dict[str, list[float]]:
    """The highest frequency along each axis in cycles per sample, by each formula that applies to the generator."""
    bounds = {name: max_frequency(layer, mask=mask, cutoff=cutoff, formula=name) for name in available_formulas(layer)}
    spacings = [axis.spacing for axis in layer.axes]
    return {
        name: [value * spacing for value, spacing in zip(values.tolist(), spacings, strict=True)]
        for name, values in bounds.items()
    }


def _kernel(layer: FlexConvNd, lines: Sequence[torch.Tensor], *, mask: bool) -> torch.Tensor:
    """The included channels of the kernel on a product grid, computed in slabs → [channels, *n]."""
    shown = channels_shown(layer)
    slabs = lines[0].split(_slab(layer, lines, 0))
    values = torch.cat([sampling.sample_generator(layer, [slab, *lines[1:]])[shown] for slab in slabs], 1)
    mask_values = sampling.sample_mask(layer, lines) if mask else None
    if mask_values is None:
        return values
    return values * (mask_values if mask_values.ndim == layer.dims else mask_values[shown])


def _slab(layer: FlexConvNd, lines: Sequence[torch.Tensor], across: int) -> int:
    """The number of coordinates along one axis to process at a time."""
    each = math.prod(len(line) for e, line in enumerate(lines) if e != across)
    return max(1, 4 * BUDGET // (each * max(layer.generator.channels, HIDDEN_VALUES)))
