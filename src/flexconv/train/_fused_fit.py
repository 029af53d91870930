"""Steps of fitting multiplicative filter networks by a few GPU kernels, in Triton.

The compiled twin in `fit_group.py` writes many values per point and channel to memory and reads them back; a picture of
half a million points is then limited by that. Here these are two: u_l, and in its time ∂u_l:

    forward     u_0 = 1,   u_l = A_l h_{l−1} + a_l,   h_l = g_l ⊙ u_l,   y = A h_n + a,   E = Σ (y − target)² / count
    backward    ∂u = ∂h ⊙ g,   ∂g = ∂h ⊙ u,   ∂A_l = ∂u h_{l−1}ᵀ,   ∂h_{l−1} = A_lᵀ ∂u
    filters     g = e · sin(W x + b),   e = exp(−½ Σ_d (γ_d (x_d − μ_d))²)

A kernel goes forward through all layers, to the loss and to ∂u_n; then one for each layer goes back. So a program stays
with one layer: it holds that layer's parameters and adds up its gradients in registers, over all of its points. A block
of points lies in one row, where a filter is a function of x alone, and sums with y are y times a sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import triton  # pyright: ignore[reportMissingImports]  (comes with torch where there is a GPU)

from ..nn.kernels import FourierNet, GaborNet, MAGNet
from . import _fused_fit_kernels as kernels
from . import _fused_parts as parts
from ._fused_parts import CHANNELS

ROOM = 4 << 30  # bytes for what is written for every point; a larger picture goes through it in parts


class Sizes(NamedTuple):
    """How many of everything, and where what begins where all parameters, or their gradients, are packed into one row.

    First are the vectors [filters, hidden, 2, 4], see `_fused_fit_kernels.py`.
    """

    filters: int
    hidden: int  # a power of two
    mix_weight: int
    output_weight: int
    output_bias: int
    total: int

    @classmethod
    def of(cls, filters: int, hidden: int) -> Sizes:
        """Sizes for so many filters of so many channels."""
        hidden = max(16, triton.next_power_of_2(hidden))
        lengths = [8 * filters * hidden, (filters - 1) * hidden * hidden, CHANNELS * hidden, CHANNELS]
        return cls(filters, hidden, *itertools.accumulate(lengths))


class FusedStep:
    """Loss and gradients of generators on a grid, for targets [pictures, channels, height, width].

    `parameters` are those of a `GaborNet`, a `MAGNet` or a `FourierNet` in 2D, stacked over the pictures.
    """

    def __init__(
        self, parameters: Mapping[str, torch.Tensor], targets: torch.Tensor, ys: torch.Tensor, xs: torch.Tensor
    ) -> None:
        self.parameters, self.targets = parameters, targets.contiguous()
        self.ys, self.xs = ys.contiguous(), xs.contiguous()
        pictures, filters, hidden, _ = parameters["frequency"].shape
        self.sizes = sizes = Sizes.of(filters, hidden)
        self.points, self.programs = parts.share_out(len(xs), len(ys), pictures, parts.FILTER_CUT)
        self.blocks = len(ys) * triton.cdiv(len(xs), self.points)
        self.at_once = min(self.blocks, max(1, ROOM // (4 * pictures * filters * sizes.hidden * self.points)))
        like = {"device": targets.device, "dtype": torch.float32}
        self._packed = torch.zeros(pictures, sizes.total, **like)
        tile = sizes.hidden, self.points
        self._layers = torch.empty(pictures, filters - 2, self.at_once, *tile, **like)  # u_1 … u_{n−1}
        self._changes = torch.empty(2, pictures, self.at_once, *tile, **like)  # ∂u of two layers
        self._sums = torch.empty(pictures, self.programs, sizes.total, **like)
        self._losses = torch.empty(pictures, self.programs, **like)

    @torch.no_grad()
    def __call__(self) -> torch.Tensor:
        """Set `.grad` of every parameter → the mean squared error of every picture [pictures]."""
        for name, place in self._places(self._packed):
            place.copy_(self.parameters[name])
        self._sums.zero_()
        self._losses.zero_()
        for first in range(0, self.blocks, self.at_once):
            self._go(first, min(self.at_once, self.blocks - first))
        gradients = self._sums.sum(1)
        gamma, vectors = self._vectors(self._packed)[..., 3], self._vectors(gradients)
        vectors[..., 2] *= gamma.square()
        vectors[..., 3] *= -gamma
        for name, place in self._places(gradients):
            shared = place.sum(-1, keepdim=True) if self.parameters[name].shape[-1] < place.shape[-1] else place
            self.parameters[name].grad = shared.contiguous()
        return self._losses.sum(1)

    def _go(self, first: int, blocks: int) -> None:
        """Forward and back through all layers, for some blocks of points from the first."""
        sizes, grid, (height, width) = self.sizes, (self.programs, len(self.targets)), self.targets.shape[2:]
        options: dict[str, Any] = {
            "FILTERS": sizes.filters,
            "ENVELOPED": "gamma" in self.parameters,
            "H": sizes.hidden,
            "B": self.points,
            "AT_MIX": sizes.mix_weight,
            "TOTAL": sizes.total,
            "PRODUCTS": parts.PRECISION,
            "num_warps": parts.FILTER_CUT.warps,
        }
        changes, next_changes = self._changes
        launch: Any = kernels.forward[grid]  # type: ignore[index]
        launch(
            self.ys,
            self.xs,
            self.targets,
            self._packed,
            self._layers,
            changes,
            self._sums,
            self._losses,
            width,
            height,
            first,
            blocks,
            1.0 / self.targets[0].numel(),
            self.targets.shape[1],
            C=CHANNELS,
            AT_OUT=sizes.output_weight,
            AT_OUT_BIAS=sizes.output_bias,
            **options,
        )
        launch = kernels.back[grid]  # type: ignore[index]
        for f in reversed(range(sizes.filters - 1)):
            lines = self.ys, self.xs, self._packed, self._layers
            launch(*lines, changes, next_changes, self._sums, width, first, blocks, f, LAST=f == 0, **options)
            changes, next_changes = next_changes, changes

    def _vectors(self, packed: torch.Tensor) -> torch.Tensor:
        """The part [pictures, filters, hidden, 2, 4] of [pictures, total]."""
        sizes = self.sizes
        return packed[:, : sizes.mix_weight].unflatten(1, (sizes.filters, sizes.hidden, 2, 4))

    def _places(self, packed: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Where the parameters are in [pictures, total], in their own shapes, but a γ for each axis."""
        sizes, vectors = self.sizes, self._vectors(packed)
        wholes = {
            "mix_bias": vectors[:, 1:, :, 0, 0],
            "phase": vectors[..., 1, 0],
            "frequency": vectors[..., 1],
            "mu": vectors[..., 2],
            "gamma": vectors[..., 3],
            "mix_weight": packed[:, sizes.mix_weight : sizes.output_weight].unflatten(
                1, (sizes.filters - 1, sizes.hidden, sizes.hidden)
            ),
            "output.weight": packed[:, sizes.output_weight : sizes.output_bias].unflatten(1, (CHANNELS, sizes.hidden)),
            "output.bias": packed[:, sizes.output_bias :],
        }
        for name, parameter in self.parameters.items():
            shape = parameter.shape if name != "gamma" else (*parameter.shape[:-1], 2)
            yield name, wholes[name][tuple(slice(n) for n in shape)]


def can_fuse(generator: Any) -> bool:
    """Whether a generator is one that this kernel knows."""
    known = type(generator) in (FourierNet, GaborNet, MAGNet) and not getattr(generator, "steerable", 0)
    return known and generator.dims == 2 and generator.hidden <= parts.WIDEST and generator.channels <= CHANNELS
