"""`algorithm="auto"`: estimate what each algorithm would cost, take the cheaper.

The estimate is a handful of nanoseconds-per-unit constants per device class, fitted by `benchmarks/calibrate.py`. It
reads shapes, and whether gradients will be wanted: no timing, no synchronisation, the same answer every time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from .._context import exporting
from ._fft import circular_sizes
from ._geometry import Geometry, output_size


class Rates(NamedTuple):
    """Nanoseconds: per call first, then per unit of each kind of `Work`."""

    direct: tuple[float, ...]
    fft: tuple[float, ...]


WIDE = 13  # taps per row from which libraries fall back to slower kernels

#: by device class, whether gradients will be wanted, and kind of convolution
RATES = {
    ("cpu", False, "dense"): Rates((118e3, 0.0196, 0.803), (344e3, 0.0, 0.545, 4.01)),
    ("cpu", False, "depthwise"): Rates((187e3, 0.0277, 0.595), (347e3, 0.0, 13.9, 0.0)),
    ("cpu", False, "wide dense"): Rates((138e3, 0.0191, 0.0), (253e3, 0.314, 0.0649, 0.0)),
    ("cpu", False, "wide depthwise"): Rates((235e3, 0.0579, 0.15), (281e3, 0.136, 2.35, 0.0)),
    ("cpu", True, "dense"): Rates((647e3, 0.0518, 4.08), (1510e3, 1.34, 0.297, 3.83)),
    ("cpu", True, "depthwise"): Rates((761e3, 0.856, 1.46), (1180e3, 0.0, 20.2, 4.19)),
    ("cpu", True, "wide dense"): Rates((400e3, 0.167, 3.23), (1360e3, 1.41, 1.83, 0.0)),
    ("cpu", True, "wide depthwise"): Rates((875e3, 1.05, 0.0781), (932e3, 0.265, 0.0, 4.45)),
    ("cuda", False, "dense"): Rates((82400.0, 1.12e-05, 0.00619), (331e3, 0.000752, 0.000438, 0.0)),
    ("cuda", False, "depthwise"): Rates((59900.0, 0.000523, 0.00289), (298e3, 0.000811, 0.0, 0.0)),
    ("cuda", False, "wide dense"): Rates((129e3, 2.7e-05, 0.00423), (309e3, 0.000662, 0.000327, 0.0)),
    ("cuda", False, "wide depthwise"): Rates((75e3, 0.000317, 0.00431), (272e3, 0.00069, 0.0, 0.0)),
    ("cuda", True, "dense"): Rates((431e3, 5e-05, 0.0296), (1560e3, 0.000794, 0.00249, 0.0)),
    ("cuda", True, "depthwise"): Rates((262e3, 0.00203, 0.0143), (1340e3, 0.00177, 0.0, 0.0)),
    ("cuda", True, "wide dense"): Rates((591e3, 0.000128, 0.0249), (1570e3, 0.000682, 0.00157, 0.0)),
    ("cuda", True, "wide depthwise"): Rates((343e3, 0.00212, 0.00993), (1270e3, 0.00136, 0.0, 0.0)),
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
    return mixing if weight_shape[-1] < WIDE else f"wide {mixing}"


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
    return choose(device, training, tuple(x.shape), tuple(weight.shape), geometry)


def _cheaper(
    device: str, training: bool, x_shape: tuple[int, ...], weight_shape: tuple[int, ...], geometry: Geometry
) -> str:
    guess = predict(RATES[device, training, kind(weight_shape)], work(x_shape, weight_shape, geometry))
    return "direct" if guess["direct"] <= guess["fft"] else "fft"


# an estimate takes longer than a small convolution on a GPU
_remembered_cheaper = functools.lru_cache(maxsize=4096)(_cheaper)
