"""The choice for `algorithm="auto"`: the algorithm with the shortest estimated time.

The estimate (`_cost_model.py`) depends on shapes, precision, and whether gradients are needed. Nothing is timed and the
device is not synchronized, so the same shapes always give the same choice. Where a measurement contradicts the
estimate, the measured choice is listed as an override and also applies to similar shapes.

Estimates for a GPU are of the time on the device. An eager program also needs time on the host to launch every
operation, and takes the longer of the two. Small convolutions are therefore direct, which takes the fewest operations.
Code whose operations are captured or compiled runs inside of `launches_are_free()`.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import math
from collections.abc import Iterator, Mapping
from operator import index

import torch

from .._context import autocast_enabled, exporting
from . import _calibration_cpu, _calibration_cuda
from ._cost_model import Calibration, Problem, estimate_times
from ._factored import FactoredKernel
from ._geometry import Geometry
from ._toeplitz import has_toeplitz_conv

#: nanoseconds of one operation on the host, with its share of Python and autograd. A training step of FlexNet-7 takes
#: between 50 and 80 µs per operation of its FlexConvs next to an H200 (results/bench/eager_loop_h200.txt).
HOST_OPERATION = 40e3
#: operations of each algorithm on the host, without and with gradients
Operations = Mapping[str, tuple[int, int]]

#: `python -m benchmarks.eager_loop --count`
HOST_OPERATIONS: Operations = {
    "direct": (4, 20),
    "fft": (35, 110),
    "dft": (50, 140),
    "toeplitz": (8, 25),
    "monarch": (9, 25),
}

NEED_TRITON = ("toeplitz", "monarch")

SIMILAR = 1.2  # largest ratio between sizes for which an override applies


def select_algorithm(
    x: torch.Tensor,
    weight: torch.Tensor | FactoredKernel,
    geometry: Geometry,
    operations: Operations | None = None,
) -> str:
    """Return the name of the algorithm that should be fastest for these shapes on this device.

    `operations` are those of a caller that needs fewer than `HOST_OPERATIONS`.
    """
    if exporting() or 0 in x.shape:
        return "direct"  # exported graphs contain plain convolutions, and an empty input needs no choice
    device = "cuda" if x.device.type == "cuda" else "cpu"
    training = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    rank = weight.rank if isinstance(weight, FactoredKernel) else None
    problem = Problem(device, compute_precision(x, device), tuple(x.shape), tuple(weight.shape), geometry, rank)
    triton = x.dtype != torch.float64 and has_toeplitz_conv()
    if torch.compiler.is_compiling():
        return select_for(problem, training, triton=triton)
    eager = device == "cuda" and not _launches_are_free.get()
    if operations is not None:
        return select_for(problem, training, eager=eager, operations=operations, triton=triton)
    return _cached_select_for(problem, training, eager=eager, triton=triton)


_launches_are_free: contextvars.ContextVar[bool] = contextvars.ContextVar("launches are free", default=False)


@contextlib.contextmanager
def launches_are_free() -> Iterator[None]:
    """Inside, select algorithms by their time on the device only, as for code that is captured as a CUDA graph."""
    token = _launches_are_free.set(True)
    try:
        yield
    finally:
        _launches_are_free.reset(token)


def compute_precision(x: torch.Tensor, device: str) -> str:
    """Return the precision of a convolution of x: "half" (bfloat16, float16) or "full".

    On a CPU it is always "full", the only precision for which there are measurements.
    """
    if device == "cpu" or x.dtype == torch.float64:
        return "full"
    dtype = torch.get_autocast_dtype(device) if autocast_enabled(device) else x.dtype
    return "half" if dtype.itemsize == 2 else "full"


def select_for(
    problem: Problem,
    training: bool,
    *,
    eager: bool = False,
    operations: Operations | None = None,
    triton: bool = True,
) -> str:
    """Return the name of the algorithm for a problem, with or without gradients.

    `eager`: every operation is launched by the host, which takes time as well. By default, there are as many as in
    `HOST_OPERATIONS`. `triton`: whether algorithms that need Triton are available.
    """
    table = _calibration_cuda if problem.device == "cuda" else _calibration_cpu
    mode = problem.precision, training
    coefficients, overrides = table.COEFFICIENTS[mode], table.OVERRIDES.get(mode, {})
    if not triton and "toeplitz" in coefficients:
        coefficients = {name: each for name, each in coefficients.items() if name not in NEED_TRITON}
        overrides = {key: name for key, name in overrides.items() if name not in NEED_TRITON}
    if eager:
        times = estimate_times(Calibration(coefficients, {}), problem)
        numbers = HOST_OPERATIONS if operations is None else operations
        on_host = {name: HOST_OPERATION * number[training] for name, number in numbers.items()}
        return min(times, key=lambda name: (max(times[name], on_host[name]), times[name]))
    return fastest_algorithm(Calibration(coefficients, overrides), problem)


# an estimate takes longer than a small convolution on a GPU
_cached_select_for = functools.lru_cache(maxsize=4096)(select_for)


def fastest_algorithm(calibration: Calibration, problem: Problem) -> str:
    """Return the algorithm of the most similar override, or else the one with the shortest estimated time."""
    if calibration.overrides:
        key, smallest, override = override_key(problem), math.inf, "direct"
        for other, name in calibration.overrides.items():  # loops, because torch.compile does not support min() here
            ratio = _largest_ratio(key, other)
            if ratio < smallest:
                smallest, override = ratio, name
        if smallest <= SIMILAR:
            return override
    times = estimate_times(calibration, problem)
    best = "direct"
    for name in times:
        if times[name] < times[best]:
            best = name
    return best


def override_key(problem: Problem) -> tuple[int, ...]:
    """Return what overrides are listed by: channels in, out and per group, batch size, sizes, taps and outputs."""
    batch, channels, *size = problem.x
    out, fan_in, *taps = problem.weight
    return tuple(index(n) for n in (channels, out, fan_in, batch, *size, *taps, *problem.outputs))


def _largest_ratio(key: tuple[int, ...], other: tuple[int, ...]) -> float:
    """Return the largest ratio between two sizes. It is infinite if the channels differ.

    Libraries have special code for certain numbers of channels, so measurements do not carry over to other numbers.
    """
    if len(key) != len(other) or key[:3] != other[:3]:
        return math.inf
    return max(max(a / b, b / a) for a, b in zip(key[3:], other[3:], strict=True))
