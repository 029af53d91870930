"""Convolution of a signal of which samples are missing.

A missing sample is replaced by a weighted mean of the observed ones around it, and the result is convolved:

    y = ψ ⋆ x̃ + b,      x̃(p) = x(p) if p was observed, otherwise Σ_q w(q) seen(p + q) x(p + q) / Σ_q w(q) seen(p + q)

This is normalized convolution (Knutsson and Westin, 1993): seen is 1 for an observed sample and 0 for a missing one,
and the weights are the mask of the layer around the current position, divided by 1 + the squared distance in taps. So a
layer looks as far for neighbors as its kernel does, and nearer ones count more. On a causal axis only earlier samples
are used. A sample without an observed neighbor becomes 0.

If everything is observed, this is exactly the plain convolution. A constant signal is continued exactly, whatever is
missing. Dividing ψ ⋆ (seen · x) by the observed share of the mask, which is simpler, has neither property unless the
kernel is nearly constant: kernels of trained networks oscillate, and what is missing does not cancel.
docs/missing-samples.md compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .._context import no_autocast
from ..errors import ArgumentError, ArgumentTypeError
from ..ops import conv_nd
from ._grid import filled
from ._lengths import can_read_values

if TYPE_CHECKING:
    from ._conv import FlexConvNd

# Less than these shares of all weights were not observed: it may be the rounding error of a Fourier transform.
LEAST_WEIGHT = 1e-5  # of the neighbors of a sample
LEAST_SHARE = 1e-3  # of the mask of a kernel


def check_observed(observed: torch.Tensor, x: torch.Tensor, dims: int) -> torch.Tensor:
    """Return `observed` as a bool tensor [batch, 1 or channels, *size] on the device of x; raise if it does not fit x.

    Checking values on a GPU requires a copy to the host.
    """
    if not isinstance(observed, torch.Tensor):
        raise ArgumentTypeError(f"observed must be a tensor of True and False; got {type(observed).__name__}")
    if x.ndim != dims + 2:
        raise ArgumentError(f"observed needs a batch [batch, channels, …]; got an input of shape {tuple(x.shape)}")
    batch, channels, size = x.shape[0], x.shape[1], x.shape[2:]
    found = observed.unsqueeze(1) if observed.ndim == dims + 1 else observed
    if (
        found.ndim != x.ndim
        or found.shape[0] != batch
        or found.shape[2:] != size
        or found.shape[1] not in (1, channels)
    ):
        raise ArgumentError(
            f"observed must have the shape [batch, *size] = {(batch, *size)} or [batch, 1 or channels, *size] of the "
            f"input {tuple(x.shape)}; got {tuple(observed.shape)}"
        )
    if found.is_complex():
        raise ArgumentTypeError(f"observed must be True or False, or 1 or 0; got {found.dtype}")
    if can_read_values(found):
        if found.dtype != torch.bool:
            other = found[(found != 0) & (found != 1)]
            if other.numel():
                raise ArgumentError(f"observed must be True or False, or 1 or 0; it contains {other[0].item()}")
        empty = (found == 0).flatten(1).all(1).nonzero().flatten().tolist()
        if empty:
            raise ArgumentError(f"no sample is observed in row {empty[0]} of the batch: leave such rows out")
    return found.to(device=x.device, dtype=torch.bool)


def fill_missing(
    layer: FlexConvNd, x: torch.Tensor, seen: torch.Tensor, inside: torch.Tensor | None = None
) -> torch.Tensor:
    """x [batch, channels, *size], with missing samples replaced by means of the observed ones around them.

    `seen` [batch, 1 or channels, *size] comes from `check_observed`. Samples where `inside` [batch, 1, *size] is False
    do not exist, such as those past the end of a sequence, and become 0.
    """
    seen = seen if inside is None else seen & inside
    known = x.masked_fill(~seen, 0.0)
    wide = known.to(torch.promote_types(x.dtype, torch.float32))
    with no_autocast(x.device.type):
        total = _smooth(layer, wide)
        with torch.no_grad():
            weight = _smooth(layer, seen.to(wide.dtype))
        least = LEAST_WEIGHT * _weights(layer, wide).flatten(1).sum(1).view(-1, *[1] * layer.dims)
        means = torch.where(weight > least, total / torch.where(weight > least, weight, 1.0), 0.0)
    result = torch.where(seen, known, means.to(x.dtype))
    return result if inside is None else result.masked_fill(~inside, 0.0)


def convolve_observed(
    layer: FlexConvNd, x: torch.Tensor, seen: torch.Tensor, inside: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The convolution of `fill_missing`, and `propagate` for the next layer."""
    y = layer._convolve(fill_missing(layer, x, seen, inside), layer.bias)
    return y, propagate(layer, seen if inside is None else seen & inside)


