"""Batch norm in training and sums with a bias, written for a compiler: sums are computed over short pieces first.

A sum over a batch of long rows is slow on a GPU, and its summands have to be written to memory first. Pieces that fit
into registers are summed where they are computed, with mean and variance from one read. The same holds for gradients,
because every per-channel value is expanded to the pieces first and from there to all positions.
"""

from __future__ import annotations

import math

import torch

LONGEST_PIECE = 1024  # the longest sum that inductor keeps in registers
SHORTEST_PIECE = 128


def batch_norm(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(x − mean) / √(variance + eps) · scale + shift for x [batch, channels, …], and mean and variance [channels].

    Computed in float32 at least, returned in the dtype of x.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    row = math.prod(x.shape[2:])
    pieces = wide.reshape(*x.shape[:2], row // piece_length(row), piece_length(row))
    means = pieces.mean(-1)
    mean = means.mean((0, 2))
    # no gradient through the mean: a variance is stationary with respect to it
    within = (pieces - means.detach().unsqueeze(-1)).square().mean(-1)
    variance = (within + (means - mean.detach().unsqueeze(-1)).square()).mean((0, 2))
    slope = torch.rsqrt(variance + eps) * scale
    centre, slope, shift = (each.view(-1, 1, 1).expand(*means.shape, 1) for each in (mean, slope, shift))
    y = (pieces - centre) * slope + shift
    return y.view(x.shape).to(x.dtype), mean, variance


def add_bias(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """x + bias for x [batch, channels, …] and a bias [channels], in float32 at least."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    row = math.prod(x.shape[2:])
    pieces = wide.reshape(*x.shape[:2], row // piece_length(row), piece_length(row))
    return (pieces + bias.view(-1, 1, 1).expand(*pieces.shape[:3], 1)).view(x.shape)


def piece_length(row: int) -> int:
    """The largest divisor of a row up to LONGEST_PIECE, or the row itself if that divisor is too small."""
    longest = next(n for n in range(min(row, LONGEST_PIECE), 0, -1) if row % n == 0)
    return longest if longest >= SHORTEST_PIECE else row
