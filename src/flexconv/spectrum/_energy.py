"""The share of a kernel's energy at frequencies that a grid cannot represent, measured between its taps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from .._arguments import per_axis_floats, positive, positive_int
from ..nn import FlexConvNd, KernelGenerator
from ..ops import fast_length
from ..sampling import check_layer, continuous_kernel

FOLDED_FROM = 1.5  # in units of the Nyquist frequency; sampling folds what lies beyond into the lower half of the band

#: A layer whose `folded_energy` is larger depends on its resolution. docs/alias-free.md shows how it was chosen.
MUCH_FOLDED_ENERGY = 0.03

_ZERO_PADDING = 4  # the transform is at least this many times as long as the kernel, for finer frequency bins
_CHUNK = 1 << 23  # number of values transformed at a time


@torch.no_grad()
def energy_beyond_nyquist(layer: FlexConvNd, *, scale: float | Sequence[float] = 1.0, oversample: int = 4) -> float:
    """The share of a kernel's energy beyond the Nyquist frequency of a grid, between 0 and 1.

    Energy counts if it lies beyond the limit along at least one axis. The shares of all channels are weighted by their
    energy. If the share is small, the layer computes the same at any resolution that is not lower. Otherwise it
    changes: the frequency response of a layer at twice the resolution differs by about the square root of the share.

    The kernel is sampled between its taps as `flexconv.at_resolution` does: masked, and falling linearly to 0 between
    the last tap that is kept and the next one. This works for every generator and mask, in 1D, 2D and 3D, on causal and
    on resampled grids.

    Arguments:
        layer: a FlexConv layer.
        scale: the grid in question has `scale` times as many taps per unit as the layer, a number or one per axis. For
            a network that runs at half its resolution, `scale=0.5` is the limit that matters.
        oversample: number of samples per tap and axis. Frequencies up to `oversample` times the Nyquist frequency of
            the layer are resolved.

    """
    check_layer(layer, "energy_beyond_nyquist")
    scales = [positive("scale", ratio) for ratio in per_axis_floats("scale", scale, layer.dims)]
    oversample = positive_int("oversample", oversample)
    limits = [ratio / (2 * oversample) for ratio in scales]  # in cycles per sample
    return share_beyond(cropped_kernel(layer, oversample), limits)


def folded_energy(layer: FlexConvNd, *, scale: float | Sequence[float] = 1.0, oversample: int = 4) -> float:
    """The share of a kernel's energy that sampling folds into the lower half of the band, between 0 and 1.

    A grid with Nyquist frequency N represents a frequency f between N and 2N as 2N − f. Energy just beyond N ends up
    just below N, where images and most series have little. Energy beyond 1.5 N ends up below N/2, where they have most
    of theirs. The latter is returned: it is what costs accuracy if a network runs at another resolution. More than
    `MUCH_FOLDED_ENERGY` in some layer is reported by `flexconv inspect` and `flexconv resample`.

    The arguments are those of `energy_beyond_nyquist`.
    """
    check_layer(layer, "folded_energy")
    scales = per_axis_floats("scale", scale, layer.dims)
    return energy_beyond_nyquist(layer, scale=[FOLDED_FROM * ratio for ratio in scales], oversample=oversample)


def cropped_kernel(layer: FlexConvNd, oversample: int) -> torch.Tensor:
    """`continuous_kernel` with as few channels as have the same spectrum, summed over channels."""
    shared = layer.mask is None or not layer.mask.per_channel
    return continuous_kernel(layer, oversample, _few_channels(layer.generator) if shared else layer.generator)


def _few_channels(generator: KernelGenerator) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function from coordinates to kernels whose spectra, summed over channels, are those of the generator's.

    If the channels are a linear map A of h features (and the constant 1), their energy at every frequency is that of
    R · features with AᵀA = RᵀR. The QR decomposition gives such an R with h + 1 rows, and layers have up to thousands
    of channels.
    """
    output = generator.output_map
    if output is None or not generator.has_factors:
        return generator

    def few(coordinates: torch.Tensor) -> torch.Tensor:
        points = coordinates.flatten(1).t()
        features = generator.features(points)
        unit = torch.eye(features.shape[1], dtype=features.dtype, device=features.device)
        bias = output(torch.zeros_like(unit[:1]))
        columns = torch.cat([output(unit) - bias, bias]).t().double()  # A [channels, h + 1]
        rows = torch.linalg.qr(columns.cpu(), mode="r").R.to(features)
        return (features @ rows[:, :-1].t() + rows[:, -1]).t().unflatten(1, coordinates.shape[1:])

    return few


def share_beyond(values: torch.Tensor, limits: Sequence[float]) -> float:
    """The share of the energy of `values` [channels, *n] beyond `limits`, in cycles per sample, along any axis.

    An axis of a single sample has no frequencies. NaN if the energy is not finite.
    """
    total = values.square().sum(dtype=torch.float64).item()
    if total == 0 or not math.isfinite(total):
        return 0.0 if total == 0 else math.nan
    per_channel = values[0].numel() * _ZERO_PADDING
    inside = sum(_energy_within(chunk, limits) for chunk in values.split(max(1, _CHUNK // per_channel)))
    return max(0.0, 1 - inside / total)


def _energy_within(values: torch.Tensor, limits: Sequence[float]) -> float:
    """The energy of `values` below the limits of all axes (Parseval). Each axis keeps only the bins below its limit."""
    for dim, limit in enumerate(limits, start=1):
        if values.shape[dim] == 1:
            continue
        size = fast_length(_ZERO_PADDING * values.shape[dim])
        distance = (torch.fft.fftfreq(size, device=values.device, dtype=torch.float64) * size).abs()
        share = (limit * size - distance + 0.5).clamp(0, 1)  # of every bin that lies below the limit
        kept = share.nonzero().flatten()
        weight = (share[kept] / size).sqrt().to(values.real.dtype).view(-1, *[1] * (len(limits) - dim))
        values = torch.fft.fft(values, size, dim).index_select(dim, kept) * weight
    return values.abs().square().sum(dtype=torch.float64).item()
