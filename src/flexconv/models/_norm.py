"""Normalization, also where positions do not exist or were not observed: statistics exclude these."""

from __future__ import annotations

import torch
from torch import nn

from .._arguments import unknown_name
from .._registry import has_fast_version
from ..errors import ArgumentTypeError
from ..nn import inside as inside_lengths

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


@has_fast_version("models.conv_norm")
def conv_norm(conv: nn.Module, norm: nn.Module, x: torch.Tensor, where: torch.Tensor | None) -> torch.Tensor:
    """norm(conv(x)); `where` as in `normalise`."""
    return normalise(norm, conv(x), where)


def normalise(norm: nn.Module, x: torch.Tensor, where: torch.Tensor | None) -> torch.Tensor:
    """norm(x) for x [batch, channels, *size], with statistics over some positions only.

    These are the first where[b] positions of row b, for lengths [batch] of sequences, or those where a mask
    [batch, 1, *size] is True.
    """
    pointwise = isinstance(norm, nn.modules.batchnorm._BatchNorm) and not norm.training
    if where is None or pointwise:
        return norm(x)
    wide = x if x.dtype == torch.float64 else x.float()
    inside = where if where.ndim > 1 else inside_lengths(x, where)
    positions = tuple(range(2, x.ndim))
    if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
        count = inside.sum().clamp(min=1).to(wide.dtype)
        mean, variance = _moments(wide, inside, count, (0, *positions))
        _update_running_statistics(norm, mean.flatten(), variance.flatten(), count)
    elif isinstance(norm, nn.GroupNorm):
        count = inside.sum((1, *positions), keepdim=True).clamp(min=1) * x.shape[1]  # a sequence may be empty
        mean, variance = _moments(wide, inside, count, (1, *positions))
    else:
        raise ArgumentTypeError(
            f"lengths and observed need a BatchNorm or a GroupNorm; this model has a {type(norm).__name__}"
        )
    y = (wide - mean) * torch.rsqrt(variance + norm.eps)
    scale, shift = (values.to(y.dtype).view(-1, *[1] * len(positions)) for values in (norm.weight, norm.bias))
    return (y * scale + shift).to(x.dtype)


def _moments(
    x: torch.Tensor, inside: torch.Tensor, count: torch.Tensor, axes: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance over `axes` of the values inside."""
    mean = torch.where(inside, x, 0.0).sum(axes, keepdim=True) / count
    variance = torch.where(inside, x - mean, 0.0).square().sum(axes, keepdim=True) / count
    return mean, variance


@torch.no_grad()
def _update_running_statistics(
    norm: nn.modules.batchnorm._BatchNorm, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor
) -> None:
    """Update the running statistics as torch does, with the unbiased variance."""
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    norm.num_batches_tracked.add_(1)
    share = norm.momentum if norm.momentum is not None else 1.0 / norm.num_batches_tracked
    unbiased = variance * (count / (count - 1).clamp(min=1))
    for running, new in ((norm.running_mean, mean), (norm.running_var, unbiased)):
        running.mul_(1 - share).add_(share * new.to(running.dtype))
