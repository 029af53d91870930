"""Gradients for fitting generators to images, by a few Triton kernels.

The compiled version of `FitGroup.squared_error` writes many values per point and channel to memory and reads them
back, which limits its speed for an image of half a million points. These kernels write two, in bfloat16: u_l or its
angle, and later ∂u_l (and ∂y for every point and color).

    forward     h_0 = g_0,   u_l = A_l h_{l−1} + a_l,   h_l = g_l ⊙ u_l,   y = A h_n + a,   E = Σ (y − target)² / count
    backward    ∂u = ∂h ⊙ g,   ∂g = ∂h ⊙ u,   ∂A_l = ∂u h_{l−1}ᵀ,   ∂h_{l−1} = A_lᵀ ∂u
    filters     g = e · sin(W x + b),   e = exp(−½ Σ_d (γ_d (x_d − μ_d))²)

    a SIREN     u_0 = W x + b,   h_l = sin ω_l u_l,   ∂u_l = ∂h_l ⊙ ω_l cos ω_l u_l,   all else the same

One kernel computes all layers and the loss, then one kernel per layer computes the gradients. So a program of the
backward pass works on one layer: it keeps the parameters of the layer and accumulates their gradients in registers over
all of its points. A block of points lies in one row, where a filter is a function of x alone, and sums with y are y
times a sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..nn.kernels import SIREN, FourierNet, GaborNet, KernelGenerator, MAGNet
from . import fused_fit_kernels, fused_siren_kernels
from .fused_parts import CHANNELS, WIDEST
from .fused_step import LayeredStep


class FusedStep(LayeredStep):
    """The gradients of a `GaborNet`, a `MAGNet` or a `FourierNet` in 2D."""

    kernels = fused_fit_kernels
    numbers = 8
    cut = 64, 2

    def __init__(
        self, parameters: Mapping[str, torch.Tensor], targets: torch.Tensor, ys: torch.Tensor, xs: torch.Tensor
    ) -> None:
        _, filters, hidden, _ = parameters["frequency"].shape
        super().__init__(parameters, targets, ys, xs, depth=filters, hidden=hidden)

    def _options(self) -> dict[str, Any]:
        return {"ENVELOPED": "gamma" in self.parameters}

    def _places(self, packed: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """The shapes are those of the parameters, except that γ has a value per axis."""
        vectors, maps, out, bias = self._split(packed)
        vectors = vectors.unflatten(3, (2, 4))
        wholes = {
            "mix_bias": vectors[:, 1:, :, 0, 0],
            "phase": vectors[..., 1, 0],
            "frequency": vectors[..., 1],
            "mu": vectors[..., 2],
            "gamma": vectors[..., 3],
            "mix_weight": maps,
            "output.weight": out,
            "output.bias": bias,
        }
        for name, parameter in self.parameters.items():
            shape = parameter.shape if name != "gamma" else (*parameter.shape[:-1], 2)
            yield name, wholes[name][tuple(slice(n) for n in shape)]

    def _gradients(self, packed: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        gamma, vectors = (self._split(row)[0].unflatten(3, (2, 4)) for row in (self._packed, packed))
        vectors[..., 2] *= gamma[..., 3].square()
        vectors[..., 3] *= -gamma[..., 3]
        for name, place in self._places(packed):
            shared = self.parameters[name].shape[-1] < place.shape[-1]  # a single γ for both axes
            yield name, place.sum(-1, keepdim=True) if shared else place


class FusedSirenStep(LayeredStep):
    """The gradients of a `SIREN` in 2D with the frequency factors `omegas` [images, sines]."""

    kernels = fused_siren_kernels
    numbers = 4
    cut = 32, 1

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        omegas: torch.Tensor,
        targets: torch.Tensor,
        ys: torch.Tensor,
        xs: torch.Tensor,
    ) -> None:
        super().__init__(parameters, targets, ys, xs, depth=omegas.shape[1], hidden=parameters["maps.0.bias"].shape[1])
        self._split(self._packed)[0][..., 3] = omegas[:, :, None]

    def _places(self, packed: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        vectors, maps, out, bias = self._split(packed)
        wholes = {"maps.0.weight": vectors[:, 0, :, 1:3]}
        wholes |= {f"maps.{layer}.bias": vectors[:, layer, :, 0] for layer in range(self.depth)}
        wholes |= {f"maps.{layer + 1}.weight": maps[:, layer] for layer in range(self.depth - 1)}
        wholes |= {f"maps.{self.depth}.weight": out, f"maps.{self.depth}.bias": bias}
        for name, parameter in self.parameters.items():
            yield name, wholes[name][tuple(slice(n) for n in parameter.shape)]


def can_fuse(generator: Any) -> bool:
    """Whether `FusedStep` supports a generator."""
    if type(generator) not in (FourierNet, GaborNet, MAGNet) or getattr(generator, "steerable", 0):
        return False
    return generator.dims == 2 and generator.hidden <= WIDEST and generator.channels <= CHANNELS


def can_fuse_siren(generator: KernelGenerator) -> bool:
    """Whether `FusedSirenStep` supports a generator."""
    if type(generator) is not SIREN or generator.learn_omega_0 or generator.output_map.weight_norm:
        return False
    return generator.dims == 2 and generator.output_map.in_features <= WIDEST and generator.channels <= CHANNELS
