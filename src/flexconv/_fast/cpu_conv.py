"""Direct 2D convolutions on a CPU with the channels last in memory, where oneDNN is faster that way.

`channels_last_is_faster` says for which shapes. They are copied into this layout and back.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingImports]  (no public way to ask)
from torch.autograd import forward_ad

from .._context import autocast_enabled
from .._registry import provide
from ..ops._cost_model import channels_last_is_faster


def convolve(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> torch.Tensor:
    """See `ops._direct`. NotImplemented for shapes that are not faster this way, in transforms and in compiled code."""
    if torch.compiler.is_compiling() or peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return NotImplemented
    if x.device.type != "cpu" or groups > 1 or any(step > 1 for step in (*stride, *dilation)):
        return NotImplemented
    if not channels_last_is_faster(x.shape, weight.shape) or not x.is_contiguous() or autocast_enabled("cpu"):
        return NotImplemented
    if x.dtype != torch.float32 or weight.dtype != torch.float32:
        return NotImplemented
    y = F.conv2d(_ChannelsLast.apply(x), _ChannelsLast.apply(weight), bias, 1, padding)
    return y.contiguous()


class _ChannelsLast(torch.autograd.Function):
    """Another layout in memory. Unlike that of torch, the gradient has the layout that the input had."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return tensor.contiguous(memory_format=torch.channels_last)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return grads[0].contiguous()


provide("ops.convolve", convolve)
