"""`algorithm="auto"`: estimate what each algorithm would cost, take the cheaper.

The estimate is a handful of nanoseconds-per-unit constants per device class, fitted by `benchmarks/calibrate.py`. It
reads shapes, and whether gradients will be wanted: no timing, no synchronisation, the same answer every time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ._fft import circular_sizes
from ._geometry import Geometry, output_size


class Rates(NamedTuple):
    """Nanoseconds: per call first, then per unit of each kind of `Work`."""

    direct: tuple[float, ...]
    fft: tuple[float, ...]


#: by device class and whether gradients will be wanted
RATES = {
    ("cpu", False): Rates((20e3, 0.02, 1.0), (150e3, 0.3, 0.1, 1.0)),
    ("cpu", True): Rates((60e3, 0.06, 3.0), (450e3, 1.0, 0.3, 3.0)),
    ("cuda", False): Rates((10e3, 1e-4, 0.01), (60e3, 3e-3, 4e-4, 0.01)),
    ("cuda", True): Rates((30e3, 3e-4, 0.03), (200e3, 1e-2, 1e-3, 0.03)),
}


class Work(NamedTuple):
    """What a convolution asks of each algorithm."""

    direct: tuple[float, float]  # multiplications, numbers read and written
    fft: tuple[float, float, float]  # points × log₂ points of the transforms, multiplications, numbers in spectra


def work(x: torch.Tensor, weight: torch.Tensor, geometry: Geometry) -> Work:
    """Count, from shapes alone, what each algorithm has to do."""
    batch, in_channels, *size = x.shape
    out_channels, fan_in, *taps = weight.shape
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


def predict(rates: Rates, amount: Work) -> dict[str, float]:
    """Estimated nanoseconds of each algorithm."""
    return {
        "direct": sum(rate * units for rate, units in zip(rates.direct, (1.0, *amount.direct), strict=True)),
        "fft": sum(rate * units for rate, units in zip(rates.fft, (1.0, *amount.fft), strict=True)),
    }


def pick(x: torch.Tensor, weight: torch.Tensor, geometry: Geometry) -> str:
    """The name of the cheaper algorithm for these shapes on this device."""
    if torch.compiler.is_exporting() or 0 in x.shape:
        return "direct"  # exported graphs hold plain convolutions, and there is nothing to gain on nothing
    training = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    rates = RATES["cuda" if x.device.type == "cuda" else "cpu", training]
    guess = predict(rates, work(x, weight, geometry))
    return "direct" if guess["direct"] <= guess["fft"] else "fft"
