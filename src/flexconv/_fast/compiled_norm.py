"""A FlexConv and the batch norm behind it in code that is compiled by `torch.compile`.

Subtracting the mean removes the bias of the convolution, so it is not added at all, only to the running mean. A
compiler would add it to every activation, and sum a whole gradient for it. That gradient is exactly zero; computed step
by step it is rounding noise, which Adam turns into a random walk.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .._hooks import hooks_of
from .._registry import provide
from ..nn import FlexConv1d, FlexConv2d
from .blocks import is_plain_batch_norm


def conv_norm(conv: nn.Module, norm: nn.Module, x: torch.Tensor, where: torch.Tensor | None) -> torch.Tensor:
    """`models._norm.conv_norm` in training. NotImplemented if it is not supported."""
    if not torch.compiler.is_compiling() or where is not None or not _applies_to(x):
        return NotImplemented
    return compiled_conv_norm(conv, norm, x)


def _applies_to(x: torch.Tensor) -> bool:
    return x.is_cuda


def compiled_conv_norm(conv: nn.Module, norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """norm(conv(x)) on any device. NotImplemented if it is not supported."""
    if (type(conv) is not FlexConv1d and type(conv) is not FlexConv2d) or conv.bias is None or conv.recompute:
        return NotImplemented
    if hooks_of(conv) or not is_plain_batch_norm(norm) or x.ndim != conv.dims + 2:
        return NotImplemented
    assert norm.running_mean is not None
    assert norm.num_batches_tracked is not None
    assert norm.momentum is not None
    if norm.momentum == 1:
        return NotImplemented
    with torch.no_grad():  # before the norm, which keeps its running mean for the backward pass
        norm.num_batches_tracked.add_(1)
        bias = conv.bias.to(norm.running_mean.dtype)
        norm.running_mean.add_(bias, alpha=norm.momentum / (1 - norm.momentum))  # times 1 − momentum in the norm
    y = conv._convolve(x, None)
    shift = norm.bias + 0.0 * conv.bias
    statistics = norm.running_mean, norm.running_var
    return F.batch_norm(y, *statistics, norm.weight, shift, training=True, momentum=norm.momentum, eps=norm.eps)


provide("models.conv_norm", conv_norm)
