"""The interface of kernel generators: functions from coordinates to kernel values."""

from __future__ import annotations

import math

import torch
from torch import nn

from ..._arguments import positive_int
from ..._context import no_autocast
from ..._hooks import hooks_of
from ...errors import ArgumentError
from ._linear import Affine
from ._placement import Placement

OUTSIDE = 2.0  # the weight of values outside the initial mask, relative to those inside, per tap
GAIN = math.sqrt(2.0)  # of the first outputs, relative to those of a plain convolution
NEGLIGIBLE = 1e-4  # relative to the largest eigenvalue: directions in which features hardly differ


class KernelGenerator(nn.Module):
    """A network on coordinates: [D, *grid] in [−1, 1] → [channels, *grid].

    Subclasses define `reset_parameters` and either `evaluate`, on a flat list of points, or, if they end in a linear
    map, `features` and `output_map`. Both run in float32 (float64 for float64 parameters) with autocast disabled,
    whatever the precision of the convolution: arguments of sines reach 150 rad on 33 taps, where bfloat16 causes an
    error of one percent of the kernel, and more on longer grids.

    A layer makes a generator as `generator(dims, channels, device=…, dtype=…)`, so further arguments need defaults;
    the networks of `flexconv.models` pass options by keyword. It then calls `attach` with its `Placement`. A generator
    whose initial parameters should depend on the grid or on the mask extends `place_parameters`. Every generator calls
    it at the end of `reset_parameters` if it has a placement. A generator that learns its own size, so that it needs no
    mask, defines `size_parameters` and `bounds` as `GaussianMask` does.

    Arguments:
        dims: number of spatial axes D.
        channels: number of kernel values per point (out_channels × in_channels / groups in a layer).

    """

    #: True if the values become smaller when sampled more densely, so that their sum stays the same.
    conserves_sum = False

    def __init__(self, dims: int, channels: int) -> None:
        super().__init__()
        self.dims = positive_int("dims", dims)
        self.channels = positive_int("channels", channels)
        self._placement: Placement | None = None

    @property
    def output_map(self) -> Affine | None:
        """The linear map from features to kernel values, or None if the generator does not end in one."""
        return None

    @property
    def has_factors(self) -> bool:
        """Whether the values are exactly the output map of the features: nothing is overridden and no hook is set."""
        cls, output = type(self), self.output_map
        plain = cls.evaluate is KernelGenerator.evaluate and cls.forward is KernelGenerator.forward
        return plain and output is not None and not (hooks_of(self) or hooks_of(output))

    def features(self, points: torch.Tensor) -> torch.Tensor:
        """The input of the output map, at points [n, D] → [n, width]."""
        raise NotImplementedError(f"{type(self).__name__} must define features(points)")

    def evaluate(self, points: torch.Tensor) -> torch.Tensor:
        """Kernel values at points [n, D] → [n, channels]."""
        if self.output_map is None:
            name = type(self).__name__
            raise NotImplementedError(f"{name} must define evaluate(points), or features(points) and output_map")
        return self.output_map(self.features(points))

    def reset_parameters(self) -> None:
        """Draw every parameter again."""
        raise NotImplementedError(f"{type(self).__name__} must define reset_parameters()")

    def attach(self, placement: Placement, *, fresh: bool = False) -> None:
        """Set the grid on which a layer samples this generator.

        `fresh`: the parameters were drawn just now, without knowledge of the grid, and may be moved to suit it. In a
        layer with scaled parametrization only the output map then requires gradients. The features are shared by all
        kernels of the layer: at a learning rate that suits the output map they would change far too quickly. Call
        `generator.requires_grad_()` to train them as well.
        """
        self._placement = placement
        if fresh and placement.scaled and self.output_map is not None:
            self.requires_grad_(False)
            self.output_map.requires_grad_()
        if fresh:
            self.place_parameters(placement)

    def place_parameters(self, placement: Placement) -> None:
        """Adapt parameters that were just drawn to the grid and the mask of a layer.

        By default, the output map of a layer with scaled parametrization gets an orthonormal basis of kernels.
        """
        if placement.scaled and self.output_map is not None:
            self._orthonormalize(self.output_map, placement)

    @torch.no_grad()
    def _orthonormalize(self, output: Affine, placement: Placement) -> None:
        """Make the output map act on an orthonormal basis of kernels, and draw its parameters.

        Let H [taps, width + 1] be the features under the mask, and the mask itself for the bias. A kernel is H B θ with
        a constant matrix B. In a step of gradient descent its parameters θ change by Bᵀ Hᵀ · gradient and the kernel by
        H B Bᵀ Hᵀ · gradient, while a plain convolution changes by the gradient. In the span of H the two are the same
        if B Bᵀ = (Hᵀ H)⁻¹.

        Features that differ little under the mask may differ much outside of it. If the steps were the same inside,
        they would be huge outside, and a mask that grows would reveal wild values, so that it would not grow. Let F be
        the features on the whole grid, without the mask. Then B Bᵀ = (Hᵀ H + w Fᵀ F)⁻¹ bounds the steps on both, with a
        weight w such that values outside may be about as large as inside.

        The parameters are drawn such that outputs have twice the variance as behind `torch.nn.Conv2d`, for inputs that
        are independent from tap to tap, and at most four times that for constant ones. Twice is a third of what keeps
        the variance the same from layer to layer behind rectifiers (He et al., 2015). With less, networks without norms
        take long to begin to learn.
        """
        width = output.in_features + 1
        output.basis = torch.eye(width, device=output.bias.device, dtype=output.bias.dtype)
        if output.bias.is_meta:
            return

        def features(points: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.features(points), points.new_ones(len(points), 1)], 1).double()

        settings = {"device": output.bias.device, "dtype": self.compute_dtype}
        points, mask = placement.samples(**settings)
        inside = features(points) * mask.unsqueeze(1)
        everywhere = features(placement.grid_samples(**settings))
        weight = OUTSIDE * mask.square().sum().double() / len(everywhere)
        energies = inside.t() @ inside + weight * everywhere.t() @ everywhere  # [width, width]
        sizes = energies.diagonal()
        scales = torch.where(sizes > 0, sizes.rsqrt(), 0.0)  # a feature may be 0 on the whole grid
        values, vectors = torch.linalg.eigh(energies * scales * scales.unsqueeze(1))
        basis = scales.unsqueeze(1) * vectors * (values.clamp(min=0) + NEGLIGIBLE * values[-1]).rsqrt()
        output.basis.copy_(basis.t())
        kernels = inside @ basis
        energy = torch.maximum(kernels.square().sum(), kernels.sum(0).square().sum() / 4)
        output.reset_parameters(GAIN * float((placement.inputs * energy).rsqrt()))
        if placement.channel_sigmas is not None:  # every channel under its own mask
            masks = placement.channel_masks(points).double()
            plain = features(points) @ basis
            own = torch.maximum(masks.square() @ plain.square().sum(1), (masks @ plain).square().sum(1) / 4)
            output.scale_rows_((energy / own).sqrt())

    def forward(self, coordinates: torch.Tensor) -> torch.Tensor:
        if coordinates.ndim < 1 or coordinates.shape[0] != self.dims:
            raise ArgumentError(
                f"coordinates must have shape [{self.dims}, *grid], one entry per axis; got {tuple(coordinates.shape)}"
            )
        grid = coordinates.shape[1:]
        with no_autocast(coordinates.device.type):
            points = coordinates.to(self.compute_dtype).reshape(self.dims, -1).t()
            return self.evaluate(points).t().reshape(self.channels, *grid)

    @property
    def compute_dtype(self) -> torch.dtype:
        """float64 if the parameters are float64, float32 otherwise."""
        first = next(self.parameters(), None)
        return torch.float64 if first is not None and first.dtype == torch.float64 else torch.float32
