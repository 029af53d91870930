"""Convolution by the fast Fourier transform, y = F⁻¹(F(x) · conj F(w)).

The cost depends on the size of the input and hardly on the number of taps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .._context import autocast_enabled, no_autocast
from .._registry import has_fast_version
from ._circular import circular_correlation, factored_correlation
from ._factored import FactoredKernel, as_tensor
from ._geometry import Geometry, Pads, output_size, skip_unread_samples, span, zero_pad


def fft_conv(
    x: torch.Tensor, weight: torch.Tensor | FactoredKernel, bias: torch.Tensor | None, geometry: Geometry
) -> torch.Tensor:
    """x [batch, in, *size], weight [out, in/groups, *taps] → [batch, out, *size'].

    The computation is in float32 (float64 for float64 inputs), also under autocast, because FFTs in half precision are
    inaccurate or not available.
    """
    device = x.device.type
    lowered = autocast_enabled(device) and x.dtype != torch.float64  # autocast does not apply to float64
    out_dtype = torch.get_autocast_dtype(device) if lowered else x.dtype
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    with no_autocast(device):
        y = _fft_conv(x.to(dtype), weight.to(dtype), geometry)
        if bias is not None:
            y = y + bias.to(dtype).reshape(-1, *(1,) * (x.ndim - 2))
        return y.to(out_dtype)


def _fft_conv(x: torch.Tensor, weight: torch.Tensor | FactoredKernel, geometry: Geometry) -> torch.Tensor:
    """Choose circular lengths, correlate, and select the outputs."""
    axes = zip(x.shape[2:], weight.shape[2:], geometry.pads, geometry.dilation, strict=True)
    outputs = tuple(output_size(size, taps, 1, pads, dilation) for size, taps, pads, dilation in axes)
    x, pads = skip_unread_samples(x, geometry.pads)
    lengths = circular_lengths(tuple(x.shape[2:]), tuple(weight.shape[2:]), pads, geometry.dilation)
    if isinstance(weight, FactoredKernel) and weight.shape[1] > 1 and not torch.compiler.is_compiling():
        basis = _dilate(weight.basis.movedim(-1, 0).unsqueeze(1), geometry.dilation).squeeze(1)
        y = factored_conv(x, basis, weight.mix, geometry.groups, pads, lengths, outputs)
    else:
        weight = _dilate(as_tensor(weight), geometry.dilation)
        y = tensor_conv(x, weight, geometry.groups, pads, lengths, outputs)
    selected = (slice(0, size, stride) for size, stride in zip(outputs, geometry.stride, strict=True))
    return y[(..., *selected)].contiguous()


@has_fast_version("ops.factored_conv")
def factored_conv(
    x: torch.Tensor,
    basis: torch.Tensor,
    mix: torch.Tensor,
    groups: int,
    pads: Pads,
    lengths: tuple[int, ...],
    outputs: tuple[int, ...],
) -> torch.Tensor:
    """Convolve x [batch, in, *size] with the kernel Σ_r mix[o, i, r] · basis[r, *taps] → [batch, out, *outputs]."""
    y = factored_correlation(_pad_to(lengths, x, pads), basis, mix, groups)
    return y[(..., *(slice(size) for size in outputs))]


@has_fast_version("ops.tensor_conv")
def tensor_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    groups: int,
    pads: Pads,
    lengths: tuple[int, ...],
    outputs: tuple[int, ...],
) -> torch.Tensor:
    """Convolve x [batch, in, *size] with a kernel [out, in/groups, *taps] → [batch, out, *outputs]."""
    y = circular_correlation(_pad_to(lengths, x, pads), weight, groups)
    return y[(..., *(slice(size) for size in outputs))]


def _pad_to(lengths: tuple[int, ...], x: torch.Tensor, pads: Pads) -> torch.Tensor:
    """Pad x on the left as requested, and on the right up to the circular lengths."""
    axes = zip(pads, lengths, x.shape[2:], strict=True)
    return zero_pad(x, tuple((left, length - left - size) for (left, _), length, size in axes))


def circular_lengths(
    size: tuple[int, ...], taps: tuple[int, ...], pads: tuple[tuple[int, int], ...], dilation: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the shortest fast circular length per axis for which no sample wraps around into an output.

    The outputs read the positions −left … L + right − 1 of x. With a circular length N, the start of x reappears on the
    right and its end on the left. Neither reaches an output if N ≥ L + max(left, right). The kernel and the outputs
    must also fit into N.
    """
    return tuple(
        fast_length(max(length + max(pair), span(k, d), output_size(length, k, 1, pair, d)))
        for length, k, pair, d in zip(size, taps, pads, dilation, strict=True)
    )


def fast_length(minimum: int) -> int:
    """Return the smallest even 2^a·3^b·5^c·7^d that is at least `minimum`, or 1 for a single sample."""
    if minimum <= 1:
        return 1
    best = 1 << (minimum - 1).bit_length()
    seven = 2
    while seven < best:
        five = seven
        while five < best:
            three = five
            while three < best:
                twos = (-(-minimum // three) - 1).bit_length()  # smallest a with three · 2^a ≥ minimum
                best = min(best, three << twos)
                three *= 3
            five *= 5
        seven *= 7
    return best


def _dilate(weight: torch.Tensor, dilation: tuple[int, ...]) -> torch.Tensor:
    """Insert zeros between the taps: [a, b] with dilation 3 becomes [a, 0, 0, b]."""
    for axis, step in enumerate(dilation):
        if step > 1:
            axis += 2
            taps = weight.shape[axis]
            dilated = F.pad(weight.movedim(axis, -1).unsqueeze(-1), (0, step - 1)).flatten(-2)
            weight = dilated[..., : span(taps, step)].movedim(-1, axis)
    return weight
