"""What a convolution asks of each algorithm, counted from shapes alone: the units that `_select.py` has prices for."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import index
from typing import NamedTuple

from ._dft import FEW_ROWS, make_plan
from ._dft_matrices import Recipe
from ._fft import circular_sizes
from ._geometry import Geometry, output_size

WIDE = 14  # taps per row from which libraries fall back to slower kernels
SUM_OF_SPECTRA = 0.2  # of what a transform costs: the spectrum of a kernel from those of its factors
ALIGNED = 8  # channels that tensor cores take at once


class Problem(NamedTuple):
    """A convolution, and where it runs: x [batch, in, *size], weight [out, in/groups, *taps]."""

    device: str  # "cpu" or "cuda"
    precision: str  # "full" or "half"
    x: tuple[int, ...]
    weight: tuple[int, ...]
    geometry: Geometry
    rank: int | None = None  # of a kernel that is given by its factors, see `_factored.py`

    @property
    def outputs(self) -> tuple[int, ...]:
        """Outputs along each axis."""
        stride, pads, dilation, _ = self.geometry
        return tuple(
            output_size(*each) for each in zip(self.x[2:], self.weight[2:], stride, pads, dilation, strict=True)
        )


class Work(NamedTuple):
    """Units of work, and the regime they are done in: each has prices of its own."""

    regime: str
    units: tuple[float, ...]


def direct_work(problem: Problem) -> Work:
    """Multiplications; numbers read and written."""
    batch, channels, *size = problem.x
    out, fan_in, *taps = problem.weight
    outputs = math.prod(problem.outputs)
    regime = kind(problem)
    if problem.device == "cuda" and fan_in > 1:
        regime += " unaligned" if fan_in % ALIGNED or out % ALIGNED else " aligned"
    return Work(
        regime,
        (batch * out * fan_in * outputs * math.prod(taps), batch * (channels * math.prod(size) + out * outputs)),
    )


def fft_work(problem: Problem) -> Work:
    """Points × log₂ points of the transforms; multiplications; numbers in spectra."""
    batch, channels, *size = problem.x
    out, fan_in, *taps = problem.weight
    circles = circular_sizes(tuple(size), tuple(taps), problem.geometry.pads, problem.geometry.dilation)
    points = math.prod(circles)
    freqs = math.prod(circles[:-1]) * (circles[-1] // 2 + 1)
    pairs = out * fan_in
    kernels = pairs if problem.rank is None else problem.rank + SUM_OF_SPECTRA * pairs
    transforms = batch * (channels + out) + kernels
    return Work(
        kind(problem),
        (transforms * points * math.log2(max(points, 2)), batch * pairs * freqs, transforms * points),
    )


def dft_work(problem: Problem) -> Work | None:
    """Multiplications that transform the data, transform the kernel, mix channels; numbers moved.

    None where there is no plan, and the FFT would run in its place.
    """
    batch, channels, *size = (index(n) for n in problem.x)  # plain numbers of symbols, as `dft_conv` does
    out, fan_in, *taps = (index(n) for n in problem.weight)
    outputs = tuple(index(n) for n in problem.outputs)
    pads = [(index(left), index(right)) for left, right in problem.geometry.pads]
    read = tuple(max(1, n + min(0, left) + min(0, right)) for n, (left, right) in zip(size, pads, strict=True))
    lefts = tuple(max(0, left) for left, _ in pads)
    plan = make_plan(
        read,
        tuple(taps),
        outputs,
        lefts,
        problem.geometry.stride,
        problem.geometry.dilation,
        few=batch * channels <= FEW_ROWS,
    )
    if plan is None:
        return None
    x, kernel, y = (_multiplications(recipe) for recipe in (plan.x, plan.weight, plan.y))
    spectrum, pairs = math.prod(plan.x.circles), out * fan_in
    # of a kernel given by its factors: their spectra, and sums of them
    for_kernel = pairs * kernel if problem.rank is None else problem.rank * (kernel + pairs * spectrum)
    moved = batch * (channels * (math.prod(read) + spectrum) + out * (math.prod(outputs) + spectrum))
    return Work(
        f"{len(read)}D {plan.x.style} {_mixing(problem)}",
        (
            batch * (channels * x + out * y),
            for_kernel,
            2 * batch * pairs * spectrum,
            moved + pairs * (math.prod(taps) + spectrum),
        ),
    )


def _multiplications(recipe: Recipe) -> int:
    """Of one transform by products with the matrices of a recipe."""
    points = [each.number for each in recipe.points]
    if recipe.style == "long":  # down the columns, across the rows
        outer, inner = recipe.circles
        return points[0] * outer + 2 * outer * inner**2
    *others, last = recipe.circles
    if recipe.style == "whole":
        return math.prod(recipe.circles) * math.prod(points)
    lines = math.prod(points[:-1])
    total = lines * points[-1] * last
    for circle, number in zip(reversed(others), reversed(points[:-1]), strict=True):  # complex from here on
        total += 2 * lines * circle * last
        lines, last = lines // number, last * circle
    return total


#: what there is to choose from
WORK: dict[str, Callable[[Problem], Work | None]] = {"direct": direct_work, "fft": fft_work, "dft": dft_work}


def kind(problem: Problem) -> str:
    """Which of several very different library kernels a direct convolution would use."""
    mixing, dims = _mixing(problem), len(problem.weight) - 2
    narrow = problem.weight[-1] < WIDE
    if problem.device == "cuda":
        return f"{dims}D {'narrow' if narrow else 'wide'} {mixing}"
    return mixing if narrow else f"long {mixing}" if dims == 1 else f"wide {mixing}"


def _mixing(problem: Problem) -> str:
    return "dense" if problem.weight[1] > 1 else "depthwise"
