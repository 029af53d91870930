"""Normalisation and what follows it, also for sequences padded to a common length: what stands behind an end must not
count.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import nn

from .._arguments import unknown_name
from .._hooks import hooks_of
from .._regions import Region, regions_are_compiled
from ..nn import FlexConv1d, FlexConv2d

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
    shortcut_bias: torch.Tensor | None = None,
    *,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """ReLU(norm(conv(x)) + shortcut + shortcut_bias) for x [batch, channels, …]; `lengths` as in `normalise`.

    The bias, [channels], is that of `without_bias`. Inside `compiled_regions()` everything behind the convolution is
    one region; it leaves the count of batches to `count_batch`.
    """
    if lengths is None and regions_are_compiled() and _is_plain_batch_norm(norm):
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.momentum is not None
        y, bias = without_bias(conv, x)
        statistics = norm.running_mean, norm.running_var, norm.momentum, norm.eps
        return _norm_relu(y, bias, shortcut, shortcut_bias, norm.weight, norm.bias, *statistics)
    y = normalise(norm, conv(x), lengths)
    return F.relu(y) if shortcut is None else add_relu(y, shortcut, shortcut_bias)


def without_bias(conv: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """conv(x), and None; inside `compiled_regions()` what it is without its bias, and the bias that is left to add.

    A region takes the gradient of a bias together with others. A 1×1 convolution without one is a matrix product.
    """
    if regions_are_compiled() and not hooks_of(conv):
        if type(conv) is FlexConv1d or type(conv) is FlexConv2d:
            return conv._convolve(x, None), conv.bias
        if _is_pointwise(conv):
            weight = conv.weight.flatten(1).expand(len(x), -1, -1)  # torch.matmul would lay x out anew
            return torch.bmm(weight, x.flatten(2)).unflatten(2, x.shape[2:]), conv.bias
    return conv(x), None


def count_batch(blocks: Iterable[nn.Module], *norms: nn.Module) -> None:
    """One more batch for those norms that `conv_norm_relu` runs as regions, in one operation.

    They are looked for among `norms` and what the blocks call norm1 and norm2.
    """
    if regions_are_compiled():
        children = (child for block in blocks for child in block.named_children())
        everywhere = [*norms, *(child for name, child in children if name in ("norm1", "norm2"))]
        counts = [norm.num_batches_tracked for norm in everywhere if _is_plain_batch_norm(norm)]
        if counts:
            torch._foreach_add_(counts, 1)  # type: ignore[arg-type]  (none is None in such a norm)


@functools.partial(Region, dynamic=False)
def add_relu(x: torch.Tensor, shortcut: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """ReLU(x + shortcut + bias) for x [batch, channels, …] and a bias [channels]."""
    if bias is not None:
        shortcut = shortcut + bias.to(shortcut.dtype).view(-1, *[1] * (x.ndim - 2))
    return F.relu(x + shortcut)


def _is_plain_batch_norm(norm: nn.Module) -> TypeGuard[nn.BatchNorm1d | nn.BatchNorm2d]:
    """Torch's own with its usual settings, in training, with no hook that would want to be called."""
    if not (type(norm) is nn.BatchNorm1d or type(norm) is nn.BatchNorm2d) or hooks_of(norm):
        return False
    return norm.training and norm.affine and norm.track_running_stats and norm.momentum is not None


def _is_pointwise(conv: nn.Module) -> TypeGuard[nn.Conv1d | nn.Conv2d]:
    """Torch's own, 1×1, of one group, without stride or padding."""
    if not (type(conv) is nn.Conv1d or type(conv) is nn.Conv2d) or isinstance(conv.padding, str):
        return False
    return math.prod((*conv.kernel_size, *conv.stride, conv.groups)) == 1 and not any(conv.padding)


@functools.partial(Region, dynamic=False)
def _norm_relu(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    shortcut: torch.Tensor | None,
    shortcut_bias: torch.Tensor | None,
    scale: torch.Tensor,
    shift: torch.Tensor,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
) -> torch.Tensor:
    """ReLU(batch_norm(x + bias) + shortcut + shortcut_bias), in training.

    The mean that is taken off takes the bias off with it: it is left out, and only the running mean knows of it. Its
    gradient here is exactly zero; step by step it is rounding, of which Adam makes a random walk.
    """
    if bias is not None:
        shift = shift + 0.0 * bias
    if shortcut_bias is not None:
        shift = shift + shortcut_bias
    mean = running_mean.clone()  # autograd holds on to the one that batch_norm gets
    y = F.batch_norm(x, mean, running_var, scale, shift, True, momentum, eps)
    running_mean.copy_(mean if bias is None else mean + momentum * bias.detach())
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
