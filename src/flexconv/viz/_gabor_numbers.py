"""The values of single Gabor filters, and how much each of them contributes to the kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from .. import sampling
from ..nn import FlexConvNd, mesh
from ..nn.kernels import GaborNet
from .style import span

POINTS = {1: 400, 2: 97, 3: 97}  # points per axis of a plot, by number of dimensions
CHUNK = 1 << 22  # values held in memory at once
MIN_PRECISION = 1e-6  # a flat envelope would have a spectrum of zero width


class Gabor(NamedTuple):
    """One channel of one Gabor filter, on the axes that are drawn: all axes in 1D and 2D, the last two in 3D."""

    lines: list[np.ndarray]  # coordinates along each drawn axis
    centre: np.ndarray  # [d], μ
    frequency: np.ndarray  # [d], W in radians per unit
    precision: np.ndarray  # [d, d]; the envelope is exp(−½ (x − μ)ᵀ P (x − μ))
    phase: float  # phase of the sine at the center

    @property
    def envelope(self) -> np.ndarray:
        """The Gaussian envelope → [*n], with n points per axis."""
        return _gaussian(_grid(self.lines) - self.centre, self.precision)

    @property
    def sine(self) -> np.ndarray:
        """The sine wave → [*n]."""
        return np.sin((_grid(self.lines) - self.centre) @ self.frequency + self.phase)

    @property
    def product(self) -> np.ndarray:
        """The filter, envelope times sine → [*n]."""
        return self.envelope * self.sine

    def edges(self, h: float) -> np.ndarray:
        """(|W_d| + h √P_dd) / 2π → [d]: h standard deviations above the peak of the spectrum, in cycles per unit."""
        return (np.abs(self.frequency) + h * np.sqrt(np.diag(self.precision))) / (2 * math.pi)

    def energy(self, *frequencies: np.ndarray, blur: float | np.ndarray = 0.0) -> np.ndarray:
        """The energy spectrum |ĝ|², normalized to a maximum of 1 → [*n]. Takes frequencies [n_d] in cycles per unit.

        `blur`, in cycles per unit, widens peaks that are narrower than the distance of the frequencies.

        ĝ(f) ∝ e^{iφ} G(2πf − W) − e^{−iφ} G(2πf + W),     G(ω) = exp(−½ ωᵀ P⁻¹ ω),     φ: phase at the center
        """
        omega = 2 * math.pi * _grid(frequencies)
        least = MIN_PRECISION + (2 * math.pi * np.broadcast_to(blur, len(self.centre))) ** 2
        covariance = np.linalg.inv(self.precision + np.diag(least))
        up, down = _gaussian(omega - self.frequency, covariance), _gaussian(omega + self.frequency, covariance)
        energy = up**2 + down**2 - 2 * up * down * math.cos(2 * self.phase)
        return energy / (energy.max() or 1.0)


def _grid(lines: Sequence[np.ndarray]) -> np.ndarray:
    """The coordinates of a product grid → [*n, d]."""
    return np.stack(np.meshgrid(*lines, indexing="ij"), -1)


def _gaussian(x: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """exp(−½ xᵀ P x) for x [..., d] → [...]."""
    return np.exp(-0.5 * np.einsum("...i,ij,...j->...", x, precision, x))


def gabor(layer: FlexConvNd, filter_index: int, channel: int) -> Gabor:
    """One channel of one filter of the layer's generator. A 3D filter is evaluated on the plane through its center."""
    generator = layer.generator
    assert isinstance(generator, GaborNet)
    drawn = list(range(layer.dims))[-2:]
    lines = [np.linspace(*span(layer.axes[d], layer.axes[d].whole), POINTS[layer.dims]) for d in drawn]
    centre, frequency = (sampling.to_numpy(p[filter_index, channel]) for p in (generator.mu, generator.frequency))
    phase = float(generator.phase[filter_index, channel].detach()) + float(frequency @ centre)
    precision = _precision(generator, filter_index, channel)[np.ix_(drawn, drawn)]
    return Gabor(lines, centre[drawn], frequency[drawn], precision, phase)


def _precision(generator: GaborNet, filter_index: int, channel: int) -> np.ndarray:
    """Rᵀ diag(γ²) R → [D, D], where R is the rotation of a steerable envelope."""
    gamma = np.broadcast_to(sampling.to_numpy(generator.gamma[filter_index, channel]), generator.dims)
    precision = np.diag(gamma**2)
    if generator.theta is None:
        return precision
    angle = 2 * math.pi * float(generator.theta[filter_index, channel].detach())
    rotation = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    return rotation.T @ precision @ rotation


@torch.no_grad()
def effects(layer: FlexConvNd) -> np.ndarray:
    """How much of the masked kernel each channel of each filter contributes → [filters, hidden].

    The effect of a channel is ‖ψ − ψ₋‖² / ‖ψ − a‖². ψ₋ is the kernel without that channel, and a is the bias of the
    output map, which does not depend on the filters. ψ is linear in every filter, so ψ − ψ₋ is the output of the
    network with only that channel of the filter, and without the biases after it. Masks per channel count with their
    root mean square.
    """
    generator = layer.generator
    assert isinstance(generator, GaborNet)
    lines = sampling.coordinates(layer, layer.axes)
    points = mesh(lines).flatten(1).t()
    mask = points.new_ones(len(points)) if layer.mask is None else layer.mask(lines, layer.axes)
    if layer.mask is not None and layer.mask.per_channel:
        mask = mask.square().mean(0).sqrt()
    mask = mask.flatten()
    inside = mask != 0
    points, weights = points[inside], mask[inside].square()
    output, _ = generator.output.effective_map(points.dtype)
    gram = output.t() @ output
    difference = points.new_zeros(generator.filters, generator.hidden)
    energy = points.new_zeros(())
    size = max(1, CHUNK // generator.hidden**2)
    for chunk, weight in zip(points.split(size), weights.split(size), strict=True):
        filters = generator.filter_values(chunk)
        values = generator.evaluate(chunk) - generator.output.bias.to(chunk.dtype)
        energy += (values.square().sum(1) * weight).sum()
        difference += _differences(generator, filters, gram, weight)
    return sampling.to_numpy(difference / energy.clamp(min=torch.finfo(energy.dtype).tiny))


def _differences(generator: GaborNet, filters: torch.Tensor, gram: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Σ_x weight(x) |W_out δ(x)|² → [filters, hidden]. δ is the difference that one channel of one filter makes.

    Takes the values of the filters, [filters, n, hidden].
    """
    mixes = [mix.to(filters.dtype) for mix in generator.mix_weight]
    hidden = [filters[0]]
    for mix, bias, values in zip(mixes, generator.mix_bias, filters[1:], strict=True):
        hidden.append(values * (hidden[-1] @ mix.t() + bias.to(mix.dtype)))
    rows = []
    for start, h in enumerate(hidden):
        delta = torch.diag_embed(h).transpose(0, 1)  # [channel, n, hidden], non-zero in one channel
        for mix, values in zip(mixes[start:], filters[start + 1 :], strict=True):
            delta = values * (delta @ mix.t())
        rows.append((((delta @ gram) * delta).sum(2) * weight).sum(1))
    return torch.stack(rows)
