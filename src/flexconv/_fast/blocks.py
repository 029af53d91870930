"""Fused forward passes of the networks in `flexconv.models`, swapped in while a fast engine runs a step.

The networks are ordinary modules: convolution, norm, ReLU, dropout, sum. Inside `fused_blocks(model)` their `forward`
is replaced by the functions of this file, which compute the same, with everything after a convolution in one compiled
region. Other modules, and those whose `forward` was set by the user, are left as they are.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, TypeGuard

import torch
import torch.nn.functional as F
from torch import nn

from .._hooks import hooks_of
from ..errors import ArgumentError
from ..models import CIFARResNet, FlexNet, FlexTCN
from ..models._norm import normalise
from ..models.flexnet import FlexNetBlock
from ..models.flextcn import FlexTCNBlock
from ..models.resnet import CIFARResNetBlock
from ..nn import POINTWISE_CONVS, FlexConv1d, FlexConv2d
from .batch_norm import batch_norm
from .dropout import draw, is_plain_dropout, keep
from .regions import Region, regions_are_compiled

Shortcut: TypeAlias = tuple[torch.Tensor, torch.Tensor | None]  # [batch, channels, …], and a bias still to be added


# --- the networks -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def fused_blocks(model: nn.Module) -> Iterator[None]:
    """Inside, the networks and blocks of `flexconv.models` in `model` use their fused forward passes."""
    swapped = []
    for module in model.modules():
        fused = FUSED.get(type(module))
        if fused is not None and "forward" not in vars(module):
            module.forward = functools.partial(fused, module)
            swapped.append(module)
    try:
        yield
    finally:
        for module in swapped:
            del module.forward


def _flexnet(net: FlexNet, x: torch.Tensor, *, observed: torch.Tensor | None = None) -> torch.Tensor:
    if observed is not None:
        return FlexNet.forward(net, x, observed=observed)
    net._check_input(x)
    _count_batch(net.blocks, net.stem_norm)
    x = conv_norm_relu(net.stem, net.stem_norm, net.dropout_in(x))
    for block in net.blocks:
        x = block(x)
    return net.head(x.mean((2, 3)))


def _flexnet_block(block: FlexNetBlock, x: torch.Tensor, where: torch.Tensor | None = None) -> torch.Tensor:
    if where is not None:
        return FlexNetBlock.forward(block, x, where)
    h = conv_norm_relu(block.conv1, block.norm1, x, dropout=block.dropout)
    return conv_norm_relu(block.conv2, block.norm2, h, before=without_bias(block.shortcut, x))


def _flextcn(
    net: FlexTCN, x: torch.Tensor, lengths: Any = None, *, observed: torch.Tensor | None = None
) -> torch.Tensor:
    if lengths is None and observed is None:
        _count_batch(net.blocks)
    return FlexTCN.forward(net, x, lengths, observed=observed)


def _flextcn_block(block: FlexTCNBlock, x: torch.Tensor, where: torch.Tensor | None = None) -> torch.Tensor:
    if where is not None and where.ndim > 1:  # a mask of positions, and not lengths
        return FlexTCNBlock.forward(block, x, where)
    h = conv_norm_relu(block.conv1, block.norm1, x, dropout=block.dropout, lengths=where)
    shortcut = without_bias(block.shortcut, x)
    return conv_norm_relu(block.conv2, block.norm2, h, dropout=block.dropout, after=shortcut, lengths=where)


def _resnet(net: CIFARResNet, x: torch.Tensor) -> torch.Tensor:
    net._check_input(x)
    _count_batch(net.blocks, net.stem_norm)
    x = conv_norm_relu(net.stem, net.stem_norm, x)
    for block in net.blocks:
        x = block(x)
    return net.head(x.mean((2, 3)))


def _resnet_block(block: CIFARResNetBlock, x: torch.Tensor) -> torch.Tensor:
    h = conv_norm_relu(block.conv1, block.norm1, x)
    return conv_norm_relu(block.conv2, block.norm2, h, before=(block.shortcut(x), None))


#: fused forward passes; `separable_blocks.py` adds its own
FUSED: dict[type[nn.Module], Callable[..., torch.Tensor]] = {
    FlexNet: _flexnet,
    FlexNetBlock: _flexnet_block,
    FlexTCN: _flextcn,
    FlexTCNBlock: _flextcn_block,
    CIFARResNet: _resnet,
    CIFARResNetBlock: _resnet_block,
}


# --- convolution, norm, shortcut, ReLU, dropout -----------------------------------------------------------------------


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

    Arguments that are not given are left out, and the outer ReLU with `after`. Inside `compiled_regions()` everything
    after the convolution is one region, which leaves the count of batches to `_count_batch`.
    """
    if dropout is not None and not is_plain_dropout(dropout):
        y = dropout(conv_norm_relu(conv, norm, x, before=before, lengths=lengths))
        return y if after is None else _add_relu(y, *after)
    if lengths is None and regions_are_compiled() and is_plain_batch_norm(norm):
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.momentum is not None
        y, bias = without_bias(conv, x)
        if y[:, 0].numel() <= 1:
            raise ArgumentError(f"batch norm needs more than one value per channel in training; got {list(y.shape)}")
        statistics = norm.running_mean, norm.running_var, norm.momentum, norm.eps
        return _norm_relu(y, bias, before, *draw(dropout, y), after, norm.weight, norm.bias, *statistics)
    y = normalise(norm, conv(x), lengths)
    y = F.relu(y) if before is None else _add_relu(y, *before)
    y = keep(y, *draw(dropout, y))
    return y if after is None else _add_relu(y, *after)


