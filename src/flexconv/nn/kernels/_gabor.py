"""Multiplicative Gabor networks: sines under Gaussian envelopes (the paper's MGN)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from ..._arguments import per_axis_floats, positive, unknown_name
from ...errors import ArgumentError
from ._base import Placement
from ._mfn import MultiplicativeFilterNetwork

GAMMA_SHAPES = ("per_filter", "shared")
CENTER_SPREAD = 5 / 3  # centers start within this many σ of the mask's mean
NARROWEST = 0.35  # the largest initial γ under a mask, relative to 1/σ of the mask


class GaborNet(MultiplicativeFilterNetwork):
    """Filters g(x) = exp(−½ Σ_d (γ_d (x_d − μ_d))²) · sin(W x + b).

    γ is an inverse width: the spectrum of a filter is two Gaussians of width γ around ±W.

    Arguments:
        hidden, layers: width, and number of hidden maps (filters = layers + 1).
        anisotropic: one γ per axis and channel, or one per channel for all axes.
        gamma_shape: γ ~ Gamma(α/(l+1), β) in filter l = 0, 1, … ("per_filter": wide and narrow envelopes), or
            Gamma(α/filters, β) in all of them ("shared").
        alpha, beta: shape and rate of that Gamma distribution.
        input_scale: initial frequencies are W ~ U(±1/√D) · γ · input_scale/√filters. None: as high as the grid of the
            layer represents, with γ scaled down to suit the mask. In a layer with the parametrization of the paper,
            None is 25.6 for an axis of up to 33 taps and proportionally more for a longer one; outside a layer, 25.6.
        center, spread: initial envelope centers are μ ~ U(center ± spread), numbers or one per axis. None: around the
            layer's mask, over 5/3 of its σ, or all of [−1, 1] without a mask. (The authors draw them around 0 even if
            the mask is at +1.)
        steerable: rotate each envelope by a learnable angle, 2D only: R(θ) is applied to (x − μ) before γ.

    """

    def __init__(
        self,
        dims: int,
        channels: int,
        *,
        hidden: int = 32,
        layers: int = 3,
        anisotropic: bool = False,
        gamma_shape: str = "shared",
        alpha: float = 6.0,
        beta: float = 1.0,
        input_scale: float | None = None,
        center: float | Sequence[float] | None = None,
        spread: float | Sequence[float] | None = None,
        steerable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if gamma_shape not in GAMMA_SHAPES:
            unknown_name("gamma_shape", gamma_shape, GAMMA_SHAPES)
        if steerable and dims != 2:
            raise ArgumentError(f"steerable envelopes rotate in a plane: dims must be 2; got {dims}")
        super().__init__(
            dims, channels, hidden=hidden, layers=layers, input_scale=input_scale, device=device, dtype=dtype
        )
        self.anisotropic, self.gamma_shape, self.steerable = anisotropic, gamma_shape, steerable
        self.alpha, self.beta = positive("alpha", alpha), positive("beta", beta)
        self.center = None if center is None else per_axis_floats("center", center, dims)
        self.spread = None if spread is None else per_axis_floats("spread", spread, dims)
        self.mu = nn.Parameter(torch.empty(self.filters, hidden, dims, device=device, dtype=dtype))
        self.gamma = nn.Parameter(
            torch.empty(self.filters, hidden, dims if anisotropic else 1, device=device, dtype=dtype)
        )
        self.theta: nn.Parameter | None = None
        if steerable:  # in turns
            self.theta = nn.Parameter(torch.empty(self.filters, hidden, device=device, dtype=dtype))
        self.reset_parameters()

    def _draw(self) -> None:
        super()._draw()
        with torch.no_grad():
            for index, gamma in enumerate(self.gamma):
                shape = self.alpha / (index + 1 if self.gamma_shape == "per_filter" else self.filters)
                if not gamma.is_meta:  # meta tensors hold no values, and torch before 2.13 cannot draw them
                    concentration = torch.full_like(gamma, shape, dtype=torch.float32)
                    gamma.copy_(torch.distributions.Gamma(concentration, self.beta, validate_args=False).sample())
            self.frequency.mul_(self.gamma)  # a narrow envelope carries a fast sine
            nn.init.uniform_(self.mu, -1.0, 1.0)
            if self.theta is not None:
                nn.init.uniform_(self.theta, 0.0, 1.0)
        if self.center is not None or self.spread is not None:
            self._place_centres(self.center or [0.0] * self.dims, self.spread or [1.0] * self.dims)

    def place_parameters(self, placement: Placement) -> None:
        """Also move the centers, drawn on [−1, 1], to the region of the mask, unless the user set `center`/`spread`."""
        if self.center is None and self.spread is None and placement.center is not None:
            assert placement.sigma is not None
            radius = [min(1.0, CENTER_SPREAD * abs(sigma)) for sigma in placement.sigma]
            self._place_centres(placement.center, radius)
        super().place_parameters(placement)

    @torch.no_grad()
    def _limit_band(self, placement: Placement) -> None:
        """Widen the envelopes to more than the mask, then draw frequencies."""
        if placement.sigma is not None:
            limit = NARROWEST / self.gamma.new_tensor(placement.sigma).abs()
        else:
            nyquist = self.gamma.new_tensor([math.pi / axis.spacing for axis in placement.axes])
            limit = (nyquist / 16).clamp(max=3.0)
        if self.gamma.shape[-1] == 1 or self.theta is not None:  # one γ for all axes, or turned axes
            limit = limit.amin().expand(self.gamma.shape[-1])
        if not self.gamma.is_meta:
            self.gamma.mul_(limit / self.gamma.abs().amax((0, 1)))
        super()._limit_band(placement)

    def _envelope_precision(self) -> torch.Tensor:
        precision = self.gamma.square().amax(1).sum(0)
        return precision.amax().expand(self.dims) if self.theta is not None else precision.expand(self.dims)

    def _place_centres(self, center: Sequence[float], radius: Sequence[float]) -> None:
        with torch.no_grad():
            self.mu.mul_(self.mu.new_tensor(radius)).add_(self.mu.new_tensor(center))

    def envelopes(self, points: torch.Tensor) -> torch.Tensor:
        """exp(−½ Σ_d (γ_d (x_d − μ_d))²) at points [n, D] → [filters, n, hidden]."""
        mu, gamma = self.mu.to(points.dtype), self.gamma.to(points.dtype)
        offset = points[:, None, :] - mu[:, None]  # [filters, n, hidden, D] after broadcasting
        if self.theta is not None:
            angle = 2 * math.pi * self.theta.to(points.dtype)[:, None]
            cos, sin, (x, y) = angle.cos(), angle.sin(), offset.unbind(-1)
            offset = torch.stack([cos * x + sin * y, cos * y - sin * x], -1)
        return torch.exp(-0.5 * (gamma[:, None] * offset).square().sum(-1))

    def filter_values(self, points: torch.Tensor) -> torch.Tensor:
        return self.envelopes(points) * super().filter_values(points)

    def extra_repr(self) -> str:
        steerable = ", steerable=True" if self.steerable else ""
        return f"{super().extra_repr()}, anisotropic={self.anisotropic}, gamma_shape={self.gamma_shape!r}{steerable}"