@torch.no_grad()
def propagate(layer: FlexConvNd, seen: torch.Tensor) -> torch.Tensor:
    """Whether an output is based on observed samples: some lie under the mask of its kernel → [batch, 1, *size'].

    A sample that was observed in some channels counts.
    """
    window = layer.window
    lines = layer.coordinates(window)
    shape = [len(line) for line in lines]
    mask = lines[0].new_ones(shape) if layer.mask is None else layer.mask(lines, layer.axes)
    weight = (mask if mask.ndim == layer.dims else mask.amax(0))[None, None]
    x, pads = seen.any(1, keepdim=True).to(weight.dtype), layer.pads_for(window)
    if layer.padding_mode != "zeros":
        x, pads = layer._pad_by_mode(x, pads)
    with no_autocast(x.device.type):
        found = conv_nd(layer.dims, x, weight, None, layer.stride, pads, layer.dilation, 1, layer.algorithm)
    return found > LEAST_SHARE * weight.sum()


def _smooth(layer: FlexConvNd, x: torch.Tensor) -> torch.Tensor:
    """Σ_q w(q) x(p + q) for every channel of x, which has all channels or one → the same size, all channels or one."""
    weight = _weights(layer, x)  # [1 or channels, 1, *n]
    pads = [
        ((n - 1) * step, 0) if _looks_back(layer, d) else ((n // 2) * step,) * 2
        for d, (n, step) in enumerate(zip(weight.shape[2:], layer.dilation, strict=True))
    ]
    ones = [1] * layer.dims
    if len(weight) == 1:
        flat = x.flatten(0, 1).unsqueeze(1)
        y = conv_nd(layer.dims, flat, weight, None, ones, pads, layer.dilation, 1, layer.algorithm)
        return y.view_as(x)
    x = x.expand(-1, len(weight), *x.shape[2:])
    return conv_nd(layer.dims, x, weight, None, ones, pads, layer.dilation, len(weight), layer.algorithm)


@torch.no_grad()
def _weights(layer: FlexConvNd, like: torch.Tensor) -> torch.Tensor:
    """The weights of the neighbors of a missing sample → [1 or in_channels, 1, *n], with the sample itself included."""
    offsets = [_offsets(layer, d, like=like) for d in range(layer.dims)]
    distance = like.new_zeros(())
    for offset, axis in zip(offsets, layer.axes, strict=True):
        distance = distance.unsqueeze(-1) + (offset / (axis.origin or axis).spacing).square()
    weight = (1 / (1 + distance))[None]
    if layer.mask is not None:
        sigma = layer.mask.sigma.detach().to(like).reshape(-1, layer.dims).abs()
        sigma = torch.maximum(sigma, filled(layer.mask.sigma_floor(layer.axes), like=sigma))
        sigma = sigma if len(sigma) == 1 else sigma.unflatten(0, (layer.in_channels, -1)).amax(1)
        for d, offset in enumerate(offsets):
            profile = torch.exp(-0.5 * (offset / sigma[:, d, None]).square())  # [1 or channels, n]
            if layer.mask.threshold is not None:  # as the mask, and at least the next sample
                profile = profile * ((profile > layer.mask.threshold) | (offset.abs() < 1.5 * layer.axes[d].spacing))
            weight = weight * profile.view(len(sigma), *[1] * d, -1, *[1] * (layer.dims - 1 - d))
    return weight.unsqueeze(1)


def _offsets(layer: FlexConvNd, d: int, *, like: torch.Tensor) -> torch.Tensor:
    """Coordinates relative to the current position, as far as the window of the layer reaches from it → [n].

    The mask around this position lies within them, also if that of the layer is elsewhere.
    """
    axis, (start, stop) = layer.axes[d], layer.window[d]
    if _looks_back(layer, d):
        index = torch.arange(start - axis.size + 1, 1, device=like.device, dtype=like.dtype)
    else:
        center = (axis.size - 1) // 2
        reach = max(center - start, stop - 1 - center)
        index = torch.arange(-reach, reach + 1, device=like.device, dtype=like.dtype)
    return index * axis.spacing


def _looks_back(layer: FlexConvNd, d: int) -> bool:
    """Whether outputs depend on earlier samples along an axis only."""
    left, right = layer.pads[d]
    return layer.axes[d].causal or (left > 0 and right == 0)
