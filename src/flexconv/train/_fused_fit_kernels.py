"""The two kernels of `_fused_fit.py`, which has the equations: all layers forward, and one layer back."""

from __future__ import annotations

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from ._fused_parts import find

# where a channel of a filter has its numbers, packed into eight: those of y, and four further on those of x
FREQUENCY, MU, GAMMA = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
BIAS, PHASE = tl.constexpr(0), tl.constexpr(4)  # a_f of the map before the filter, b


@triton.jit
def _wave(half_turns, e):
    """e sin πv and e cos πv, by polynomials around the nearest whole number n, where both have the sign (−1)ⁿ.

    Adding 1.5 · 2²³ leaves no digits behind the point: the last bit of the sum says whether n is odd.
    """
    rounded = half_turns + 12582912.0
    r = half_turns - (rounded - 12582912.0)
    signed = (e.to(tl.int32, bitcast=True) ^ (rounded.to(tl.int32, bitcast=True) << 31)).to(tl.float32, bitcast=True)
    z = r * r
    sine = r * (3.14159258 + z * (-5.16770688 + z * (2.55003138 + z * (-0.59804517 + z * 0.07722013))))
    cosine = 0.99999995 + z * (-4.93479286 + z * (4.05841191 + z * (-1.33188016 + z * 0.2196968)))
    return signed * sine, signed * cosine


@triton.jit
def _read(f, packed, H: tl.constexpr):
    """Filter f → for y, then for x: frequency / π, centre μ, and γ for powers of two; phase / π; each [hidden]."""
    vectors = packed + (f * H + tl.arange(0, H)) * 8
    w_y, w_x = tl.load(vectors + FREQUENCY) * 0.3183098861837907, tl.load(vectors + 4 + FREQUENCY) * 0.3183098861837907
    gamma_y, gamma_x = tl.load(vectors + GAMMA) * 0.8493218002880191, tl.load(vectors + 4 + GAMMA) * 0.8493218002880191
    phase = tl.load(vectors + PHASE) * 0.3183098861837907
    return w_y, tl.load(vectors + MU), gamma_y, w_x, tl.load(vectors + 4 + MU), gamma_x, phase


@triton.jit
def _filter(numbers, y, x, like, ENVELOPED: tl.constexpr):
    """A filter at points of a row → g = e sin, and e cos, both [hidden, points].

    `like`, a finite number or such values, changes nothing, but has each thread compute what it holds of them.
    """
    w_y, mu_y, gamma_y, w_x, mu_x, gamma_x, phase = numbers
    angle = w_x[:, None] * x[None, :] + (w_y * y + phase)[:, None] + 0.0 * like
    if ENVELOPED:
        of_row = gamma_y * (y - mu_y)
        d = gamma_x[:, None] * x[None, :] - (gamma_x * mu_x)[:, None]
        e = tl.exp2(-(of_row * of_row)[:, None] - d * d)
    else:
        e = tl.full(angle.shape, 1.0, tl.float32)
    return _wave(angle, e)


