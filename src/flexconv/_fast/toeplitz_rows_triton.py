"""A Triton kernel for depthwise convolutions of narrow images with wide kernels. `ops/_tiles.py` has the equations.

It computes the same sums as `multiply` of `toeplitz_triton.py`, but those of a whole row of N tiles in one program. An
input tile then meets N output tiles, and a matrix T_o up to N pairs of tiles, while each of them is loaded once.

REACH is the largest distance between an input tile and an output tile along the row for which there are taps. Offsets
along the row that have no matrix are zero.
"""

# Variables of branches that depend on N and REACH are used in the same branches only.
# pyright: reportMissingImports=false, reportPossiblyUnboundVariable=false
from __future__ import annotations

import triton
import triton.language as tl

from .toeplitz_triton import COUNTS, _places

TILE = tl.constexpr(64)


@triton.jit
def _matrix(matrices, o, first, count):
    """T_o, or zeros if there is none."""
    column = tl.arange(0, TILE)
    number = o - first
    inside = (number >= 0) & (number < count)
    place = matrices + number * (TILE * TILE) + column[:, None] * TILE + column[None, :]
    return tl.load(place, mask=inside, other=0.0)


@triton.jit(do_not_specialize=COUNTS)
def multiply_rows(
    x, matrices, bias, y, batch, channels, in1, first1, first2, count1, count2, size1, units2, x_channel, x_tile, parts,
    T1: tl.constexpr, T2: tl.constexpr, UNIT: tl.constexpr, N: tl.constexpr, REACH: tl.constexpr, ROWS: tl.constexpr,
    WHOLE: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """y[τ] = Σ_o x[τ + o] T_o (+ bias), for ROWS samples of the tiles τ of a row. WHOLE: all samples exist."""
    channel = tl.program_id(1).to(tl.int64)
    t1, part = tl.program_id(0) // parts, tl.program_id(0) % parts
    sample = part * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, TILE)
    inside = (sample < batch)[:, None]
    places = x + channel * x_channel + sample[:, None] * TILE + column[None, :]
    matrices += channel * (count1 * count2) * (TILE * TILE)
    a0, a1 = tl.zeros((ROWS, TILE), tl.float32), tl.zeros((ROWS, TILE), tl.float32)
    a2, a3 = tl.zeros((ROWS, TILE), tl.float32), tl.zeros((ROWS, TILE), tl.float32)
    for o1 in range(tl.maximum(first1, -t1), tl.minimum(first1 + count1, in1 - t1)):
        of_row = matrices + (o1 - first1) * count2 * (TILE * TILE)
        place = places + (t1 + o1).to(tl.int64) * N * x_tile
        zero = _matrix(of_row, 0, first2, count2)
        left1, right1 = _matrix(of_row, -1, first2, count2), _matrix(of_row, 1, first2, count2)
        if REACH > 1:
            left2, right2 = _matrix(of_row, -2, first2, count2), _matrix(of_row, 2, first2, count2)
        if REACH > 2:
            left3, right3 = _matrix(of_row, -3, first2, count2), _matrix(of_row, 3, first2, count2)
        values = tl.load(place) if WHOLE else tl.load(place, mask=inside, other=0.0)
        a0 = tl.dot(values, zero, a0)
        a1 = tl.dot(values, left1, a1)
        if (N > 2) & (REACH > 1):
            a2 = tl.dot(values, left2, a2)
        if (N > 3) & (REACH > 2):
            a3 = tl.dot(values, left3, a3)
        place += x_tile
        values = tl.load(place) if WHOLE else tl.load(place, mask=inside, other=0.0)
        a0 = tl.dot(values, right1, a0)
        a1 = tl.dot(values, zero, a1)
        if N > 2:
            a2 = tl.dot(values, left1, a2)
        if (N > 3) & (REACH > 1):
            a3 = tl.dot(values, left2, a3)
        if N > 2:
            place += x_tile
            values = tl.load(place) if WHOLE else tl.load(place, mask=inside, other=0.0)
            if REACH > 1:
                a0 = tl.dot(values, right2, a0)
            a1 = tl.dot(values, right1, a1)
            a2 = tl.dot(values, zero, a2)
            if N > 3:
                a3 = tl.dot(values, left1, a3)
        if N > 3:
            place += x_tile
            values = tl.load(place) if WHOLE else tl.load(place, mask=inside, other=0.0)
            if REACH > 2:
                a0 = tl.dot(values, right3, a0)
            if REACH > 1:
                a1 = tl.dot(values, right2, a1)
            a2 = tl.dot(values, right1, a2)
            a3 = tl.dot(values, zero, a3)
    add = tl.load(bias + channel).to(tl.float32) if BIAS else 0.0
    for t2 in tl.static_range(N):
        total = (a0 if t2 == 0 else a1 if t2 == 1 else a2 if t2 == 2 else a3) + add
        tile = tl.zeros((ROWS,), tl.int32) + t1 * N + t2
        place_y, inside_y = _places(
            tile, sample.to(tl.int64), column[None, :], channel, channels, tl.num_programs(0) // parts, N,
            1, size1, units2 * UNIT, 1, T1, T2,
        )  # fmt: skip
        tl.store(y + place_y, total.to(y.dtype.element_ty), mask=inside_y & inside)
