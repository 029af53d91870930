"""Triton kernels for depthwise convolutions as products with Toeplitz matrices. `ops/_tiles.py` has the equations.

Volumes have three axes; images and sequences are volumes whose first axes have one tile of length 1. Rows are pairs of
a tile and a sample of the batch, of which the sample changes faster. Matrices T_o are built in memory once per call:
64 numbers per tap and channel. Sums are in float32 and have a fixed order.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import triton
import triton.language as tl

TILE = tl.constexpr(64)

# Windows change while a size is learned, and lengths change between batches: neither must cause another compilation.
COUNTS = (
    "batch", "rows", "channels", "out0", "out1", "out2", "in0", "in1", "in2", "first0", "first1", "first2", "count0",
    "count1", "count2", "size0", "size1", "units2", "left0", "left1", "left2", "taps0", "taps1", "taps2", "taps",
    "splits", "tiles1", "tiles2", "parts",
)  # fmt: skip


@triton.jit
def _position(p, T1: tl.constexpr, T2: tl.constexpr, AXIS: tl.constexpr):
    """The coordinate along one axis of position p in a tile."""
    if AXIS == 0:
        coordinate = p // (T1 * T2)
    elif AXIS == 1:
        coordinate = p // T2 % T1
    else:
        coordinate = p % T2
    return coordinate


@triton.jit
def _places(
    tile, sample, column, channel, channels, tiles1, tiles2, size0, size1, size2,
    T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr,
):  # fmt: skip
    """Offsets of the positions of tiles in a contiguous tensor [batch, channels, *size], and which are inside."""
    at0 = (tile // (tiles1 * tiles2) * T0)[:, None] + _position(column, T1, T2, 0)
    at1 = (tile // tiles2 % tiles1 * T1)[:, None] + _position(column, T1, T2, 1)
    at2 = (tile % tiles2 * T2)[:, None] + _position(column, T1, T2, 2)
    inside = (at0 < size0) & (at1 < size1) & (at2 < size2)
    line = (sample * channels + channel)[:, None] * (size0 * size1) + at0 * size1 + at1
    return line * size2 + at2, inside


@triton.jit(do_not_specialize=COUNTS)
def pack(
    x, packed, batch, rows, channels, tiles1, tiles2, size0, size1, units2,
    T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """x [batch, channels, *size] → packed [channels, tiles, batch, 64], zero outside of x."""
    channel = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, TILE)[None, :]
    tile = row // batch
    sample = (row - tile * batch).to(tl.int64)
    place, inside = _places(
        tile, sample, column, channel, channels, tiles1, tiles2, size0, size1, units2 * UNIT, T0, T1, T2
    )
    values = tl.load(x + place, mask=inside & (row < rows)[:, None], other=0.0)
    tl.store(packed + (channel * rows + row[:, None]) * TILE + column, values, mask=(row < rows)[:, None])


@triton.jit(do_not_specialize=COUNTS)
def build_matrices(
    weight, matrices, first0, first1, first2, count1, count2, left0, left1, left2, taps0, taps1, taps2,
    T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr, FLIP: tl.constexpr,
):  # fmt: skip
    """weight [channels, *taps] → T [channels, offsets, 64, 64]. With FLIP, of the kernel in reverse order."""
    offset, channel = tl.program_id(0), tl.program_id(1).to(tl.int64)
    q, p = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    o0 = first0 + offset // (count1 * count2)
    o1 = first1 + offset // count2 % count1
    o2 = first2 + offset % count2
    k0 = o0 * T0 + _position(q, T1, T2, 0) - _position(p, T1, T2, 0) + left0
    k1 = o1 * T1 + _position(q, T1, T2, 1) - _position(p, T1, T2, 1) + left1
    k2 = o2 * T2 + _position(q, T1, T2, 2) - _position(p, T1, T2, 2) + left2
    inside = (k0 >= 0) & (k0 < taps0) & (k1 >= 0) & (k1 < taps1) & (k2 >= 0) & (k2 < taps2)
    if FLIP:
        k0, k1, k2 = taps0 - 1 - k0, taps1 - 1 - k1, taps2 - 1 - k2
    place = ((channel * taps0 + k0) * taps1 + k1) * taps2 + k2
    values = tl.load(weight + place, mask=inside, other=0.0)
    number = channel * tl.num_programs(0) + offset
    tl.store(matrices + (number * TILE + q) * TILE + p, values.to(matrices.dtype.element_ty))


@triton.jit
def _offset_range(low, high, first, count, inputs):
    """First offset for which some output tile in low…high has an input tile, and the one after the last."""
    return tl.maximum(first, -high), tl.minimum(first + count, inputs - low)


@triton.jit(do_not_specialize=COUNTS)
def multiply(
    x, matrices, bias, y, batch, rows, channels, out1, out2, in0, in1, in2, first0, first1, first2,
    count0, count1, count2, size0, size1, units2, x_channel, x_tile, x_sample,
    D: tl.constexpr, T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr,
    SINGLE: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """y[τ] = Σ_o x[τ + o] T_o (+ bias), for ROWS pairs of tile and sample of one channel. SINGLE: of a single tile."""
    channel = tl.program_id(1).to(tl.int64)
    start = tl.program_id(0) * ROWS
    row = start + tl.arange(0, ROWS)
    tile = row // batch
    sample = (row - tile * batch).to(tl.int64)
    t0, t1, t2 = tile // (out1 * out2), tile // out2 % out1, tile % out2
    column = tl.arange(0, TILE)

    # only offsets that lead to input tiles
    low, high = start // batch, tl.minimum(start + ROWS - 1, rows - 1) // batch
    low0, high0 = low // (out1 * out2), high // (out1 * out2)
    same0 = low0 == high0
    low1, high1 = tl.where(same0, low // out2 % out1, 0), tl.where(same0, high // out2 % out1, out1 - 1)
    same1 = low // out2 == high // out2
    low2, high2 = tl.where(same1, low % out2, 0), tl.where(same1, high % out2, out2 - 1)
    begin0, end0 = _offset_range(low0, high0, first0, count0, in0)
    begin1, end1 = _offset_range(low1, high1, first1, count1, in1)
    begin2, end2 = _offset_range(low2, high2, first2, count2, in2)
    steps = tl.maximum(end0 - begin0, 0) * tl.maximum(end1 - begin1, 0) * tl.maximum(end2 - begin2, 0)

    base = x + channel * x_channel + sample * x_sample + ((t0 * in1 + t1) * in2 + t2) * x_tile
    places = base[:, None] + column[None, :]
    matrices += channel * (count0 * count1 * count2) * (TILE * TILE)
    matrix_places = column[:, None] * TILE + column[None, :]
    total = tl.zeros((ROWS, TILE), tl.float32)
    o0, o1, o2 = begin0, begin1, begin2
    for _ in range(steps):
        place = places + ((o0 * in1 + o1) * in2 + o2) * x_tile
        if SINGLE:
            values = tl.load(place)
        else:
            inside = (row < rows) & (t2 + o2 >= 0) & (t2 + o2 < in2)
            if D > 1:
                inside &= (t1 + o1 >= 0) & (t1 + o1 < in1)
            if D > 2:
                inside &= (t0 + o0 >= 0) & (t0 + o0 < in0)
            values = tl.load(place, mask=inside[:, None], other=0.0)
        number = ((o0 - first0) * count1 + (o1 - first1)) * count2 + o2 - first2
        matrix = tl.load(matrices + number * (TILE * TILE) + matrix_places)
        total = tl.dot(values, matrix, total, input_precision=PRECISION)
        # the next offset; counting is faster than dividing the number of the step
        o2 += 1
        if D > 1:
            o1 += tl.where(o2 == end2, 1, 0)
            o2 = tl.where(o2 == end2, begin2, o2)
        if D > 2:
            o0 += tl.where(o1 == end1, 1, 0)
            o1 = tl.where(o1 == end1, begin1, o1)
    if BIAS:
        total += tl.load(bias + channel).to(tl.float32)
    place_y, inside_y = _places(
        tile, sample, column[None, :], channel, channels, out1, out2, size0, size1, units2 * UNIT, T0, T1, T2
    )
    tl.store(y + place_y, total.to(y.dtype.element_ty), mask=inside_y & (row < rows)[:, None])


@triton.jit(do_not_specialize=COUNTS)
def correlate(
    x, grad, sums, batch, channels, out0, out1, out2, in0, in1, in2, first0, first1, first2, count0, count1, count2,
    splits, x_channel, x_tile, x_sample, grad_channel, grad_tile, grad_sample,
    D: tl.constexpr, T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sums over the diagonals of S_o[q, p] = Σ_τ Σ_samples x[τ + o, q] · grad[τ, p], for one offset o.

    A diagonal has the pairs with q = p + r − w t along each axis, where w is 1 if p + r reaches the next tile, else 0.
    Its sum goes to sums[split, channel, o, w, r]. Rows of one line of tiles, along the last axis, are taken ROWS at a
    time. They must be equally far apart in memory.
    """
    offset, channel, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    o0 = first0 + offset // (count1 * count2)
    o1 = first1 + offset // count2 % count1
    o2 = first2 + offset % count2

    # output tiles for which the offset leads to an input tile
    low0, low1, low2 = tl.maximum(0, -o0), tl.maximum(0, -o1), tl.maximum(0, -o2)
    n0 = tl.maximum(tl.minimum(out0, in0 - o0) - low0, 0)
    n1 = tl.maximum(tl.minimum(out1, in1 - o1) - low1, 0)
    n2 = tl.maximum(tl.minimum(out2, in2 - o2) - low2, 0)
    blocks = tl.cdiv(n2 * batch, ROWS)
    steps = n0 * n1 * blocks
    part = tl.cdiv(steps, splits)
    begin = split * part
    end = tl.minimum(begin + part, steps)

    column, row = tl.arange(0, TILE)[None, :], tl.arange(0, ROWS)
    x_places = x + channel * x_channel + row.to(tl.int64)[:, None] * x_sample + column
    grad_places = grad + channel * grad_channel + row.to(tl.int64)[:, None] * grad_sample + column
    total = tl.zeros((TILE, TILE), tl.float32)
    for step in range(begin, end):
        line, first_row = step // blocks, step % blocks * ROWS
        t0, t1 = low0 + line // n1, low1 + line % n1
        tile, sample = low2 + first_row // batch, (first_row % batch).to(tl.int64)
        inside = (first_row + row < n2 * batch)[:, None]
        place = sample * grad_sample + ((t0 * out1 + t1) * out2 + tile) * grad_tile
        g = tl.load(grad_places + place, mask=inside, other=0.0)
        place_x = sample * x_sample + (((t0 + o0) * in1 + t1 + o1) * in2 + tile + o2) * x_tile
        values = tl.load(x_places + place_x, mask=inside, other=0.0)
        total = tl.dot(tl.trans(values), g, total, input_precision=PRECISION)

    r, p = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    q0 = _position(r, T1, T2, 0) + _position(p, T1, T2, 0)
    q1 = _position(r, T1, T2, 1) + _position(p, T1, T2, 1)
    q2 = _position(r, T1, T2, 2) + _position(p, T1, T2, 2)
    skewed = tl.gather(total, (q0 % T0 * T1 + q1 % T1) * T2 + q2 % T2, 0)
    number = (split * channels + channel) * (count0 * count1 * count2) + offset
    sums += number * (2**D * TILE) + tl.arange(0, TILE)
    wraps = tl.where(q2 >= T2, 1, 0)
    if D > 1:
        wraps += tl.where(q1 >= T1, 2, 0)
    if D > 2:
        wraps += tl.where(q0 >= T0, 4, 0)
    for w in tl.static_range(2**D):
        tl.store(sums + w * TILE, tl.sum(tl.where(wraps == w, skewed, 0.0), 1))


