"""Batch norm in training, laid out for compilers: sums are taken of short pieces first.

A sum over a batch of long rows is few and long sums, which GPUs do badly, and whatever computes the summands has to be
stored before. Pieces that fit into registers are summed where they are computed, their mean and variance from one read.
"""

from __future__ import annotations

from typing import Any

import torch

LONGEST_PIECE = 1024  # what inductor sums in one go
SHORTEST_PIECE = 128


def batch_norm(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(x − mean) / √(variance + eps) · scale + shift for x [batch, channels, …], and mean and variance [channels].

    Computed in float32 at least, returned in the dtype of x. The moments have no gradients of their own.
    """
    return _BatchNorm.apply(x, scale, shift, eps)


def piece_length(row: int) -> int:
    """The largest divisor of a row that is not too long; the row itself where there is none of a useful size."""
    longest = next(n for n in range(min(row, LONGEST_PIECE), 0, -1) if row % n == 0)
    return longest if longest >= SHORTEST_PIECE else row


def _channels(values: torch.Tensor, ndim: int) -> torch.Tensor:
    """[channels] beside [batch, channels, …]."""
    return values.view(-1, *[1] * (ndim - 2))


def _pieces(x: torch.Tensor) -> torch.Tensor:
    """[batch, channels, …] → [batch, channels, pieces, length]."""
    row = x[0, 0].numel()
    return x.reshape(*x.shape[:2], -1, piece_length(row))


class _BatchNorm(torch.autograd.Function):
    """With x̂ = (x − mean) / √(variance + eps) and means over all numbers of a channel:

    ∂x = scale / √(variance + eps) · (∂y − mean(∂y) − x̂ · mean(∂y · x̂)).
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        pieces = _pieces(wide)
        means = pieces.mean(-1)
        within = (pieces - means.unsqueeze(-1)).square().mean(-1)
        mean = means.mean((0, 2))
        variance = (within + (means - mean.unsqueeze(-1)).square()).mean((0, 2))
        steepness = torch.rsqrt(variance + eps)
        y = (wide - _channels(mean, x.ndim)) * _channels(steepness * scale, x.ndim) + _channels(shift, x.ndim)
        ctx.save_for_backward(x, scale, mean, steepness)
        ctx.mark_non_differentiable(mean, variance)
        return y.to(x.dtype), mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        x, scale, mean, steepness = ctx.saved_tensors
        gradient = gradients[0].to(mean.dtype)
        normed = (x.to(mean.dtype) - _channels(mean, x.ndim)) * _channels(steepness, x.ndim)
        for_shift = _pieces(gradient).sum(-1).sum((0, 2))
        for_scale = _pieces(gradient * normed).sum(-1).sum((0, 2))
        number = x[:, 0].numel()
        centred = gradient - _channels(for_shift / number, x.ndim) - normed * _channels(for_scale / number, x.ndim)
        for_x = centred * _channels(steepness * scale, x.ndim)
        return for_x.to(x.dtype), for_scale.to(scale.dtype), for_shift.to(scale.dtype), None
