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
    "splits", "tiles1", "tiles2",
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
    """First and number of offsets for which some output tile in low…high has an input tile."""
    start = tl.maximum(first, -high)
    stop = tl.minimum(first + count, inputs - low)
    return start, tl.maximum(stop - start, 0)


@triton.jit(do_not_specialize=COUNTS)
def multiply(
    x, matrices, bias, y, batch, rows, channels, out1, out2, in0, in1, in2, first0, first1, first2,
    count0, count1, count2, size0, size1, units2, x_channel, x_tile, x_sample,
    T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr, UNIT: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """y[τ] = Σ_o x[τ + o] T_o (+ bias), for ROWS pairs of tiles and sample of one channel.

    A row has WIDTH tiles, which are neighbors along the last axis. Rows are numbered as if there were out2 such tiles.
    """
    channel = tl.program_id(1).to(tl.int64)
    start = tl.program_id(0) * ROWS
    row = start + tl.arange(0, ROWS)
    tile = row // batch
    sample = (row - tile * batch).to(tl.int64)
    t0, t1, t2 = tile // (out1 * out2), tile // out2 % out1, tile % out2 * WIDTH
    column, wide = tl.arange(0, TILE), tl.arange(0, TILE * WIDTH)

    # only offsets that lead to input tiles
    low, high = start // batch, tl.minimum(start + ROWS - 1, rows - 1) // batch
    low0, high0 = low // (out1 * out2), high // (out1 * out2)
    same0 = low0 == high0
    low1, high1 = tl.where(same0, low // out2 % out1, 0), tl.where(same0, high // out2 % out1, out1 - 1)
    same1 = low // out2 == high // out2
    low2, high2 = tl.where(same1, low % out2, 0), tl.where(same1, high % out2, out2 - 1)
    start0, n0 = _offset_range(low0, high0, first0, count0, in0)
    start1, n1 = _offset_range(low1, high1, first1, count1, in1)
    start2, n2 = _offset_range(low2 * WIDTH, high2 * WIDTH, first2, count2 + WIDTH - 1, in2)

    base = x + channel * x_channel + sample * x_sample + ((t0 * in1 + t1) * in2 + t2) * x_tile
    places = base[:, None] + column[None, :]
    matrices += channel * (count0 * count1 * count2) * (TILE * TILE)
    matrix_places = column[:, None] * TILE + (wide % TILE)[None, :] - (wide // TILE * (TILE * TILE))[None, :]
    total = tl.zeros((ROWS, TILE * WIDTH), tl.float32)
    for i in range(n0 * n1 * n2):
        o0, o1, o2 = start0 + i // (n1 * n2), start1 + i // n2 % n1, start2 + i % n2
        s0, s1, s2 = t0 + o0, t1 + o1, t2 + o2
        inside = (row < rows) & (s0 >= 0) & (s0 < in0) & (s1 >= 0) & (s1 < in1) & (s2 >= 0) & (s2 < in2)
        values = tl.load(places + ((o0 * in1 + o1) * in2 + o2) * x_tile, mask=inside[:, None], other=0.0)
        number = ((o0 - first0) * count1 + (o1 - first1)) * count2 + o2 - first2
        if WIDTH == 1:
            matrix = tl.load(matrices + number * (TILE * TILE) + matrix_places)
        else:
            own = o2 - first2 - wide // TILE
            known = ((own >= 0) & (own < count2))[None, :]
            matrix = tl.load(matrices + number * (TILE * TILE) + matrix_places, mask=known, other=0.0)
        total = tl.dot(values, matrix, total, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + channel).to(tl.float32)
    size2 = units2 * UNIT
    at0 = (t0 * T0)[:, None] + _position(wide % TILE, T1, T2, 0)[None, :]
    at1 = (t1 * T1)[:, None] + _position(wide % TILE, T1, T2, 1)[None, :]
    at2 = (t2 * T2)[:, None] + (wide // TILE * T2 + _position(wide % TILE, T1, T2, 2))[None, :]
    inside_y = (row < rows)[:, None] & (at0 < size0) & (at1 < size1) & (at2 < size2)
    line = (sample * channels + channel)[:, None] * (size0 * size1) + at0 * size1 + at1
    tl.store(y + (line * size2 + at2), total.to(y.dtype.element_ty), mask=inside_y)


@triton.jit(do_not_specialize=COUNTS)
def correlate(
    x, grad, sums, batch, channels, out0, out1, out2, in0, in1, in2, first0, first1, first2, count0, count1, count2,
    splits, x_channel, x_tile, x_sample, grad_channel, grad_tile, grad_sample,
    GROUP: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """sums[split, channel, o, q, p] = Σ_τ Σ_samples x[τ + o, q] · grad[τ, p], for one or two neighboring offsets o.

    Rows of one line of tiles, along the last axis, are taken ROWS at a time. They must be equally far apart in memory.
    """
    channel, split = tl.program_id(1).to(tl.int64), tl.program_id(2)
    groups = tl.cdiv(count2, GROUP)
    group = tl.program_id(0)
    i0, i1, i2 = group // (count1 * groups), group // groups % count1, group % groups * GROUP
    o0, o1, o2 = first0 + i0, first1 + i1, first2 + i2

    # output tiles for which some offset of the group leads to an input tile
    low0, low1, low2 = tl.maximum(0, -o0), tl.maximum(0, -o1), tl.maximum(0, -o2 - GROUP + 1)
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
    other = tl.zeros((TILE, TILE), tl.float32)
    for step in range(begin, end):
        line, first_row = step // blocks, step % blocks * ROWS
        t0, t1 = low0 + line // n1, low1 + line % n1
        tile, sample = low2 + first_row // batch, (first_row % batch).to(tl.int64)
        inside = first_row + row < n2 * batch
        place = sample * grad_sample + ((t0 * out1 + t1) * out2 + tile) * grad_tile
        g = tl.load(grad_places + place, mask=inside[:, None], other=0.0)
        place_x = sample * x_sample + (((t0 + o0) * in1 + t1 + o1) * in2 + tile + o2) * x_tile
        if GROUP == 1:
            values = tl.load(x_places + place_x, mask=inside[:, None], other=0.0)
            total = tl.dot(tl.trans(values), g, total, input_precision=PRECISION)
        else:
            r = (low2 + o2) * batch + first_row + row
            values = tl.load(x_places + place_x, mask=(inside & (r >= 0) & (r < in2 * batch))[:, None], other=0.0)
            total = tl.dot(tl.trans(values), g, total, input_precision=PRECISION)
            r += batch
            after = tl.load(
                x_places + place_x + x_tile, mask=(inside & (r >= 0) & (r < in2 * batch))[:, None], other=0.0
            )
            other = tl.dot(tl.trans(after), g, other, input_precision=PRECISION)
    number = (split * channels + channel) * (count0 * count1 * count2) + (i0 * count1 + i1) * count2 + i2
    place_sums = sums + (number * TILE + tl.arange(0, TILE)[:, None]) * TILE + column
    tl.store(place_sums, total)
    if GROUP == 2:  # noqa: SIM102  (`and` with a constant does not compile)
        if i2 + 1 < count2:
            tl.store(place_sums + TILE * TILE, other)


@triton.jit(do_not_specialize=COUNTS)
def add_diagonals(
    sums, grad_weight, channels, taps, taps1, taps2, first0, first1, first2, count0, count1, count2,
    left0, left1, left2, splits,
    T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """grad_weight[k] = Σ over the entries of all sums that belong to tap k: one per position p in a tile."""
    channel = tl.program_id(1).to(tl.int64)
    k = tl.program_id(0) * TAPS + tl.arange(0, TAPS)
    p = tl.arange(0, TILE)[None, :]
    u0 = (k // (taps1 * taps2) - left0 - first0 * T0)[:, None] + _position(p, T1, T2, 0)
    u1 = (k // taps2 % taps1 - left1 - first1 * T1)[:, None] + _position(p, T1, T2, 1)
    u2 = (k % taps2 - left2 - first2 * T2)[:, None] + _position(p, T1, T2, 2)
    offset = (u0 // T0 * count1 + u1 // T1) * count2 + u2 // T2
    q = (u0 % T0 * T1 + u1 % T1) * T2 + u2 % T2
    inside = (k < taps)[:, None]
    offsets = count0 * count1 * count2
    total = tl.zeros((TAPS, TILE), tl.float32)
    for split in range(splits):
        number = (split * channels + channel) * offsets + offset
        total += tl.load(sums + (number * TILE + q) * TILE + p, mask=inside, other=0.0)
    result = tl.sum(total, 1)
    tl.store(grad_weight + channel * taps + k, result.to(grad_weight.dtype.element_ty), mask=k < taps)
