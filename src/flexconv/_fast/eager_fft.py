"""A convolution by the FFT (`ops/_fft.py`), with its kernel, as one node of autograd.

This is the case without stride, dilation and groups of single channels. With spectra X, B of the basis and G of ∂y:

    W = mix · B,   y = F⁻¹(X · conj W) + b,   ∂x = F⁻¹(G · W),   D = X · conj G
    ∂basis = F⁻¹(mixᵀ · D),   ∂mix = Re(D · conj B) / N,  summed over all frequencies

Real signals have symmetric spectra, of which one half is stored. So a sum over all frequencies counts most of the
stored ones twice. A second derivative is computed by the plain version.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from .._matmul import matmul
from ..ops import FactoredKernel, KernelBatch
from ..ops._fft import circular_lengths, fft_conv
from ..ops._geometry import Geometry, output_sizes
from . import fused_sampler as fused
from .eager_kernel import Basis, Optional, Sampling, basis_gradients, plain_basis, sample_basis, without_autocast
from .triton_support import capturing


class FftProblem(NamedTuple):
    """A convolution of one shape: circular lengths, padding of the input, and sizes of the output."""

    geometry: Geometry
    lengths: tuple[int, ...]
    added: list[int]  # as for `F.pad`
    outputs: tuple[int, ...]
    dtype: torch.dtype  # of the output


def fft_problem(x: torch.Tensor, weight: FactoredKernel, geometry: Geometry, dtype: torch.dtype) -> FftProblem | None:
    """How `fft_conv` convolves inputs like x with kernels like `weight`. None if this module does not support it."""
    steps = *geometry.stride, *geometry.dilation
    if any(step > 1 for step in steps) or weight.shape[1] == 1 or any(min(pads) < 0 for pads in geometry.pads):
        return None
    size, taps = tuple(x.shape[2:]), tuple(weight.shape[2:])
    lengths = circular_lengths(size, taps, geometry.pads, geometry.dilation)
    amounts = [(left, length - left - n) for (left, _), length, n in zip(geometry.pads, lengths, size, strict=True)]
    added = [amount for pair in reversed(amounts) for amount in pair]
    return FftProblem(geometry, lengths, added, output_sizes(size, taps, geometry), dtype)


class FftConv(torch.autograd.Function):
    """The output of a layer. See `SampledKernel` for the last arguments. Autocast must be disabled."""

    @staticmethod
    def forward(
        ctx: Any,
        problem: FftProblem,
        sampling: Sampling,
        features: Optional,
        x: torch.Tensor,
        bias: Optional,
        weight: torch.Tensor,
        output_bias: torch.Tensor,
        *tensors: Optional,
    ) -> torch.Tensor:
        groups, lengths = problem.geometry.groups, problem.lengths
        (out, fan_in, *taps), batch = sampling.shape, x.shape[0]
        differentiable = True in ctx.needs_input_grad
        basis = sample_basis(sampling, features, tensors, keep=differentiable)
        basis_spectra = torch.fft.rfftn(basis.values.t().view(-1, *taps), lengths, _axes(lengths, 1)).flatten(1)
        mix = torch.cat([weight, output_bias.unsqueeze(1)], 1)
        parts = [matmul(part.t(), mix.t()) for part in (basis_spectra.real, basis_spectra.imag)]
        kernel = torch.complex(*parts).view(-1, groups, out // groups, fan_in).transpose(0, 1).flatten(0, 1)
        padded = F.pad(x.to(torch.float32), problem.added)
        spectra = _by_frequency(torch.fft.rfftn(padded, None, _axes(lengths, 2)), groups)
        y = _signals(torch.bmm(spectra, kernel.mH), groups, batch, lengths)
        y = y[(..., *(slice(size) for size in problem.outputs))]
        # neither operation shares memory with the padded output
        y = y.contiguous() if bias is None else y + bias.to(torch.float32).view(-1, *(1,) * len(lengths))
        if differentiable:
            ctx.problem, ctx.sampling, ctx.constant = problem, sampling, features is not None
            ctx.save_for_backward(x, bias, weight, output_bias, mix, spectra, kernel, basis_spectra, *basis, *tensors)
        return y.to(problem.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Optional, ...]:
        x, bias, weight, output_bias, mix, spectra, kernel, basis_spectra, *basis = ctx.saved_tensors
        basis, tensors = Basis(*basis[:3]), basis[3:]
        problem, sampling, needed = ctx.problem, ctx.sampling, ctx.needs_input_grad[3:]
        with without_autocast(weight):
            if torch.is_grad_enabled():  # for a second derivative
                features = basis.features if ctx.constant else None

                def plain(*given: Any) -> torch.Tensor:
                    return plain_conv(problem, sampling, features, *given)

                return (
                    None,
                    None,
                    None,
                    *fused.plain_gradients(plain, (x, bias, weight, output_bias, *tensors), grads[0]),
                )
            groups, lengths = problem.geometry.groups, problem.lengths
            out, fan_in, *taps = sampling.shape
            grad = grads[0].to(torch.float32)
            d_x = d_bias = d_weight = d_output_bias = None
            others: list[Optional] = [None] * len(tensors)
            if needed[1]:
                d_bias = grad.sum([0, *range(2, grad.ndim)]).to(bias.dtype)
            d_y = _by_frequency(torch.fft.rfftn(grad, lengths, _axes(lengths, 2)), groups)
            if needed[0]:
                d_padded = _signals(torch.bmm(d_y, kernel), groups, len(x), lengths)
                starts = [left for left, _ in problem.geometry.pads]
                inside = (slice(start, start + n) for start, n in zip(starts, x.shape[2:], strict=True))
                d_x = d_padded[(..., *inside)].to(x.dtype).contiguous()
            if True in needed[2:]:
                d_kernel = torch.bmm(d_y.mH, spectra).view(groups, -1, out // groups * fan_in)
                d_kernel = d_kernel.transpose(0, 1).reshape(-1, len(weight))  # [frequencies, channels]
                real, imaginary = d_kernel.real, d_kernel.imag
                if needed[2] or needed[3]:
                    shares = _shares if capturing(grad.device) else _kept_shares  # a CUDA graph must own what it reads
                    scaled = basis_spectra * shares(lengths, grad.device)
                    d_mix = matmul(real.t(), scaled.real.t()) + matmul(imaginary.t(), scaled.imag.t())
                    d_weight, d_output_bias = d_mix[:, :-1], d_mix[:, -1]
                if True in needed[4:]:
                    spectrum = torch.complex(matmul(real, mix), matmul(imaginary, mix)).t()
                    spectrum = spectrum.reshape(-1, *_frequencies(lengths))
                    d_basis = torch.fft.irfftn(spectrum, lengths, _axes(lengths, 1))
                    d_basis = d_basis[(..., *map(slice, taps))].flatten(1).t().contiguous()
                    others = basis_gradients(sampling, basis, tensors, d_basis, needed[4:])
        return None, None, None, d_x, d_bias, d_weight, d_output_bias, *others


fft_layer: Any = super(torch.autograd.Function, FftConv).apply  # type: ignore[misc]  # as in `eager_kernel.py`


def plain_conv(
    problem: FftProblem,
    sampling: Sampling,
    features: Optional,
    x: torch.Tensor,
    bias: Optional,
    weight: torch.Tensor,
    output_bias: torch.Tensor,
    *tensors: Optional,
) -> torch.Tensor:
    """`FftConv` in operations that can be differentiated any number of times."""
    basis = plain_basis(sampling, features, tensors).view(*sampling.shape[2:], -1)
    mix = torch.cat([weight, output_bias.unsqueeze(1)], 1).view(*sampling.shape[:2], -1)
    batch = KernelBatch([lambda dtype: (basis.to(dtype), mix.to(dtype))], torch.float32)
    return fft_conv(x.to(torch.float32), FactoredKernel(batch), bias, problem.geometry).to(problem.dtype)


def _axes(lengths: tuple[int, ...], before: int) -> tuple[int, ...]:
    return tuple(range(before, before + len(lengths)))


def _frequencies(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a spectrum."""
    return *lengths[:-1], lengths[-1] // 2 + 1


