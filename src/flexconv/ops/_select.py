"""`algorithm="auto"`: estimate what each algorithm would cost, take the cheaper.

The estimate is a handful of nanoseconds-per-unit constants per device class, fitted once by
`benchmarks/calibrate.py`. It reads shapes only: no timing, no synchronisation, and the same answer every time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ._fft import circular_sizes
from ._geometry import Geometry, output_size


class Rates(NamedTuple):
    """Nanoseconds per unit of work (see `work`), and per call."""

    direct_mac: float
    direct_call: float
    fft_point: float
    fft_mac: float
    fft_call: float


RATES = {
    "cpu": Rates(direct_mac=0.02, direct_call=20e3, fft_point=0.3, fft_mac=0.05, fft_call=150e3),
    "cuda": Rates(direct_mac=0.0001, direct_call=10e3, fft_point=0.003, fft_mac=0.0004, fft_call=60e3),
}


class Work(NamedTuple):
    """What a convolution asks of each algorithm: multiplications and FFT points."""

    direct_macs: float
    fft_points: float
    fft_macs: float


def work(x: torch.Tensor, weight: torch.Tensor, geometry: Geometry) -> Work:
    """Count, from shapes alone, the arithmetic of both algorithms."""
    batch, in_channels, *size = x.shape
    out_channels, fan_in, *taps = weight.shape
    outputs = [
        output_size(*each) for each in zip(size, taps, geometry.stride, geometry.pads, geometry.dilation, strict=True)
    ]
    lengths = circular_sizes(tuple(size), tuple(taps), geometry.pads, geometry.dilation)
    points = math.prod(lengths)
    freqs = math.prod(lengths[:-1]) * (lengths[-1] // 2 + 1)
    transforms = batch * (in_channels + out_channels) + out_channels * fan_in
    return Work(
        direct_macs=batch * out_channels * fan_in * math.prod(outputs) * math.prod(taps),
        fft_points=transforms * points * math.log2(max(points, 2)),
        fft_macs=4 * batch * out_channels * fan_in * freqs,
    )


def pick(x: torch.Tensor, weight: torch.Tensor, geometry: Geometry) -> str:
    """The name of the cheaper algorithm for these shapes on this device."""
    if torch.compiler.is_exporting() or 0 in x.shape:
        return "direct"  # exported graphs hold plain convolutions, and there is nothing to gain on nothing
    rates = RATES.get(x.device.type, RATES["cpu"])
    amount = work(x, weight, geometry)
    direct = rates.direct_call + rates.direct_mac * amount.direct_macs
    fft = rates.fft_call + rates.fft_point * amount.fft_points + rates.fft_mac * amount.fft_macs
    return "direct" if direct <= fft else "fft"
