"""The numbers of one layer: its mask, and its kernel and frequencies at several resolutions.

Positions are in taps relative to the current sample, and frequencies are in units of the Nyquist frequency. Both refer
to the layer at its own resolution, so that the plots of all resolutions have the same axes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .. import sampling
from ..errors import ArgumentError
from ..nn import Axis, FlexConvNd, GaussianMask, RotatedGaussianMask, effective_sigma
from ..spectrum import measured_bandwidth
from ..summary import LayerSummary, frequency_limit
from ._channels import Channels
from ._pack import pack

ENERGY = 0.99  # fraction of a kernel's energy below its measured bandwidth
OVERSAMPLE = 4  # samples per tap of the measured kernel, as in `energy_beyond_nyquist`
POINTS = 1 << 16  # evaluated at once, to limit the memory for large grids


def numbers_per_pair(layer: FlexConvNd) -> int:
    """The number of values that the page stores for one pair of channels."""
    if layer.dims < 3:
        return math.prod(layer.extent)
    return sum(2 * rows * columns for rows, columns in itertools.combinations(layer.extent, 2))


def layer_numbers(
    summary: LayerSummary, layer: FlexConvNd, versions: Sequence[FlexConvNd], channels: Channels
) -> dict[str, Any]:
    """Everything that the page shows about one layer.

    The fields of the summary, and
    {energy: the measured share beyond the Nyquist frequency, folded: the part of it that costs accuracy at other
     resolutions, aliased: whether that is much, groups, measured: [bandwidth per axis], outs, ins: [channels shown],
     causal: [per axis], field: [[first, last tap] per axis], mask: see `_mask`, or None,
     versions: [see `_version`, one per resolution]}
    """
    units = [axis.spacing for axis in layer.axes]
    measured = measured_bandwidth(layer, energy=ENERGY, oversample=OVERSAMPLE, crop=True)
    return {
        **{name: getattr(summary, name) for name in ("name", "generator", "channels", "extent", "grid")},
        **{name: getattr(summary, name) for name in ("mean", "sigma", "frequency", "nyquist", "parameters", "share")},
        "energy": summary.energy_beyond_nyquist,
        "folded": summary.folded_energy,
        "aliased": summary.aliased,
        "groups": layer.groups,
        "measured": [f / limit for f, limit in zip(measured, summary.nyquist, strict=True)],
        "outs": channels[0],
        "ins": channels[1],
        "causal": [axis.causal for axis in layer.axes],
        "field": [[_offset(axis, 0, axis.spacing), _offset(axis, axis.size - 1, axis.spacing)] for axis in layer.axes],
        "mask": None if layer.mask is None else _mask(layer.mask, layer.axes),
        "versions": [_version(summary.name, each, channels, units) for each in versions],
    }


def _version(name: str, layer: FlexConvNd, channels: Channels, units: Sequence[float]) -> dict[str, Any]:
    """The kernel at one resolution: {extent, first, step, nyquist: [per axis], bound: [per axis] or None, views}.

    `bound` is the highest frequency by the exact formula. A view is {axes: [d] or [rows, columns], slice, projection}.
    `slice` and `projection` are packed arrays [outs · ins, taps]. In 3D there are three views: `slice` is the plane
    through the center of the mask, and `projection` is the sum over the third axis. By the projection-slice theorem,
    the spectrum of the projection is the plane of the kernel's spectrum at frequency 0 along that axis. In 1D and 2D
    there is one view, `slice` is the kernel, and `projection` is None.
    """
    kernel = shown_kernel(layer, channels)
    if not np.isfinite(kernel).all():
        raise ArgumentError(f"the kernel of {name} has values that are not finite, so it cannot be shown")
    bound = frequency_limit(layer)
    taps = layer.taps
    return {
        "extent": kernel.shape[2:],
        "first": [_offset(axis, start, unit) for axis, (start, _), unit in zip(layer.axes, taps, units, strict=True)],
        "step": [axis.spacing / unit for axis, unit in zip(layer.axes, units, strict=True)],
        "nyquist": [unit / axis.spacing for axis, unit in zip(layer.axes, units, strict=True)],
        "bound": None if bound is None else [2 * unit * f for f, unit in zip(bound, units, strict=True)],
        "views": _views(kernel, [c - start for c, (start, _) in zip(sampling.centre_taps(layer), taps, strict=True)]),
    }


def _views(kernel: np.ndarray, centre: Sequence[int]) -> list[dict[str, Any]]:
    dims, rows = kernel.ndim - 2, math.prod(kernel.shape[:2])
    if dims < 3:
        return [{"axes": list(range(dims)), "slice": pack(kernel.reshape(rows, -1)), "projection": None}]
    return [
        {
            "axes": [d for d in range(dims) if d != across],
            "slice": pack(kernel.take(centre[across], axis=across + 2).reshape(rows, -1)),
            "projection": pack(kernel.sum(axis=across + 2).reshape(rows, -1)),
        }
        for across in range(dims)
    ]


@torch.no_grad()
def shown_kernel(layer: FlexConvNd, channels: Channels) -> np.ndarray:
    """The given channels of `layer.kernel()` → [outs, ins, *extent], computed in slabs."""
    outs, ins = channels
    (start, stop), *rest = layer.taps
    step = max(1, POINTS // math.prod(b - a for a, b in rest))
    slabs = [(first, min(first + step, stop)) for first in range(start, stop, step)]
    return np.concatenate([sampling.to_numpy(layer.sample([slab, *rest])[outs][:, ins]) for slab in slabs], axis=2)


def _mask(mask: GaussianMask, axes: Sequence[Axis]) -> dict[str, Any]:
    """The mask as an ellipse: {center: [D], shape: [D][D], radius}.

    The mask equals exp(−r²/2) at center + r · shape · u for every unit vector u. It is cropped at r = radius, or not at
    all if `radius` is None. If every channel has a mask, this is the widest one.
    """
    mean, sigma = sampling.typical_mask(mask)
    mean = mean if mask.form == "authors" else mean.clamp(-1, 1)
    sigma = effective_sigma(sigma, torch.tensor(mask.sigma_floor(axes)).to(sigma))
    spread = np.diag(sampling.to_numpy(sigma))
    if isinstance(mask, RotatedGaussianMask):
        cos, sin = math.cos(float(mask.angle)), math.sin(float(mask.angle))
        spread = np.array([[cos, -sin], [sin, cos]]) @ spread
    units = np.array([axis.spacing for axis in axes])
    return {
        "centre": [(m - axis.current) / axis.spacing for m, axis in zip(mean.tolist(), axes, strict=True)],
        "shape": (spread / units[:, None]).tolist(),
        "radius": None if mask.threshold is None else math.sqrt(-2 * math.log(mask.threshold)),
    }


def _offset(axis: Axis, tap: int, unit: float) -> float:
    """The position of a tap relative to the current sample, in units of `unit`."""
    return (axis.first + tap * axis.spacing - axis.current) / unit
