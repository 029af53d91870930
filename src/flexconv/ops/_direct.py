"""Direct convolution by the functions of torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ._geometry import Geometry, skip_unread_samples, zero_pad

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def direct_conv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, geometry: Geometry) -> torch.Tensor:
    """x [batch, in, *size], weight [out, in/groups, *taps] → [batch, out, *size']. The cost grows with the taps."""
    dims = x.ndim - 2
    x, pads = skip_unread_samples(x, geometry.pads)
    symmetric = tuple(min(pair) for pair in pads)  # torch adds symmetric padding without a copy
    x = zero_pad(x, tuple((left - both, right - both) for (left, right), both in zip(pads, symmetric, strict=True)))
    return _CONV[dims](x, weight, bias, geometry.stride, symmetric, geometry.dilation, geometry.groups)
