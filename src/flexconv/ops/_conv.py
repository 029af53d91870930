"""`conv1d`, `conv2d` and `conv3d`: a convolution that can be computed by several algorithms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .._arguments import per_axis, positive_int, unknown_name
from .._context import autocast_enabled, exporting
from ..errors import ArgumentError, ArgumentTypeError
from ._dft import dft_conv
from ._direct import direct_conv
from ._factored import FactoredKernel, as_tensor
from ._fft import fft_conv
from ._geometry import Geometry, Padding, drop_unreachable_taps, output_sizes, resolve_padding
from ._monarch import monarch_conv
from ._reference import reference_conv
from ._select import select_algorithm
from ._toeplitz import toeplitz_conv

#: computes x, weight, bias, geometry → output
Algorithm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, Geometry], torch.Tensor]

ALGORITHMS: dict[str, Algorithm] = {
    "direct": direct_conv,
    "fft": fft_conv,
    "dft": dft_conv,
    "toeplitz": toeplitz_conv,
    "monarch": monarch_conv,
    "reference": reference_conv,
}


def conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: Padding = "same",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    algorithm: str = "auto",
) -> torch.Tensor:
    """Convolve sequences with a kernel of any length.

    As in `torch.nn.functional.conv1d`, this is a cross-correlation.

    Arguments:
        x: Input [batch, in, length].
        weight: Kernel [out, in/groups, taps].
        bias: Optional bias [out].
        stride: Step between outputs.
        padding: "same" (odd kernels only; the output length is ⌈length/stride⌉), "causal" (zeros on the left only, so
            that output n depends on inputs ≤ n), "valid" (none), an int for both sides, or a sequence with one entry
            per axis: one of these or a (left, right) pair. Negative amounts skip samples.
        dilation: Distance between taps.
        groups: Number of groups of channels that are convolved separately.
        algorithm: "direct" (the cost grows with the number of taps), "fft" (it does not), "dft" (the same, as matrix
            products for tensor cores), "toeplitz" (direct, as matrix products for tensor cores; for depthwise
            convolutions on a GPU), "monarch" (an FFT as matrix products in one kernel; for depthwise convolutions in
            1D and 2D on a GPU) or "reference" (plain loops, for tests). "auto" selects the fastest one by a cost
            model; on a CPU, it selects "direct" or "fft".

    Returns:
        The output [batch, out, length'].

    """
    return conv_nd(1, x, weight, bias, stride, padding, dilation, groups, algorithm)


def conv2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: Padding = "same",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    algorithm: str = "auto",
) -> torch.Tensor:
    """Convolve images x [batch, in, H, W] with a kernel [out, in/groups, h, w]. See `conv1d` for the arguments."""
    return conv_nd(2, x, weight, bias, stride, padding, dilation, groups, algorithm)


def conv3d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: Padding = "same",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    algorithm: str = "auto",
) -> torch.Tensor:
    """Convolve volumes x [batch, in, T, H, W] with a kernel [out, in/groups, t, h, w].

    See `conv1d` for the arguments.
    """
    return conv_nd(3, x, weight, bias, stride, padding, dilation, groups, algorithm)


def conv_nd(
    dims: int,
    x: torch.Tensor,
    weight: torch.Tensor | FactoredKernel,
    bias: torch.Tensor | None,
    stride: int | Sequence[int],
    padding: Padding,
    dilation: int | Sequence[int],
    groups: int,
    algorithm: str,
) -> torch.Tensor:
    """Compute `conv1d`, `conv2d` or `conv3d`, by `dims`. In addition, `weight` may be a `FactoredKernel`."""
    if algorithm != "auto" and algorithm not in ALGORITHMS:
        unknown_name("algorithm", algorithm, ["auto", *ALGORITHMS])
    _check_tensors(dims, x, weight, bias, positive_int("groups", groups))
    stride = per_axis("stride", stride, dims, minimum=1)
    dilation = per_axis("dilation", dilation, dims, minimum=1)
    geometry = Geometry(stride, resolve_padding(padding, weight.shape[2:], dilation), dilation, groups)
    for outputs in output_sizes(x.shape[2:], weight.shape[2:], geometry):
        if outputs < 1:
            raise ArgumentError(
                f"the output would be empty: input size {tuple(x.shape[2:])} with padding {geometry.pads} is smaller "
                f"than the kernel {tuple(weight.shape[2:])} with dilation {dilation}"
            )
    if not exporting():
        weight, geometry = drop_unreachable_taps(x, weight, geometry)
    if algorithm == "auto":
        algorithm = select_algorithm(x, weight, geometry)
    if algorithm in ("fft", "monarch") and x.shape[0] == 0:
        algorithm = "direct"  # some FFT libraries reject an empty batch
    if algorithm in ("fft", "dft"):
        return (fft_conv if algorithm == "fft" else dft_conv)(x, weight, bias, geometry)
    return ALGORITHMS[algorithm](x, as_tensor(weight), bias, geometry)


def _check_tensors(
    dims: int, x: torch.Tensor, weight: torch.Tensor | FactoredKernel, bias: torch.Tensor | None, groups: int
) -> None:
    for name, tensor in (("x", x), ("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        if not isinstance(tensor, (torch.Tensor, FactoredKernel)):
            raise ArgumentTypeError(f"{name} must be a tensor; got {type(tensor).__name__}")
        if not tensor.is_floating_point():
            raise ArgumentTypeError(f"{name} must be a real floating-point tensor; got {tensor.dtype}")
    if x.ndim != dims + 2 or weight.ndim != dims + 2:
        raise ArgumentError(
            f"conv{dims}d requires x and weight with {dims + 2} dimensions; "
            f"got shapes {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    if 0 in weight.shape or 0 in x.shape[1:]:
        raise ArgumentError(f"only the batch may be empty; got x {tuple(x.shape)} and weight {tuple(weight.shape)}")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        if tensor.device != x.device:
            raise ArgumentError(f"x is on {x.device} but {name} is on {tensor.device}: move one of them")
        if tensor.dtype != x.dtype and not autocast_enabled(x.device.type):
            raise ArgumentTypeError(f"x is {x.dtype} but {name} is {tensor.dtype}: convert one of them")
    out_channels, fan_in = weight.shape[:2]
    if out_channels % groups:
        raise ArgumentError(f"the {out_channels} output channels of weight must be divisible by groups={groups}")
    if x.shape[1] != fan_in * groups:
        raise ArgumentError(
            f"x has {x.shape[1]} channels, but weight {tuple(weight.shape)} with groups={groups} requires "
            f"{fan_in * groups}"
        )
    if bias is not None and tuple(bias.shape) != (out_channels,):
        raise ArgumentError(f"bias must have shape ({out_channels},); got {tuple(bias.shape)}")
