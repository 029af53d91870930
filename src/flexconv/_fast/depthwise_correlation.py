"""Depthwise convolutions by the FFT (`ops/_fft.py`) on a CPU, as one node of autograd.

    Y = X · conj W,      ∂X = G · W,      ∂W = Σ X · conj G over the batch

X, W, Y and G are the spectra of input, kernel, output and the gradient of the output. There is hardly any arithmetic,
so the time is that of reading and writing memory. The batch is therefore computed in parts whose spectra fit into the
caches of a processor. They are not kept for the backward pass but computed again. As in `correlation.py`, padding in
front of the input moves the kernel instead of the input.
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

PART_BYTES = 2**20  # of the spectra of a part


def tensor_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    groups: int,
    pads: Pads,
    lengths: tuple[int, ...],
    outputs: tuple[int, ...],
) -> torch.Tensor:
    """See `ops._fft.tensor_conv`. NotImplemented where `cpu_spectra.supported` says so, or if channels are mixed."""
    if not supported(x, weight) or not groups == x.shape[1] == len(weight):
        return NotImplemented
    return _DepthwiseCorrelation.apply(x, around(weight.squeeze(1), pads, lengths), outputs)


class _DepthwiseCorrelation(torch.autograd.Function):
    """Correlates x [batch, channels, *size] cyclically with kernels [channels, *lengths]."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, kernels: torch.Tensor, outputs: tuple[int, ...]) -> torch.Tensor:
        lengths = kernels.shape[1:]
        kernel = transform(kernels, lengths)
        conjugate = kernel.conj().resolve_conj()
        size = _part_size(len(x), x.shape[1], lengths)
        y, samples = x.new_empty(*x.shape[:2], *outputs), None
        for part, signals in zip(x.split(size), y.split(size), strict=True):
            samples = transform(part, lengths)
            signals.copy_(transform_back(samples * conjugate, lengths, outputs))
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(x, kernels, *((samples, kernel) if size >= len(x) else ()))
            ctx.outputs, ctx.size = outputs, size
        return y

    @staticmethod
    @torch.autocast("cpu", enabled=False)  # a backward pass may run inside of autocast
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, kernels, *kept = ctx.saved_tensors
        lengths = tuple(kernels.shape[1:])
        if torch.is_grad_enabled():  # for a second derivative

            def plain(x: torch.Tensor, kernels: torch.Tensor) -> torch.Tensor:
                settings = len(kernels), tuple((0, 0) for _ in lengths), lengths, ctx.outputs
                return plain_version("ops.tensor_conv")(x, kernels.unsqueeze(1), *settings)

            return *plain_gradients(plain, (x, kernels), grads[0]), None
        samples, kernel = kept or (None, transform(kernels, lengths))
        of_x, of_kernels, _ = ctx.needs_input_grad
        d_x = x.new_empty(x.shape) if of_x else None
        d_kernel = None
        for start in range(0, len(x), ctx.size):
            part = slice(start, start + ctx.size)
            gradient = transform(grads[0][part], lengths)
            if d_x is not None:
                d_x[part].copy_(transform_back(gradient * kernel, lengths, x.shape[2:]))
            if of_kernels:
                inputs = transform(x[part], lengths) if samples is None else samples
                products = gradient.conj_physical_().mul_(inputs).sum(0)
                d_kernel = products if d_kernel is None else d_kernel.add_(products)
        return d_x, None if d_kernel is None else transform_back(d_kernel, lengths, lengths).contiguous(), None


def _part_size(batch: int, channels: int, lengths: Sequence[int]) -> int:
    """The number of samples that are computed together."""
    return min(batch, max(1, PART_BYTES // (8 * channels * math.prod(spectrum_shape(lengths)))))


provide("ops.tensor_conv", tensor_conv)
