"""A step of fitting multiplicative filter networks as one GPU kernel, by Triton.

The compiled twin in `fit_group.py` writes every hidden layer to memory and reads it back several times; a picture of
half a million points is then limited by that. Here a program takes some points through the whole network, the loss, and
back. Only the u_l leave the registers, for a place that stays in the cache:

    forward     u_0 = 1,   u_l = A_l h_{l−1} + a_l,   h_l = g_l ⊙ u_l,   y = A h_n + a,   E = Σ (y − target)² / count
    backward    ∂u = ∂h ⊙ g,   ∂g = ∂h ⊙ u,   ∂A_l = ∂u h_{l−1}ᵀ,   ∂h_{l−1} = A_lᵀ ∂u
    filters     g = e · sin(W x + b),   e = exp(−½ Σ_d (γ_d (x_d − μ_d))²)

On a grid a filter is two products of a factor of x and one of y, sin(α + β) = sin α cos β + cos α sin β, and e is the
product of its two: a small kernel writes them down for every column and every row, and no point has a sine to compute.
A program's points lie in one row. It adds its gradients up in a place of its own; their sum over programs is one
operation at the end.
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
        self.points, self.programs = parts.share_out(len(xs), len(ys), pictures)
        like = {"device": targets.device, "dtype": torch.float32}
        self._packed = torch.zeros(pictures, sizes.total, **like)
        columns = triton.cdiv(len(xs), self.points) * self.points
        self._x_factors = torch.empty(pictures, filters, 2, sizes.hidden, columns, **like)  # 2: with a sine, a cosine
        self._y_factors = torch.empty(pictures, filters, len(ys), 2, sizes.hidden, **like)
        self._layers = torch.ones(pictures, self.programs, filters, sizes.hidden, self.points, **like)  # u_0 stays 1
        self._sums = torch.empty(pictures, self.programs, sizes.total, **like)
        self._losses = torch.empty(pictures, self.programs, **like)

    @torch.no_grad()
    def __call__(self) -> torch.Tensor:
        """Set `.grad` of every parameter → the mean squared error of every picture [pictures]."""
        for name, place in self._places(self._packed):
            place.copy_(self.parameters[name])
        self._write_factors(self.ys, self._y_factors.transpose(2, 3).transpose(3, 4), axis=0)
        self._write_factors(self.xs, self._x_factors, axis=1)
        self._sums.zero_()
        self._step()
        gradients = self._sums.sum(1)
        gamma, vectors = self._vectors(self._packed)[..., 3], self._vectors(gradients)
        vectors[..., 2] *= gamma.square()
        vectors[..., 3] *= -gamma
        for name, place in self._places(gradients):
            shared = place.sum(-1, keepdim=True) if self.parameters[name].shape[-1] < place.shape[-1] else place
            self.parameters[name].grad = shared.contiguous()
        return self._losses.sum(1)

    def _write_factors(self, line: torch.Tensor, factors: torch.Tensor, *, axis: int) -> None:
        """Factors [pictures, filters, 2, hidden, points] of an axis at its coordinates [points]."""
        sizes, length = self.sizes, factors.shape[-1]
        launch: Any = kernels.write_factors[(triton.cdiv(length, parts.POINTS), sizes.filters, len(factors))]  # type: ignore[index]
        launch(
            line,
            self._packed,
            factors,
            len(line),
            length,
            *factors.stride(),
            AXIS=axis,
            ENVELOPED="gamma" in self.parameters,
            H=sizes.hidden,
            B=parts.POINTS,
            TOTAL=sizes.total,
            num_warps=parts.WARPS,
        )

    def _step(self) -> None:
        sizes = self.sizes
        launch: Any = kernels.step[(self.programs, len(self.targets))]  # type: ignore[index]
        launch(
            self.ys,
            self.xs,
            self.targets,
            self._packed,
            self._x_factors,
            self._y_factors,
            self._layers,
            self._sums,
            self._losses,
            len(self.xs),
            len(self.ys),
            1.0 / self.targets[0].numel(),
            self.targets.shape[1],
            FILTERS=sizes.filters,
            ENVELOPED="gamma" in self.parameters,
            H=sizes.hidden,
            C=CHANNELS,
            B=self.points,
            AT_MIX=sizes.mix_weight,
            AT_OUT=sizes.output_weight,
            AT_OUT_BIAS=sizes.output_bias,
            TOTAL=sizes.total,
            PRODUCTS=parts.PRECISION,
            num_warps=parts.WARPS,
            num_stages=parts.STAGES,
            maxnreg=parts.REGISTERS,
        )

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
