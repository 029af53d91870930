"""Where a layer samples its generator, and what that means for the initial parameters of the generator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from .._grid import Axis, mesh

CUTOFF = 2.0  # standard deviations of a Gaussian's spectrum that count, as in `flexconv.spectrum`
LEAST_BAND = 0.15  # the share of the Nyquist frequency that a generator gets even if the mask takes all of it
MOST_SAMPLES = 16384  # of the whole grid
KEPT = math.sqrt(-2 * math.log(0.1))  # a mask keeps taps up to this many σ from its center


class Placement(NamedTuple):
    """Where a layer samples its generator: the axes of its grid, and the initial mask (None without a mask).

    `inputs` is the number of input channels that each output channel sums over. `scaled` says whether initial
    parameters should suit this grid, mask and number of inputs, or be those of the paper. If channels have initial
    masks of different widths, `channel_sigmas` has those of every channel, and `sigma` is the widest.
    """

    axes: Sequence[Axis]
    center: Sequence[float] | None = None
    sigma: Sequence[float] | None = None
    inputs: int = 1
    scaled: bool = False
    channel_sigmas: tuple[tuple[float, ...], ...] | None = None

    @property
    def taps(self) -> int:
        """The number of taps that the initial mask keeps."""
        if self.center is None or self.sigma is None:
            return math.prod(axis.size for axis in self.axes)
        ends = zip(self.axes, self.center, self.sigma, strict=True)
        kept = [axis.taps_between(mean - KEPT * abs(sigma), mean + KEPT * abs(sigma)) for axis, mean, sigma in ends]
        return math.prod(max(1, stop - start) for start, stop in kept)

    def band(self, precision: torch.Tensor) -> torch.Tensor:
        """The highest frequency for the sines of a generator, in rad per unit → [D].

        Together with envelopes of `precision` Σ γ² [D] and the mask, they end at the Nyquist frequency of the grid.
        """
        nyquist = precision.new_tensor([math.pi / axis.spacing for axis in self.axes])
        if self.sigma is not None:
            narrowest = precision.new_tensor(self.channel_sigmas or [self.sigma]).amin(0)
            precision = precision + narrowest.square().reciprocal()
        return torch.maximum(nyquist - CUTOFF * precision.sqrt(), LEAST_BAND * nyquist)

    def grid_samples(self, *, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """Taps of the whole grid → [n, D]: all of them, or some thousands spread evenly if there are more."""
        lines = [axis.coordinates(axis.whole, device=device, dtype=dtype) for axis in self.axes]
        most = round(MOST_SAMPLES ** (1 / len(lines)))
        chosen = [x[torch.linspace(0, len(x) - 1, min(len(x), most), device="cpu").round().long()] for x in lines]
        return mesh(chosen).flatten(1).t()

    def samples(self, *, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """The taps that the initial mask keeps, and its values there → [n, D], [n]."""
        lines = [axis.coordinates(axis.whole, device=device, dtype=dtype) for axis in self.axes]
        if self.center is None or self.sigma is None:
            points = mesh(lines).flatten(1).t()
            return points, points.new_ones(len(points))
        offsets = [(x - mean) / abs(sigma) for x, mean, sigma in zip(lines, self.center, self.sigma, strict=True)]
        kept = [offset.abs() <= max(KEPT, float(offset.abs().min())) for offset in offsets]
        points, distance = (
            mesh([x[keep] for x, keep in zip(each, kept, strict=True)]).flatten(1).t() for each in (lines, offsets)
        )
        return points, torch.exp(-0.5 * distance.square().sum(1))

    def channel_masks(self, points: torch.Tensor) -> torch.Tensor:
        """The initial masks of all channels at points [n, D], if their widths differ → [channels, n]."""
        assert self.center is not None
        assert self.channel_sigmas is not None
        offsets = points - points.new_tensor(self.center)  # [n, D]
        precision = points.new_tensor(self.channel_sigmas).square().reciprocal()  # [channels, D]
        return torch.exp(-0.5 * precision @ offsets.square().t())
