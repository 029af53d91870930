"""How `_dft.py` transforms given shapes: circular lengths, and one matrix, one per axis, or two levels."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from ._dft_matrices import Positions, TransformSpec

MAX_MATRIX_ENTRIES = 2**20  # of a single matrix for all axes; beyond this, separable transforms are faster
MAX_MATRIX_ENTRIES_SMALL_BATCH = 2**22  # for small batches, where kernel launches cost more than arithmetic
SMALL_BATCH = 8192  # batch size × input channels
MAX_LENGTH = 4096  # circular length of one axis; longer sequences use two levels
MAX_TWO_LEVEL_LENGTH = 2**17  # longer sequences use the FFT
MAX_ERROR_SPREAD = 1.25  # in half precision; see `error_spread`
MAX_ERROR_SPREAD_FULL = 8.0  # in float32 and float64
FEW_NUMBERS = 256  # inputs, taps or outputs whose rounding errors do not average out


class Plan(NamedTuple):
    """The transforms of the input, of the kernel and, transposed, of the output."""

    x: TransformSpec
    weight: TransformSpec
    y: TransformSpec

    @property
    def kind(self) -> str:
        return self.x.kind


def make_plan(
    size: tuple[int, ...],
    taps: tuple[int, ...],
    outputs: tuple[int, ...],
    left_padding: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    kind: str | None = None,
    *,
    small_batch: bool = False,
) -> Plan | None:
    """Choose the transforms of a convolution. All tuples have one entry per axis.

    Returns None for shapes that are too large for matrices, for which the FFT should be used.
    """
    positions = (
        tuple(Positions(n, 0, 1) for n in size),  # padding shifts the taps, so all kernels share the input's matrices
        tuple(Positions(k, -left, d) for k, left, d in zip(taps, left_padding, dilation, strict=True)),
        tuple(Positions(n, 0, s) for n, s in zip(outputs, stride, strict=True)),
    )
    minima = [shortest_circular_length(*each) for each in zip(*positions, strict=True)]
    last = len(minima) - 1
    lengths = tuple(_round_up(n, last=axis == last, only=last == 0) for axis, n in enumerate(minima))
    kind = kind or _choose_kind(lengths, size, small_batch)
    if kind == "fft":
        return None
    if kind == "two-level":
        return _two_level_plan(*(each[0] for each in positions))
    x, weight, y = (
        TransformSpec(kind, lengths, each, kernel=kernel)
        for each, kernel in zip(positions, (False, True, False), strict=True)
    )
    return Plan(x, weight, y)


cached_plan = functools.lru_cache(maxsize=4096)(make_plan)


def shortest_circular_length(x: Positions, weight: Positions, y: Positions) -> int:
    """Return the smallest circular length N for which no sample wraps around into an output.

    Output n reads sample m through tap j if n·stride + j·dilation − left − m = 0. In a circular convolution, it also
    does if the left side is another multiple of N. So N must exceed all absolute values of the left side.
    """
    first, last = weight.start - x.start, weight.start - x.start + (weight.number - 1) * weight.step
    return max(last + (y.number - 1) * y.step + 1, x.number - first, 1)


def _round_up(minimum: int, *, last: bool, only: bool) -> int:
    """Round a circular length up: even for the last axis, and such that matrices have a multiple of 8 rows."""
    if minimum == 1 and not last:
        return 1
    multiple = 2 if minimum <= 8 else 8 if only else 4
    return -(-minimum // multiple) * multiple


def _choose_kind(lengths: tuple[int, ...], size: tuple[int, ...], small_batch: bool) -> str:
    if len(lengths) == 1:
        return "single" if lengths[0] <= MAX_LENGTH else "two-level" if lengths[0] <= MAX_TWO_LEVEL_LENGTH else "fft"
    if max(lengths) > MAX_LENGTH:
        return "fft"
    limit = MAX_MATRIX_ENTRIES_SMALL_BATCH if small_batch else MAX_MATRIX_ENTRIES
    return "single" if math.prod(lengths) * math.prod(size) <= limit else "separable"


def _two_level_plan(x: Positions, weight: Positions, y: Positions) -> Plan:
    """Choose the row length that needs the fewest multiplications, counted in whole tiles of tensor cores."""
    minimum = shortest_circular_length(x, weight, y)

    def cost(inner: int) -> int:
        outer, rows = _number_of_rows(minimum, inner), -(-max(x.number, y.number) // inner)
        return _whole_tiles(outer) * _whole_tiles(rows) * 128 * math.ceil(inner / 128) + 2 * outer * inner**2

    inner = min(range(8, 8 * math.isqrt(minimum // 64) + 16, 8), key=cost)
    lengths = _number_of_rows(minimum, inner), inner
    x, weight, y = (each._replace(number=-(-each.number // inner) * inner) for each in (x, weight, y))
    return Plan(
        TransformSpec("two-level", lengths, (x,), kernel=False),
        TransformSpec("two-level", lengths, (weight,), kernel=True),
        TransformSpec("two-level", lengths, (y,), kernel=False),
    )


def _number_of_rows(minimum: int, inner: int) -> int:
    """Return the smallest even number of rows that hold `minimum` samples."""
    return 2 * max(1, -(-minimum // (2 * inner)))


def _whole_tiles(number: int) -> int:
    """Round up to a multiple of 64, except for numbers below 64, for which there are smaller tiles."""
    return -(-number // 64) * 64 if number > 64 else number


# --- accuracy ---------------------------------------------------------------------------------------------------------


def reached_outputs(plan: Plan) -> int:
    """Return the number of outputs per sample and channel whose taps reach an input or lie on both sides of all."""
    reached = 1
    for x, weight, y in zip(plan.x.positions, plan.weight.positions, plan.y.positions, strict=True):
        first_tap, last_tap = weight.start, weight.start + (weight.number - 1) * weight.step
        first = max(0, -(last_tap // y.step))  # the first output whose last tap is at 0 or later
        last = min(y.number - 1, (x.number - 1 - first_tap) // y.step)  # and the last one whose first tap is in x
        reached *= max(0, last - first + 1)
    return reached


def error_spread(
    lengths: tuple[int, ...],
    positions: tuple[tuple[tuple[int, int, int], tuple[int, int, int], tuple[int, int, int]], ...],
) -> float:
    """Return the share of the error of a spectrum that reaches the outputs, over their share of the energy.

    For white signals, n inputs and k taps give products with an energy of n·k in all. A rounding error of a spectrum is
    spread evenly over N circular positions, m of which are outputs. The energy of the outputs is the number of pairs of
    an output and a tap that meet an input.

    Arguments:
        lengths: Circular lengths.
        positions: Number, start and step of the positions of inputs, taps and outputs, along each axis.

    """
    return _error_spread(lengths, positions)


# This makes it a constant of a compiled graph, as in `_dft_cache.py`: a loop over taps would take long to trace.
error_spread._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


@functools.lru_cache(maxsize=4096)
def _error_spread(lengths: tuple[int, ...], positions: tuple[tuple[tuple[int, int, int], ...], ...]) -> float:
    spread = 1 / math.prod(lengths)
    for (inputs, _, _), (taps, start, dilation), (outputs, _, stride) in positions:
        pairs = 0
        for tap in range(taps):
            offset = start + tap * dilation  # output n reads the input at n·stride + offset
            first, last = max(0, -(offset // stride)), min(outputs - 1, (inputs - 1 - offset) // stride)
            pairs += max(0, last - first + 1)
        if pairs == 0:
            return math.inf
        spread *= inputs * taps * outputs / pairs
    return spread
