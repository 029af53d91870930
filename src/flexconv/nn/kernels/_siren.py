"""SIREN: a multilayer perceptron with sine activations, and a variant whose bias is not multiplied by ω_0."""

from __future__ import annotations

import itertools
import math
from numbers import Real

import torch
from torch import nn

from ..._arguments import positive_int
from ...errors import ArgumentError, ArgumentTypeError
from ._base import KernelGenerator
from ._linear import Affine


class SIREN(KernelGenerator):
    """y = sin(ω_0 (W x + b)), repeated, then a linear map.

    First weights ~ U(±1/D), all later ones ~ U(±√(6/in)/ω_0), biases U(±1/√in).

    Arguments:
        hidden, layers: width, and number of linear maps including the last (3: two sines).
        omega_0: frequency factor of each sine.
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
        omega_0: float = 30.0,
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
        return f"{self.dims}, {self.channels}, omega_0={self.initial_omega_0:g}, learn_omega_0={self.learn_omega_0}"


class NSIREN(SIREN):
    """SIREN with the bias outside the frequency factor: y = sin(ω_0 W x + b). Arguments as in `SIREN`."""

    def sine(self, linear: Affine, omega: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """sin(ω_0 W x + b)."""
        bias = linear.bias.to(x.dtype)
        return torch.sin(omega * (linear(x) - bias) + bias)
