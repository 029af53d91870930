"""Energy spectra of sampled kernels, as densities over frequency, so that grids of any spacing compare."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from .. import sampling
from ..nn import Axis, FlexConvNd
from ..ops import fast_length
from ..spectrum import available_formulas, energy_spectrum, max_frequency

Curve = tuple[np.ndarray, np.ndarray]  # frequencies [n] ≥ 0, and the energy density at them

BUDGET = 1 << 21  # values worked on at a time, about
MOST_CHANNELS, FEWEST_CHANNELS = 256, 16
WIDEST_HIDDEN = 256  # values that a generator keeps per point, about
# Times the layer's own density along the axes that are integrated over, where |ψ|² should not alias. 3D costs enough.
ACROSS = {1: 1, 2: 4, 3: 1}
FINEST_PICTURE = 320  # bins of an image along an axis


def resampled(axis: Axis, scale: float) -> Axis:
    """The same stretch of an axis with `scale` times as many taps per unit; the current sample stays a tap."""
    sides = 1 if axis.causal or axis.size % 2 == 0 else 2
    intervals = sides * math.floor(max(axis.size - 1, 1) / sides * scale + 1e-9)
    return Axis(intervals + 1, axis.causal, axis.spacing / scale)


def top_frequency(axis: Axis) -> float:
    """The Nyquist frequency of an axis, in cycles per unit."""
    return 1 / (2 * axis.spacing)


def channels_shown(layer: FlexConvNd) -> list[int]:
    """Which channels of the generator are transformed: all, or of a large layer a selection spread evenly."""
    taps = math.prod(layer.kernel_size)
    return sampling.spread(min(MOST_CHANNELS, max(FEWEST_CHANNELS, BUDGET // taps)), layer.generator.channels)


@torch.no_grad()
def marginal(layer: FlexConvNd, d: int, axis: Axis, *, mask: bool) -> Curve:
    """Energy per frequency along axis d of the grid, which is sampled on `axis` → frequencies [n], density [n].

    E(f) = Σ_channels ∫ |ψ̂(f, x)|² dx        over the other axes x, sampled more densely than by the layer
    """
    axes = [axis if e == d else resampled(own, ACROSS[layer.dims]) for e, own in enumerate(layer.axes)]
    lines = sampling.coordinates(layer, axes)
    across = 0 if d else layer.dims - 1  # for slabs that hold whole lines along d
    slabs = [lines[across]] if layer.dims == 1 else lines[across].split(_slab(layer, lines, across))
    parts = [_kernel(layer, [*lines[:across], slab, *lines[across + 1 :]], mask=mask) for slab in slabs]
    total = torch.stack([energy_spectrum(part.double(), d + 1) for part in parts]).sum(0)
    total[1:-1] /= 2  # which count negative frequencies too
    density = total * axis.spacing**2 * math.prod(other.spacing for e, other in enumerate(axes) if e != d)
    return np.linspace(0, top_frequency(axis), len(total)), sampling.to_numpy(density)


@torch.no_grad()
def plane(layer: FlexConvNd, axes: Sequence[Axis], *, mask: bool) -> np.ndarray:
    """|ψ̂|² over both frequencies of a 2D kernel, channels added → [rows, columns], frequency 0 in the middle."""
    lines = sampling.coordinates(layer, axes)
    values = _kernel(layer, lines, mask=mask)
    sizes = [fast_length(max(len(line), min(4 * len(line), FINEST_PICTURE))) for line in lines]
    energy = values.new_zeros(sizes, dtype=torch.float64)
    for piece in values.split(max(1, BUDGET // math.prod(sizes))):
        energy += torch.view_as_real(torch.fft.fft2(piece, sizes)).square().sum((0, 3))
    return sampling.to_numpy(torch.fft.fftshift(energy)) * math.prod(axis.spacing**2 for axis in axes)


def bandwidth(frequency: np.ndarray, density: np.ndarray, share: float) -> float:
    """The frequency below which that share of the energy lies; NaN where it is not finite."""
    below = np.cumsum(np.concatenate([density[:1], 2 * density[1:-1], density[-1:]]))
    return float(frequency[np.argmax(below >= share * below[-1])]) if np.isfinite(below[-1]) else math.nan


def decibels(density: np.ndarray, reference: float, floor: float) -> np.ndarray:
    """10 log₁₀ of a density over its reference, not below the floor."""
    return 10 * np.log10(np.maximum(density / (reference or 1.0), 10 ** (floor / 10)))


@torch.no_grad()
def limits(layer: FlexConvNd, *, mask: bool, cutoff: float) -> dict[str, list[float]]:
    """What every formula that knows the layer's generator gives, per axis."""
    return {
        name: max_frequency(layer, mask=mask, cutoff=cutoff, formula=name).tolist()
        for name in available_formulas(layer)
    }


def _kernel(layer: FlexConvNd, lines: Sequence[torch.Tensor], *, mask: bool) -> torch.Tensor:
    """The shown channels of the kernel on a product grid, computed slab by slab → [shown, *n]."""
    shown = channels_shown(layer)
    slabs = lines[0].split(_slab(layer, lines, 0))
    values = torch.cat([sampling.sample_generator(layer, [slab, *lines[1:]])[shown] for slab in slabs], 1)
    window = sampling.sample_mask(layer, lines) if mask else None
    return values if window is None else values * window


def _slab(layer: FlexConvNd, lines: Sequence[torch.Tensor], across: int) -> int:
    """How many coordinates of one axis to take at a time."""
    each = math.prod(len(line) for e, line in enumerate(lines) if e != across)
    return max(1, 4 * BUDGET // (each * max(layer.generator.channels, WIDEST_HIDDEN)))