def without_bias(conv: nn.Module, x: torch.Tensor) -> Shortcut:
    """Return conv(x) and None; inside `compiled_regions()` the result without the bias, and the bias.

    A region computes the gradient of the bias together with others. A 1×1 convolution without bias is a matrix product.
    """
    if regions_are_compiled() and not hooks_of(conv):
        if type(conv) is FlexConv1d or type(conv) is FlexConv2d:
            return conv._convolve(x, None), conv.bias
        if is_pointwise(conv):
            weight = conv.weight.flatten(1).expand(len(x), -1, -1)  # torch.matmul would copy x
            return torch.bmm(weight, x.flatten(2)).unflatten(2, x.shape[2:]), conv.bias
    return conv(x), None


def _count_batch(blocks: Iterable[nn.Module], *norms: nn.Module) -> None:
    """Increase `num_batches_tracked` of the norms that `conv_norm_relu` runs as regions, in one operation.

    These are `norms`, and norm1 and norm2 of the blocks that are fused.
    """
    if regions_are_compiled():
        fused = [block for block in blocks if type(block) in FUSED and "forward" in vars(block)]
        children = (child for block in fused for child in block.named_children())
        everywhere = [*norms, *(child for name, child in children if name in ("norm1", "norm2"))]
        counts = [norm.num_batches_tracked for norm in everywhere if is_plain_batch_norm(norm)]
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

    Subtracting the mean removes the bias, so it is left out and only added to the running mean. Its gradient is exactly
    zero here; computed step by step it is rounding noise, which Adam turns into a random walk.
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


def is_plain_batch_norm(norm: nn.Module) -> TypeGuard[nn.BatchNorm1d | nn.BatchNorm2d]:
    """Whether this is torch's own batch norm with its usual settings, in training and without hooks."""
    if not (type(norm) is nn.BatchNorm1d or type(norm) is nn.BatchNorm2d) or hooks_of(norm):
        return False
    return norm.training and norm.affine and norm.track_running_stats and norm.momentum is not None


def is_pointwise(conv: nn.Module) -> TypeGuard[nn.Conv1d | nn.Conv2d]:
    """Whether this is a 1×1 convolution, torch's or ours, with one group and without stride or padding."""
    known = type(conv) in (nn.Conv1d, nn.Conv2d, POINTWISE_CONVS[1], POINTWISE_CONVS[2])
    if not known or not isinstance(conv, nn.Conv1d | nn.Conv2d) or isinstance(conv.padding, str):
        return False
    return math.prod((*conv.kernel_size, *conv.stride, conv.groups)) == 1 and not any(conv.padding)
