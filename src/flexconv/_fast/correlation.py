"""The convolution of `ops/_fft.py` with a factored kernel on a CPU, as one node of autograd.

    Y = X · conj W,      X, W, Y: spectra of input, kernel and output,      W[f, o, i] = Σ_r B[f, r] · mix[o, i, r]
    backward             ∂X = G · W,   ∂W = conj G · X,   ∂mix[o, i, r] = Re Σ_f weight_f ∂W[f, o, i] conj B[f, r]

G is the spectrum of the output's gradient. Four things make it faster than the operations that autograd records. Real
and imaginary parts are separate, so every product is a batch of real products of contiguous matrices; autograd would
multiply conjugated and transposed complex matrices one by one. An axis is transformed for those rows only that hold
samples, or that hold outputs. Padding in front of the input moves the basis instead of the input, so no padded copy is
made or kept. And a large batch is computed in parts, whose spectra fit into the caches of a processor. The spectra of
such a batch are not kept for the backward pass but computed again, which takes less time than the parts save.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from .._registry import plain_version, provide
from ..ops import Pads
from .cpu_spectra import around, spectrum_shape, supported, transform, transform_back
from .fused_sampler import plain_gradients

WHOLE = 32  # samples of a batch that is not divided in any case
PART_BYTES = 4 * 2**20  # of the spectra of a part
SMALLEST_PART = 8  # samples


def factored_conv(
    x: torch.Tensor,
    basis: torch.Tensor,
    mix: torch.Tensor,
    groups: int,
    pads: Pads,
    lengths: tuple[int, ...],
    outputs: tuple[int, ...],
) -> torch.Tensor:
    """See `ops._fft.factored_conv`. NotImplemented where `cpu_spectra.supported` says so."""
    if not supported(x, basis, mix):
        return NotImplemented
    return _Correlation.apply(x, around(basis, pads, lengths), mix, groups, outputs)


class _Correlation(torch.autograd.Function):
    """Correlates x [batch, in, *size] cyclically with Σ_r mix[o, i, r] · basis[r, *lengths]."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, basis: torch.Tensor, mix: torch.Tensor, groups: int, outputs: tuple[int, ...]
    ) -> torch.Tensor:
        lengths = basis.shape[1:]
        kernel, features = _kernel_parts(basis, mix, groups)
        wr, wi = kernel.mT
        samples = None
        size = _part_size(len(x), max(x.shape[1], len(mix)), lengths, kernel)
        y = x.new_empty(len(x), len(mix), *outputs)
        for part, signals in zip(x.split(size), y.split(size), strict=True):
            xr, xi = samples = _parts(part, lengths, groups)
            real = torch.bmm(xr, wr).baddbmm_(xi, wi)
            imaginary = torch.bmm(xi, wr).baddbmm_(xr, wi, alpha=-1)
            _write_signals(signals, real, imaginary, groups, lengths)
            del real, imaginary  # before the next part
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(x, basis, mix, *((samples, kernel, features) if size >= len(x) else ()))
            ctx.groups, ctx.outputs, ctx.size = groups, outputs, size
        return y

    @staticmethod
    @torch.autocast("cpu", enabled=False)  # a backward pass may run inside of autocast
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, basis, mix, *kept = ctx.saved_tensors
        lengths, groups = tuple(basis.shape[1:]), ctx.groups
        if torch.is_grad_enabled():  # for a second derivative

            def plain(*tensors: torch.Tensor) -> torch.Tensor:
                no_pads = tuple((0, 0) for _ in lengths)
                return plain_version("ops.factored_conv")(*tensors, groups, no_pads, lengths, ctx.outputs)

            return *plain_gradients(plain, (x, basis, mix), grads[0]), None, None
        of_x, of_basis, of_mix = ctx.needs_input_grad[:3]
        samples, kernel, features = kept or (None, *_kernel_parts(basis, mix, groups))
        wr, wi = kernel
        d_x = x.new_empty(x.shape) if of_x else None
        d_kernel = d_basis = d_mix = None
        for start in range(0, len(x), ctx.size):
            part = slice(start, start + ctx.size)
            gr, gi = _parts(grads[0][part], lengths, groups)
            if d_x is not None:
                real = torch.bmm(gr, wr).baddbmm_(gi, wi, alpha=-1)
                _write_signals(d_x[part], real, torch.bmm(gr, wi).baddbmm_(gi, wr), groups, lengths)
                del real
            if of_basis or of_mix:
                xr, xi = _parts(x[part], lengths, groups) if samples is None else samples
                beta = 0 if d_kernel is None else 1  # 0 ignores what is in memory so far
                d_kernel = torch.empty_like(kernel) if d_kernel is None else d_kernel
                d_kernel[0].baddbmm_(gr.mT, xr, beta=beta).baddbmm_(gi.mT, xi)
                d_kernel[1].baddbmm_(gr.mT, xi, beta=beta).baddbmm_(gi.mT, xr, alpha=-1)
        if d_kernel is not None:
            d_kernel = _in_order(d_kernel, mix.shape, groups)
            if of_mix:
                weighted = features.unflatten(1, (-1, lengths[-1] // 2 + 1)) * _counts(lengths, features).unsqueeze(-1)
                d_mix = torch.mm(weighted.flatten(0, 2).t(), d_kernel).t().reshape(mix.shape)
            if of_basis:
                spectra = torch.mm(d_kernel, mix.flatten(0, 1)).unflatten(0, (2, -1)).permute(2, 1, 0).contiguous()
                spectra = torch.view_as_complex(spectra).unflatten(1, spectrum_shape(lengths))
                d_basis = transform_back(spectra, lengths, lengths).contiguous()
        return d_x, d_basis, d_mix, None, None


# --- spectra ----------------------------------------------------------------------------------------------------------


def _parts(x: torch.Tensor, lengths: Sequence[int], groups: int) -> torch.Tensor:
    """Signals [batch, channels, *size] → real and imaginary parts [2, groups · frequencies, batch, channels/groups]."""
    spectrum = transform(x, lengths).flatten(2).unflatten(1, (groups, -1))
    return torch.view_as_real(spectrum).permute(4, 1, 3, 0, 2).contiguous().flatten(1, 2)


def _write_signals(
    signals: torch.Tensor, real: torch.Tensor, imaginary: torch.Tensor, groups: int, lengths: Sequence[int]
) -> None:
    """Write signals [batch, channels, *size], given their parts [groups · frequencies, batch, channels/groups]."""
    _, batch, channels = real.shape
    frequencies = math.prod(spectrum_shape(lengths))
    spectrum = real.new_empty(batch, groups, channels, frequencies, 2)
    for part, values in enumerate((real, imaginary)):
        spectrum[..., part].copy_(values.view(groups, frequencies, batch, channels).permute(2, 0, 3, 1))
    spectrum = torch.view_as_complex(spectrum).view(batch, groups * channels, *spectrum_shape(lengths))
    signals.copy_(transform_back(spectrum, lengths, signals.shape[2:]))


def _basis_parts(basis: torch.Tensor) -> torch.Tensor:
    """Basis functions [rank, *lengths] → [2, frequencies, rank]."""
    spectrum = transform(basis, basis.shape[1:]).flatten(1)
    return torch.view_as_real(spectrum).permute(2, 1, 0).contiguous()


def _kernel_parts(basis: torch.Tensor, mix: torch.Tensor, groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The spectra of the kernel [2, groups · frequencies, out/groups, in/groups], and those of the basis."""
    features = _basis_parts(basis)
    return _by_group(torch.mm(features.flatten(0, 1), mix.flatten(0, 1).t()), mix.shape, groups), features


def _part_size(batch: int, channels: int, lengths: Sequence[int], kernel: torch.Tensor) -> int:
    """The number of samples that are computed together.

    Every part reads the spectra of the whole kernel. They should be at most three times as large as those of the part,
    and at most as large as those of the batch.
    """
    out = kernel.shape[-2]
    if batch <= WHOLE or batch < out:
        return batch
    largest = max(PART_BYTES // (8 * channels * math.prod(spectrum_shape(lengths))), SMALLEST_PART, out // 3)
    return -(-batch // -(-batch // largest))  # parts of about the same size


def _counts(lengths: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """How often each frequency of the last axis occurs in the spectrum of a real signal, over the number of samples."""
    counts = like.new_full((lengths[-1] // 2 + 1,), 2.0 / math.prod(lengths))
    counts[0] /= 2.0
    if lengths[-1] % 2 == 0 and lengths[-1] > 1:
        counts[-1] /= 2.0
    return counts


def _by_group(kernel: torch.Tensor, shape: torch.Size, groups: int) -> torch.Tensor:
    """Spectra [2 · frequencies, out · in/groups] → [2, groups · frequencies, out/groups, in/groups]."""
    out, fan_in, _ = shape
    kernel = kernel.view(2, -1, groups, out // groups, fan_in)
    return kernel.transpose(1, 2).reshape(2, -1, out // groups, fan_in)


def _in_order(kernel: torch.Tensor, shape: torch.Size, groups: int) -> torch.Tensor:
    """The inverse of `_by_group`."""
    out, fan_in, _ = shape
    return kernel.view(2, groups, -1, out // groups, fan_in).transpose(1, 2).reshape(-1, out * fan_in)


provide("ops.factored_conv", factored_conv)
