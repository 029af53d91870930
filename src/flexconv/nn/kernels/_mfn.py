"""Multiplicative filter networks: products of simple filters, mixed linearly in between.

    h_0 = g_0(x),    h_l = g_l(x) ⊙ (A_l h_{l−1} + a_l)  for l = 1 … n,    ψ(x) = A_out h_n + a_out

Expanded, ψ is a sum of exponentially many products of filters, one of each layer: that is why its highest frequency
has an analytic bound (`flexconv.spectrum`). n hidden maps make n + 1 filters; the paper's "3 layers" are 4 filters.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from ..._arguments import positive, positive_int
from ..._matmul import matmul
from ._base import KernelGenerator, Placement
from ._linear import Affine, affine

PAPER_INPUT_SCALE, PAPER_TAPS = 25.6, 33  # the paper's `input_scale`, on the grid it was chosen for
LAST_SHARE = 0.9  # of the band, for the last filter: it multiplies all features, and so decides how much they differ


class MultiplicativeFilterNetwork(KernelGenerator):
    """Base class: stacked sines sin(W x + b), hidden maps and an output map. Subclasses add envelopes to the filters.

    Parameters of all filters are stacked along their first axis: `frequency` [filters, hidden, D] in rad per unit,
    `phase` [filters, hidden], `mix_weight` [layers, hidden, hidden], `mix_bias` [layers, hidden].

    `input_scale` sets the initial frequencies. None: as high as the grid of the layer represents, together with the
    envelopes and the mask (`Placement.band`). In a layer with the parametrization of the paper, and outside a layer, it
    is 25.6, and proportionally more for an axis of more than 33 taps.
    """

    def __init__(
        self,
        dims: int,
        channels: int,
        *,
        hidden: int,
        layers: int,
        input_scale: float | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__(dims, channels)
        self.hidden = positive_int("hidden", hidden)
        self.layers = positive_int("layers", layers)
        self.filters = layers + 1
        self.input_scale = None if input_scale is None else positive("input_scale", input_scale)

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))

        self.frequency = parameter(self.filters, hidden, dims)
        self.phase = parameter(self.filters, hidden)
        self.mix_weight = parameter(layers, hidden, hidden)
        self.mix_bias = parameter(layers, hidden)
        self.output = Affine(hidden, channels, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """W ~ U(±1/√D) · input_scale/√filters, b ~ U(±π), every map U(±1/√hidden)."""
        self._draw()
        if self._placement is not None:
            self.place_parameters(self._placement)

    def _draw(self) -> None:
        """Draw parameters for a grid of up to 33 taps, without a mask."""
        scale = PAPER_INPUT_SCALE if self.input_scale is None else self.input_scale
        bound = scale / math.sqrt(self.filters) / math.sqrt(self.dims)
        nn.init.uniform_(self.frequency, -bound, bound)
        nn.init.uniform_(self.phase, -math.pi, math.pi)
        for mix in (self.mix_weight, self.mix_bias):
            nn.init.uniform_(mix, -1 / math.sqrt(self.hidden), 1 / math.sqrt(self.hidden))
        self.output.reset_parameters()

    def place_parameters(self, placement: Placement) -> None:
        """Suit the frequencies to the grid, unless the user set `input_scale`, and scale the maps."""
        if placement.scaled:
            bound = math.sqrt(6 / self.hidden)  # hidden values stay of about the same size from layer to layer
            nn.init.uniform_(self.mix_weight, -bound, bound)
            nn.init.uniform_(self.mix_bias, -1.0, 1.0)
        if self.input_scale is None and placement.scaled:
            self._limit_band(placement)
        elif self.input_scale is None:
            finer = self.frequency.new_tensor([max(1.0, axis.size / PAPER_TAPS) for axis in placement.axes])
            with torch.no_grad():
                self.frequency.mul_(finer)
        super().place_parameters(placement)

    @torch.no_grad()
    def _limit_band(self, placement: Placement) -> None:
        """Draw frequencies whose products, with envelopes and mask, end at the Nyquist frequency of the grid.

        A product of filters has the sum of their frequencies, so each filter gets a share of the band. Features whose
        frequencies are close to each other are nearly the same under a mask. Those of the last filter are therefore
        spread evenly, so that the features can make more different kernels (`python -m benchmarks.feature_span`).
        """
        band = placement.band(self._envelope_precision())
        shares = band.new_full((self.filters,), (1 - LAST_SHARE) / max(self.layers, 1))
        shares[-1] = 1 - shares[:-1].sum()
        nn.init.uniform_(self.frequency, -1.0, 1.0)
        self.frequency[-1] = evenly_spread(self.frequency[-1])
        self.frequency.mul_(shares[:, None, None] * band)

    def _envelope_precision(self) -> torch.Tensor:
        """Σ over filters of the largest γ² of a channel → [D]. Here: no envelopes."""
        return self.frequency.new_zeros(self.dims)

    def filter_values(self, points: torch.Tensor) -> torch.Tensor:
        """All filters at points [n, D] → [filters, n, hidden]. Here: sin(W x + b)."""
        angles = matmul(points, self.frequency.to(points.dtype).flatten(0, 1).t())
        angles = angles.unflatten(1, (self.filters, self.hidden)) + self.phase.to(points.dtype)
        return torch.sin(angles).transpose(0, 1)

    @property
    def output_map(self) -> Affine:
        return self.output

    def features(self, points: torch.Tensor) -> torch.Tensor:
        """h_n at points [n, D] → [n, hidden]."""
        filters = self.filter_values(points)
        h = filters[0]
        for layer in range(self.layers):
            h = filters[layer + 1] * affine(h, self.mix_weight[layer], self.mix_bias[layer])
        return h

    def extra_repr(self) -> str:
        shape = f"{self.dims}, {self.channels}, hidden={self.hidden}, layers={self.layers}"
        return shape if self.input_scale is None else f"{shape}, input_scale={self.input_scale:g}"


def evenly_spread(like: torch.Tensor) -> torch.Tensor:
    """Points that fill [−1, 1]^D evenly, moved by a random offset → [n, D], the shape of `like`.

    These are the points offset + k α modulo the box, for k = 0, 1, …, with α = (1/g, 1/g², …) and g^(D + 1) = g + 1. In
    one dimension g is the golden ratio (Roberts, The unreasonable effectiveness of quasirandom sequences, 2018).
    """
    count, dims = like.shape
    g = 2.0
    for _ in range(64):  # converges to the solution
        g = (1 + g) ** (1 / (dims + 1))
    steps = like.new_tensor([g**-axis for axis in range(1, dims + 1)])
    numbers = torch.arange(count, device=like.device, dtype=like.dtype).unsqueeze(1)
    return 2 * ((like.new_empty(dims).uniform_() + numbers * steps) % 1) - 1
