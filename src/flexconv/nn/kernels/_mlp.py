"""A plain multilayer perceptron on coordinates."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import nn

from ..._arguments import check_name, positive_int, unknown_name
from ._base import KernelGenerator
from ._linear import Affine

ACTIVATIONS = {"relu": F.relu, "leaky_relu": F.leaky_relu, "swish": F.silu}
NORMS = ("layer",)


class MLP(KernelGenerator):
    """Linear, norm, activation, repeated, then linear. Weights as torch draws them, biases 0.

    Arguments:
        hidden, layers: width, and number of linear maps including the last.
        activation: "relu", "leaky_relu" (slope 0.01) or "swish".
        norm: None, or "layer": normalize over the hidden channels at each point separately. (A norm over points would
            make a kernel value depend on which other taps are sampled, and so on cropping and resolution.)

    """

    def __init__(
        self,
        dims: int,
        channels: int,
        *,
        hidden: int = 32,
        layers: int = 3,
        activation: str = "relu",
        norm: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dims, channels)
        check_name("activation", activation, ACTIVATIONS)
        if norm is not None and norm not in NORMS:
            unknown_name("norm", norm, NORMS)
        self.activation, self.norm = activation, norm
        widths = [dims, *[positive_int("hidden", hidden)] * (positive_int("layers", layers) - 1), channels]
        self.maps = nn.ModuleList(
            Affine(fan_in, fan_out, bias_range=0.0, device=device, dtype=dtype)
            for fan_in, fan_out in itertools.pairwise(widths)
        )
        self.norms = nn.ModuleList(
            nn.LayerNorm(width, device=device, dtype=dtype) if norm else nn.Identity() for width in widths[1:-1]
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for module in (*self.maps, *self.norms):
            if isinstance(module, Affine | nn.LayerNorm):
                module.reset_parameters()
        if self._placement is not None:
            self.place_parameters(self._placement)

    @property
    def output_map(self) -> Affine:
        return self.maps[-1]  # type: ignore[return-value]

    def features(self, points: torch.Tensor) -> torch.Tensor:
        *hidden, _ = self.maps
        h = points
        for linear, norm in zip(hidden, self.norms, strict=True):
            h = linear(h)
            if isinstance(norm, nn.LayerNorm):
                h = F.layer_norm(h, norm.normalized_shape, norm.weight.to(h.dtype), norm.bias.to(h.dtype), norm.eps)
            h = ACTIVATIONS[self.activation](h)
        return h

    def extra_repr(self) -> str:
        return f"{self.dims}, {self.channels}, activation={self.activation!r}, norm={self.norm!r}"