@triton.jit
def _gather(values, H: tl.constexpr, B: tl.constexpr):
    """Sums [hidden, 4] over points [hidden, points]: those that a thread has of a matrix product, no others."""
    return tl.sum(tl.sum(tl.reshape(values, (H, B // 8, 4, 2)), 3), 1)


@triton.jit
def _gather_moments(dg, g, cosine, y, x, moments, ENVELOPED: tl.constexpr, H: tl.constexpr, B: tl.constexpr):
    """Add a row's points to Σt, Σt y, Σt x, Σs, Σs y, Σs y², Σs x, Σs x² of t = ∂g e cos and s = ∂g g."""
    t, ty, tx, s, sy, syy, sx, sxx = moments
    turned = dg * cosine
    part = _gather(turned, H, B)
    t, ty, tx = t + part, ty + part * y, tx + _gather(turned * x[None, :], H, B)
    if ENVELOPED:
        shrunk = dg * g
        part = _gather(shrunk, H, B)
        s, sy, syy = s + part, sy + part * y, syy + part * (y * y)
        shrunk *= x[None, :]
        sx, sxx = sx + _gather(shrunk, H, B), sxx + _gather(shrunk * x[None, :], H, B)
    return t, ty, tx, s, sy, syy, sx, sxx


@triton.jit
def _no_moments(H: tl.constexpr):
    nothing = tl.zeros((H, 4), tl.float32)
    return nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing


@triton.jit
def _add(place, value):
    """Add to what is there, in a place of this program alone."""
    tl.store(place, tl.load(place) + value)


@triton.jit
def _add_moments(f, du, moments, numbers, sums, H: tl.constexpr):
    """Add the gradients of filter f and of the bias a_f to the sums, given Σ∂u and the moments [hidden, 4].

    Those of μ lack a factor γ², those of γ a factor −γ; d is the distance from the centre. The sum for a_0, which is
    not there, is not used:

        a    W_y   μ_y   γ_y        ∂u   t y   s d_y   s d_y²
        b    W_x   μ_x   γ_x        t    t x   s d_x   s d_x²
    """
    t, ty, tx, s, sy, syy, sx, sxx = moments
    vectors = sums + (f * H + tl.arange(0, H)) * 8
    _, mu_y, _, _, mu_x, _, _ = numbers
    all_s, all_sy, all_sx = tl.sum(s, 1), tl.sum(sy, 1), tl.sum(sx, 1)
    _add(vectors + BIAS, tl.sum(du, 1))
    _add(vectors + FREQUENCY, tl.sum(ty, 1))
    _add(vectors + MU, all_sy - mu_y * all_s)
    _add(vectors + GAMMA, tl.sum(syy, 1) - mu_y * (2.0 * all_sy - mu_y * all_s))
    _add(vectors + PHASE, tl.sum(t, 1))
    _add(vectors + 4 + FREQUENCY, tl.sum(tx, 1))
    _add(vectors + 4 + MU, all_sx - mu_x * all_s)
    _add(vectors + 4 + GAMMA, tl.sum(sxx, 1) - mu_x * (2.0 * all_sx - mu_x * all_s))


@triton.jit
def forward(
    ys, xs, targets, packed, layers, changes, sums, losses, width, height, first, blocks, share, channels,
    FILTERS: tl.constexpr, ENVELOPED: tl.constexpr, H: tl.constexpr, C: tl.constexpr, B: tl.constexpr,
    AT_MIX: tl.constexpr, AT_OUT: tl.constexpr, AT_OUT_BIAS: tl.constexpr, TOTAL: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """One program: some of the `blocks` of a picture from the `first`, as many programs apart as there are.

    Writes u_1 … u_{n−1} and ∂u_n, adds up the gradients of the output map and of filter n.
    """
    program, programs, picture = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    place = picture * programs + program
    targets += picture * channels * width * height
    packed += picture * TOTAL
    sums += place * TOTAL

    channel, colour = tl.arange(0, H), tl.arange(0, C)
    square = channel[:, None] * H + channel[None, :]  # [out, in]
    tile = channel[:, None] * B + tl.arange(0, B)[None, :]
    last_map = tl.load(packed + AT_OUT + colour[:, None] * H + channel[None, :])
    last_bias = tl.load(packed + AT_OUT_BIAS + colour)
    map_sum, bias_sum = tl.zeros((C, H), tl.float32), tl.zeros((C, 4), tl.float32)
    du_sum, moments, loss = tl.zeros((H, 4), tl.float32), _no_moments(H), 0.0

    for block in range(program, blocks, programs):
        row, column, inside, y, x = find(first + block, width, ys, xs, B)
        h, cosine = _filter(_read(0, packed, H), y, x, 0.0, ENVELOPED)
        for layer in range(FILTERS - 2):
            a = tl.load(packed + AT_MIX + layer * H * H + square)
            bias = tl.load(packed + ((layer + 1) * H + channel) * 8 + BIAS)
            u = tl.dot(a, h, input_precision=PRODUCTS) + bias[:, None]
            tl.store(layers + ((picture * (FILTERS - 2) + layer) * blocks + block) * (H * B) + tile, u)
            g, _ = _filter(_read(layer + 1, packed, H), y, x, 0.0, ENVELOPED)
            h = g * u
        a = tl.load(packed + AT_MIX + (FILTERS - 2) * H * H + square)
        u = tl.dot(a, h, input_precision=PRODUCTS) + tl.load(packed + ((FILTERS - 1) * H + channel) * 8 + BIAS)[:, None]
        g, cosine = _filter(_read(FILTERS - 1, packed, H), y, x, 0.0, ENVELOPED)
        h = g * u

        drawn = tl.dot(last_map, h, input_precision=PRODUCTS) + last_bias[:, None]
        wanted = inside[None, :] & (colour[:, None] < channels)
        point = row * width + column
        target = tl.load(targets + colour[:, None] * (width * height) + point[None, :], mask=wanted, other=0.0)
        error = tl.where(wanted, drawn - target, 0.0)
        loss += tl.sum(error * error)
        d = error * (2.0 * share)
        map_sum = tl.dot(d, tl.trans(h), map_sum, input_precision=PRODUCTS)
        bias_sum += _gather(d, C, B)
        dh = tl.dot(tl.trans(last_map), d, input_precision=PRODUCTS)
        du = dh * g
        du_sum += _gather(du, H, B)
        moments = _gather_moments(dh * u, g, cosine, y, x, moments, ENVELOPED, H, B)
        tl.store(changes + (picture * blocks + block) * (H * B) + tile, du)

    _add(sums + AT_OUT + colour[:, None] * H + channel[None, :], map_sum)
    _add(sums + AT_OUT_BIAS + colour, tl.sum(bias_sum, 1))
    _add_moments(FILTERS - 1, du_sum, moments, _read(FILTERS - 1, packed, H), sums, H)
    _add(losses + place, loss * share)


@triton.jit
def back(
    ys, xs, packed, layers, changes, next_changes, sums, width, first, blocks, f,
    LAST: tl.constexpr, FILTERS: tl.constexpr, ENVELOPED: tl.constexpr, H: tl.constexpr, B: tl.constexpr,
    AT_MIX: tl.constexpr, TOTAL: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """From ∂u_{f+1} to ∂u_f; adds up the gradients of A_{f+1} and of filter f. The LAST of them is f = 0.

    Programs share the blocks as those of `forward` do.
    """
    program, programs, picture = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    packed += picture * TOTAL
    sums += (picture * programs + program) * TOTAL

    channel = tl.arange(0, H)
    square = channel[:, None] * H + channel[None, :]  # [out, in]
    tile = channel[:, None] * B + tl.arange(0, B)[None, :]
    a = tl.load(packed + AT_MIX + f * H * H + square)
    numbers = _read(f, packed, H)
    a_sum = tl.zeros((H, H), tl.float32)
    du_sum, moments = tl.zeros((H, 4), tl.float32), _no_moments(H)

    for block in range(program, blocks, programs):
        _, _, _, y, x = find(first + block, width, ys, xs, B)
        at = (picture * blocks + block) * (H * B) + tile
        du = tl.load(changes + at)
        dh = tl.dot(tl.trans(a), du, input_precision=PRODUCTS)
        g, cosine = _filter(numbers, y, x, dh, ENVELOPED)
        if LAST:
            h, dg = g, dh
        else:
            u = tl.load(layers + ((picture * (FILTERS - 2) + f - 1) * blocks + block) * (H * B) + tile)
            h, dg = g * u, dh * u
            next_du = dh * g
            du_sum += _gather(next_du, H, B)
            tl.store(next_changes + at, next_du)
        a_sum = tl.dot(du, tl.trans(h), a_sum, input_precision=PRODUCTS)
        moments = _gather_moments(dg, g, cosine, y, x, moments, ENVELOPED, H, B)

    _add(sums + AT_MIX + f * H * H + square, a_sum)
    _add_moments(f, du_sum, moments, numbers, sums, H)
