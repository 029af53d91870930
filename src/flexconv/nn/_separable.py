"""Separable FlexConvs: a depthwise FlexConv, which learns sizes, followed by a pointwise mix of channels.

    y = A (x ⋆ ψ + b) + a,      ψ[c, p] = generator(p)[c] · mask(p)      for channel c and the taps p of a grid

The generator has one output per input channel instead of one per pair of channels. A layer of C channels therefore has
C² parameters for the mix and about C · hidden for the kernel, where hidden is the number of features of the generator.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from .._arguments import per_axis
from ..errors import ArgumentError, UsageError
from ..ops import Padding
from ._channel_mask import ChannelGaussianMask
from ._checks import KernelFactory
from ._conv import FlexConv1d, FlexConv2d, FlexConv3d, FlexConvNd
from ._lengths import check_lengths, hide_padding, inside
from ._mask import GaussianMask
from ._observed import FillsMissing, FrozenNeighbors, check_observed
from ._pointwise import POINTWISE_CONVS
from .kernels import KernelGenerator, MAGNet

SMALL_HIDDEN = 16  # most features of the generator of the small branch; more than there are taps would cancel out

_FLEXCONVS: dict[int, type[FlexConvNd]] = {1: FlexConv1d, 2: FlexConv2d, 3: FlexConv3d}


class SeparableFlexConvNd(FillsMissing):
    """Base class of `SeparableFlexConv1d`, `SeparableFlexConv2d` and `SeparableFlexConv3d`, for `isinstance` checks."""

    dims: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: Padding = "same",
        dilation: int | Sequence[int] = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        generator: str | KernelGenerator | KernelFactory = "magnet",
        mask: str | GaussianMask | None = "gaussian",
        parametrization: str = "scaled",
        algorithm: str = "auto",
        small_kernel: int | Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        make = functools.partial(
            _FLEXCONVS[self.dims],
            in_channels,
            in_channels,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=in_channels,
            padding_mode=padding_mode,
            device=device,
            dtype=dtype,
            parametrization=parametrization,
            algorithm=algorithm,
        )
        self.depthwise = make(kernel_size=kernel_size, bias=bias, generator=generator, mask=mask)
        self.small: FlexConvNd | None = None
        if small_kernel is not None:
            if not isinstance(padding, str) or padding == "valid":
                raise ArgumentError(f"small_kernel needs padding='same' or 'causal'; got padding={padding!r}")
            taps = per_axis("small_kernel", small_kernel, self.dims, minimum=1)
            if any(few > most for few, most in zip(taps, self.depthwise.kernel_size, strict=True)):
                raise ArgumentError(
                    f"small_kernel must not exceed kernel_size {self.depthwise.kernel_size}; got {taps}"
                )
            few = functools.partial(MAGNet, hidden=min(SMALL_HIDDEN, math.prod(taps)))
            self.small = make(kernel_size=taps, bias=False, generator=few, mask=None)
        self.pointwise = POINTWISE_CONVS[self.dims](in_channels, out_channels, 1, bias=bias, device=device, dtype=dtype)
        self.neighbors: FrozenNeighbors | None = None  # in a copy whose depthwise part is a plain convolution

    @property
    def filling_layer(self) -> nn.Module:
        return self.depthwise

    @property
    def in_channels(self) -> int:
        return self.pointwise.in_channels  # materialize may replace the depthwise part by a sequence

    @property
    def out_channels(self) -> int:
        return self.pointwise.out_channels

    @property
    def extent(self) -> tuple[int, ...]:
        """The current size of the depthwise kernel in taps per axis. With masks per channel, that of the widest."""
        return self.depthwise.extent

    @property
    def channel_extents(self) -> torch.Tensor:
        """The current size of the depthwise kernel of every channel → [in_channels, D]."""
        mask, layer = self.depthwise.mask, self.depthwise
        if isinstance(mask, ChannelGaussianMask):
            return mask.channel_extents(layer.axes)
        return torch.tensor(layer.extent).expand(self.in_channels, -1)

    def forward(self, x: torch.Tensor, *, observed: torch.Tensor | None = None) -> torch.Tensor:
        """x [batch, in_channels, *size] or [in_channels, *size] → the same with out_channels and the new size.

        Pass `observed`, [batch, *size] or [batch, 1 or in_channels, *size], if samples are missing where it is False,
        as in `FlexConv2d`.
        """
        if observed is not None:
            x = self.fill_missing(x, check_observed(observed, x, self.dims))
        return self._convolve(x)

    def _flexconv(self, argument: str) -> FlexConvNd:
        """The depthwise part, which `materialize` replaces by a plain convolution."""
        if not isinstance(self.depthwise, FlexConvNd):
            raise UsageError(
                f"{argument} needs a FlexConv, but the depthwise part is a {type(self.depthwise).__name__}"
            )
        return self.depthwise

    def conv_norm_pairs(self) -> list[tuple[tuple[nn.Module, ...], nn.Module]]:
        """The pair for `flexconv.move_scale_to_norms`: the 1×1 convolution takes over the scale of the kernels.

        There is none if a subclass has another `forward`, which may do something between the two.
        """
        if type(self).forward not in (SeparableFlexConvNd.forward, SeparableFlexConv1d.forward):
            return []
        kernels = (self.depthwise,) if self.small is None else (self.depthwise, self.small)
        return [(kernels, self.pointwise)]

    def _convolve(self, x: torch.Tensor) -> torch.Tensor:
        y = self.depthwise(x)
        return self.pointwise(y if self.small is None else y + self.small(x))

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}"


class SeparableFlexConv1d(SeparableFlexConvNd):
    """Depthwise `FlexConv1d`, which learns the length of its kernels, followed by a 1×1 convolution.

    Shapes: [batch, in_channels, length] → [batch, out_channels, length'], batch optional.

    The depthwise part is an ordinary FlexConv layer, `layer.depthwise`: `at_resolution`, `materialize`,
    `alias_penalty`, `Streaming` and everything else that works on a model with FlexConvs works on this layer.

    Arguments:
        in_channels, out_channels: the depthwise part has in_channels kernels. The 1×1 convolution maps their outputs to
            out_channels.
        kernel_size, stride, padding, dilation, padding_mode, generator, parametrization, algorithm: of the depthwise
            part, as in `FlexConv1d`. The generator has one output per channel.
        mask: "gaussian" for one size for all channels, "per_channel" if every channel should learn its own size, a
            `GaussianMask` or `ChannelGaussianMask` with other settings, or None.
        bias: whether both parts have a bias.
        small_kernel: the size of a second depthwise kernel, a few taps around the current position (odd if padding is
            "same"), whose result is added to that of the first. It covers details while the other kernel is large. It
            is made by a generator too, so that it can be resampled, but has no mask. None: no such branch.

    """

    dims = 1

    def forward(
        self,
        x: torch.Tensor,
        lengths: torch.Tensor | Sequence[int] | None = None,
        *,
        observed: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x [batch, in_channels, length] → [batch, out_channels, length'].

        Pass `lengths` [batch] for sequences that are padded to a common length, and `observed`, [batch, length] or
        [batch, 1 or in_channels, length], if samples are missing, as in `FlexConv1d`.
        """
        if lengths is None:
            return super().forward(x, observed=observed)
        layer = self._flexconv("lengths")
        lengths = check_lengths(lengths, x, layer.padding_mode)
        if observed is None:
            x = hide_padding(x, lengths)
        else:
            there = inside(x, lengths)
            x = self.fill_missing(x, check_observed(observed, x, 1, there), there)
        return hide_padding(self._convolve(x), self.output_lengths(lengths))

    def output_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        """The number of outputs for sequences of these lengths."""
        return self.depthwise.output_lengths(lengths)  # type: ignore[operator]


class SeparableFlexConv2d(SeparableFlexConvNd):
    """Depthwise `FlexConv2d` followed by a 1×1 convolution; see `SeparableFlexConv1d`.

    Shapes: [batch, in_channels, height, width] → [batch, out_channels, height', width'], batch optional.
    """

    dims = 2


class SeparableFlexConv3d(SeparableFlexConvNd):
    """Depthwise `FlexConv3d` followed by a 1×1 convolution; see `SeparableFlexConv1d`.

    Shapes: [batch, in_channels, depth, height, width] → the same with out_channels, batch optional.
    """

    dims = 3
