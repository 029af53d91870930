"""SIREN: a multilayer perceptron with sine activations, and a variant whose bias is not multiplied by ω_0."""

from __future__ import annotations

import itertools
import math
from numbers import Real

import torch
from torch import nn

from ..._arguments import positive_int
from ...errors import ArgumentError, ArgumentTypeError
from ._base import KernelGenerator, Placement
from ._linear import Affine

PAPER_OMEGA = 30.0
WIDENING = 2.5  # about as many times wider than its argument is the spectrum of a sine of sines


class SIREN(KernelGenerator):
    """y = sin(ω_0 (W x + b)), repeated, then a linear map.

    First weights ~ U(±1/D), all later ones ~ U(±√(6/in)/ω_0), biases U(±1/√in).

    Arguments:
        hidden, layers: width, and number of linear maps including the last (3: two sines).
        omega_0: frequency factor of each sine. None: such that kernels start below the Nyquist frequency of the layer's
            grid; 30 in a layer with the parametrization of the paper, and outside a layer.
        learn_omega_0: make it a parameter, one per sine.
        weight_norm: learn length and direction of each weight row separately.

    """

    def __init__(
        self,
        dims: int,
        channels: int,
        *,
        hidden: int = 32,
        layers: int = 3,
        omega_0: float | None = None,
        learn_omega_0: bool = False,
        weight_norm: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dims, channels)
        if positive_int("layers", layers) < 2:
            raise ArgumentError(
                f"a {type(self).__name__} needs at least 2 linear maps, or it has no sine; got {layers=}"
            )
        self.follows_grid = omega_0 is None
        omega_0 = PAPER_OMEGA if omega_0 is None else omega_0
        if not isinstance(omega_0, Real):
            raise ArgumentTypeError(f"omega_0 must be a number; got {omega_0!r}")
        if omega_0 == 0 or not math.isfinite(omega_0):
            raise ArgumentError(f"omega_0 must be finite and not 0, as weights are drawn ∝ 1/omega_0; got {omega_0}")
        self.initial_omega_0, self.learn_omega_0 = float(omega_0), learn_omega_0
        widths = [dims, *[positive_int("hidden", hidden)] * (layers - 1), channels]
        ranges = [1 / dims, *(math.sqrt(6 / fan_in) / abs(omega_0) for fan_in in widths[1:-1])]
        self.maps = nn.ModuleList(
            Affine(fan_in, fan_out, weight_norm=weight_norm, weight_range=weight_range, device=device, dtype=dtype)
            for (fan_in, fan_out), weight_range in zip(itertools.pairwise(widths), ranges, strict=True)
        )
        omega = torch.empty(layers - 1, device=device, dtype=dtype)
        if learn_omega_0:
            self.omega_0 = nn.Parameter(omega)
        else:
            self.register_buffer("omega_0", omega)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.omega_0, self.initial_omega_0)
        for linear in self.maps:
            assert isinstance(linear, Affine)
            linear.reset_parameters()
        if self._placement is not None:
            self.place_parameters(self._placement)

    def place_parameters(self, placement: Placement) -> None:
        """Suit the frequencies to the grid, unless the user set `omega_0`, then scale the output map."""
        if self.follows_grid and placement.scaled:
            self._limit_band(placement)
        super().place_parameters(placement)

    @torch.no_grad()
    def _limit_band(self, placement: Placement) -> None:
        """Set ω_0 such that the spectrum, which every further sine widens, ends about at the Nyquist frequency.

        Weights of the hidden maps are drawn ∝ 1/ω_0, so their products with ω_0 stay as they were.
        """
        first, *hidden = (linear for linear in self.maps[:-1] if isinstance(linear, Affine))
        band = placement.band(first.bias.new_zeros(self.dims)) / WIDENING ** len(hidden)
        weight = first.weight_v if first.weight_norm else first.weight
        weight.mul_(band / band.amax())
        if first.weight_norm:
            first.weight_g.copy_(weight.norm(dim=1, keepdim=True))
        factor = self.dims * band.amax() / self.initial_omega_0
        self.omega_0.mul_(factor)
        for linear in hidden:
            (linear.weight_g if linear.weight_norm else linear.weight).div_(factor)

    def sine(self, linear: Affine, omega: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """sin(ω_0 (W x + b))."""
        return torch.sin(omega * linear(x))

    @property
    def output_map(self) -> Affine:
        return self.maps[-1]  # type: ignore[return-value]

    def features(self, points: torch.Tensor) -> torch.Tensor:
        *sines, _ = self.maps
        h = points
        for linear, omega in zip(sines, self.omega_0.to(points.dtype), strict=True):
            assert isinstance(linear, Affine)
            h = self.sine(linear, omega, h)
        return h

    def extra_repr(self) -> str:
        omega = "None" if self.follows_grid else f"{self.initial_omega_0:g}"
        return f"{self.dims}, {self.channels}, omega_0={omega}, learn_omega_0={self.learn_omega_0}"


class NSIREN(SIREN):
    """SIREN with the bias outside the frequency factor: y = sin(ω_0 W x + b). Arguments as in `SIREN`."""

    def sine(self, linear: Affine, omega: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """sin(ω_0 W x + b)."""
        bias = linear.bias.to(x.dtype)
        return torch.sin(omega * (linear(x) - bias) + bias)
