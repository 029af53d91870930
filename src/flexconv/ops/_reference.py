"""The definition of the convolution as plain loops over outputs and taps.

It is slow. All other algorithms are tested against it.
"""

from __future__ import annotations

import itertools

import torch

from ._geometry import Geometry, output_sizes


def reference_conv(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, geometry: Geometry
) -> torch.Tensor:
    """y[b, o, n] = bias[o] + Σ_i Σ_j w[o, i, j] · x[b, group(o) + i, n·stride + j·dilation − left]."""
    size, taps = x.shape[2:], weight.shape[2:]
    outputs = output_sizes(size, taps, geometry)
    fan_in, out_per_group = weight.shape[1], weight.shape[0] // geometry.groups
    y = x.new_zeros(x.shape[0], weight.shape[0], *outputs)
    for o in range(weight.shape[0]):
        first = (o // out_per_group) * fan_in
        for n in itertools.product(*map(range, outputs)):
            for j in itertools.product(*map(range, taps)):
                position = tuple(
                    n_ * s + j_ * d - left
                    for n_, s, j_, d, (left, _) in zip(
                        n, geometry.stride, j, geometry.dilation, geometry.pads, strict=True
                    )
                )
                if all(0 <= p < length for p, length in zip(position, size, strict=True)):
                    patch = x[(slice(None), slice(first, first + fan_in), *position)]
                    y[(slice(None), o, *n)] += patch @ weight[(o, slice(None), *j)]
        if bias is not None:
            y[:, o] += bias[o]
    return y
