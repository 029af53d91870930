"""Random crops and flips of a whole batch, determined by random bits of each sample."""

from __future__ import annotations

import torch

from ._random import AUGMENT, random_bits

AUGMENTATIONS = ("crop", "crop_flip")
PADDING_DIVISOR = 8  # padding is an eighth of the image on every side: 4 of 32 pixels, as in the paper's recipes


def crop_flip(images: torch.Tensor, bits: torch.Tensor, *, flip: bool) -> torch.Tensor:
    """Shift each image by up to an eighth of its side and fill with zeros; `flip` also mirrors half of the images.

    images [B, C, H, W] of any dtype, bits [B] from `augmentation_bits` → [B, C, H, W]. This is equivalent to padding
    all sides with zeros, taking a random crop of the original size, and flipping it horizontally at random. It is
    computed as one gather.
    """
    height, width = images.shape[2:]
    down, right = _shift(bits, height), _shift(bits >> 20, width)
    mirrored = ((bits >> 40) & 1 == 1) & flip
    rows = torch.arange(height, device=images.device) + down[:, None]  # [B, H]
    columns = torch.arange(width, device=images.device)
    columns = torch.where(mirrored[:, None], width - 1 - columns, columns) + right[:, None]  # [B, W]
    inside = _inside(rows, height)[:, :, None] & _inside(columns, width)[:, None]
    source = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None]  # [B, H, W]
    index = source.flatten(1)[:, None].expand(-1, images.shape[1], -1)
    shifted = images.flatten(2).gather(2, index).unflatten(2, (height, width))
    return shifted.masked_fill(~inside[:, None], 0)


def augmentation_bits(seed: int, epoch: int, sample: torch.Tensor) -> torch.Tensor:
    """Random bits [B] that determine the crop and flip of the samples [B] in an epoch."""
    return random_bits(seed, epoch, AUGMENT, sample)


def _inside(index: torch.Tensor, size: int) -> torch.Tensor:
    return (index >= 0) & (index < size)


def _shift(bits: torch.Tensor, size: int) -> torch.Tensor:
    padding = size // PADDING_DIVISOR
    return (bits & 0xFFFFF) % (2 * padding + 1) - padding
