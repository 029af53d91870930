"""Fast versions of `ops._toeplitz` and `ops._monarch`: depthwise convolutions on tensor cores.

The convolution y(x, w) is linear in both arguments, and so are its gradients: the one for x is a convolution with the
flipped kernel, the one for w a correlation of x and the gradient of y. The derivatives of each of the three are given
by the other two, so that all of them can be differentiated any number of times. Eager code uses them as
`autograd.Function`s, which take less time on the host; compiled code uses them as operators, one node each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._C._functorch import peek_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor

from .._context import autocast_enabled, exporting, no_autocast
from .._registry import provide
from ..ops._geometry import Geometry, Pads, output_sizes, skip_unread_samples
from . import monarch, toeplitz
from .triton_support import has_triton

Gradients = tuple[torch.Tensor | None, ...]

MIN_OUTPUTS = 64  # of Monarch transforms in half precision: errors of the transforms do not average over fewer outputs

#: modules with functions for the convolution and its gradients, by the name of the algorithm
MODULES = {"toeplitz": toeplitz, "monarch": monarch}


def toeplitz_conv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, geometry: Geometry) -> torch.Tensor:
    """See `ops._toeplitz`."""
    return _depthwise_conv(x, weight, bias, geometry, "toeplitz")


def monarch_conv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, geometry: Geometry) -> torch.Tensor:
    """See `ops._monarch`."""
    if x.ndim > 4 or (_dtype(x) == torch.float32 and not _has_large_shared_memory(x.device)):
        return NotImplemented
    if _dtype(x).itemsize == 2:
        outputs = output_sizes(x.shape[2:], weight.shape[2:], geometry)
        if math.prod(outputs) < MIN_OUTPUTS:
            return NotImplemented
    return _depthwise_conv(x, weight, bias, geometry, "monarch")


def _depthwise_conv(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, geometry: Geometry, algorithm: str
) -> torch.Tensor:
    if weight.shape[1] != 1 or not _supports(x, geometry):
        return NotImplemented
    used, pads = skip_unread_samples(x, geometry.pads)
    if min(map(min, pads)) < 0:  # more samples are skipped than there are
        return NotImplemented
    dtype = _dtype(x)
    with no_autocast(x.device.type):
        if used.shape[1] != weight.shape[0]:
            used = used.repeat_interleave(weight.shape[0] // used.shape[1], 1)
        used, kernel = used.to(dtype), weight.squeeze(1).to(dtype)
        bias = None if bias is None else bias.to(dtype)
        if torch.compiler.is_compiling():
            return torch.ops.flexconv.depthwise_conv(used, kernel, bias, _flat(pads), algorithm)
        return _Convolution.apply(used, kernel, bias, pads, algorithm)


def _dtype(x: torch.Tensor) -> torch.dtype:
    """The precision of a convolution of x."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if autocast_enabled(device) else x.dtype


def has_toeplitz_conv() -> bool:
    """See `ops._toeplitz`."""
    return has_triton()


def _supports(x: torch.Tensor, geometry: Geometry) -> bool:
    """Whether a depthwise convolution can be computed here. Otherwise it is left to torch."""
    if not supports_device(x.device) or set(geometry.stride) != {1} or set(geometry.dilation) != {1}:
        return False
    if x.dtype == torch.float64 or 0 in x.shape or exporting():
        return False
    return torch.compiler.is_compiling() or not (isinstance(x, FakeTensor) or peek_interpreter_stack() is not None)


def supports_device(device: torch.device) -> bool:
    """Whether the kernels run on this device: a GPU with tensor cores for bfloat16."""
    if device.type != "cuda" or not has_triton():
        return False
    if device not in _capabilities and not torch.compiler.is_compiling():  # which needs a device for it as well
        _capabilities[device] = torch.cuda.get_device_capability(device)
    return _capabilities.get(device, (8, 0)) >= (8, 0)


def _has_large_shared_memory(device: torch.device) -> bool:
    """Whether a program may use 224 KiB of shared memory, as Monarch transforms in float32 do."""
    return not supports_device(device) or _capabilities.get(device, (9, 0))[0] in (9, 10)


_capabilities: dict[torch.device, tuple[int, int]] = {}


# --- eager code -------------------------------------------------------------------------------------------------------

# pyright: reportIncompatibleMethodOverride=false


class _Convolution(torch.autograd.Function):
    """x [batch, channels, *size], weight [channels, *taps], bias [channels] → y [batch, channels, *outputs]."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, pads: Pads, algorithm: str
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.pads, ctx.algorithm = pads, algorithm
        return MODULES[algorithm].convolve(x, weight, bias, pads)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Gradients:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        bias = grad.sum((0, *range(2, grad.ndim))) if needs_bias else None
        if needs_x and needs_weight and not torch.is_grad_enabled():
            return *MODULES[ctx.algorithm].gradients(x, weight, grad, ctx.pads), bias, None, None
        rest = ctx.pads, ctx.algorithm
        of_x = _InputGradient.apply(grad, weight, x.shape[2:], *rest) if needs_x else None
        of_weight = _WeightGradient.apply(x, grad, weight.shape[1:], *rest) if needs_weight else None
        return of_x, of_weight, bias, None, None


class _InputGradient(torch.autograd.Function):
    """grad [batch, channels, *outputs], weight → the gradient of x [batch, channels, *size]."""

    @staticmethod
    def forward(
        ctx: Any, grad: torch.Tensor, weight: torch.Tensor, size: Sequence[int], pads: Pads, algorithm: str
    ) -> torch.Tensor:
        ctx.save_for_backward(grad, weight)
        ctx.rest = pads, algorithm
        return MODULES[algorithm].input_gradient(grad, weight, pads, size)

    @staticmethod
    def backward(ctx: Any, v: torch.Tensor) -> Gradients:
        grad, weight = ctx.saved_tensors
        of_grad = _Convolution.apply(v, weight, None, *ctx.rest) if ctx.needs_input_grad[0] else None
        of_weight = _WeightGradient.apply(v, grad, weight.shape[1:], *ctx.rest) if ctx.needs_input_grad[1] else None
        return of_grad, of_weight, None, None, None


class _WeightGradient(torch.autograd.Function):
    """x and the gradient of y → the gradient of weight [channels, *taps]."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, grad: torch.Tensor, taps: Sequence[int], pads: Pads, algorithm: str
    ) -> torch.Tensor:
        ctx.save_for_backward(x, grad)
        ctx.rest = pads, algorithm
        return MODULES[algorithm].weight_gradient(x, grad, pads, taps)

    @staticmethod
    def backward(ctx: Any, v: torch.Tensor) -> Gradients:
        x, grad = ctx.saved_tensors
        of_x = _InputGradient.apply(grad, v, x.shape[2:], *ctx.rest) if ctx.needs_input_grad[0] else None
        of_grad = _Convolution.apply(x, v, None, *ctx.rest) if ctx.needs_input_grad[1] else None
        return of_x, of_grad, None, None, None


