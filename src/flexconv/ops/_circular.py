"""Circular correlation by FFT, y[n] = Σ_j x[(n + j) mod N] · w[j], which `_fft.py` is based on.

In the frequency domain this is Y = X · conj W, summed over input channels. In eager code, autograd differentiates it
any number of times. Compilers cannot generate code for complex numbers, so under `torch.compile` the correlation is a
custom operator, and so is its gradient.
"""

from __future__ import annotations

from typing import Any

import torch

from .._context import exporting
from .._matmul import matmul


def circular_correlation(x: torch.Tensor, weight: torch.Tensor, groups: int) -> torch.Tensor:
    """Correlate x [batch, in, *N] with weight [out, in/groups, *taps], taps ≤ N → [batch, out, *N]."""
    if torch.compiler.is_compiling() and not exporting():
        return correlation_operator(x, weight, groups)
    return _correlate(x, weight, groups)


def _correlate(x: torch.Tensor, weight: torch.Tensor, groups: int) -> torch.Tensor:
    size = x.shape[2:]
    return _inverse(mix_channels(_spectrum(x, size), _spectrum(weight, size), groups), size)


def _spectrum(x: torch.Tensor, size: torch.Size) -> torch.Tensor:
    return torch.fft.rfftn(x, s=size, dim=tuple(range(2, x.ndim)))


def _inverse(spectrum: torch.Tensor, size: torch.Size) -> torch.Tensor:
    """Return the real signal. `size` is needed because an odd and an even length can have equally long spectra."""
    return torch.fft.irfftn(spectrum, s=size, dim=tuple(range(2, spectrum.ndim))).contiguous()


def mix_channels(x: torch.Tensor, weight: torch.Tensor, groups: int) -> torch.Tensor:
    """Σ_i X[b, i, f] · conj W[o, i, f] at every frequency f.

    Shapes: X [batch, in, *freqs], W [out, in/groups, *freqs], both complex → [batch, out, *freqs].
    """
    batch, freqs = x.shape[0], x.shape[2:]
    out_channels, fan_in = weight.shape[:2]
    if fan_in == 1:  # depthwise: nothing to sum. A compiled graph would lose a lazy conj().
        return x.repeat_interleave(out_channels // groups, 1) * weight.squeeze(1).conj().resolve_conj()
    weight = weight.reshape(groups, out_channels // groups, fan_in, -1).permute(0, 3, 1, 2)
    return _sum_over_channels(x, weight).reshape(batch, out_channels, *freqs)


def _sum_over_channels(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """X [batch, in, *freqs], W [groups, frequencies, out/groups, in/groups] → [batch, groups, out/groups, frequencies].

    This is one small matrix product per group and frequency. Operands that are not contiguous would be multiplied one
    by one.
    """
    groups, _, _, fan_in = weight.shape
    x = x.reshape(x.shape[0], groups, fan_in, -1).permute(1, 3, 0, 2).flatten(0, 1).contiguous()
    y = torch.bmm(x, weight.flatten(0, 1).contiguous().mH)
    return y.unflatten(0, (groups, -1)).permute(2, 0, 3, 1)


def factored_correlation(x: torch.Tensor, basis: torch.Tensor, mix: torch.Tensor, groups: int) -> torch.Tensor:
    """Correlate with the kernel Σ_r mix[o, i, r] · basis[r, …], of which only the basis is transformed.

    Shapes: x [batch, in, *N], basis [rank, *taps], mix [out, in/groups, rank] → [batch, out, *N].
    """
    size = x.shape[2:]
    spectra = torch.fft.rfftn(basis, size, tuple(range(1, basis.ndim))).flatten(1)  # [rank, frequencies]
    parts = (matmul(part.t(), mix.flatten(0, 1).t()) for part in (spectra.real, spectra.imag))
    weight = torch.complex(*parts).view(-1, groups, mix.shape[0] // groups, mix.shape[1]).transpose(0, 1)
    spectrum = _spectrum(x, size)
    y = _sum_over_channels(spectrum, weight)
    return _inverse(y.reshape(x.shape[0], mix.shape[0], *spectrum.shape[2:]), size)


@torch.library.custom_op("flexconv::circular_correlation", mutates_args=())
def correlation_operator(x: torch.Tensor, weight: torch.Tensor, groups: int) -> torch.Tensor:
    return _correlate(x, weight, groups)


@correlation_operator.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, groups: int) -> torch.Tensor:  # noqa: ARG001
    return x.new_empty(x.shape[0], weight.shape[0], *x.shape[2:])


@torch.library.custom_op("flexconv::circular_correlation_backward", mutates_args=())
def _backward_operator(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, groups: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """∂x[b, i] = Σ_o G[b, o] · W[o, i],   ∂w[o, i] = Σ_b X[b, i] · conj G[b, o], group by group."""
    size, taps = x.shape[2:], weight.shape[2:]
    fan_in = weight.shape[1]
    X, W, G = _spectrum(x, size), _spectrum(weight, size), _spectrum(grad, size)
    transposed = W.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    grad_x = _inverse(mix_channels(G, transposed.conj().resolve_conj(), groups), size)
    inputs = X.unflatten(1, (groups, fan_in)).movedim(2, 0).transpose(1, 2).flatten(1, 2)  # [in/groups, groups·batch]
    grad_weight = _inverse(mix_channels(inputs, G.transpose(0, 1), groups).transpose(0, 1), size)
    return grad_x, grad_weight[(..., *(slice(k) for k in taps))].contiguous()


@_backward_operator.register_fake
def _(
    grad: torch.Tensor,  # noqa: ARG001
    x: torch.Tensor,
    weight: torch.Tensor,
    groups: int,  # noqa: ARG001
) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    x, weight, ctx.groups = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return (*_backward_operator(grad, *ctx.saved_tensors, ctx.groups), None)


correlation_operator.register_autograd(_backward, setup_context=_setup_context)
