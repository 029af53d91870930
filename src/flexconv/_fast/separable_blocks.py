"""Fused forward passes of SepFlexNet, swapped in by `fused_blocks` while a fast engine runs a step.

A plain block reads and writes its feature maps in about ten operations besides its convolutions. Here these are three
compiled regions: norm; bias, GELU and dropout; bias, activation and sum. 1×1 convolutions are matrix products, and the
bias of the depthwise convolution is added together with that of the 1×1 convolution that follows. A small kernel is
added to the large one, so that one convolution is enough. Blocks that were changed by the user, and those of sequences
with lengths or missing samples, run as they are.
"""

from __future__ import annotations

import functools
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import nn

from .._context import autocast_enabled, no_autocast
from .._hooks import hooks_of
from ..models import SepFlexNet
from ..models.sepflexnet import DropPath, SepFlexNetBlock
from ..nn import (
    FlexConv1d,
    FlexConv2d,
    FlexConvNd,
    SeparableFlexConv1d,
    SeparableFlexConv2d,
    SeparableFlexConvNd,
    computes_in_float16,
)
from ..ops import as_tensor, conv_nd
from .batch_norm import add_bias, batch_norm
from .blocks import FUSED, is_plain_batch_norm, is_pointwise, without_bias
from .regions import Region, regions_are_compiled


def _sepflexnet(
    net: SepFlexNet, x: torch.Tensor, lengths: torch.Tensor | None = None, *, observed: torch.Tensor | None = None
) -> torch.Tensor:
    whole = lengths is None and observed is None and not net.mask_channel
    norms = _can_be_fused(net.stem_norm, x) and _can_be_fused(net.norm, x)
    if not (whole and norms and net.readout == "mean" and _is_plain_separable(net.stem) and regions_are_compiled()):
        return SepFlexNet.forward(net, x, lengths, observed=observed)
    net._check_input(x)
    x = _normalise(net.stem_norm, *_separable(net.stem, net.dropout_in(x)), then="gelu")
    for block in net.blocks:
        x = block(x)
    return net.head(_normalise(net.norm, x, None, then="mean"))


def _block(
    block: SepFlexNetBlock, x: torch.Tensor, lengths: torch.Tensor | None = None, where: torch.Tensor | None = None
) -> torch.Tensor:
    whole = lengths is None and where is None and _can_be_fused(block.norm, x)
    if not (whole and _is_plain_block(block) and regions_are_compiled()):
        return SepFlexNetBlock.forward(block, x, lengths, where)
    h = _normalise(block.norm, x, None)
    h, bias = _separable(block.conv, h)
    h = _gelu(h, bias, _kept_channels(block.dropout, h))
    h, bias = without_bias(block.mix, h)
    return _activate_and_add(x, h, bias, block.drop_path.draw(x), gated=type(block.activation) is nn.GLU)


FUSED[SepFlexNet] = _sepflexnet
FUSED[SepFlexNetBlock] = _block


# --- convolutions -----------------------------------------------------------------------------------------------------


