"""The slow, obvious twin of every convolution here: plain loops over outputs and taps."""

from __future__ import annotations

import itertools

import torch

from ._geometry import Geometry, output_size


def reference_conv(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, geometry: Geometry
) -> torch.Tensor:
    """y[b, o, n] = bias[o] + Σ_i Σ_j w[o, i, j] · x[b, group(o) + i, n·stride + j·dilation − left]."""
    size, taps = x.shape[2:], weight.shape[2:]
    out = tuple(
        output_size(*each) for each in zip(size, taps, geometry.stride, geometry.pads, geometry.dilation, strict=True)
    )
    fan_in, out_per_group = weight.shape[1], weight.shape[0] // geometry.groups
    y = x.new_zeros(x.shape[0], weight.shape[0], *out)
    for o in range(weight.shape[0]):
        first = (o // out_per_group) * fan_in
        for n in itertools.product(*map(range, out)):
            for j in itertools.product(*map(range, taps)):
                at = tuple(
                    n_ * s + j_ * d - left
                    for n_, s, j_, d, (left, _) in zip(
                        n, geometry.stride, j, geometry.dilation, geometry.pads, strict=True
                    )
                )
                if all(0 <= a < length for a, length in zip(at, size, strict=True)):
                    patch = x[(slice(None), slice(first, first + fan_in), *at)]
                    y[(slice(None), o, *n)] += patch @ weight[(o, slice(None), *j)]
        if bias is not None:
            y[:, o] += bias[o]
    return y
