"""`algorithm="auto"`: estimate what each algorithm would cost, take the cheapest.

The estimate is work (`_work.py`) times nanoseconds per unit (`_rates_cpu.py`, `_rates_cuda.py`, written by
`benchmarks/calibrate.py`). It reads shapes, the precision, and whether gradients will be wanted: no timing, no
synchronisation, the same answer every time. Where measurements contradicted the estimate, they are listed.
"""

from __future__ import annotations

import functools
import math
from operator import index
from typing import NamedTuple

import torch

from .._context import autocast_enabled, exporting
from . import _rates_cpu, _rates_cuda
from ._factored import FactoredKernel
from ._geometry import Geometry
from ._work import WORK, Problem

NEAR_TIE = 0.9  # direct convolutions vary more around their estimate, so that a tie goes to the others

NEARBY = 1.2  # ratio of sizes up to which a surprise is expected again


class Prices(NamedTuple):
    """What was measured, for one precision ("full", "half") and with gradients or without."""

    rates: dict[str, dict[str, tuple[float, ...]]]  # by algorithm and regime: nanoseconds per call, per unit of work
    surprises: dict[tuple[int, ...], str]  # by landmark: what was fastest, against the estimate


def pick(x: torch.Tensor, weight: torch.Tensor | FactoredKernel, geometry: Geometry) -> str:
    """The name of the cheapest algorithm for these shapes on this device."""
    if exporting() or 0 in x.shape:
        return "direct"  # exported graphs hold plain convolutions, and there is nothing to gain on nothing
    device = "cuda" if x.device.type == "cuda" else "cpu"
    training = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    rank = weight.mix.shape[-1] if isinstance(weight, FactoredKernel) else None
    problem = Problem(device, precision(x, device), tuple(x.shape), tuple(weight.shape), geometry, rank)
    return (_pick if torch.compiler.is_compiling() else _remembered_pick)(problem, training)


def precision(x: torch.Tensor, device: str) -> str:
    """What a convolution of x will be computed in: "half" (bfloat16, float16) or "full". CPUs are priced in full."""
    if device == "cpu" or x.dtype == torch.float64:
        return "full"
    dtype = torch.get_autocast_dtype(device) if autocast_enabled(device) else x.dtype
    return "half" if dtype.itemsize == 2 else "full"


def _pick(problem: Problem, training: bool) -> str:
    table = _rates_cuda if problem.device == "cuda" else _rates_cpu
    mode = problem.precision, training
    return cheapest(Prices(table.RATES[mode], table.SURPRISES.get(mode, {})), problem)


# an estimate takes longer than a small convolution on a GPU
_remembered_pick = functools.lru_cache(maxsize=4096)(_pick)


def cheapest(prices: Prices, problem: Problem) -> str:
    """The algorithm that should take the least time."""
    if prices.surprises:
        mine, nearest, known = landmark(problem), math.inf, "direct"
        for other, name in prices.surprises.items():  # torch.compile follows loops, not min() of such things
            ratio = _ratio(mine, other)
            if ratio < nearest:
                nearest, known = ratio, name
        if nearest <= NEARBY:
            return known
    guess = estimates(prices, problem)
    best = "direct"
    for name in guess:
        if (NEAR_TIE if best == "direct" else 1.0) * guess[name] < guess[best]:
            best = name
    return best


def estimates(prices: Prices, problem: Problem) -> dict[str, float]:
    """Nanoseconds of each algorithm whose prices are known."""
    guess = {}
    for name, regimes in prices.rates.items():
        work = WORK[name](problem)
        if work is not None and work.regime in regimes:
            units = (1.0, *work.units)
            guess[name] = sum(rate * amount for rate, amount in zip(regimes[work.regime], units, strict=True))
    return guess


def landmark(problem: Problem) -> tuple[int, ...]:
    """What a problem is remembered by: channels in, out and per group, batch, sizes, taps, outputs."""
    batch, channels, *size = problem.x
    out, fan_in, *taps = problem.weight
    return tuple(index(n) for n in (channels, out, fan_in, batch, *size, *taps, *problem.outputs))


def _ratio(mine: tuple[int, ...], other: tuple[int, ...]) -> float:
    """How far sizes are apart at most; infinite if channels differ: libraries have kernels for some numbers of them."""
    if len(mine) != len(other) or mine[:3] != other[:3]:
        return math.inf
    return max(max(a / b, b / a) for a, b in zip(mine[3:], other[3:], strict=True))
