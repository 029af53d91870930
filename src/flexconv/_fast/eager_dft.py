"""A convolution by matrix products (`ops/_dft.py`), with its kernel, as one node of autograd.

This is the case of one matrix per transform, without groups of single channels. The products are those of the plain
version:

    X = F_x x,    B = F_w basis,    K = B · mixᵀ,    Y = X · K,    y = F_yᵀ Y + b

    ∂Y = F_y ∂y,   ∂X = ∂Y · K*ᵀ,   ∂K = ∂Yᵀ · X*,   ∂x = F_xᵀ ∂X,   ∂mix = ∂Kᵀ B,   ∂basis = F_wᵀ (∂K · mix)

A second derivative is computed by the plain version.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from ..ops import FactoredKernel, KernelBatch
from ..ops._complex_product import _complex_product
from ..ops._dft import _is_accurate, dft_conv
from ..ops._dft_cache import cached_matrices
from ..ops._dft_plan import SMALL_BATCH, Plan, cached_plan
from ..ops._dft_transform import _analyse, _synthesise
from ..ops._geometry import Geometry, output_sizes
from . import fused_sampler as fused
from .eager_kernel import Basis, Optional, Sampling, basis_gradients, plain_basis, sample_basis, without_autocast
from .triton_support import capturing


class DftProblem(NamedTuple):
    """A convolution of one shape: transforms, and sizes of the output."""

    plan: Plan
    geometry: Geometry
    outputs: tuple[int, ...]
    dtype: torch.dtype  # in which it is computed
    padded: int  # input channels of the kernel's spectrum, with those that are zero

    def matrices(self, device: torch.device) -> list[torch.Tensor]:
        """The matrices of input, kernel and output."""
        return [cached_matrices(spec, self.dtype, device)[0] for spec in self.plan]


def dft_problem(x: torch.Tensor, weight: FactoredKernel, geometry: Geometry, dtype: torch.dtype) -> DftProblem | None:
    """How `dft_conv` convolves inputs like x with kernels like `weight`. None if this module does not support it."""
    out, fan_in, *taps = weight.shape
    if any(amount < 0 for pads in geometry.pads for amount in pads) or (fan_in == 1 and out == geometry.groups):
        return None
    outputs = output_sizes(x.shape[2:], taps, geometry)
    left = tuple(left for left, _ in geometry.pads)
    small_batch = x.shape[0] * x.shape[1] <= SMALL_BATCH
    plan = cached_plan(
        tuple(x.shape[2:]), tuple(taps), outputs, left, geometry.stride, geometry.dilation, None,
        small_batch=small_batch,
    )  # fmt: skip
    if plan is None or plan.kind != "single" or not _is_accurate(plan, x, weight, dtype):
        return None
    padded = fan_in
    if dtype.itemsize == 2 and fan_in > 1 and out * fan_in % 8:
        padded += -fan_in % 8  # as in `kernel_spectrum`
    return DftProblem(plan, geometry, outputs, dtype, padded)


class DftConv(torch.autograd.Function):
    """The output of a layer. See `SampledKernel` for the last arguments. Autocast must be disabled."""

    @staticmethod
    def forward(
        ctx: Any,
        problem: DftProblem,
        matrices: list[torch.Tensor],
        sampling: Sampling,
        features: Optional,
        x: torch.Tensor,
        bias: Optional,
        weight: torch.Tensor,
        output_bias: torch.Tensor,
        *tensors: Optional,
    ) -> torch.Tensor:
        dtype, groups = problem.dtype, problem.geometry.groups
        x_matrix, kernel_matrix, y_matrix = matrices
        out, fan_in = sampling.shape[:2]
        batch, padded = x.shape[0], problem.padded
        differentiable = True in ctx.needs_input_grad
        basis = sample_basis(sampling, features, tensors, keep=differentiable)
        basis_spectra = torch.mm(kernel_matrix, _columns(basis.values.to(dtype), kernel_matrix.shape[1]))
        mix = torch.cat([weight, output_bias.unsqueeze(1)], 1).to(dtype)
        if padded != fan_in:
            mix = F.pad(mix.view(out, fan_in, -1), (0, 0, 0, padded - fan_in)).view(out * padded, -1)
        kernel = torch.mm(basis_spectra, mix.t()).view(2, -1, groups, out // groups, padded).mT
        spectra = _analyse(x.to(dtype), [x_matrix], "single").view(2, -1, batch, groups, fan_in).transpose(2, 3)
        y = _complex_product(spectra, kernel, False, out // groups, False).transpose(2, 3).reshape(2, -1, batch, out)
        y = _synthesise(y, [y_matrix], problem.outputs, "single")
        if bias is not None:
            y += bias.view(-1, *(1,) * (x.ndim - 2))  # in the precision of the bias, and then rounded
        if differentiable:
            ctx.problem, ctx.matrices, ctx.sampling, ctx.constant = problem, matrices, sampling, features is not None
            ctx.save_for_backward(x, bias, weight, output_bias, mix, spectra, kernel, basis_spectra, *basis, *tensors)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Optional, ...]:
        x, bias, weight, output_bias, mix, spectra, kernel, basis_spectra, *basis = ctx.saved_tensors
        basis, tensors = Basis(*basis[:3]), basis[3:]
        needed = ctx.needs_input_grad[4:]
        with without_autocast(weight):
            if torch.is_grad_enabled():  # for a second derivative
                features = basis.features if ctx.constant else None

                def plain(*given: Any) -> torch.Tensor:
                    return plain_conv(ctx.problem, ctx.sampling, features, *given)

                found = fused.plain_gradients(plain, (x, bias, weight, output_bias, *tensors), grads[0])
                return None, None, None, None, *found
            groups = ctx.problem.geometry.groups
            x_matrix, kernel_matrix, y_matrix = ctx.matrices
            (out, fan_in), batch = ctx.sampling.shape[:2], len(x)
            grad = grads[0]
            d_x = d_bias = d_weight = d_output_bias = None
            others: list[Optional] = [None] * len(tensors)
            if needed[1]:
                d_bias = grad.sum([0, *range(2, grad.ndim)]).to(bias.dtype)
            d_y = _analyse(grad, [y_matrix], "single").view(2, -1, batch, groups, out // groups).transpose(2, 3)
            if needed[0]:
                d_spectra = _complex_product(d_y, kernel.mT, True, fan_in, False)
                d_spectra = d_spectra.transpose(2, 3).reshape(2, -1, batch, groups * fan_in)
                d_x = _synthesise(d_spectra, [x_matrix], x.shape[2:], "single").to(x.dtype)
            if True in needed[2:]:
                d_kernel = _complex_product(d_y.mT, spectra, True, kernel.shape[-2], True)
                d_kernel = d_kernel.reshape(len(basis_spectra), -1)
                if needed[2] or needed[3]:
                    d_mix = torch.mm(d_kernel.t(), basis_spectra)
                    if len(d_mix) != len(weight):
                        d_mix = d_mix.view(out, -1, d_mix.shape[1])[:, :fan_in].reshape(len(weight), -1)
                    d_weight, d_output_bias = d_mix[:, :-1].to(weight.dtype), d_mix[:, -1].to(weight.dtype)
                if True in needed[4:]:
                    d_basis = torch.mm(d_kernel, mix)
                    d_basis = torch.mm(kernel_matrix[:, : len(basis.values)].t(), d_basis).to(torch.float32)
                    others = basis_gradients(ctx.sampling, basis, tensors, d_basis, needed[4:])
        return None, None, None, None, d_x, d_bias, d_weight, d_output_bias, *others


def _columns(signals: torch.Tensor, rows: int) -> torch.Tensor:
    """Signals [points, n] as `_compensated_product` of `ops/_dft_kernel.py` multiplies them: once, or twice padded."""
    points, number = signals.shape
    if rows == points:
        return signals
    if rows == 2 * points:
        return torch.cat([signals, signals])
    make = _zeros if capturing(signals.device) else _kept_zeros  # a CUDA graph must own what it reads
    zeros = make(rows // 2 - points, number, signals.dtype, signals.device)
    return torch.cat([signals, zeros, signals, zeros])


def _zeros(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    with torch.inference_mode(False):
        return torch.zeros(rows, columns, dtype=dtype, device=device)


_kept_zeros = functools.lru_cache(maxsize=64)(_zeros)


def plain_conv(
    problem: DftProblem,
    sampling: Sampling,
    features: Optional,
    x: torch.Tensor,
    bias: Optional,
    weight: torch.Tensor,
    output_bias: torch.Tensor,
    *tensors: Optional,
) -> torch.Tensor:
    """`DftConv` in operations that can be differentiated any number of times."""
    basis = plain_basis(sampling, features, tensors).view(*sampling.shape[2:], -1)
    mix = torch.cat([weight, output_bias.unsqueeze(1)], 1).view(*sampling.shape[:2], -1)
    batch = KernelBatch([lambda dtype: (basis.to(dtype), mix.to(dtype))], problem.dtype)
    bias = None if bias is None else bias.to(problem.dtype)
    return dft_conv(x.to(problem.dtype), FactoredKernel(batch), bias, problem.geometry)


dft_layer = super(torch.autograd.Function, DftConv).apply  # type: ignore[misc]  # as in `eager_kernel.py`