def _by_frequency(spectra: torch.Tensor, groups: int) -> torch.Tensor:
    """[batch, channels, *frequencies] → [groups · frequencies, batch, channels/groups], contiguous for products."""
    batch, channels = spectra.shape[:2]
    return spectra.reshape(batch, groups, channels // groups, -1).permute(1, 3, 0, 2).flatten(0, 1).contiguous()


def _signals(spectra: torch.Tensor, groups: int, batch: int, lengths: tuple[int, ...]) -> torch.Tensor:
    """[groups · frequencies, batch, channels/groups] → [batch, channels, *lengths]."""
    spectra = spectra.unflatten(0, (groups, -1)).permute(2, 0, 3, 1)
    spectra = spectra.reshape(batch, groups * spectra.shape[2], *_frequencies(lengths))
    return torch.fft.irfftn(spectra, lengths, _axes(lengths, 2))


def _shares(lengths: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """How often each stored frequency counts in a sum over all, divided by their number → [frequencies]."""
    last = lengths[-1]
    with torch.inference_mode(False):
        counts = torch.full(_frequencies(lengths), 2.0 / math.prod(lengths), device=device)
        counts[..., 0] /= 2
        if last % 2 == 0:
            counts[..., -1] /= 2
    return counts.flatten()


_kept_shares = functools.lru_cache(maxsize=64)(_shares)
