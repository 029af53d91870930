"""Random crops and flips of a whole batch at once, from numbers that belong to the samples."""

from __future__ import annotations

import torch

from ._random import AUGMENT, random_bits

AUGMENTATIONS = ("crop", "crop_flip")
PADDING = 8  # an eighth of the image on every side: 4 pixels at 32, as in the paper's recipes


def crop_flip(images: torch.Tensor, bits: torch.Tensor, *, flip: bool) -> torch.Tensor:
    """Each image shifted by up to an eighth of its side, zeros where it was not; with `flip` half of them mirrored.

    images [B, C, H, W] of any dtype, bits [B] from `augmentation_bits` → [B, C, H, W]. The same as padding on all
    sides, cropping at random back to the size, and flipping left to right: done as one gather.
    """
    height, width = images.shape[2:]
    down, right = _shift(bits, height), _shift(bits >> 20, width)
    mirrored = ((bits >> 40) & 1 == 1) & flip
    rows = torch.arange(height, device=images.device) + down[:, None]  # [B, H]
    columns = torch.arange(width, device=images.device)
    columns = torch.where(mirrored[:, None], width - 1 - columns, columns) + right[:, None]  # [B, W]
    inside = _inside(rows, height)[:, :, None] & _inside(columns, width)[:, None]
    picked = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None]  # [B, H, W]
    index = picked.flatten(1)[:, None].expand(-1, images.shape[1], -1)
    moved = images.flatten(2).gather(2, index).unflatten(2, (height, width))
    return moved.masked_fill(~inside[:, None], 0)


def augmentation_bits(seed: int, epoch: int, sample: torch.Tensor) -> torch.Tensor:
    """What decides the crop and flip of samples [B] in an epoch."""
    return random_bits(seed, epoch, AUGMENT, sample)


def _inside(index: torch.Tensor, size: int) -> torch.Tensor:
    return (index >= 0) & (index < size)


def _shift(bits: torch.Tensor, size: int) -> torch.Tensor:
    padding = size // PADDING
    return (bits & 0xFFFFF) % (2 * padding + 1) - padding
