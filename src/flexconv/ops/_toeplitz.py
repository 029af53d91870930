"""Depthwise convolution as products with Toeplitz matrices, see `_tiles.py`."""

from __future__ import annotations

import torch

from .._registry import has_fast_version
from ._direct import direct_conv
from ._geometry import Geometry


@has_fast_version("ops.toeplitz_conv")
def toeplitz_conv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, geometry: Geometry) -> torch.Tensor:
    """x [batch, in, *size], weight [out, 1, *taps] → [batch, out, *size'], in the precision of a direct convolution.

    On a GPU with tensor cores, `_fast` computes depthwise convolutions with stride 1 and dilation 1 as matrix products.
    They are a direct convolution in another order. All other convolutions are computed by torch.
    """
    return direct_conv(x, weight, bias, geometry)


@has_fast_version("ops.has_toeplitz_conv")
def has_toeplitz_conv() -> bool:
    """Whether `toeplitz_conv` has a fast version on this machine."""
    return False
