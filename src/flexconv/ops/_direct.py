"""Direct convolution by the functions of torch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch._C._functorch import is_batchedtensor  # pyright: ignore[reportMissingImports]  (no public way to ask)

from .._context import autocast_enabled, exporting, no_autocast
from .._registry import has_fast_version
from ._geometry import Geometry, Pads, output_size, skip_unread_samples, zero_pad

MOST_DEPTHWISE_PADDING = 6  # samples on each side, on a CPU
MOST_BFLOAT16_TAPS = 512  # along an axis, on a CPU
_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def direct_conv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, geometry: Geometry) -> torch.Tensor:
    """x [batch, in, *size], weight [out, in/groups, *taps] → [batch, out, *size']. The cost grows with the taps."""
    if x.device.type == "cpu" and _is_long_in_bfloat16(x, weight):
        with no_autocast("cpu"):
            wide = None if bias is None else bias.float()
            return direct_conv(x.float(), weight.float(), wide, geometry).bfloat16()
    x, pads = skip_unread_samples(x, geometry.pads)
    by_torch = padding_by_torch(x, weight, pads, geometry)
    x = zero_pad(x, tuple((left - both, right - both) for (left, right), both in zip(pads, by_torch, strict=True)))
    return convolve_padded(x, weight, bias, geometry.stride, by_torch, geometry.dilation, geometry.groups)


def _is_long_in_bfloat16(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether a convolution on a CPU would be in bfloat16 and has more than `MOST_BFLOAT16_TAPS` along an axis.

    oneDNN computes some of them wrongly on CPUs with AMX: outputs for 756 taps of 96 channels, or 876 to 1,000 taps of
    30 channels, are as many times too large as there are taps. Found in torch 2.11.
    """
    most = max(weight.shape[2:])
    if not isinstance(most, int) or most <= MOST_BFLOAT16_TAPS or exporting():  # symbolic sizes are left to torch
        return False
    if x.dtype == torch.float64:  # autocast does not convert it
        return False
    return (torch.get_autocast_dtype("cpu") if autocast_enabled("cpu") else x.dtype) == torch.bfloat16


def convolve_padded(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> torch.Tensor:
    """The convolution of torch, with padding of `padding_by_torch`."""
    added = None
    if x.device.type == "cpu":
        x, weight = (_dense(t, channels_last=max(stride) <= 2) for t in (x, weight))
        if bias is not None and bias.requires_grad and x.dtype.itemsize >= 4 and not autocast_enabled("cpu"):
            # The gradient of a bias by oneDNN is a sum term by term, whose error grows with the number of outputs.
            bias, added = None, bias.reshape(-1, *(1,) * (x.ndim - 2))
    y = _convolve(x, weight, bias, stride, padding, dilation, groups)
    return y if added is None else y + added


@has_fast_version("ops.convolve")
def _convolve(x: torch.Tensor, weight: torch.Tensor, *others: Any) -> torch.Tensor:
    """The convolution of torch for the number of dimensions. The other arguments are those of `F.conv1d`."""
    return _CONV[x.ndim - 2](x, weight, *others)


def padding_by_torch(x: torch.Tensor, weight: torch.Tensor, pads: Pads, geometry: Geometry) -> tuple[int, ...]:
    """The padding per axis that is left to torch, which adds symmetric padding without a copy.

    Not for depthwise convolutions on a CPU with more than 6 samples of padding: oneDNN has no fast code for them, and
    is up to 40 times as fast for inputs that are padded. And not where oneDNN has faults on a CPU:

    - Along the first of three axes. With AVX-512 and up to three input channels, the gradient of the kernel reads
      memory that was not written if windows reach far into this padding: it is garbage, or the call does not return.
      Found in torch 2.11 (oneDNN 3.10) to 2.13 (oneDNN 3.12).
    - Along an axis where every tap of every window lies in this padding, it can crash. Found in torch 2.13.
    """
    symmetric = tuple(min(pair) for pair in pads)
    if x.device.type != "cpu":
        return symmetric
    if 1 < geometry.groups == x.shape[1] and max(symmetric) > MOST_DEPTHWISE_PADDING and not exporting():
        return (0,) * len(pads)
    sizes = zip(x.shape[2:], weight.shape[2:], geometry.stride, pads, symmetric, geometry.dilation, strict=True)
    met = [
        both == 0 or _meets_input(length + left + right - 2 * both, taps, stride, both, dilation)
        for length, taps, stride, (left, right), both, dilation in sizes
    ]
    met[0] = met[0] and len(pads) < 3
    return tuple(both if meets else 0 for both, meets in zip(symmetric, met, strict=True))


def _meets_input(length: int, taps: int, stride: int, padding: int, dilation: int) -> bool:
    """Whether any tap of any window meets one of `length` samples between symmetric padding."""
    if not all(isinstance(size, int) for size in (length, taps, padding)):
        return True  # symbolic sizes: a compiled program is for many of them
    last = output_size(length, taps, stride, (padding, padding), dilation) - 1
    for tap in (taps // 2, *range(taps)):  # the middle tap meets one nearly always
        position = tap * dilation - padding  # in the first window
        window = max(0, -(position // stride))  # the first one in which it is not before the samples
        if window <= last and position + window * stride < length:
            return True
    return False


def _dense(tensor: torch.Tensor, *, channels_last: bool) -> torch.Tensor:
    """The tensor without gaps in memory, with channels last only if that is allowed.

    torch guesses the memory format from the strides. If some axes of a view have one entry, the guess can be wrong,
    and oneDNN then reads other memory and can crash. Found in torch 2.11 to 2.13. With channels last and a stride of 3
    or more, oneDNN reads memory beyond the input: outputs and gradients are garbage. Found in torch 2.13.
    """
    memory_format = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.ndim)
    if memory_format is None or is_batchedtensor(tensor):  # inside vmap, there is no way to ask
        return tensor.contiguous()
    if not channels_last:
        return tensor.contiguous().flatten().view(tensor.shape)  # with one channel, both formats are contiguous
    return tensor if tensor.is_contiguous(memory_format=memory_format) else tensor.contiguous()
