"""conv1d, conv2d, conv3d: one convolution, several ways to compute it."""

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
from ._geometry import Geometry, Padding, drop_unreachable_taps, output_size, resolve_padding
from ._reference import reference_conv
from ._select import pick

Algorithm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, Geometry], torch.Tensor]

ALGORITHMS: dict[str, Algorithm] = {
    "direct": direct_conv,
    "fft": fft_conv,
    "dft": dft_conv,
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
    """1D convolution (cross-correlation, as everywhere in torch) of any length with a kernel of any length.

    Shapes: x [batch, in, length], weight [out, in/groups, taps], bias [out] → [batch, out, length'].

    Arguments:
        stride, dilation, groups: as in `torch.nn.functional.conv1d`.
        padding: "same" (odd kernels, output length ⌈length/stride⌉), "causal" (all zeros on the left: output n sees
            inputs ≤ n), "valid", an int, a (left, right) pair inside a sequence. Negative amounts skip samples.
        algorithm: "direct" (cost grows with taps), "fft" (cost does not), "dft" (the same by matrix products, for
            tensor cores), "reference" (plain loops, for tests) or "auto", the cheapest by a cost model (of the
            first two on a CPU).

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
    """2D convolution; see `conv1d`. x [batch, in, H, W], weight [out, in/groups, h, w]."""
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
    """3D convolution; see `conv1d`. x [batch, in, T, H, W], weight [out, in/groups, t, h, w]."""
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
    """The shared body of conv1d, conv2d and conv3d: check, resolve, choose, compute."""
    if algorithm != "auto" and algorithm not in ALGORITHMS:
        unknown_name("algorithm", algorithm, ["auto", *ALGORITHMS])
    _check_tensors(dims, x, weight, bias, positive_int("groups", groups))
    stride = per_axis("stride", stride, dims, minimum=1)
    dilation = per_axis("dilation", dilation, dims, minimum=1)
    geometry = Geometry(stride, resolve_padding(padding, weight.shape[2:], dilation), dilation, groups)
    for size, taps, step, pads, spread in zip(x.shape[2:], weight.shape[2:], *geometry[:3], strict=True):
        if output_size(size, taps, step, pads, spread) < 1:
            raise ArgumentError(
                f"nothing to compute: input size {tuple(x.shape[2:])} with padding {geometry.pads} is smaller than "
                f"the kernel {tuple(weight.shape[2:])} with dilation {dilation}"
            )
    if not exporting():
        weight, geometry = drop_unreachable_taps(x, weight, geometry)
    if algorithm == "auto":
        algorithm = pick(x, weight, geometry)
    if algorithm == "fft" and x.shape[0] == 0:
        algorithm = "direct"  # an FFT of an empty batch is an error in some FFT libraries
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
            f"conv{dims}d wants x and weight of {dims + 2} dimensions; "
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
        raise ArgumentError(f"weight has {out_channels} output channels, not divisible by groups={groups}")
    if x.shape[1] != fan_in * groups:
        raise ArgumentError(
            f"x has {x.shape[1]} channels; weight {tuple(weight.shape)} with groups={groups} wants {fan_in * groups}"
        )
    if bias is not None and tuple(bias.shape) != (out_channels,):
        raise ArgumentError(f"bias must have shape ({out_channels},); got {tuple(bias.shape)}")
