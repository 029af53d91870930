"""1×1 convolutions that work in float16 for inputs and weights of any scale, as FlexConvs do; see `_half.py`.

They are `torch.nn.Conv1d/2d/3d` in every other respect. In a residual network their outputs add up without a norm in
between, so that they may be much larger than float16 can represent.
"""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import nn

from .._context import autocast_enabled, exporting, no_autocast
from ._half import (
    Convert,
    as_float16,
    check_float16,
    computes_in_float16,
    converted_dtype,
    float16_conv,
    scale_kernel,
)


class PointwiseConvNd(nn.modules.conv._ConvNd):
    """Base class of the 1×1 convolutions.

    Under float16 autocast the result is float32. Otherwise it is float16 if the input is, and an output that is too
    large raises a `PrecisionError`.
    """

    dims: ClassVar[int]
    algorithm = "direct"

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        autocast = autocast_enabled(input.device.type)
        fits = (autocast or input.dtype == self.weight.dtype) and 0 not in input.shape[1:]  # or else torch raises
        if not computes_in_float16(input) or not fits:
            return super().forward(input)  # type: ignore[misc]  (of nn.Conv1d, nn.Conv2d or nn.Conv3d)
        if input.ndim == self.dims + 1:
            return self.forward(input.unsqueeze(0)).squeeze(0)
        if not exporting():
            return float16_conv(self, input, scale_kernel(self.weight), self.bias, ((0, 0),) * self.dims)
        with no_autocast(input.device.type):  # ONNX has no operator for powers of two
            bias = None if self.bias is None else self.bias.float()
            y = self._conv_forward(input.float(), self.weight.float(), bias)  # type: ignore[operator]
        return y if autocast else as_float16(y, self)

    def _apply(self, fn: Convert, recurse: bool = True) -> Self:
        if converted_dtype(fn, torch.float32) == torch.float16:
            for name, parameter in self.named_parameters(recurse=False):
                check_float16(f"the {name} of {type(self).__name__}({self.extra_repr()})", parameter)
        return super()._apply(fn, recurse)


class PointwiseConv1d(PointwiseConvNd, nn.Conv1d):
    dims = 1


class PointwiseConv2d(PointwiseConvNd, nn.Conv2d):
    dims = 2


class PointwiseConv3d(PointwiseConvNd, nn.Conv3d):
    dims = 3


POINTWISE_CONVS = {1: PointwiseConv1d, 2: PointwiseConv2d, 3: PointwiseConv3d}
