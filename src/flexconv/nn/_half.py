"""Half precision: parameters that stay in float32, and float16 convolutions of kernels and inputs of any scale.

Generators and masks keep float32 parameters when a model is converted to half precision. They are small, and rounding
them would make another kernel: frequencies reach thousands of radians, and float16 resolves 4096 to 4.

bfloat16 has the range of float32. float16 ends at 65504, while a kernel can have any scale, because a norm behind the
convolution hides it. So float16 convolutions use taps and inputs of moderate size, and the scale follows in float32:

    y = ((x / u) ⋆ (ψ / s)) · u · s + b

u is a power of two for each sample, s one for each output channel, so both divisions are exact. No sum can overflow:
the inputs are at most 2², and the absolute taps of an output channel sum to at most 2⁶. The outputs are at most 2⁸, and
the spectra of `algorithm="dft"` at most 2⁸ · √N for N points.

The 1×1 convolutions of flexconv, `PointwiseConv1d` and so on, compute in float16 in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from .._context import autocast_enabled, exporting, no_autocast
from ..errors import PrecisionError
from ..ops import Pads, conv_nd
from ._extent import readable
from ._lengths import can_read_values

if TYPE_CHECKING:
    from ._conv import FlexConvNd
    from ._pointwise import PointwiseConvNd

Convert = Callable[[torch.Tensor], torch.Tensor]

HALF = (torch.float16, torch.bfloat16)
FLOAT16_MAX = torch.finfo(torch.float16).max
OVERFLOW = 65520.0  # the smallest number that is rounded to infinity in float16
LARGEST_INPUT = 2.0**2
LARGEST_TAP_SUM = 2.0**6


# --- parameters -------------------------------------------------------------------------------------------------------


def parameter_dtype(dtype: torch.dtype | None) -> torch.dtype | None:
    """The dtype of generator and mask in a layer of `dtype`: float32 instead of half precision."""
    return torch.float32 if dtype in HALF else dtype


def in_float32(convert: Convert) -> Convert:
    """A conversion as `nn.Module._apply` gets it, with float32 instead of half precision."""

    def converted(tensor: torch.Tensor) -> torch.Tensor:
        result = convert(tensor)
        if result.dtype in HALF and tensor.dtype not in HALF:
            return tensor.to(result.device, torch.float32)
        return result

    return converted


def converted_dtype(convert: Convert, dtype: torch.dtype) -> torch.dtype:
    """The dtype of a tensor of `dtype` after a conversion as `nn.Module._apply` gets it."""
    return convert(torch.empty(0, dtype=dtype)).dtype


def check_float16(name: str, tensor: torch.Tensor) -> None:
    """Raise if a tensor has values that become infinite in float16."""
    if tensor.is_floating_point() and tensor.dtype != torch.float16 and can_read_values(tensor):
        largest = tensor.detach().abs().max()
        if _overflows(largest):
            raise PrecisionError(
                f"{name} reaches {largest.item():.3g}, which float16 cannot represent (at most {FLOAT16_MAX:g}): use "
                f"bfloat16 or torch.autocast, or make the values smaller"
            )


# --- convolutions in float16 ------------------------------------------------------------------------------------------


class ScaledKernel(NamedTuple):
    """A kernel as taps [out_channels, in_channels/groups, *sizes] of moderate size times a scale [out_channels]."""

    taps: torch.Tensor
    scale: torch.Tensor


def computes_in_float16(x: torch.Tensor) -> bool:
    """Whether a convolution of x runs in float16, because of its dtype or of autocast."""
    device = x.device.type
    if autocast_enabled(device) and x.dtype != torch.float64:  # autocast does not apply to float64
        return torch.get_autocast_dtype(device) == torch.float16
    return x.dtype == torch.float16


def scale_kernel(kernel: torch.Tensor) -> ScaledKernel:
    """Split a kernel into taps for `float16_conv` and their scale."""
    kernel = kernel.float()
    scale = _power_of_two_above(kernel.detach().abs().flatten(1).sum(1)) / LARGEST_TAP_SUM
    taps = kernel / scale.view(-1, *[1] * (kernel.ndim - 1))
    return ScaledKernel(taps.to(_compute_dtype(kernel.device)), scale)


def float16_conv(
    layer: FlexConvNd | PointwiseConvNd,
    x: torch.Tensor,
    kernel: ScaledKernel,
    bias: torch.Tensor | None,
    pads: Pads,
) -> torch.Tensor:
    """Convolve x [batch, in_channels, *size] in float16.

    The result is float32 under autocast, because it may be too large for float16. Otherwise it has the dtype of the
    layer, float16, and an output that is too large raises a `PrecisionError`.
    """
    device = x.device.type
    autocast = autocast_enabled(device)
    geometry = layer.stride, pads, layer.dilation, layer.groups, layer.algorithm
    ones = [1] * layer.dims
    with no_autocast(device):
        unit = _power_of_two_above(x.detach().abs().flatten(1).amax(1).float()) / LARGEST_INPUT
        unit = unit.view(-1, 1, *ones)
        y = conv_nd(layer.dims, (x / unit).to(kernel.taps.dtype), kernel.taps, None, *geometry)
        y = y.float() * (unit * kernel.scale.view(-1, *ones))
        if bias is not None:
            y = y + bias.float().view(-1, *ones)
    return y if autocast else as_float16(y, layer)


def _compute_dtype(device: torch.device) -> torch.dtype:
    """float16, but float32 on a CPU, where torch's float16 convolutions are hundreds of times slower."""
    return torch.float32 if device.type == "cpu" else torch.float16


def _power_of_two_above(x: torch.Tensor) -> torch.Tensor:
    """The next larger power of two for each value; 1 for 0."""
    return torch.ldexp(torch.ones_like(x), torch.frexp(x).exponent)


def as_float16(y: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    """Convert an output of a layer, and check that it can be represented.

    On a GPU this waits for the output. If values cannot be read here, the check becomes part of the graph.
    """
    if y.numel() and not exporting():
        largest = y.detach().abs().amax()
        if can_read_values(largest):
            if _overflows(largest):
                name = f"{type(layer).__name__}({layer.extra_repr()})"
                raise PrecisionError(
                    f"{name} has outputs up to {largest.item():.3g}, which float16 cannot represent (at most "
                    f"{FLOAT16_MAX:g}): use bfloat16 or torch.autocast, or call flexconv.move_scale_to_norms(model) "
                    f"before .half() if a norm follows the layer"
                )
        elif torch.compiler.is_compiling() or readable(largest):  # readable, but not while a CUDA graph is captured
            torch._assert_async(~_overflows(largest), "a layer has outputs that float16 cannot represent")
    return y.half()


def _overflows(largest: torch.Tensor) -> torch.Tensor:
    """Whether a finite value becomes infinite in float16. A compiler may omit a conversion to float16 and back."""
    return largest.isfinite() & (largest >= OVERFLOW)
