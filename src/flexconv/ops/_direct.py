"""Direct convolution by the functions of torch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch._C._functorch import is_batchedtensor  # pyright: ignore[reportMissingImports]  (no public way to ask)

from .._context import autocast_enabled
from .._registry import has_fast_version
from ._geometry import Geometry, Pads, skip_unread_samples, zero_pad

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def direct_conv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, geometry: Geometry) -> torch.Tensor:
    """x [batch, in, *size], weight [out, in/groups, *taps] → [batch, out, *size']. The cost grows with the taps."""
    x, pads = skip_unread_samples(x, geometry.pads)
    by_torch = _padding_by_torch(x, pads)
    x = zero_pad(x, tuple((left - both, right - both) for (left, right), both in zip(pads, by_torch, strict=True)))
    added = None
    if x.device.type == "cpu":
        x, weight = _dense(x), _dense(weight)
        if bias is not None and bias.requires_grad and x.dtype.itemsize >= 4 and not autocast_enabled("cpu"):
            # The gradient of a bias by oneDNN is a sum term by term, whose error grows with the number of outputs.
            bias, added = None, bias.reshape(-1, *(1,) * (x.ndim - 2))
    y = _convolve(x, weight, bias, geometry.stride, by_torch, geometry.dilation, geometry.groups)
    return y if added is None else y + added


@has_fast_version("ops.convolve")
def _convolve(x: torch.Tensor, weight: torch.Tensor, *others: Any) -> torch.Tensor:
    """The convolution of torch for the number of dimensions. The other arguments are those of `F.conv1d`."""
    return _CONV[x.ndim - 2](x, weight, *others)


def _padding_by_torch(x: torch.Tensor, pads: Pads) -> tuple[int, ...]:
    """The padding per axis that is left to torch, which adds symmetric padding without a copy.

    Not along the first of three axes on a CPU. With AVX-512 and up to three input channels, the gradient of the kernel
    by oneDNN reads memory that it did not write if windows reach far into this padding: it is garbage, or the call
    does not return. Found in torch 2.11 (oneDNN 3.10) to 2.13 (oneDNN 3.12).
    """
    symmetric = tuple(min(pair) for pair in pads)
    return (0, *symmetric[1:]) if len(pads) == 3 and x.device.type == "cpu" else symmetric


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without gaps in memory.

    torch guesses the memory format from the strides. If some axes of a view have one entry, the guess can be wrong,
    and oneDNN then reads other memory and can crash. Found in torch 2.11 to 2.13.
    """
    memory_format = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.ndim)
    if memory_format is None or is_batchedtensor(tensor):  # inside vmap, there is no way to ask
        return tensor.contiguous()
    return tensor if tensor.is_contiguous(memory_format=memory_format) else tensor.contiguous()
