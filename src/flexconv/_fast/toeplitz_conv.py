"""Fast version of `ops._toeplitz`: depthwise convolutions on tensor cores.

The convolution y(x, w) is linear in both arguments, and so are its gradients: the one for x is a convolution with the
flipped kernel, the one for w a correlation of x and the gradient of y. The derivatives of each of the three are given
by the other two, so that all of them can be differentiated any number of times. Eager code uses them as
`autograd.Function`s, which take less time on the host; compiled code uses them as operators, one node each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C._functorch import peek_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor

from .._context import autocast_enabled, exporting, no_autocast
from .._registry import provide
from ..ops._geometry import Geometry, Pads, skip_unread_samples
from . import toeplitz
from .triton_support import has_triton

Gradients = tuple[torch.Tensor | None, ...]


def toeplitz_conv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, geometry: Geometry) -> torch.Tensor:
    """See `ops._toeplitz`."""
    if weight.shape[1] != 1 or not _supports(x, geometry):
        return NotImplemented
    used, pads = skip_unread_samples(x, geometry.pads)
    if min(map(min, pads)) < 0:  # more samples are skipped than there are
        return NotImplemented
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if autocast_enabled(device) else x.dtype
    with no_autocast(device):
        if used.shape[1] != weight.shape[0]:
            used = used.repeat_interleave(weight.shape[0] // used.shape[1], 1)
        used, kernel = used.to(dtype), weight.squeeze(1).to(dtype)
        bias = None if bias is None else bias.to(dtype)
        if torch.compiler.is_compiling():
            return torch.ops.flexconv.depthwise_conv(used, kernel, bias, _flat(pads))
        return _Convolution.apply(used, kernel, bias, pads)


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


_capabilities: dict[torch.device, tuple[int, int]] = {}


# --- eager code -------------------------------------------------------------------------------------------------------

# pyright: reportIncompatibleMethodOverride=false


class _Convolution(torch.autograd.Function):
    """x [batch, channels, *size], weight [channels, *taps], bias [channels] → y [batch, channels, *outputs]."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, pads: Pads) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.pads = pads
        return toeplitz.convolve(x, weight, bias, pads)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Gradients:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        bias = grad.sum((0, *range(2, grad.ndim))) if needs_bias else None
        if torch.is_grad_enabled():
            of_x = _InputGradient.apply(grad, weight, ctx.pads, x.shape[2:]) if needs_x else None
            of_weight = _WeightGradient.apply(x, grad, ctx.pads, weight.shape[1:]) if needs_weight else None
            return of_x, of_weight, bias, None
        blocks = toeplitz.gradient_blocks(grad, x.shape[2:], weight.shape[1:], ctx.pads)
        of_x = toeplitz.input_gradient(grad, weight, ctx.pads, x.shape[2:], blocks) if needs_x else None
        of_weight = toeplitz.weight_gradient(x, grad, ctx.pads, weight.shape[1:], blocks) if needs_weight else None
        return of_x, of_weight, bias, None


class _InputGradient(torch.autograd.Function):
    """grad [batch, channels, *outputs], weight → the gradient of x [batch, channels, *size]."""

    @staticmethod
    def forward(ctx: Any, grad: torch.Tensor, weight: torch.Tensor, pads: Pads, size: Sequence[int]) -> torch.Tensor:
        ctx.save_for_backward(grad, weight)
        ctx.pads = pads
        return toeplitz.input_gradient(grad, weight, pads, size)

    @staticmethod
    def backward(ctx: Any, v: torch.Tensor) -> Gradients:
        grad, weight = ctx.saved_tensors
        of_grad = _Convolution.apply(v, weight, None, ctx.pads) if ctx.needs_input_grad[0] else None
        of_weight = _WeightGradient.apply(v, grad, ctx.pads, weight.shape[1:]) if ctx.needs_input_grad[1] else None
        return of_grad, of_weight, None, None


