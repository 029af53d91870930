"""Convolution as a product of spectra: y = F⁻¹( F(x) · conj F(w) ), one real FFT per axis.

Cost does not depend on the number of taps. Everything is N-dimensional, real in and real out.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ._geometry import Geometry, output_size, skip_unread_samples, span, zero_pad


def fft_conv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, geometry: Geometry) -> torch.Tensor:
    """X [batch, in, *size], weight [out, in/groups, *taps] → [batch, out, *size'].

    Computed in float32 (float64 for float64), also under autocast: half precision has no trustworthy FFT.
    """
    device = x.device.type
    out_dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    with torch.autocast(device, enabled=False):
        bias = None if bias is None else bias.to(dtype)
        return _fft_conv(x.to(dtype), weight.to(dtype), bias, geometry).to(out_dtype)


def _fft_conv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, geometry: Geometry) -> torch.Tensor:
    dims = x.ndim - 2
    outputs = tuple(
        output_size(length, taps, 1, pads, dilation)
        for length, taps, pads, dilation in zip(
            x.shape[2:], weight.shape[2:], geometry.pads, geometry.dilation, strict=True
        )
    )
    x, pads = skip_unread_samples(x, geometry.pads)
    lengths = circular_sizes(tuple(x.shape[2:]), tuple(weight.shape[2:]), pads, geometry.dilation)
    fill = zip(pads, lengths, x.shape[2:], strict=True)
    x = zero_pad(x, tuple((left, n - left - size) for (left, _), n, size in fill))
    weight = _dilate(weight, geometry.dilation)

    axes = tuple(range(2, 2 + dims))
    spectrum = torch.fft.rfftn(x, dim=axes)
    kernel_spectrum = torch.fft.rfftn(weight, s=lengths, dim=axes)
    product = _mix_channels(spectrum, kernel_spectrum, geometry.groups)
    y = torch.fft.irfftn(product, s=lengths, dim=axes)  # explicit length: odd sizes are not even sizes

    for axis, (size, stride) in enumerate(zip(outputs, geometry.stride, strict=True)):
        y = y.narrow(2 + axis, 0, size)
        if stride > 1:
            y = y[(slice(None),) * (2 + axis) + (slice(None, None, stride),)]
    if bias is not None:
        y = y + bias.reshape(-1, *(1,) * dims)
    return y.contiguous()


def circular_sizes(
    size: tuple[int, ...], taps: tuple[int, ...], pads: tuple[tuple[int, int], ...], dilation: tuple[int, ...]
) -> tuple[int, ...]:
    """Smallest fast circular length per axis whose wrapped part no wanted output can see.

    Wanted outputs read positions −left … L + right − 1 of x. Wrapping at N brings the start of x in
    from the right and its end in from the left; neither reaches a wanted output once
    N ≥ L + max(left, right). Kernel and outputs have to fit as well.
    """
    return tuple(
        fast_length(max(length + max(pair), span(k, d), output_size(length, k, 1, pair, d)))
        for length, k, pair, d in zip(size, taps, pads, dilation, strict=True)
    )


def fast_length(minimum: int) -> int:
    """The smallest even 2^a·3^b·5^c·7^d that is at least `minimum` (1 for a single sample)."""
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


def _mix_channels(x: torch.Tensor, weight: torch.Tensor, groups: int) -> torch.Tensor:
    """Σ_i X[b, i, f] · conj W[o, i, f] at every frequency f, in real arithmetic.

    X [batch, in, *freqs], W [out, in/groups, *freqs], both complex → [batch, out, *freqs].
    """
    batch, _, *freqs = x.shape
    out_channels, fan_in = weight.shape[:2]
    xr, xi = _parts(x)
    wr, wi = _parts(weight)
    if fan_in == 1:  # depthwise: nothing to sum
        repeat = out_channels // groups
        xr, xi = xr.repeat_interleave(repeat, 1), xi.repeat_interleave(repeat, 1)
        wr, wi = wr.squeeze(1), wi.squeeze(1)
        real, imag = xr * wr + xi * wi, xi * wr - xr * wi
        return torch.complex(real, imag)
    # frequency-major matrices: [groups·freqs, batch, in/groups] @ [groups·freqs, in/groups, out/groups]
    xr, xi = (p.reshape(batch, groups, fan_in, -1).permute(1, 3, 0, 2).flatten(0, 1) for p in (xr, xi))
    wr, wi = (p.reshape(groups, out_channels // groups, fan_in, -1).permute(0, 3, 2, 1).flatten(0, 1) for p in (wr, wi))
    real = torch.baddbmm(torch.bmm(xr, wr), xi, wi)
    imag = torch.baddbmm(torch.bmm(xi, wr), xr, wi, alpha=-1)
    y = torch.complex(real, imag).unflatten(0, (groups, -1)).permute(2, 0, 3, 1)
    return y.reshape(batch, out_channels, *freqs)


def _parts(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    both = torch.view_as_real(z)
    return both[..., 0], both[..., 1]


def _dilate(weight: torch.Tensor, dilation: tuple[int, ...]) -> torch.Tensor:
    """Zeros between the taps: [a, b] with dilation 3 is [a, 0, 0, b]."""
    for axis, step in enumerate(dilation):
        if step > 1:
            axis += 2
            taps = weight.shape[axis]
            spread = F.pad(weight.movedim(axis, -1).unsqueeze(-1), (0, step - 1)).flatten(-2)
            weight = spread[..., : span(taps, step)].movedim(-1, axis)
    return weight