@triton.jit(do_not_specialize=COUNTS)
def add_diagonals(
    sums, grad_weight, channels, taps, taps1, taps2, first0, first1, first2, count0, count1, count2,
    left0, left1, left2, splits,
    D: tl.constexpr, T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """grad_weight[k] = Σ over the diagonals of `correlate` that belong to tap k: one per w."""
    channel = tl.program_id(1).to(tl.int64)
    k = tl.program_id(0) * TAPS + tl.arange(0, TAPS)
    u0 = k // (taps1 * taps2) - left0 - first0 * T0
    u1 = k // taps2 % taps1 - left1 - first1 * T1
    u2 = k % taps2 - left2 - first2 * T2
    r = (u0 % T0 * T1 + u1 % T1) * T2 + u2 % T2
    offsets = count0 * count1 * count2
    total = tl.zeros((TAPS,), tl.float32)
    for w in tl.static_range(2**D):
        i0, i1, i2 = u0 // T0 + w // 4, u1 // T1 + w // 2 % 2, u2 // T2 + w % 2
        inside = (k < taps) & (i0 < count0) & (i1 < count1) & (i2 < count2)
        for split in range(splits):
            number = (split * channels + channel) * offsets + (i0 * count1 + i1) * count2 + i2
            total += tl.load(sums + (number * 2**D + w) * TILE + r, mask=inside, other=0.0)
    tl.store(grad_weight + channel * taps + k, total.to(grad_weight.dtype.element_ty), mask=k < taps)
