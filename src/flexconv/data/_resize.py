"""Resize batches of images: bilinear with antialiasing, as Pillow does it.

y = R x Cᵀ,      R [h, H] and C [w, W]:  R_ij ∝ max(0, 1 − |(j + ½) − (i + ½) r| / max(r, 1)),   r = H / h
"""

from __future__ import annotations

from functools import lru_cache

import torch

from .._arguments import per_axis
from ..errors import ArgumentError, ArgumentTypeError

BITS = 22  # of the integer weights that Pillow uses


def resize_images(images: torch.Tensor, size: int | tuple[int, int]) -> torch.Tensor:
    """Images [B, C, H, W], uint8 or floats → [B, C, *size] of the same dtype.

    The interpolation is bilinear with antialiasing: if the size is reduced, a new pixel is an average of all pixels
    that it covers. For uint8, the result is identical to that of Pillow, which the authors used: columns are resized
    first, then rounded, then rows. The result is the same on every device, because the weights are integers / 2²² and
    their sums are exact in float64.
    """
    if images.ndim != 4:
        raise ArgumentError(f"images must have shape [B, C, H, W]; got {list(images.shape)}")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise ArgumentTypeError(f"images must be uint8 or floats; got {images.dtype}")
    height, width = per_axis("size", size, 2, minimum=1)
    if width != images.shape[3]:
        images = _resize_rows(images, width)
    if height != images.shape[2]:
        images = _resize_rows(images.transpose(2, 3), height).transpose(2, 3).contiguous()
    return images


def _resize_rows(images: torch.Tensor, size: int) -> torch.Tensor:
    """[B, C, H, W] → [B, C, H, size]."""
    weights = _weights(images.shape[3], size, images.device)
    if images.dtype == torch.uint8:
        sums = images.double() @ weights.T
        return (sums / 2**BITS + 0.5).floor().to(torch.uint8)
    return images @ (weights / 2**BITS).to(images.dtype).T


@lru_cache(maxsize=32)
def _weights(old: int, new: int, device: torch.device) -> torch.Tensor:
    """Weights of `old` pixels in `new` ones, times 2²² and rounded to integers: float64 [new, old]."""
    ratio = old / new
    reach = max(ratio, 1.0)
    centres = (torch.arange(new, dtype=torch.float64) + 0.5) * ratio
    distance = (torch.arange(old, dtype=torch.float64) + 0.5 - centres[:, None]).abs() / reach
    triangle = (1 - distance).clamp(min=0)
    return (triangle / triangle.sum(1, keepdim=True) * 2**BITS + 0.5).floor().to(device)