# --- compiled code ----------------------------------------------------------------------------------------------------

LIBRARY = torch.library.Library("flexconv", "FRAGMENT")
LIBRARY.define("depthwise_conv(Tensor x, Tensor weight, Tensor? bias, int[] pads, str algorithm) -> Tensor")
LIBRARY.define(
    "depthwise_input_gradient(Tensor grad, Tensor weight, SymInt[] size, int[] pads, str algorithm) -> Tensor"
)
LIBRARY.define("depthwise_weight_gradient(Tensor x, Tensor grad, SymInt[] taps, int[] pads, str algorithm) -> Tensor")


def _flat(pads: Pads) -> list[int]:
    return [amount for pair in pads for amount in pair]


def _pairs(pads: Sequence[int]) -> Pads:
    return tuple(zip(pads[::2], pads[1::2], strict=True))


def _conv(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, pads: Sequence[int], algorithm: str
) -> torch.Tensor:
    return MODULES[algorithm].convolve(x, weight, bias, _pairs(pads))


def _input_gradient(
    grad: torch.Tensor, weight: torch.Tensor, size: Sequence[int], pads: Sequence[int], algorithm: str
) -> torch.Tensor:
    return MODULES[algorithm].input_gradient(grad, weight, _pairs(pads), tuple(size))


def _weight_gradient(
    x: torch.Tensor, grad: torch.Tensor, taps: Sequence[int], pads: Sequence[int], algorithm: str
) -> torch.Tensor:
    return MODULES[algorithm].weight_gradient(x, grad, _pairs(pads), tuple(taps))


def _fake_conv(
    x: torch.Tensor, weight: torch.Tensor, _: torch.Tensor | None, pads: Sequence[int], __: str
) -> torch.Tensor:
    return x.new_empty(*x.shape[:2], *toeplitz.output_size(x.shape[2:], weight.shape[1:], _pairs(pads)))


def _fake_input_gradient(
    grad: torch.Tensor, _: torch.Tensor, size: Sequence[int], __: Sequence[int], ___: str
) -> torch.Tensor:
    return grad.new_empty(*grad.shape[:2], *size)


def _fake_weight_gradient(
    x: torch.Tensor, _: torch.Tensor, taps: Sequence[int], __: Sequence[int], ___: str
) -> torch.Tensor:
    return x.new_empty(x.shape[1], *taps)


def _conv_backward(ctx: Any, grad: torch.Tensor) -> Gradients:
    x, weight = ctx.saved_tensors
    of_x = torch.ops.flexconv.depthwise_input_gradient(grad, weight, x.shape[2:], *ctx.rest)
    of_weight = torch.ops.flexconv.depthwise_weight_gradient(x, grad, weight.shape[1:], *ctx.rest)
    bias = grad.sum((0, *range(2, grad.ndim))) if ctx.needs_input_grad[2] else None
    return of_x, of_weight, bias, None, None


def _input_gradient_backward(ctx: Any, v: torch.Tensor) -> Gradients:
    grad, weight = ctx.saved_tensors
    of_grad = torch.ops.flexconv.depthwise_conv(v, weight, None, *ctx.rest)
    of_weight = torch.ops.flexconv.depthwise_weight_gradient(v, grad, weight.shape[1:], *ctx.rest)
    return of_grad, of_weight, None, None, None


def _weight_gradient_backward(ctx: Any, v: torch.Tensor) -> Gradients:
    x, grad = ctx.saved_tensors
    of_x = torch.ops.flexconv.depthwise_input_gradient(grad, v, x.shape[2:], *ctx.rest)
    of_grad = torch.ops.flexconv.depthwise_conv(x, v, None, *ctx.rest)
    return of_x, of_grad, None, None, None


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    first, second, _, *ctx.rest = inputs
    ctx.save_for_backward(first, second)


for _name, _function, _fake, _backward in (
    ("depthwise_conv", _conv, _fake_conv, _conv_backward),
    ("depthwise_input_gradient", _input_gradient, _fake_input_gradient, _input_gradient_backward),
    ("depthwise_weight_gradient", _weight_gradient, _fake_weight_gradient, _weight_gradient_backward),
):
    LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"flexconv::{_name}", _fake, lib=LIBRARY)
    torch.library.register_autograd(f"flexconv::{_name}", _backward, setup_context=_save, lib=LIBRARY)

provide("ops.toeplitz_conv", toeplitz_conv)
provide("ops.monarch_conv", monarch_conv)
provide("ops.has_toeplitz_conv", has_toeplitz_conv)
