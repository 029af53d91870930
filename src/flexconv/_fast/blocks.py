"""What stands behind a convolution: norm, shortcut, ReLU, dropout. Step by step, or as one compiled region."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import TypeAlias, TypeGuard

import torch
import torch.nn.functional as F
from torch import nn

from .._hooks import hooks_of
from ..errors import ArgumentError
from ..models._norm import normalise
from ..nn import FlexConv1d, FlexConv2d
from .batch_norm import batch_norm
from .dropout import draw, is_plain_dropout, keep
from .regions import Region, regions_are_compiled

Shortcut: TypeAlias = tuple[torch.Tensor, torch.Tensor | None]  # [batch, channels, …], and a bias that is left to add


def conv_norm_relu(
    conv: nn.Module,
    norm: nn.Module,
    x: torch.Tensor,
    *,
    before: Shortcut | None = None,
    dropout: nn.Module | None = None,
    after: Shortcut | None = None,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """ReLU(dropout(ReLU(norm(conv(x)) + before)) + after) for x [batch, channels, …]; `lengths` as in `normalise`.

    What is not given is left out, the outer ReLU with `after`. Inside `compiled_regions()` everything behind the
    convolution is one region; it leaves the count of batches to `count_batch`.
    """
    if dropout is not None and not is_plain_dropout(dropout):
        y = dropout(conv_norm_relu(conv, norm, x, before=before, lengths=lengths))
        return y if after is None else _add_relu(y, *after)
    if lengths is None and regions_are_compiled() and _is_plain_batch_norm(norm):
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.momentum is not None
        y, bias = without_bias(conv, x)
        if y[:, 0].numel() <= 1:
            raise ArgumentError(f"a batch norm in training needs more than one value per channel; got {list(y.shape)}")
        statistics = norm.running_mean, norm.running_var, norm.momentum, norm.eps
        return _norm_relu(y, bias, before, *draw(dropout, y), after, norm.weight, norm.bias, *statistics)
    y = normalise(norm, conv(x), lengths)
    y = F.relu(y) if before is None else _add_relu(y, *before)
    y = keep(y, *draw(dropout, y))
    return y if after is None else _add_relu(y, *after)


def without_bias(conv: nn.Module, x: torch.Tensor) -> Shortcut:
    """conv(x), and None; inside `compiled_regions()` what it is without its bias, and the bias.

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
def _add_relu(x: torch.Tensor, shortcut: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """ReLU(x + shortcut + bias) for x [batch, channels, …] and a bias [channels]."""
    return F.relu(x + _with_bias(shortcut, bias))


def _with_bias(shortcut: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return shortcut if bias is None else shortcut + bias.to(shortcut.dtype).view(-1, *[1] * (shortcut.ndim - 2))


@functools.partial(Region, dynamic=False, recompute=True)
def _norm_relu(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    before: Shortcut | None,
    drawn: torch.Tensor | None,
    share: float,
    after: Shortcut | None,
    scale: torch.Tensor,
    shift: torch.Tensor,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
) -> torch.Tensor:
    """ReLU(dropout(ReLU(batch_norm(x + bias) + before)) + after), in training.

    The mean that is taken off takes the bias off with it: it is left out, and only the running mean knows of it. Its
    gradient here is exactly zero; step by step it is rounding, of which Adam makes a random walk.
    """
    if bias is not None:
        shift = shift + 0.0 * bias
    if before is not None and before[1] is not None:
        shift = shift + before[1]
    y, mean, variance = batch_norm(x, scale, shift, eps)
    number = x[:, 0].numel()
    with torch.no_grad():
        running_mean.lerp_((mean if bias is None else mean + bias).to(running_mean.dtype), momentum)
        running_var.lerp_((variance * (number / (number - 1))).to(running_var.dtype), momentum)
    y = keep(F.relu(y if before is None else y + before[0]), drawn, share)
    return y if after is None else F.relu(y + _with_bias(*after))


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
