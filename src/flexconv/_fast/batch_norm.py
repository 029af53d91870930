"""Batch norm in training, laid out for compilers: sums are taken of short pieces first.

A sum over a batch of long rows is few and long sums, which GPUs do badly, and whatever computes the summands has to be
stored before. Pieces that fit into registers are summed where they are computed, mean and variance from one read. So
are gradients, since every number of a channel goes to its pieces first, and from there to all positions.
"""

from __future__ import annotations

import math

import torch

LONGEST_PIECE = 1024  # what inductor sums in one go
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
    # what is subtracted needs no gradient: a square is smallest around its mean
    within = (pieces - means.detach().unsqueeze(-1)).square().mean(-1)
    variance = (within + (means - mean.detach().unsqueeze(-1)).square()).mean((0, 2))
    slope = torch.rsqrt(variance + eps) * scale
    centre, slope, shift = (each.view(-1, 1, 1).expand(*means.shape, 1) for each in (mean, slope, shift))
    y = (pieces - centre) * slope + shift
    return y.view(x.shape).to(x.dtype), mean, variance


def piece_length(row: int) -> int:
    """The largest divisor of a row that is not too long; the row itself where there is none of a useful size."""
    longest = next(n for n in range(min(row, LONGEST_PIECE), 0, -1) if row % n == 0)
    return longest if longest >= SHORTEST_PIECE else row