class _WeightGradient(torch.autograd.Function):
    """x and the gradient of y → the gradient of weight [channels, *taps]."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, grad: torch.Tensor, pads: Pads, taps: Sequence[int]) -> torch.Tensor:
        ctx.save_for_backward(x, grad)
        ctx.pads = pads
        return toeplitz.weight_gradient(x, grad, pads, taps)

    @staticmethod
    def backward(ctx: Any, v: torch.Tensor) -> Gradients:
        x, grad = ctx.saved_tensors
        of_x = _InputGradient.apply(grad, v, ctx.pads, x.shape[2:]) if ctx.needs_input_grad[0] else None
        of_grad = _Convolution.apply(x, v, None, ctx.pads) if ctx.needs_input_grad[1] else None
        return of_x, of_grad, None, None


# --- compiled code ----------------------------------------------------------------------------------------------------

LIBRARY = torch.library.Library("flexconv", "FRAGMENT")
LIBRARY.define("depthwise_conv(Tensor x, Tensor weight, Tensor? bias, int[] pads) -> Tensor")
LIBRARY.define("depthwise_input_gradient(Tensor grad, Tensor weight, int[] pads, SymInt[] size) -> Tensor")
LIBRARY.define("depthwise_weight_gradient(Tensor x, Tensor grad, int[] pads, SymInt[] taps) -> Tensor")


def _flat(pads: Pads) -> list[int]:
    return [amount for pair in pads for amount in pair]


def _pairs(pads: Sequence[int]) -> Pads:
    return tuple(zip(pads[::2], pads[1::2], strict=True))


def _conv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, pads: Sequence[int]) -> torch.Tensor:
    return toeplitz.convolve(x, weight, bias, _pairs(pads))


def _input_gradient(grad: torch.Tensor, weight: torch.Tensor, pads: Sequence[int], size: Sequence[int]) -> torch.Tensor:
    return toeplitz.input_gradient(grad, weight, _pairs(pads), tuple(size))


def _weight_gradient(x: torch.Tensor, grad: torch.Tensor, pads: Sequence[int], taps: Sequence[int]) -> torch.Tensor:
    return toeplitz.weight_gradient(x, grad, _pairs(pads), tuple(taps))


def _fake_conv(x: torch.Tensor, weight: torch.Tensor, _: torch.Tensor | None, pads: Sequence[int]) -> torch.Tensor:
    return x.new_empty(*x.shape[:2], *toeplitz.output_size(x.shape[2:], weight.shape[1:], _pairs(pads)))


def _fake_input_gradient(grad: torch.Tensor, _: torch.Tensor, __: Sequence[int], size: Sequence[int]) -> torch.Tensor:
    return grad.new_empty(*grad.shape[:2], *size)


def _fake_weight_gradient(x: torch.Tensor, _: torch.Tensor, __: Sequence[int], taps: Sequence[int]) -> torch.Tensor:
    return x.new_empty(x.shape[1], *taps)


def _conv_backward(ctx: Any, grad: torch.Tensor) -> Gradients:
    x, weight = ctx.saved_tensors
    of_x = torch.ops.flexconv.depthwise_input_gradient(grad, weight, ctx.pads, x.shape[2:])
    of_weight = torch.ops.flexconv.depthwise_weight_gradient(x, grad, ctx.pads, weight.shape[1:])
    bias = grad.sum((0, *range(2, grad.ndim))) if ctx.needs_input_grad[2] else None
    return of_x, of_weight, bias, None


def _input_gradient_backward(ctx: Any, v: torch.Tensor) -> Gradients:
    grad, weight = ctx.saved_tensors
    of_grad = torch.ops.flexconv.depthwise_conv(v, weight, None, ctx.pads)
    of_weight = torch.ops.flexconv.depthwise_weight_gradient(v, grad, ctx.pads, weight.shape[1:])
    return of_grad, of_weight, None, None


def _weight_gradient_backward(ctx: Any, v: torch.Tensor) -> Gradients:
    x, grad = ctx.saved_tensors
    of_x = torch.ops.flexconv.depthwise_input_gradient(grad, v, ctx.pads, x.shape[2:])
    of_grad = torch.ops.flexconv.depthwise_conv(x, v, None, ctx.pads)
    return of_x, of_grad, None, None


def _save_conv(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    x, weight, _, ctx.pads = inputs
    ctx.save_for_backward(x, weight)


def _save_gradient(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    first, second, ctx.pads, _ = inputs
    ctx.save_for_backward(first, second)


for _name, _function, _fake, _backward, _setup in (
    ("depthwise_conv", _conv, _fake_conv, _conv_backward, _save_conv),
    ("depthwise_input_gradient", _input_gradient, _fake_input_gradient, _input_gradient_backward, _save_gradient),
    ("depthwise_weight_gradient", _weight_gradient, _fake_weight_gradient, _weight_gradient_backward, _save_gradient),
):
    LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"flexconv::{_name}", _fake, lib=LIBRARY)
    torch.library.register_autograd(f"flexconv::{_name}", _backward, setup_context=_setup, lib=LIBRARY)

provide("ops.toeplitz_conv", toeplitz_conv)
provide("ops.has_toeplitz_conv", has_toeplitz_conv)
