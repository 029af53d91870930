"""Triton kernels for depthwise convolutions of narrow images with wide kernels. `ops/_tiles.py` has the equations.

They compute the same sums as `multiply` and `correlate` of `toeplitz_triton.py`, but those of a whole row of N tiles in
one program. An input tile then meets N output tiles, and a matrix T_o up to N pairs of tiles, while each of them is
loaded once.

REACH is the largest distance between an input tile and an output tile along the row for which there are taps. Offsets
along the row that have no matrix are zero.
"""

# Variables of branches that depend on N and REACH are used in the same branches only.
# pyright: reportMissingImports=false, reportPossiblyUnboundVariable=false
from __future__ import annotations

import triton
import triton.language as tl

from .toeplitz_triton import COUNTS, _places, _store_diagonals

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


@triton.jit(do_not_specialize=COUNTS)
def correlate_rows(
    x, grad, sums, batch, channels, out1, in1, first1, first2, count1, count2, splits, x_channel, x_tile, grad_channel,
    grad_tile, T1: tl.constexpr, T2: tl.constexpr, N: tl.constexpr, REACH: tl.constexpr, ROWS: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """Sums over the diagonals of S_o[q, p] = Σ_τ Σ_samples x[τ + o, q] · grad[τ, p], for a row of offsets o."""
    row_of_offsets, channel, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    o1 = first1 + row_of_offsets
    low1 = tl.maximum(0, -o1)
    n1 = tl.maximum(tl.minimum(out1, in1 - o1) - low1, 0)
    blocks = tl.cdiv(batch, ROWS)
    steps = n1 * blocks
    part = tl.cdiv(steps, splits)
    begin = split * part
    end = tl.minimum(begin + part, steps)
    column, row = tl.arange(0, TILE)[None, :], tl.arange(0, ROWS)[:, None]
    x_places = x + channel * x_channel + row * TILE + column
    grad_places = grad + channel * grad_channel + row * TILE + column
    zero = tl.zeros((TILE, TILE), tl.float32)
    left1, right1 = tl.zeros((TILE, TILE), tl.float32), tl.zeros((TILE, TILE), tl.float32)
    left2, right2 = tl.zeros((TILE, TILE), tl.float32), tl.zeros((TILE, TILE), tl.float32)
    left3, right3 = tl.zeros((TILE, TILE), tl.float32), tl.zeros((TILE, TILE), tl.float32)
    for step in range(begin, end):
        t1, sample = low1 + step // blocks, step % blocks * ROWS
        inside = sample + row < batch
        place = grad_places + t1.to(tl.int64) * N * grad_tile + sample * TILE
        place_x = x_places + (t1 + o1).to(tl.int64) * N * x_tile + sample * TILE
        g0 = tl.load(place) if WHOLE else tl.load(place, mask=inside, other=0.0)
        g1 = tl.load(place + grad_tile) if WHOLE else tl.load(place + grad_tile, mask=inside, other=0.0)
        if N > 2:
            g2 = tl.load(place + 2 * grad_tile) if WHOLE else tl.load(place + 2 * grad_tile, mask=inside, other=0.0)
        if N > 3:
            g3 = tl.load(place + 3 * grad_tile) if WHOLE else tl.load(place + 3 * grad_tile, mask=inside, other=0.0)
        values = tl.trans(tl.load(place_x) if WHOLE else tl.load(place_x, mask=inside, other=0.0))
        zero = tl.dot(values, g0, zero)
        left1 = tl.dot(values, g1, left1)
        if (N > 2) & (REACH > 1):
            left2 = tl.dot(values, g2, left2)
        if (N > 3) & (REACH > 2):
            left3 = tl.dot(values, g3, left3)
        place_x += x_tile
        values = tl.trans(tl.load(place_x) if WHOLE else tl.load(place_x, mask=inside, other=0.0))
        right1 = tl.dot(values, g0, right1)
        zero = tl.dot(values, g1, zero)
        if N > 2:
            left1 = tl.dot(values, g2, left1)
        if (N > 3) & (REACH > 1):
            left2 = tl.dot(values, g3, left2)
        if N > 2:
            place_x += x_tile
            values = tl.trans(tl.load(place_x) if WHOLE else tl.load(place_x, mask=inside, other=0.0))
            if REACH > 1:
                right2 = tl.dot(values, g0, right2)
            right1 = tl.dot(values, g1, right1)
            zero = tl.dot(values, g2, zero)
            if N > 3:
                left1 = tl.dot(values, g3, left1)
        if N > 3:
            place_x += x_tile
            values = tl.trans(tl.load(place_x) if WHOLE else tl.load(place_x, mask=inside, other=0.0))
            if REACH > 2:
                right3 = tl.dot(values, g0, right3)
            if REACH > 1:
                right2 = tl.dot(values, g1, right2)
            right1 = tl.dot(values, g2, right1)
            zero = tl.dot(values, g3, zero)
    first = ((split * channels + channel) * count1 + row_of_offsets) * count2 - first2
    low, high = first2, first2 + count2
    _store_diagonals(zero, sums, first, (low <= 0) & (high > 0), 2, 1, T1, T2)
    _store_diagonals(left1, sums, first - 1, (low <= -1) & (high > -1), 2, 1, T1, T2)
    _store_diagonals(right1, sums, first + 1, (low <= 1) & (high > 1), 2, 1, T1, T2)
    if REACH > 1:
        _store_diagonals(left2, sums, first - 2, (low <= -2) & (high > -2), 2, 1, T1, T2)
        _store_diagonals(right2, sums, first + 2, (low <= 2) & (high > 2), 2, 1, T1, T2)
    if REACH > 2:
        _store_diagonals(left3, sums, first - 3, (low <= -3) & (high > -3), 2, 1, T1, T2)
        _store_diagonals(right3, sums, first + 3, (low <= 3) & (high > 3), 2, 1, T1, T2)