def _separable(conv: SeparableFlexConvNd, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A separable convolution without its biases, and the bias to add: A (y + b) + a = A y + (A b + a)."""
    y, second = without_bias(conv.pointwise, _depthwise(conv.depthwise, conv.small, x))
    first = conv.depthwise.bias
    assert first is not None
    assert second is not None
    with no_autocast(x.device.type):
        return y, torch.addmv(second, conv.pointwise.weight.flatten(1), first)


def _depthwise(large: FlexConvNd, small: FlexConvNd | None, x: torch.Tensor) -> torch.Tensor:
    """The sum of both depthwise convolutions without bias, by one convolution if the taps of `large` cover `small`."""
    if small is None:
        return large._convolve(x, None)
    around = _taps_around(small, large)
    if around is None:
        return large._convolve(x, None) + small._convolve(x, None)
    dtype = None if autocast_enabled(x.device.type) else x.dtype
    kernel, few = (as_tensor(each._provider.kernel(each, each.window, dtype)) for each in (large, small))
    pads = large.pads_for(large.window)
    settings = large.stride, pads, large.dilation, large.groups, large.algorithm
    return conv_nd(large.dims, x, kernel + F.pad(few, around), None, *settings)


def _taps_around(small: FlexConvNd, large: FlexConvNd) -> list[int] | None:
    """How many taps `large` has around those of `small`, in the order of `F.pad`. None if it does not cover them."""
    if large.padding_mode != "zeros":
        return None
    windows = zip(large.pads_for(large.window), small.pads_for(small.window), large.dilation, strict=True)
    more = [[(outer - inner) // step for outer, inner in zip(pads, few, strict=True)] for pads, few, step in windows]
    around = [taps for sides in reversed(more) for taps in sides]
    return None if min(around) < 0 else around


def _kept_channels(dropout: nn.Module, x: torch.Tensor) -> torch.Tensor | None:
    """Factors [batch, channels, 1…] of channel dropout, 0 or 1/(1 − p), or None if nothing is dropped."""
    if not dropout.training or dropout.p == 0:
        return None
    return dropout(x.new_ones(*x.shape[:2], *[1] * (x.ndim - 2)))


# --- regions ----------------------------------------------------------------------------------------------------------


def _normalise(norm: nn.Module, x: torch.Tensor, bias: torch.Tensor | None, then: str = "nothing") -> torch.Tensor:
    """Batch norm of x + bias in training, and `then` GELU, or the mean over positions."""
    assert isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d)
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    return _norm(x, bias, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.momentum, norm.eps, then)


@functools.partial(Region, dynamic=False, recompute=True)
def _norm(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    scale: torch.Tensor,
    shift: torch.Tensor,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
    then: str,
) -> torch.Tensor:
    """See `_normalise`. Subtracting the mean removes the bias, so it is only added to the running mean."""
    if bias is not None:
        shift = shift + 0.0 * bias
    y, mean, variance = batch_norm(x, scale, shift, eps)
    number = x[:, 0].numel()
    with torch.no_grad():
        running_mean.lerp_((mean if bias is None else mean + bias).to(running_mean.dtype), momentum)
        running_var.lerp_((variance * (number / (number - 1))).to(running_var.dtype), momentum)
    if then == "mean":
        return y.flatten(2).mean(2)
    return F.gelu(y) if then == "gelu" else y


@functools.partial(Region, dynamic=False, recompute=True)
def _gelu(x: torch.Tensor, bias: torch.Tensor, kept: torch.Tensor | None) -> torch.Tensor:
    """GELU(x + bias) · kept for x [batch, channels, …], a bias [channels] and factors [batch, channels, 1…]."""
    y = F.gelu(add_bias(x, bias))
    return (y if kept is None else y * kept).to(x.dtype)


@functools.partial(Region, dynamic=False, recompute=True)
def _activate_and_add(
    x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, kept: torch.Tensor | None, *, gated: bool
) -> torch.Tensor:
    """x + kept · activation(y + bias), with a gated linear unit or a GELU, and factors [batch, 1, 1…] of samples."""
    y = add_bias(y, bias)
    y = F.glu(y, 1) if gated else F.gelu(y)
    return (x + (y if kept is None else y * kept)).to(x.dtype)


# --- what can be fused ------------------------------------------------------------------------------------------------


def _can_be_fused(norm: nn.Module, x: torch.Tensor) -> bool:
    """Whether this is torch's own batch norm, in training, and x has enough values for it.

    In float16, 1×1 convolutions are more than matrix products, and sums stay in float32; see `models/_half.py`.
    """
    return is_plain_batch_norm(norm) and x[:, 0].numel() > 1 and not computes_in_float16(x)


def _is_plain_separable(conv: nn.Module) -> TypeGuard[SeparableFlexConvNd]:
    if type(conv) is not SeparableFlexConv1d and type(conv) is not SeparableFlexConv2d:
        return False
    depthwise = [conv.depthwise, *([] if conv.small is None else [conv.small])]
    known = all(type(part) is FlexConv1d or type(part) is FlexConv2d for part in depthwise)
    biases = conv.depthwise.bias is not None and conv.pointwise.bias is not None
    plain = not any(hooks_of(module) for module in (conv, *depthwise, conv.pointwise))
    return known and biases and plain and is_pointwise(conv.pointwise)


def _is_plain_block(block: SepFlexNetBlock) -> bool:
    """Whether a block consists of the modules that it was made of, without hooks."""
    dropout, activation, mix = block.dropout, block.activation, block.mix
    known = (
        _is_plain_separable(block.conv)
        and (type(dropout) is nn.Dropout1d or type(dropout) is nn.Dropout2d)
        and (type(activation) is nn.GLU or (type(activation) is nn.GELU and activation.approximate == "none"))
        and type(block.drop_path) is DropPath
        and is_pointwise(mix)
        and mix.bias is not None
    )
    return known and not any(hooks_of(module) for module in (dropout, activation, mix, block.drop_path))
