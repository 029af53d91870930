"""The kernels of `FusedSirenStep`: forward through all layers, back through one. `fused_fit.py` has the equations."""

from __future__ import annotations

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from .fused_parts import add, compare, find, gather, keep, recall

# positions of the four numbers of a channel of a layer: b or a_f, W of the first map, and ω of the layer
BIAS, W_Y, W_X, OMEGA = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)


@triton.jit
def _angle(u, omega):
    """Return ωu / π modulo 2, within ±1, where bfloat16 is precise enough for storage.

    Adding and subtracting 1.5 · 2²³ rounds to an integer.
    """
    half_turns = u * (omega * 0.3183098861837907)[:, None]
    return half_turns - 2.0 * ((half_turns * 0.5 + 12582912.0) - 12582912.0)


@triton.jit
def _sine(half_turns):
    """Return sin πv and cos πv, by polynomials around the nearest integer n. Both have the sign (−1)ⁿ.

    Adding 1.5 · 2²³ rounds to an integer; the last bit of the sum tells whether n is odd.
    """
    rounded = half_turns + 12582912.0
    r = half_turns - (rounded - 12582912.0)
    sign = ((rounded.to(tl.int32, bitcast=True) << 31) | 0x3F800000).to(tl.float32, bitcast=True)
    z = r * r
    sine = r * (3.14159258 + z * (-5.16770688 + z * (2.55003138 + z * (-0.59804517 + z * 0.07722013))))
    cosine = 0.99999995 + z * (-4.93479286 + z * (4.05841191 + z * (-1.33188016 + z * 0.2196968)))
    return sign * sine, sign * cosine


@triton.jit
def _first(packed, y, x, H: tl.constexpr):
    """Return u_0 = W x + b at points of a row."""
    vectors = packed + tl.arange(0, H) * 4
    of_row = tl.load(vectors + BIAS) + y * tl.load(vectors + W_Y)
    return of_row[:, None] + tl.load(vectors + W_X)[:, None] * x[None, :]


@triton.jit
def forward(
    ys, xs, targets, packed, layers, errors, sums, losses, width, height, first, blocks, share, channels,
    DEPTH: tl.constexpr, H: tl.constexpr, ROWS: tl.constexpr, C: tl.constexpr, B: tl.constexpr,
    AT_MAPS: tl.constexpr, AT_OUT: tl.constexpr, AT_OUT_BIAS: tl.constexpr, TOTAL: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """Write ωu_1 / π … ωu_n / π and ∂y for `blocks` blocks of an image from number `first` on.

    The blocks are distributed over the programs.
    """
    program, programs, picture = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    targets += picture * channels * width * height
    packed += picture * TOTAL

    channel, colour = tl.arange(0, H), tl.arange(0, C)
    square = channel[:, None] * H + channel[None, :]  # [out, in]
    last_map = tl.load(packed + AT_OUT + colour[:, None] * H + channel[None, :])
    last_bias = tl.load(packed + AT_OUT_BIAS + colour)
    bias_sum, loss = tl.zeros((C, 4), tl.float32), 0.0

    for block in range(program, blocks, programs):
        row, column, inside, y, x = find(first + block, width, ys, xs, B)
        h, _ = _sine(_angle(_first(packed, y, x, H), tl.load(packed + channel * 4 + OMEGA)))
        for layer in range(DEPTH - 1):
            a = tl.load(packed + AT_MAPS + layer * H * H + square)
            vectors = packed + ((layer + 1) * H + channel) * 4
            u = tl.dot(a, h, input_precision=PRODUCTS) + tl.load(vectors + BIAS)[:, None]
            angle = _angle(u, tl.load(vectors + OMEGA))
            keep(layers, (picture * (DEPTH - 1) + layer) * blocks + block, angle, ROWS)
            h, _ = _sine(angle)
        squared, part = compare(
            h, last_map, last_bias, targets, row * width + column, inside, width * height, channels, share,
            errors, picture * blocks + block, C, PRODUCTS,
        )  # fmt: skip
        loss, bias_sum = loss + squared, bias_sum + part

    place = picture * programs + program
    add(sums + place * TOTAL + AT_OUT_BIAS + colour, tl.sum(bias_sum, 1))
    add(losses + place, loss * share)


@triton.jit
def back(
    ys, xs, packed, layers, changes, next_changes, sums, width, first, blocks, f, at_map,
    AFTER: tl.constexpr, ROWS_AFTER: tl.constexpr, LAST: tl.constexpr,
    DEPTH: tl.constexpr, H: tl.constexpr, ROWS: tl.constexpr, B: tl.constexpr,
    TOTAL: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """Compute ∂u_f from the gradient after the map, ∂u_{f+1} or ∂y [AFTER, points]. Accumulates those of map and bias.

    The map [AFTER, hidden] starts at `at_map`. The LAST layer is f = 0, whose gradients are those of W and b.
    """
    program, programs, picture = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    packed += picture * TOTAL
    sums += (picture * programs + program) * TOTAL

    channel, channel_after = tl.arange(0, H), tl.arange(0, AFTER)
    matrix = at_map + channel_after[:, None] * H + channel[None, :]
    a = tl.load(packed + matrix)
    omega = tl.load(packed + (f * H + channel) * 4 + OMEGA)
    a_sum, du_sum = tl.zeros((AFTER, H), tl.float32), tl.zeros((H, 4), tl.float32)
    of_y, of_x = du_sum, du_sum

    for block in range(program, blocks, programs):
        _, _, _, y, x = find(first + block, width, ys, xs, B)
        change = recall(changes, picture * blocks + block, AFTER, B, ROWS_AFTER)
        dh = tl.dot(tl.trans(a), change, input_precision=PRODUCTS)
        if LAST:
            angle = _angle(_first(packed, y, x, H), omega)
        else:
            angle = recall(layers, (picture * (DEPTH - 1) + f - 1) * blocks + block, H, B, ROWS)
        h, cosine = _sine(angle + 0.0 * dh)  # + 0 ∂h: gives the sine the layout of ∂h over threads
        du = dh * cosine * omega[:, None]
        part = gather(du, H, B)
        du_sum += part
        if LAST:
            of_y, of_x = of_y + part * y, of_x + gather(du * x[None, :], H, B)
        else:
            keep(next_changes, picture * blocks + block, du, ROWS)
        a_sum = tl.dot(change, tl.trans(h), a_sum, input_precision=PRODUCTS)

    add(sums + matrix, a_sum)
    vectors = sums + (f * H + channel) * 4
    add(vectors + BIAS, tl.sum(du_sum, 1))
    if LAST:
        add(vectors + W_Y, tl.sum(of_y, 1))
        add(vectors + W_X, tl.sum(of_x, 1))
