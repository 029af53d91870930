"""Convolution by discrete Fourier transforms that are matrix products, y = F⁻¹(F(x) · conj F(w)).

A transform of up to a few thousand points is one product with a fixed real matrix, which suits tensor cores and half
precision. Only the requested outputs are computed, with the shortest circular length for which they are exact. Images
and volumes that are too large for one matrix are transformed one axis at a time, long sequences in the two levels of
Cooley and Tukey. The computation uses the dtype of the input or of autocast; float32 products use TF32 if torch is
configured to.
"""

from __future__ import annotations

import math
from operator import index

import torch
from torch._C._functorch import peek_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor

from .._context import autocast_enabled, exporting, no_autocast
from ._complex_product import complex_product
from ._dft_cache import cached_matrices, constant_matrices
from ._dft_kernel import kernel_spectrum
from ._dft_matrices import TransformSpec, matrix_shapes
from ._dft_plan import (
    FEW_NUMBERS,
    MAX_ERROR_SPREAD,
    MAX_ERROR_SPREAD_FULL,
    SMALL_BATCH,
    Plan,
    cached_plan,
    error_spread,
    make_plan,
    reached_outputs,
)
from ._dft_transform import analyse, synthesise
from ._direct import direct_conv
from ._factored import FactoredKernel, as_tensor
from ._fft import fft_conv
from ._geometry import Geometry, output_sizes, skip_unread_samples


def dft_conv(
    x: torch.Tensor,
    weight: torch.Tensor | FactoredKernel,
    bias: torch.Tensor | None,
    geometry: Geometry,
    *,
    kind: str | None = None,
) -> torch.Tensor:
    """x [batch, in, *size], weight [out, in/groups, *taps] → [batch, out, *size'], differentiable any number of times.

    `kind` overrides how the transforms are computed: "single", "separable" or "two-level" (sequences only). Very long
    sequences and function transforms (`torch.func`) use the FFT, and so do shapes for which half precision would be
    less accurate than usual. Exported graphs contain a plain convolution.
    """
    used, pads = skip_unread_samples(x, geometry.pads)
    if exporting() or 0 in used.shape:
        return direct_conv(x, as_tensor(weight), bias, geometry)
    outputs = output_sizes(x.shape[2:], weight.shape[2:], geometry)
    device = x.device.type
    lowered = autocast_enabled(device) and x.dtype != torch.float64
    dtype = torch.get_autocast_dtype(device) if lowered else x.dtype
    plan = None
    if not _in_function_transform():
        left_padding = [left for left, _ in pads]
        # Every size has its own matrices and needs its own compiled graph, so index() turns symbols into integers.
        numbers = used.shape[2:], weight.shape[2:], outputs, left_padding, geometry.stride, geometry.dilation
        size, taps, out_sizes, left_padding, stride, dilation = (tuple(index(n) for n in each) for each in numbers)
        small_batch = bool(used.shape[0] * used.shape[1] <= SMALL_BATCH)  # one graph serves many batch sizes
        plan_for = make_plan if torch.compiler.is_compiling() else cached_plan
        plan = plan_for(size, taps, out_sizes, left_padding, stride, dilation, kind, small_batch=small_batch)
        if kind is None and plan is not None and not _is_accurate(plan, used, weight, dtype):
            plan = None
    if plan is None:
        return fft_conv(x, weight, bias, geometry)
    with no_autocast(device):
        kernel_dtype = dtype if _half_precision_suffices(plan, weight) else torch.promote_types(dtype, torch.float32)
        y = _dft_conv(used.to(dtype), weight.to(kernel_dtype), outputs, geometry.groups, plan)
        return y if bias is None else y + bias.to(dtype).reshape(-1, *(1,) * (x.ndim - 2))


def _dft_conv(
    x: torch.Tensor, weight: torch.Tensor | FactoredKernel, outputs: tuple[int, ...], groups: int, plan: Plan
) -> torch.Tensor:
    """Multiply the spectra of x and the kernel, sum over input channels, and transform back."""
    batch, (out, fan_in) = x.shape[0], weight.shape[:2]
    spectra = analyse(x, _matrices(plan.x, x, x.dtype), plan.kind)
    kernel = kernel_spectrum(weight, plan.weight, _matrices(plan.weight, x, weight.dtype), x.dtype)
    if fan_in == 1 and out == groups:
        y = _depthwise_product(spectra, kernel.transpose(2, 3))
    else:
        spectra = spectra.view(2, -1, batch, groups, fan_in).transpose(2, 3)
        kernel = kernel.unflatten(2, (groups, out // groups)).mT
        y = complex_product(spectra, kernel, False, out // groups, False).transpose(2, 3).reshape(2, -1, batch, out)
    return synthesise(y, _matrices(plan.y, x, x.dtype), list(outputs), plan.kind)


def _depthwise_product(spectra: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """Return the elementwise complex product. There are no channels to sum over."""
    real = spectra[0] * kernel[0] - spectra[1] * kernel[1]
    return torch.stack([real, spectra[0] * kernel[1] + spectra[1] * kernel[0]])


def _half_precision_suffices(plan: Plan, weight: torch.Tensor | FactoredKernel) -> bool:
    """Whether the kernel may be transformed in half precision, because its matrices include their rounding errors.

    Otherwise it is transformed in float32, because every one of several products would round it. This includes long
    sequences with a kernel that is not factored, for which bfloat16 has errors above 0.6 %.
    """
    return plan.kind == "single" or (plan.kind == "two-level" and isinstance(weight, FactoredKernel))


def _is_accurate(plan: Plan, x: torch.Tensor, weight: torch.Tensor | FactoredKernel, dtype: torch.dtype) -> bool:
    """Whether the error is at most twice that of a direct convolution in half precision, and at most 3e-6 in float32.

    In half precision it is usually 1.5 to 1.8 times as large, because spectra are rounded as well as signals. The error
    of a spectrum spreads over all outputs, also those that only padding reaches, while they have little energy
    themselves if few taps meet samples. With few numbers, errors do not average out.
    """
    if dtype.itemsize > 2:
        mostly_padding = math.prod(plan.x.lengths) > 4 * math.prod([each.number for each in plan.x.positions])
        return not mostly_padding or _spread(plan) <= MAX_ERROR_SPREAD_FULL
    few = x.numel() < FEW_NUMBERS or weight.shape.numel() < FEW_NUMBERS
    if few or x.shape[0] * weight.shape[0] * reached_outputs(plan) < FEW_NUMBERS:
        return False
    return _spread(plan) <= MAX_ERROR_SPREAD


def _spread(plan: Plan) -> float:
    axes = zip(plan.x.positions, plan.weight.positions, plan.y.positions, strict=True)
    positions = tuple(tuple((each.number, each.start, each.step) for each in axis) for axis in axes)
    return error_spread(plan.x.lengths, positions)  # type: ignore[arg-type]


def _matrices(spec: TransformSpec, like: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return the matrices of a transform on the device of a tensor, or empty ones if the tensor has no data."""
    if torch.compiler.is_compiling():
        positions = tuple((each.number, each.start, each.step) for each in spec.positions)
        return constant_matrices(spec.kind, spec.lengths, positions, spec.kernel, dtype, like.device)
    if like.is_meta or isinstance(like, FakeTensor):
        return [like.new_empty(shape, dtype=dtype) for shape in matrix_shapes(spec)]
    return cached_matrices(spec, dtype, like.device)


def _in_function_transform() -> bool:
    """Whether a transform of `torch.func` (vmap, grad, jvp) is active."""
    return not torch.compiler.is_compiling() and peek_interpreter_stack() is not None
