"""Single Gabor filters of a network as arrays, and how much of the kernel goes through each."""

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

POINTS = {1: 400, 2: 97, 3: 97}  # per axis of a picture
AT_A_TIME = 1 << 22  # values kept at once
LEAST_PRECISION = 1e-6  # of an envelope; 0 would be a line in the spectrum


class Gabor(NamedTuple):
    """One channel of one filter on the axes drawn: all of a 1D or 2D grid, the last two of a 3D one."""

    lines: list[np.ndarray]  # coordinates per axis drawn
    centre: np.ndarray  # [d], μ
    frequency: np.ndarray  # [d], W in rad per unit
    precision: np.ndarray  # [d, d]: the envelope is exp(−½ (x − μ)ᵀ P (x − μ))
    phase: float  # of the sine at the centre

    @property
    def envelope(self) -> np.ndarray:
        """The Gaussian, [*n] for n points per axis."""
        return _gaussian(_grid(self.lines) - self.centre, self.precision)

    @property
    def sine(self) -> np.ndarray:
        """The wave, [*n]."""
        return np.sin((_grid(self.lines) - self.centre) @ self.frequency + self.phase)

    @property
    def product(self) -> np.ndarray:
        """The filter itself, [*n]."""
        return self.envelope * self.sine

    def edges(self, h: float) -> np.ndarray:
        """(|W_d| + h √P_dd) / 2π → [d]: where h standard deviations of the spectrum end, in cycles per unit."""
        return (np.abs(self.frequency) + h * np.sqrt(np.diag(self.precision))) / (2 * math.pi)

    def energy(self, *frequencies: np.ndarray) -> np.ndarray:
        """|ĝ|² at cycles per unit along every axis drawn, [n_d] each, over the largest of its values → [*n].

        ĝ(f) ~ e^{iφ} G(2πf − W) − e^{−iφ} G(2πf + W),     G(ω) = exp(−½ ωᵀ P⁻¹ ω),     φ the phase at the centre
        """
        omega = 2 * math.pi * _grid(frequencies)
        covariance = np.linalg.inv(self.precision + LEAST_PRECISION * np.eye(len(self.centre)))
        up, down = _gaussian(omega - self.frequency, covariance), _gaussian(omega + self.frequency, covariance)
        energy = up**2 + down**2 - 2 * up * down * math.cos(2 * self.phase)
        return energy / (energy.max() or 1.0)


def _grid(lines: Sequence[np.ndarray]) -> np.ndarray:
    """The product grid, [*n, d]."""
    return np.stack(np.meshgrid(*lines, indexing="ij"), -1)


def _gaussian(x: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """exp(−½ xᵀ P x) for x [..., d] → [...]."""
    return np.exp(-0.5 * np.einsum("...i,ij,...j->...", x, precision, x))


def gabor(layer: FlexConvNd, filter_index: int, channel: int) -> Gabor:
    """Channel `channel` of filter `filter_index` of the layer's generator; a 3D one on the plane through its centre."""
    generator = layer.generator
    assert isinstance(generator, GaborNet)
    drawn = list(range(layer.dims))[-2:]
    lines = [np.linspace(*span(layer.axes[d], layer.axes[d].whole), POINTS[layer.dims]) for d in drawn]
    centre, frequency = (sampling.to_numpy(p[filter_index, channel]) for p in (generator.mu, generator.frequency))
    phase = float(generator.phase[filter_index, channel].detach()) + float(frequency @ centre)
    precision = _precision(generator, filter_index, channel)[np.ix_(drawn, drawn)]
    return Gabor(lines, centre[drawn], frequency[drawn], precision, phase)


def _precision(generator: GaborNet, filter_index: int, channel: int) -> np.ndarray:
    """Rᵀ diag(γ²) R, R the turn of a steerable envelope → [D, D]."""
    gamma = np.broadcast_to(sampling.to_numpy(generator.gamma[filter_index, channel]), generator.dims)
    precision = np.diag(gamma**2)
    if generator.theta is None:
        return precision
    angle = 2 * math.pi * float(generator.theta[filter_index, channel].detach())
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    return turn.T @ precision @ turn


@torch.no_grad()
def effects(layer: FlexConvNd) -> np.ndarray:
    """What the kernel loses without a channel of a filter, ‖ψ − ψ₋‖² / ‖ψ − a‖², under the mask → [filters, hidden].

    a is the constant of the output map, which no filter makes. ψ is linear in every filter, so that the difference is
    the network run on that one channel, without the biases behind it.
    """
    generator = layer.generator
    assert isinstance(generator, GaborNet)
    lines = sampling.coordinates(layer, layer.axes)
    points = mesh(lines).flatten(1).t()
    window = points.new_ones(len(points)) if layer.mask is None else layer.mask(lines, layer.axes).flatten()
    kept = window != 0
    points, window = points[kept], window[kept].square()
    output = generator.output.effective_weight(points.dtype)
    gram = output.t() @ output
    lost = points.new_zeros(generator.filters, generator.hidden)
    energy = points.new_zeros(())
    size = max(1, AT_A_TIME // generator.hidden**2)
    for some, weight in zip(points.split(size), window.split(size), strict=True):
        filters = generator.filter_values(some)
        made = generator.evaluate(some) - generator.output.bias.to(some.dtype)
        energy += (made.square().sum(1) * weight).sum()
        lost += _lost(generator, filters, gram, weight)
    return sampling.to_numpy(lost / energy.clamp(min=torch.finfo(energy.dtype).tiny))


def _lost(generator: GaborNet, filters: torch.Tensor, gram: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Σ_x weight(x) |W_out δ(x)|² for the δ of every filter and channel → [filters, hidden]; filters [L, n, hidden]."""
    mixes = [mix.to(filters.dtype) for mix in generator.mix_weight]
    hidden = [filters[0]]
    for mix, bias, values in zip(mixes, generator.mix_bias, filters[1:], strict=True):
        hidden.append(values * (hidden[-1] @ mix.t() + bias.to(mix.dtype)))
    rows = []
    for start, h in enumerate(hidden):
        delta = torch.diag_embed(h).transpose(0, 1)  # [channel, n, hidden]: one channel at a time
        for mix, values in zip(mixes[start:], filters[start + 1 :], strict=True):
            delta = values * (delta @ mix.t())
        rows.append((((delta @ gram) * delta).sum(2) * weight).sum(1))
    return torch.stack(rows)
