"""Normalization, also for sequences that are padded to a common length: statistics exclude the padding."""

from __future__ import annotations

import torch
from torch import nn

from .._arguments import unknown_name
from ..errors import ArgumentTypeError

NORMS = ("batch", "layer")

_BATCH_NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def make_norm(
    norm: str, dims: int, channels: int, *, device: torch.device | str | None, dtype: torch.dtype | None
) -> nn.Module:
    """Batch norm ("batch"), or a norm over all channels and positions of each sample ("layer")."""
    if norm not in NORMS:
        unknown_name("norm", norm, NORMS)
    if norm == "layer":
        return nn.GroupNorm(1, channels, device=device, dtype=dtype)
    return _BATCH_NORMS[dims](channels, device=device, dtype=dtype)


def normalise(norm: nn.Module, x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """norm(x) for x [batch, channels, length], with statistics over the first lengths[b] positions of row b."""
    pointwise = isinstance(norm, nn.modules.batchnorm._BatchNorm) and not norm.training
    if lengths is None or pointwise:
        return norm(x)
    wide = x if x.dtype == torch.float64 else x.float()
    inside = (torch.arange(x.shape[-1], device=x.device) < lengths[:, None])[:, None]
    if isinstance(norm, nn.BatchNorm1d):
        count = lengths.sum().to(wide.dtype)
        mean, variance = _moments(wide, inside, count, (0, 2))
        _update_running_statistics(norm, mean.flatten(), variance.flatten(), count)
    elif isinstance(norm, nn.GroupNorm):
        mean, variance = _moments(wide, inside, lengths[:, None, None] * x.shape[1], (1, 2))
    else:
        raise ArgumentTypeError(f"lengths needs a BatchNorm1d or a GroupNorm; this model has a {type(norm).__name__}")
    y = (wide - mean) * torch.rsqrt(variance + norm.eps)
    return (y * norm.weight.to(y.dtype)[:, None] + norm.bias.to(y.dtype)[:, None]).to(x.dtype)


def _moments(
    x: torch.Tensor, inside: torch.Tensor, count: torch.Tensor, axes: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance over `axes` of the values inside the sequences."""
    mean = torch.where(inside, x, 0.0).sum(axes, keepdim=True) / count
    variance = torch.where(inside, x - mean, 0.0).square().sum(axes, keepdim=True) / count
    return mean, variance


@torch.no_grad()
def _update_running_statistics(
    norm: nn.BatchNorm1d, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor
) -> None:
    """Update the running statistics as torch does, with the unbiased variance."""
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    norm.num_batches_tracked.add_(1)
    share = norm.momentum if norm.momentum is not None else 1.0 / norm.num_batches_tracked
    unbiased = variance * (count / (count - 1).clamp(min=1))
    for running, new in ((norm.running_mean, mean), (norm.running_var, unbiased)):
        running.mul_(1 - share).add_(share * new.to(running.dtype))
