"""Normalisation and what follows it, also for sequences padded to a common length: what stands behind an end must not
count.
"""

from __future__ import annotations

import functools
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import nn

from .._arguments import unknown_name
from .._regions import Region, regions_are_compiled
from ..nn._conv import FlexConvNd

NORMS = ("batch", "layer")


def make_norm(
    norm: str, dims: int, channels: int, *, device: torch.device | str | None, dtype: torch.dtype | None
) -> nn.Module:
    """BatchNorm ("batch"), or a norm over all channels and positions of each sample by itself ("layer")."""
    if norm not in NORMS:
        unknown_name("norm", norm, NORMS)
    if norm == "layer":
        return nn.GroupNorm(1, channels, device=device, dtype=dtype)
    return (nn.BatchNorm1d if dims == 1 else nn.BatchNorm2d)(channels, device=device, dtype=dtype)


def conv_norm_relu(
    conv: nn.Module,
    norm: nn.Module,
    x: torch.Tensor,
    shortcut: torch.Tensor | None = None,
    *,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """ReLU(norm(conv(x)) + shortcut) for x [batch, channels, …]; `lengths` as in `normalise`.

    Inside `compiled_regions()` everything behind the convolution, its bias included, is one region.
    """
    if lengths is None and regions_are_compiled() and _is_plain_batch_norm(norm):
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
        y, bias = _without_bias(conv, x)
        statistics = norm.running_mean, norm.running_var
        return _bias_norm_relu(y, bias, shortcut, norm.weight, norm.bias, *statistics, norm.momentum, norm.eps)
    y = normalise(norm, conv(x), lengths)
    return F.relu(y if shortcut is None else y + shortcut)


@functools.partial(Region, dynamic=False)
def add_relu(x: torch.Tensor, shortcut: torch.Tensor) -> torch.Tensor:
    """ReLU(x + shortcut)."""
    return F.relu(x + shortcut)


def _is_plain_batch_norm(norm: nn.Module) -> TypeGuard[nn.BatchNorm1d | nn.BatchNorm2d]:
    """Torch's own with its usual settings, in training, with no hook that would want to be called."""
    if not isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d) or _hooked(norm):
        return False
    return norm.training and norm.affine and norm.track_running_stats and norm.momentum is not None


def _without_bias(conv: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A convolution, and the bias that is left to add to it."""
    if isinstance(conv, FlexConvNd) and not _hooked(conv):
        return conv._convolve(x, None), conv.bias
    return conv(x), None


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


@functools.partial(Region, dynamic=False)
def _bias_norm_relu(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    shortcut: torch.Tensor | None,
    scale: torch.Tensor,
    shift: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float | None,
    eps: float,
) -> torch.Tensor:
    if bias is not None:
        x = x + bias.to(x.dtype).view(-1, *[1] * (x.ndim - 2))
    y = F.batch_norm(x, running_mean, running_var, scale, shift, True, momentum or 0.0, eps)
    return F.relu(y if shortcut is None else y + shortcut)


def normalise(norm: nn.Module, x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """norm(x) for x [batch, channels, length], its statistics taken over the first lengths[b] positions of row b."""
    pointwise = isinstance(norm, nn.modules.batchnorm._BatchNorm) and not norm.training
    if lengths is None or pointwise:
        return norm(x)
    wide = x if x.dtype == torch.float64 else x.float()
    inside = (torch.arange(x.shape[-1], device=x.device) < lengths[:, None])[:, None]
    if isinstance(norm, nn.BatchNorm1d):
        count = lengths.sum().to(wide.dtype)
        mean, variance = _moments(wide, inside, count, (0, 2))
        _remember(norm, mean.flatten(), variance.flatten(), count)
    elif isinstance(norm, nn.GroupNorm):
        mean, variance = _moments(wide, inside, lengths[:, None, None] * x.shape[1], (1, 2))
    else:
        raise TypeError(f"lengths needs a BatchNorm1d or a GroupNorm; this model has a {type(norm).__name__}")
    y = (wide - mean) * torch.rsqrt(variance + norm.eps)
    return (y * norm.weight.to(y.dtype)[:, None] + norm.bias.to(y.dtype)[:, None]).to(x.dtype)


def _moments(
    x: torch.Tensor, inside: torch.Tensor, count: torch.Tensor, axes: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance over `axes`, of what is inside."""
    mean = torch.where(inside, x, 0.0).sum(axes, keepdim=True) / count
    variance = torch.where(inside, x - mean, 0.0).square().sum(axes, keepdim=True) / count
    return mean, variance


@torch.no_grad()
def _remember(norm: nn.BatchNorm1d, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
    """The running statistics, as torch keeps them: of the unbiased variance."""
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    norm.num_batches_tracked.add_(1)
    share = norm.momentum if norm.momentum is not None else 1.0 / norm.num_batches_tracked
    unbiased = variance * (count / (count - 1).clamp(min=1))
    for running, new in ((norm.running_mean, mean), (norm.running_var, unbiased)):
        running.mul_(1 - share).add_(share * new.to(running.dtype))
