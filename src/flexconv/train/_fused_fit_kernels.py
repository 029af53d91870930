"""The two kernels of `_fused_fit.py`, which has the equations: factors of filters along an axis, and the step."""

from __future__ import annotations

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from ._fused_parts import add, compare, find, sine_and_cosine

# where a channel of a filter has its numbers, packed into eight: those of y, and four further on those of x
FREQUENCY, MU, GAMMA = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
BIAS, PHASE = tl.constexpr(0), tl.constexpr(4)  # a_f of the map before the filter, b


@triton.jit
def write_factors(
    line, packed, factors, points, length, per_picture, per_filter, per_kind, per_channel, per_point,
    AXIS: tl.constexpr, ENVELOPED: tl.constexpr, H: tl.constexpr, B: tl.constexpr, TOTAL: tl.constexpr,
):  # fmt: skip
    """One program: the factors of an axis for some of its coordinates and a filter. The phase goes with y."""
    f, picture = tl.program_id(1), tl.program_id(2).to(tl.int64)
    packed += picture * TOTAL
    factors += picture * per_picture + f * per_filter
    channel, point = tl.arange(0, H)[:, None], tl.program_id(0) * B + tl.arange(0, B)[None, :]
    x = tl.load(line + point, mask=point < points, other=0.0)
    vectors = packed + (f * H + channel) * 8
    angle = tl.load(vectors + 4 * AXIS + FREQUENCY) * x
    if AXIS == 0:
        angle += tl.load(vectors + PHASE)
    sine, cosine = sine_and_cosine(angle)
    if ENVELOPED:
        d = (x - tl.load(vectors + 4 * AXIS + MU)) * tl.load(vectors + 4 * AXIS + GAMMA)
        envelope = tl.exp(-0.5 * d * d)
        sine *= envelope
        cosine *= envelope
    target = factors + channel * per_channel + point * per_point
    tl.store(target, sine, mask=point < length)
    tl.store(target + per_kind, cosine, mask=point < length)


@triton.jit
def _filter(f, row, column, x_factors, y_factors, height, columns, H: tl.constexpr):
    """Filter f at some points of a row → g = e sin, and e cos, both [hidden, points]."""
    channel = tl.arange(0, H)
    of_row = y_factors + (f * height + row) * 2 * H + channel
    sine_y, cosine_y = tl.load(of_row)[:, None], tl.load(of_row + H)[:, None]
    of_columns = x_factors + (2 * f * H + channel[:, None]) * columns + column[None, :]
    sine_x, cosine_x = tl.load(of_columns), tl.load(of_columns + H * columns)
    return sine_x * cosine_y + cosine_x * sine_y, cosine_x * cosine_y - sine_x * sine_y


@triton.jit
def _add_moments(f, du, dg, g, cosine, y, x, packed, sums, ENVELOPED: tl.constexpr, H: tl.constexpr):
    """Add the gradients of filter f and of the bias a_f to the sums, given ∂u and ∂g [hidden, points].

    They are sums over the points, of t = ∂g e cos and s = ∂g g, d the distance from the centre; those of μ lack a
    factor γ², those of γ a factor −γ. Without an envelope s is 0; the sum for a_0, which is not there, is not used:

        a    W_y   μ_y   γ_y        ∂u   t y   s d_y   s d_y²
        b    W_x   μ_x   γ_x        t    t x   s d_x   s d_x²
    """
    channel = tl.arange(0, H)
    vectors = packed + (f * H + channel) * 8
    turned = dg * cosine
    if ENVELOPED:
        shrunk = dg * g
        d0 = y - tl.load(vectors + MU)[:, None]
        d1 = x[None, :] - tl.load(vectors + 4 + MU)[:, None]
        of_y, of_x = shrunk * d0, shrunk * d1
        near, far = tl.join(of_y, of_x), tl.join(of_y * d0, of_x * d1)
    else:
        near = tl.join(tl.zeros_like(turned), tl.zeros_like(turned))
        far = near
    # [hidden, points, 2, 2, 2]: the first join made the first of the new axes
    table = tl.join(tl.join(tl.join(du, turned), near), tl.join(tl.join(turned * y, turned * x[None, :]), far))
    add(sums + (f * H + channel[:, None]) * 8 + tl.arange(0, 8)[None, :], tl.reshape(tl.sum(table, 1), (H, 8)))


@triton.jit
def step(
    ys, xs, targets, packed, x_factors, y_factors, layers, sums, losses, width, height, share, channels,
    FILTERS: tl.constexpr, ENVELOPED: tl.constexpr, H: tl.constexpr, C: tl.constexpr, B: tl.constexpr,
    AT_MIX: tl.constexpr, AT_OUT: tl.constexpr, AT_OUT_BIAS: tl.constexpr, TOTAL: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """One program: blocks of points of one picture, as many programs apart as there are."""
    program, programs, picture = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    place, columns = picture * programs + program, tl.cdiv(width, B) * B
    targets += picture * channels * width * height
    packed += picture * TOTAL
    x_factors += picture * FILTERS * 2 * H * columns
    y_factors += picture * FILTERS * 2 * H * height
    layers += place * FILTERS * H * B
    sums += place * TOTAL

    channel, colour = tl.arange(0, H), tl.arange(0, C)
    square = channel[:, None] * H + channel[None, :]  # [out, in]
    tile = channel[:, None] * B + tl.arange(0, B)[None, :]
    last_map = tl.load(packed + AT_OUT + colour[:, None] * H + channel[None, :])
    last_bias = tl.load(packed + AT_OUT_BIAS + colour)
    loss = 0.0

    for block in range(program, height * (columns // B), programs):
        row, column, inside, y, x = find(block, width, ys, xs, B)
        h, _ = _filter(0, row, column, x_factors, y_factors, height, columns, H)
        for layer in range(FILTERS - 1):
            a = tl.load(packed + AT_MIX + layer * H * H + square)
            bias = tl.load(packed + ((layer + 1) * H + channel) * 8 + BIAS)
            u = tl.dot(a, h, input_precision=PRODUCTS) + bias[:, None]
            tl.store(layers + (layer + 1) * H * B + tile, u)
            g, _ = _filter(layer + 1, row, column, x_factors, y_factors, height, columns, H)
            h = g * u

        squared, dh = compare(
            h, last_map, last_bias, targets, row * width + column, inside, width * height, channels, share, sums,
            H, C, AT_OUT, AT_OUT_BIAS, PRODUCTS,
        )  # fmt: skip
        loss += squared

        tl.debug_barrier()  # what one thread has stored, another may load
        g, cosine = _filter(FILTERS - 1, row, column, x_factors, y_factors, height, columns, H)
        u = tl.load(layers + (FILTERS - 1) * H * B + tile)
        for back in range(FILTERS - 1):
            layer = FILTERS - 2 - back
            du = dh * g
            _add_moments(layer + 1, du, dh * u, g, cosine, y, x, packed, sums, ENVELOPED, H)
            g, cosine = _filter(layer, row, column, x_factors, y_factors, height, columns, H)
            u = tl.load(layers + layer * H * B + tile)
            add(sums + AT_MIX + layer * H * H + square, tl.dot(du, tl.trans(g * u), input_precision=PRODUCTS))
            dh = tl.dot(tl.trans(tl.load(packed + AT_MIX + layer * H * H + square)), du, input_precision=PRODUCTS)
        _add_moments(0, dh, dh, g, cosine, y, x, packed, sums, ENVELOPED, H)
        tl.debug_barrier()  # the next block writes where this one reads

    tl.store(losses + place, loss * share)
