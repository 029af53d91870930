"""N-Jet: kernels as weighted Gaussian derivatives of a learnable scale."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence

import torch
from torch import nn

from ..._arguments import as_int, per_axis_floats, positive
from ..._matmul import matmul
from ...errors import ArgumentError, ArgumentTypeError
from .._grid import Axis
from ._base import KernelGenerator, Placement
from ._placement import CUTOFF


class NJet(KernelGenerator):
    """ψ(x) = Σ_{|n| ≤ order} α_n Π_d σ_d^{n_d} ∂^{n_d} G_{σ_d}(x_d),    σ_d = unit_d · 2^s.

    G_σ is sampled on the taps and normalized to sum 1 there; its derivatives are Hermite polynomials times it,

        σⁿ ∂ⁿ G_σ(x) = (−1/√2)ⁿ H_n(x / (√2 σ)) G_σ(x)

    and everything beyond ⌈reach · σ + ½⌉ units is cut off. The scale s is therefore the size, and an N-Jet needs no
    mask. On a causal axis it is centered at the newest tap, so only the half in the past remains.
    When it is sampled more densely its values become smaller and their sum stays the same (`conserves_sum`).

    Arguments:
        order: highest total order of derivatives.
        unit: σ at s = 0, a number or one per axis. None: one tap spacing of the layer's grid.
        reach: radius in standard deviations.

    """

    conserves_sum = True

    def __init__(
        self,
        dims: int,
        channels: int,
        *,
        order: int = 4,
        unit: float | Sequence[float] | None = None,
        reach: float = 2.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dims, channels)
        if (whole := as_int(order)) is None:
            raise ArgumentTypeError(f"order must be an int; got {order!r}")
        if whole < 0:
            raise ArgumentError(f"order must be at least 0; got {order}")
        self.order, self.reach = whole, positive("reach", reach)
        self.unit = None if unit is None else per_axis_floats("unit", unit, dims)
        if self.unit and min(self.unit) <= 0:
            raise ArgumentError(f"unit must be positive; got {unit}")
        self.axes: tuple[Axis, ...] | None = None
        #: multi-indices n of the derivatives, in the order of `alpha`'s columns
        self.orders = [n for n in itertools.product(range(whole + 1), repeat=dims) if sum(n) <= whole]
        self.alpha = nn.Parameter(torch.empty(channels, len(self.orders), device=device, dtype=dtype))
        self.scale = nn.Parameter(torch.empty(1, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """α ~ N(0, 1), s = 0."""
        nn.init.normal_(self.alpha)
        nn.init.zeros_(self.scale)
        if self._placement is not None:
            self.place_parameters(self._placement)

    def attach(self, placement: Placement, *, fresh: bool = False) -> None:
        """Normalise over this grid. The first grid also sets the unit, unless the user gave one."""
        self.axes = tuple(placement.axes)
        self.unit = self.unit or [axis.spacing for axis in self.axes]
        super().attach(placement, fresh=fresh)

    @torch.no_grad()
    def place_parameters(self, placement: Placement) -> None:
        """Raise s until the spectrum ends at the Nyquist frequency, and scale α as weights of a plain convolution."""
        if not placement.scaled or self.alpha.is_meta:
            return
        band = placement.band(self.scale.new_zeros(self.dims)).tolist()  # a mask is rare: an N-Jet has its own size
        highest = [(math.sqrt(self.order) + CUTOFF) / unit for unit in self._unit()]  # at s = 0
        ratio = max(frequency / limit for frequency, limit in zip(highest, band, strict=True))
        self.scale.fill_(max(0.0, math.log2(ratio)))
        points, _ = Placement(placement.axes).samples(device=self.alpha.device, dtype=self.compute_dtype)
        basis = self.derivatives(points)
        energy = torch.maximum(basis.square().sum(), basis.sum(0).square().sum())
        self.alpha.mul_((3 * placement.inputs * energy).rsqrt())

    def size_parameters(self) -> tuple[nn.Parameter, ...]:
        """The parameters that `bounds` needs."""
        return (self.scale,)

    def bounds(self, parameters: Sequence[torch.Tensor], axes: Sequence[Axis]) -> torch.Tensor:
        """Taps strictly between bounds[d, 0] and bounds[d, 1] are kept along axis d → [D, 2]."""
        taps = torch.ceil(self.reach * torch.exp2(parameters[0]) + 0.5) + 0.5
        homes = [axis.current for axis in axes]
        sides = [
            torch.cat([home - taps * unit, home + taps * unit]) for home, unit in zip(homes, self._unit(), strict=True)
        ]
        return torch.stack(sides)

    def evaluate(self, points: torch.Tensor) -> torch.Tensor:
        return matmul(self.derivatives(points), self.alpha.to(points.dtype).t())

    def derivatives(self, points: torch.Tensor) -> torch.Tensor:
        """The Gaussian derivatives of `orders` at points [n, D] → [n, len(orders)]."""
        scale = self.scale.to(points.dtype)
        axes = self.axes or [Axis(1, causal=False)] * self.dims
        low, high = self.bounds((scale.detach(),), axes).unbind(1)
        sigmas = [torch.exp2(scale) * unit for unit in self._unit()]

        def offset_and_gaussian(x: torch.Tensor, d: int) -> tuple[torch.Tensor, torch.Tensor]:
            u = (x - axes[d].current) / (math.sqrt(2.0) * sigmas[d])
            return u, torch.exp(-u.square()).masked_fill((x <= low[d]) | (x >= high[d]), 0.0)

        lines = [offset_and_gaussian(points[:, d], d) for d in range(self.dims)]
        u, gauss = (torch.stack(part, -1) for part in zip(*lines, strict=True))  # [n, D] each
        if self.axes is None:
            total = _product(gauss.unbind(-1)).sum()
        else:  # over the whole grid, of which the points may be a part
            grid = [a.coordinates(a.whole, device=points.device, dtype=points.dtype) for a in self.axes]
            total = _product([offset_and_gaussian(x, d)[1].sum() for d, x in enumerate(grid)])
        hermite = [torch.ones_like(u), 2 * u]
        for n in range(1, self.order):
            hermite.append(2 * u * hermite[n] - 2 * n * hermite[n - 1])
        derivative = [(-1 / math.sqrt(2.0)) ** n * hermite[n] * gauss for n in range(self.order + 1)]
        products = [_product([derivative[n_d][:, d] for d, n_d in enumerate(n)]) for n in self.orders]
        return torch.stack(products, -1) / total

    def _unit(self) -> list[float]:
        if self.unit is None:
            raise ArgumentError("an NJet outside a layer needs unit=, its initial σ, such as one tap spacing; got None")
        return self.unit

    def extra_repr(self) -> str:
        return f"{self.dims}, {self.channels}, order={self.order}, reach={self.reach:g}"


def _product(factors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The product of a few tensors. The backward pass of `torch.prod` counts zeros, and waits for a GPU to do so."""
    return functools.reduce(operator.mul, factors)
