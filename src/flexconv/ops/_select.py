"""`algorithm="auto"`: estimate what each algorithm would cost, take the cheaper.

The estimate is a handful of nanoseconds-per-unit constants per device class, fitted by `benchmarks/calibrate.py`. It
reads shapes, and whether gradients will be wanted: no timing, no synchronisation, the same answer every time. Where a
GPU would transform, matrix products do it instead if they were faster in `benchmarks/dft.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from .._context import autocast_enabled, exporting
from ._fft import circular_sizes
from ._geometry import Geometry, output_size


class Rates(NamedTuple):
    """Nanoseconds: per call first, then per unit of each kind of `Work`."""

    direct: tuple[float, ...]
    fft: tuple[float, ...]


WIDE = 14  # taps per row from which libraries fall back to slower kernels

NEAR_TIE = 0.9  # direct convolutions vary more around their estimate, so that a tie goes to the FFT

#: by device class, whether gradients will be wanted, and kind of convolution
RATES = {
    ("cpu", False, "dense"): Rates((118e3, 0.0196, 0.803), (344e3, 0.0, 0.545, 4.01)),
    ("cpu", False, "depthwise"): Rates((187e3, 0.0277, 0.595), (347e3, 0.0, 13.9, 0.0)),
    ("cpu", False, "long dense"): Rates((131e3, 0.0182, 0.0), (208e3, 0.297, 0.0, 0.0)),
    ("cpu", False, "long depthwise"): Rates((218e3, 0.0281, 0.455), (271e3, 0.155, 0.0, 0.0)),
    ("cpu", False, "wide dense"): Rates((174e3, 0.0227, 0.0), (317e3, 0.0, 0.517, 3.63)),
    ("cpu", False, "wide depthwise"): Rates((135e3, 0.497, 7.96), (289e3, 0.0, 13.7, 0.0)),
    ("cpu", True, "dense"): Rates((647e3, 0.0518, 4.08), (1510e3, 1.34, 0.297, 3.83)),
    ("cpu", True, "depthwise"): Rates((761e3, 0.856, 1.46), (1180e3, 0.0, 20.2, 4.19)),
    ("cpu", True, "long dense"): Rates((348e3, 0.16, 4.17), (1220e3, 1.3, 3.01, 0.0)),
    ("cpu", True, "long depthwise"): Rates((872e3, 0.88, 1.88), (848e3, 0.472, 0.0, 1.94)),
    ("cpu", True, "wide dense"): Rates((1230e3, 0.136, 110.0), (1690e3, 1.07, 0.54, 4.56)),
    ("cpu", True, "wide depthwise"): Rates((796e3, 1.34, 0.0), (1250e3, 0.0, 5.98, 6.12)),
    ("cuda", False, "dense"): Rates((82400.0, 1.12e-05, 0.00619), (331e3, 0.000752, 0.000438, 0.0)),
    ("cuda", False, "depthwise"): Rates((59900.0, 0.000523, 0.00289), (298e3, 0.000811, 0.0, 0.0)),
    ("cuda", False, "long dense"): Rates((130e3, 2.84e-05, 0.00319), (287e3, 0.000737, 0.00018, 0.0)),
    ("cuda", False, "long depthwise"): Rates((75600.0, 0.00029, 0.00446), (266e3, 0.000669, 0.0, 0.0)),
    ("cuda", False, "wide dense"): Rates((127e3, 1.52e-05, 0.0474), (346e3, 0.000516, 0.000611, 0.0)),
    ("cuda", False, "wide depthwise"): Rates((71600.0, 0.000307, 0.0243), (279e3, 0.00072, 0.0, 0.0)),
    ("cuda", True, "dense"): Rates((431e3, 5e-05, 0.0296), (1560e3, 0.000794, 0.00249, 0.0)),
    ("cuda", True, "depthwise"): Rates((262e3, 0.00203, 0.0143), (1340e3, 0.00177, 0.0, 0.0)),
    ("cuda", True, "long dense"): Rates((616e3, 0.000131, 0.0218), (1540e3, 0.000733, 0.00119, 0.0)),
    ("cuda", True, "long depthwise"): Rates((382e3, 0.00211, 0.00833), (1250e3, 0.00112, 0.0, 0.0)),
    ("cuda", True, "wide dense"): Rates((518e3, 0.000116, 0.107), (1610e3, 0.000616, 0.00211, 0.0)),
    ("cuda", True, "wide depthwise"): Rates((267e3, 0.00218, 0.0137), (1320e3, 0.00161, 0.0, 0.0)),
}


class Work(NamedTuple):
    """What a convolution asks of each algorithm."""

    direct: tuple[float, float]  # multiplications, numbers read and written
    fft: tuple[float, float, float]  # points × log₂ points of the transforms, multiplications, numbers in spectra


def work(x_shape: Sequence[int], weight_shape: Sequence[int], geometry: Geometry) -> Work:
    """Count, from shapes alone, what each algorithm has to do."""
    batch, in_channels, *size = x_shape
    out_channels, fan_in, *taps = weight_shape
    each = zip(size, taps, geometry.stride, geometry.pads, geometry.dilation, strict=True)
    outputs = math.prod([output_size(*axis) for axis in each])
    circles = circular_sizes(tuple(size), tuple(taps), geometry.pads, geometry.dilation)
    points = math.prod(circles)
    freqs = math.prod(circles[:-1]) * (circles[-1] // 2 + 1)
    pairs = out_channels * fan_in
    transforms = batch * (in_channels + out_channels) + pairs
    return Work(
        direct=(
            batch * pairs * outputs * math.prod(taps),
            batch * (in_channels * math.prod(size) + out_channels * outputs),
        ),
        fft=(transforms * points * math.log2(max(points, 2)), batch * pairs * freqs, transforms * points),
    )


def kind(weight_shape: Sequence[int]) -> str:
    """Which of several very different library kernels a direct convolution would use."""
    mixing = "dense" if weight_shape[1] > 1 else "depthwise"
    if weight_shape[-1] < WIDE:
        return mixing
    return f"long {mixing}" if len(weight_shape) == 3 else f"wide {mixing}"


def predict(rates: Rates, amount: Work) -> dict[str, float]:
    """Estimated nanoseconds of each algorithm."""
    return {
        "direct": sum(rate * units for rate, units in zip(rates.direct, (1.0, *amount.direct), strict=True)),
        "fft": sum(rate * units for rate, units in zip(rates.fft, (1.0, *amount.fft), strict=True)),
    }


def pick(x: torch.Tensor, weight: torch.Tensor, geometry: Geometry) -> str:
    """The name of the cheaper algorithm for these shapes on this device."""
    if exporting() or 0 in x.shape:
        return "direct"  # exported graphs hold plain convolutions, and there is nothing to gain on nothing
    device = "cuda" if x.device.type == "cuda" else "cpu"
    training = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    choose = _cheaper if torch.compiler.is_compiling() else _remembered_cheaper
    name = choose(device, training, tuple(x.shape), tuple(weight.shape), geometry)
    return _on_tensor_cores(name, x, weight) if device == "cuda" and training else name


SMALL_KERNEL = 25  # taps up to which cuDNN is faster in half precision
LARGE_IMAGE = 64  # side from which nothing was measured


def _on_tensor_cores(name: str, x: torch.Tensor, weight: torch.Tensor) -> str:
    """`name`, or "dft" where that took less time on an H200."""
    size, taps = x.shape[2:], weight.shape[2:]
    if weight.shape[1] == 1 or len(size) == 3 or (len(size) == 2 and max(size) > LARGE_IMAGE):
        return name
    dtype = torch.get_autocast_dtype("cuda") if autocast_enabled("cuda") else x.dtype
    if dtype.itemsize == 2:
        return "dft" if math.prod(taps) > SMALL_KERNEL else "direct"
    busy = x.shape[0] * x.shape[1] >= 8192 or min(taps) > 32
    return "dft" if name == "fft" and len(size) == 2 and busy else name


def _cheaper(
    device: str, training: bool, x_shape: tuple[int, ...], weight_shape: tuple[int, ...], geometry: Geometry
) -> str:
    guess = predict(RATES[device, training, kind(weight_shape)], work(x_shape, weight_shape, geometry))
    return "direct" if guess["direct"] <= NEAR_TIE * guess["fft"] else "fft"


# an estimate takes longer than a small convolution on a GPU
_remembered_cheaper = functools.lru_cache(maxsize=4096)(_cheaper)
