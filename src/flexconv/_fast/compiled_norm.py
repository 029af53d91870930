"""A FlexConv and the batch norm behind it in code that is compiled by `torch.compile`.

Subtracting the mean removes the bias of the convolution, so it is not added at all, only to the running mean. A
compiler would add it to every activation, and sum a whole gradient for it. That gradient is exactly zero; computed step
by step it is rounding noise, which Adam turns into a random walk.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from .._context import exporting
from .._hooks import hooks_of
from .._registry import provide
from ..nn import FlexConv1d, FlexConv2d
from .blocks import is_plain_batch_norm


class _BatchCounts:
    """Norms whose batch is counted at the end of `nn.sample_together`, in one launch for all. None outside of it."""

    def __init__(self) -> None:
        self.norms: list[nn.BatchNorm1d | nn.BatchNorm2d] | None = None

    def count(self, norm: nn.BatchNorm1d | nn.BatchNorm2d) -> None:
        """Count the batch of a norm now or later."""
        if self.norms is not None and not any(norm is other for other in self.norms):
            self.norms.append(norm)
        else:  # a norm that is used twice counts twice
            _add_one([norm])

    def begin(self) -> list[nn.BatchNorm1d | nn.BatchNorm2d] | None:
        """Count later from now on. Returns what `finish` needs."""
        before, self.norms = self.norms, []
        return before

    def finish(self, before: list[nn.BatchNorm1d | nn.BatchNorm2d] | None) -> None:
        """Count the batches since `begin`."""
        norms, self.norms = self.norms, before
        if norms:
            _add_one(norms)


def _add_one(norms: Sequence[nn.BatchNorm1d | nn.BatchNorm2d]) -> None:
    counts = [norm.num_batches_tracked for norm in norms]
    torch._foreach_add_(counts, 1)  # type: ignore[arg-type]  (none is None in a norm that tracks its statistics)


batch_counts = _BatchCounts()


def conv_norm(conv: nn.Module, norm: nn.Module, x: torch.Tensor, where: torch.Tensor | None) -> torch.Tensor:
    """`models._norm.conv_norm` in training. NotImplemented if it is not supported."""
    if not torch.compiler.is_compiling() or exporting() or where is not None or not _applies_to(x):
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
    assert norm.momentum is not None
    if norm.momentum == 1:
        return NotImplemented
    batch_counts.count(norm)
    share = norm.momentum / (1 - norm.momentum)  # of the bias, which the norm multiplies by 1 − momentum
    with torch.no_grad():  # a copy, because the norm keeps its running mean for the backward pass
        mean = torch.add(norm.running_mean, conv.bias, alpha=share).to(norm.running_mean.dtype)
    y = conv._convolve(x, None)
    shift = norm.bias + 0.0 * conv.bias
    statistics = mean, norm.running_var
    y = F.batch_norm(y, *statistics, norm.weight, shift, training=True, momentum=norm.momentum, eps=norm.eps)
    with torch.no_grad():
        norm.running_mean.copy_(mean)
    return y


provide("models.conv_norm", conv_norm)
