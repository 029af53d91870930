"""FlexConv: a convolution whose kernel is a function of position, times a mask that learns its size.

    y = x ⋆ ψ + b,      ψ[o, i, p] = generator(p)[o·I + i] · mask(p)      for the taps p of a grid on [−1, 1]^D

Here o is an output channel and i one of the I = in_channels / groups input channels. The generator is a small network
on coordinates. The mask is a Gaussian with learnable center and width, one for all channels, or one per channel of a
depthwise layer. Taps where it falls below its threshold are cropped, so its width is the size of the kernel: `taps` are
those that are kept, `extent` is their number, and `window` is the slightly larger range that a forward pass computes
(`_sized.py`). On a resampled grid the kernel is also multiplied by a scale, which makes up for the other density of
taps.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from .._arguments import per_axis
from .._context import autocast_enabled
from .._registry import has_fast_version
from ..ops import Padding, Pads, conv_nd, output_size, plain_padding, resolve_padding
from ._checks import KernelFactory, check_channels, check_input, check_names, make_generator, make_mask
from ._grid import KernelGrid, TapRange, mesh, tap_weights
from ._half import HALF, computes_in_float16, float16_conv
from ._lengths import check_lengths, hide_padding, inside
from ._mask import GaussianMask
from ._observed import check_observed, convolve_observed, propagate, with_channels
from ._padding import check_padding_fits, crop_pads, pad_by_mode
from ._recompute import recomputed
from ._sized import SizedKernel
from .kernels import KernelGenerator


class FlexConvNd(SizedKernel):
    """Base class of `FlexConv1d`, `FlexConv2d` and `FlexConv3d`, for `isinstance` checks.

    Attributes:
        generator: the network that makes the kernel.
        mask: the mask of the kernel, or None.
        bias: one number per output channel, or None.
        extent: the current size of the kernel in taps per axis; `kernel_size` is the largest size.
        taps: the taps (start, stop) per axis that the mask keeps.
        grid: the coordinates that the kernel is sampled on; `flexconv.at_resolution` replaces them.
        padding: the padding as given: a name, an int, or one entry per axis.
        pads: the padding (left, right) per axis in samples, for the whole grid.

    """

    dims: ClassVar[int]
    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: Padding = "same",
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        generator: str | KernelGenerator | KernelFactory = "magnet",
        mask: str | GaussianMask | None = "gaussian",
        parametrization: str = "scaled",
        algorithm: str = "auto",
        recompute: bool = False,
        kernel: str | KernelGenerator | KernelFactory | None = None,
    ) -> None:
        super().__init__()
        if kernel is not None:
            warnings.warn("the argument kernel is deprecated: use generator", DeprecationWarning, stacklevel=2)
            generator = kernel
        self.in_channels, self.out_channels, self.groups = check_channels(in_channels, out_channels, groups)
        self.stride = per_axis("stride", stride, self.dims, minimum=1)
        self.dilation = per_axis("dilation", dilation, self.dims, minimum=1)
        self.padding_mode, self.algorithm, self.parametrization = check_names(padding_mode, algorithm, parametrization)
        self.recompute = recompute
        size = per_axis("kernel_size", kernel_size, self.dims, minimum=1)
        resolve_padding(padding, size, self.dilation)  # raise here what would fail in the first forward pass
        self.inputs_per_output = self.in_channels // self.groups
        channels = self.out_channels * self.inputs_per_output
        self.generator = make_generator(generator, self.dims, channels, device, dtype)
        self.mask = make_mask(mask, self.dims, self.out_channels, self.parametrization, device, dtype)
        self.bias = nn.Parameter(torch.zeros(self.out_channels, device=device, dtype=dtype)) if bias else None
        self._half = dtype if dtype in HALF else None
        grid = KernelGrid.make(size, plain_padding(padding))
        self._set_grid(grid, fresh=not isinstance(generator, nn.Module))

    def reset_parameters(self) -> None:
        """Draw every parameter again, suited to the grid and mask of this layer."""
        self.generator.reset_parameters()
        if self.mask is not None:
            self.mask.reset_parameters()
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    # --- the kernel ---------------------------------------------------------------------------------------------------

    def kernel(self) -> torch.Tensor:
        """The kernel, masked and cropped to its current size → [out_channels, in_channels/groups, *extent]."""
        return self.sample(self.taps)

    def sample(self, window: Sequence[TapRange]) -> torch.Tensor:
        """The kernel on a window (start, stop) of taps per axis → [out_channels, in_channels/groups, *sizes]."""
        lines = self.coordinates(window)
        values = self.generator(mesh(lines))  # [channels, *sizes]
        if self.mask is not None:
            values = values * self.mask(lines, self.axes)
        if self.grid.scale != 1.0:
            values = values * self.grid.scale
        if self.grid.resampled:
            values = values * tap_weights(self.axes, window, like=values)
        return values.unflatten(0, (self.out_channels, self.inputs_per_output)).contiguous()

    def coordinates(self, window: Sequence[TapRange]) -> list[torch.Tensor]:
        """The coordinates of a window's taps → [n_d] per axis, in the precision that the generator computes in."""
        device = self.reference_tensor().device
        return self.grid.coordinates(window, device=device, dtype=self.generator.compute_dtype)

    def window_kernel(self) -> torch.Tensor:
        """The kernel on the window of the forward pass. Taps outside the extent are zero."""
        return self._provider.tensor(self, self.window)

    # --- the convolution ----------------------------------------------------------------------------------------------

    def forward(self, x: torch.Tensor, *, observed: torch.Tensor | None = None) -> torch.Tensor:
        """x [batch, in_channels, *size] or [in_channels, *size] → the same with out_channels and the new size.

        Pass `observed`, [batch, *size] or [batch, 1 or in_channels, *size], if samples are missing where it is False.
        Values there (even NaN) are not used. They are replaced by weighted averages of the observed samples around
        them; see `_observed.py`. If everything is observed, the result is the same as without `observed`.
        """
        if observed is not None:
            return convolve_observed(self, x, check_observed(observed, x, self.dims))[0]
        if self.recompute and self._provider.prepared is None:
            return recomputed(self._convolve, self, x, self.bias)
        return self._convolve(x, self.bias)

    def propagate_observed(self, observed: torch.Tensor) -> torch.Tensor:
        """Which outputs are based on observed samples → [batch, 1, *size'], to be passed to the next layer."""
        return propagate(self, with_channels(observed, self.dims).bool())

    @has_fast_version("nn.convolve")
    def _convolve(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        check_input(self, x)
        if x.ndim == self.dims + 1:
            return self._convolve(x.unsqueeze(0), bias).squeeze(0)
        kept = self._provider.keeps_kernels(self)  # in evaluation; such a kernel needs no room to grow
        window = self.taps if kept else self.window
        pads = self.pads_for(window)
        if self.padding_mode != "zeros":
            check_padding_fits(self, x.shape[2:], self.pads)
            x, pads = pad_by_mode(x, pads, self.padding_mode)
        if computes_in_float16(x):
            return float16_conv(self, x, self._provider.scaled(self, window), bias, pads)
        dtype = None if autocast_enabled(x.device.type) else x.dtype
        weight = self._provider.kernel(self, window, dtype)
        return conv_nd(self.dims, x, weight, bias, self.stride, pads, self.dilation, self.groups, self.algorithm)

    def pads_for(self, window: Sequence[TapRange]) -> Pads:
        """Padding that keeps a window's taps where they are in the whole grid. Negative padding skips samples."""
        return crop_pads(self.pads, window, self.kernel_size, self.dilation)


class FlexConv1d(FlexConvNd):
    """1D convolution that learns the length of its kernel.

    Takes the arguments of `torch.nn.Conv1d`, plus `generator`, `mask`, `parametrization`, `algorithm` and `recompute`.
    The default padding is "same".

    Shapes: [batch, in_channels, length] → [batch, out_channels, length'], batch optional.

    Arguments:
        kernel_size: size of the grid, which is the largest size that the kernel can have. Odd if padding is "same".
        padding: "same" (output length ⌈length/stride⌉), "causal" (output n sees inputs ≤ n, and the mask is initially
            centered on the current sample), "valid", an int, or per axis a name, an int or a (left, right) pair.
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        generator: the network that makes the kernel: a name from `flexconv.nn.GENERATORS`, a function such as
            `functools.partial(MAGNet, hidden=64)`, or a `KernelGenerator`, whose parameters are used as they are.
        mask: "gaussian", "per_channel" for a `ChannelGaussianMask` (depthwise layers only, groups=in_channels), a
            `GaussianMask(…)` with other settings, which takes the form of the layer's parametrization unless it states
            one, or None for the whole grid without a mask (CKConv).
        parametrization: "scaled" is for any network and optimizer. Kernels start below the Nyquist frequency, the first
            outputs have twice the variance of those of a plain convolution, and the layer learns at the learning rates
            that are usual for plain convolutions. The features of the generator stay fixed. "paper" is what the paper
            and its code do, for networks with normalization layers and Adam at a learning rate of 0.01.
        algorithm: how to compute the convolution, see `flexconv.ops`.
        recompute: keep only the input for the backward pass, and compute kernel and spectra again there. Training needs
            less memory and takes about a quarter longer. The attribute can be changed at any time. A generator of your
            own must not draw random numbers then, and parameters must not change before the backward pass.

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

        Pass `lengths` [batch] for sequences that are padded to a common length. Values past the end of a sequence
        (even NaN) are not used, and outputs there are 0. Row b equals the result for x[b, :, :lengths[b]] alone. Pass
        `observed`, [batch, length] or [batch, 1 or in_channels, length], if samples are missing, as in `FlexConv2d`.
        `lengths` alone is the special case in which every sample of a sequence is observed.
        """
        if lengths is None:
            return super().forward(x, observed=observed)
        lengths = check_lengths(lengths, x, self.padding_mode)
        if observed is None:
            y = super().forward(hide_padding(x, lengths))
        else:
            there = inside(x, lengths)
            y, _ = convolve_observed(self, x, check_observed(observed, x, 1, there), there)
        return hide_padding(y, self.output_lengths(lengths))

    def output_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        """The number of outputs for sequences of these lengths."""
        lengths = lengths.to(torch.int64)  # short integers would overflow
        (taps,), (stride,), (pads,), (dilation,) = self.kernel_size, self.stride, self.pads, self.dilation
        return output_size(lengths, taps, stride, pads, dilation).clamp(min=0)  # type: ignore[arg-type, return-value]


class FlexConv2d(FlexConvNd):
    """2D convolution that learns the size of its kernel per axis. Arguments of `torch.nn.Conv2d`; see `FlexConv1d`.

    Shapes: [batch, in_channels, height, width] → [batch, out_channels, height', width'], batch optional. Every size
    is one number or one per axis. Padding can differ per axis, too: ("causal", "same") looks back along the first axis
    only.
    """

    dims = 2


class FlexConv3d(FlexConvNd):
    """3D convolution that learns the size of its kernel per axis. Arguments of `torch.nn.Conv3d`; see `FlexConv1d`.

    Shapes: [batch, in_channels, depth, height, width] → the same with out_channels, batch optional. For video,
    padding=("causal", "same", "same") is causal in time.
    """

    dims = 3
