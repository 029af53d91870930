"""What every kernel generator is: a function from coordinates to kernel values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ..._arguments import positive_int
from ..._context import no_autocast
from ..._hooks import hooks_of
from ...errors import ArgumentError, ArgumentTypeError
from .._grid import Axis
from ._linear import Affine


class KernelGenerator(nn.Module):
    """A network on coordinates: [D, *grid] in [−1, 1] → [channels, *grid].

    Subclasses write `evaluate`, on a flat list of points; or, where they end in a linear map, `features` and
    `output_map`, which lets many layers share the work. Both run in float32 (float64 for float64 parameters), with
    autocast off, whatever precision the convolution uses: arguments of sines reach 150 rad on 33 taps, where bfloat16
    is wrong by a per cent of the kernel, and more on longer grids.

    Arguments:
        dims: number of spatial axes D.
        channels: number of kernel values per point (out_channels × in_channels / groups in a layer).

    """

    #: True where sampling more densely makes the values smaller by itself, so that their sum stays the same.
    conserves_sum = False

    def __init__(self, dims: int, channels: int) -> None:
        super().__init__()
        self.dims = positive_int("dims", dims)
        self.channels = positive_int("channels", channels)

    @property
    def output_map(self) -> Affine | None:
        """The linear map from features to kernel values, where a generator ends in one."""
        return None

    @property
    def has_factors(self) -> bool:
        """Whether it is its features and its output map, and nothing of a user's in between."""
        cls, output = type(self), self.output_map
        plain = cls.evaluate is KernelGenerator.evaluate and cls.forward is KernelGenerator.forward
        return plain and output is not None and not (hooks_of(self) or hooks_of(output))

    def features(self, points: torch.Tensor) -> torch.Tensor:
        """What the output map is given, at points [n, D] → [n, width]."""
        raise ArgumentTypeError(
            f"{type(self).__name__} must define features(points) for points of shape {tuple(points.shape)}"
        )

    def evaluate(self, points: torch.Tensor) -> torch.Tensor:
        """Kernel values at points [n, D] → [n, channels]."""
        if self.output_map is None:
            shape = tuple(points.shape)
            raise ArgumentTypeError(f"{type(self).__name__} must define evaluate(points) for points of shape {shape}")
        return self.output_map(self.features(points))

    def reset_parameters(self) -> None:
        """Draw every parameter again."""
        raise ArgumentTypeError(f"{type(self).__name__} must define reset_parameters()")

    def attach_(self, axes: Sequence[Axis]) -> None:
        """Learn which grid a layer samples. For generators whose values depend on the whole of it."""

    def refine_(self, taps: Sequence[int]) -> None:
        """Bring fresh parameters to a grid of so many taps per axis. For generators with frequencies of their own."""

    def focus_(self, center: Sequence[float], radius: Sequence[float]) -> None:
        """Move fresh parameters to where a mask looks, center ± radius. For generators with places of their own."""

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
        """float64 where the parameters are, float32 otherwise."""
        first = next(self.parameters(), None)
        return torch.float64 if first is not None and first.dtype == torch.float64 else torch.float32
