"""The kernels of `FusedStep`: forward through all layers, back through one. `fused_fit.py` has the equations."""

from __future__ import annotations

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from .fused_parts import add, compare, find, gather, keep, recall, wave

# positions of the eight numbers of a channel of a filter: those of y, and four further those of x
FREQUENCY, MU, GAMMA = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
BIAS, PHASE = tl.constexpr(0), tl.constexpr(4)  # a_f of the map before the filter, and b


@triton.jit
def _read(f, packed, H: tl.constexpr):
    """Read filter f → for y, then for x: frequency, center μ, γ for powers of two; then the phase; each [hidden]."""
    vectors = packed + (f * H + tl.arange(0, H)) * 8
    w_y, w_x = tl.load(vectors + FREQUENCY), tl.load(vectors + 4 + FREQUENCY)
    gamma_y, gamma_x = tl.load(vectors + GAMMA) * 0.8493218002880191, tl.load(vectors + 4 + GAMMA) * 0.8493218002880191
    return w_y, tl.load(vectors + MU), gamma_y, w_x, tl.load(vectors + 4 + MU), gamma_x, tl.load(vectors + PHASE)


@triton.jit
def _filter(numbers, y, x, like, ENVELOPED: tl.constexpr):
    """Evaluate a filter at points of a row → g = e sin, and e cos, both [hidden, points].

    `like` is a finite tensor of that shape. It does not change the result, but gives it the same layout over threads.
    """
    w_y, mu_y, gamma_y, w_x, mu_x, gamma_x, phase = numbers
    angle = w_x[:, None] * x[None, :] + (w_y * y + phase)[:, None]
    if like is not None:
        angle += 0.0 * like
    if ENVELOPED:
        of_row = gamma_y * (y - mu_y)
        d = gamma_x[:, None] * x[None, :] - (gamma_x * mu_x)[:, None]
        e = tl.exp2(-(of_row * of_row)[:, None] - d * d)
    else:
        e = tl.full(angle.shape, 1.0, tl.float32)
    return wave(angle, e)


@triton.jit
def _gather_moments(dg, g, cosine, y, x, moments, ENVELOPED: tl.constexpr, H: tl.constexpr, B: tl.constexpr):
    """Add points of a row to Σt, Σt y, Σt x, Σs, Σs y, Σs y², Σs x, Σs x², where t = ∂g e cos and s = ∂g g."""
    t, ty, tx, s, sy, syy, sx, sxx = moments
    turned = dg * cosine
    part = gather(turned, H, B)
    t, ty, tx = t + part, ty + part * y, tx + gather(turned * x[None, :], H, B)
    if ENVELOPED:
        shrunk = dg * g
        part = gather(shrunk, H, B)
        s, sy, syy = s + part, sy + part * y, syy + part * (y * y)
        shrunk *= x[None, :]
        sx, sxx = sx + gather(shrunk, H, B), sxx + gather(shrunk * x[None, :], H, B)
    return t, ty, tx, s, sy, syy, sx, sxx


@triton.jit
def _add_moments(f, du, moments, numbers, sums, H: tl.constexpr):
    """Add the gradients of filter f and of the bias a_f to the sums, given Σ∂u and the moments [hidden, 4].

    The gradients of μ lack a factor γ², those of γ a factor −γ; d is the distance from the center. There is no a_0; its
    sum is not used:

        a    W_y   μ_y   γ_y        ∂u   t y   s d_y   s d_y²
        b    W_x   μ_x   γ_x        t    t x   s d_x   s d_x²
    """
    t, ty, tx, s, sy, syy, sx, sxx = moments
    vectors = sums + (f * H + tl.arange(0, H)) * 8
    _, mu_y, _, _, mu_x, _, _ = numbers
    all_s, all_sy, all_sx = tl.sum(s, 1), tl.sum(sy, 1), tl.sum(sx, 1)
    add(vectors + BIAS, tl.sum(du, 1))
    add(vectors + FREQUENCY, tl.sum(ty, 1))
    add(vectors + MU, all_sy - mu_y * all_s)
    add(vectors + GAMMA, tl.sum(syy, 1) - mu_y * (2.0 * all_sy - mu_y * all_s))
    add(vectors + PHASE, tl.sum(t, 1))
    add(vectors + 4 + FREQUENCY, tl.sum(tx, 1))
    add(vectors + 4 + MU, all_sx - mu_x * all_s)
    add(vectors + 4 + GAMMA, tl.sum(sxx, 1) - mu_x * (2.0 * all_sx - mu_x * all_s))


@triton.jit
def forward(
    ys, xs, targets, packed, layers, errors, sums, losses, width, height, first, blocks, share, channels,
    DEPTH: tl.constexpr, ENVELOPED: tl.constexpr, H: tl.constexpr, ROWS: tl.constexpr, C: tl.constexpr, B: tl.constexpr,
    AT_MAPS: tl.constexpr, AT_OUT: tl.constexpr, AT_OUT_BIAS: tl.constexpr, TOTAL: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """Write u_1 … u_n and ∂y for `blocks` blocks of an image from number `first` on, distributed over the programs."""
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
        h, _ = _filter(_read(0, packed, H), y, x, None, ENVELOPED)
        for layer in range(DEPTH - 1):
            a = tl.load(packed + AT_MAPS + layer * H * H + square)
            bias = tl.load(packed + ((layer + 1) * H + channel) * 8 + BIAS)
            u = tl.dot(a, h, input_precision=PRODUCTS) + bias[:, None]
            keep(layers, (picture * (DEPTH - 1) + layer) * blocks + block, u, ROWS)
            g, _ = _filter(_read(layer + 1, packed, H), y, x, None, ENVELOPED)
            h = g * u
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
    DEPTH: tl.constexpr, ENVELOPED: tl.constexpr, H: tl.constexpr, ROWS: tl.constexpr, B: tl.constexpr,
    TOTAL: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """Compute ∂u_f from the gradient after the map, ∂u_{f+1} or ∂y [AFTER, points].

    Accumulates the gradients of the map and of filter f. The map [AFTER, hidden] starts at `at_map`. The LAST filter is
    f = 0.
    """
    program, programs, picture = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    packed += picture * TOTAL
    sums += (picture * programs + program) * TOTAL

    channel, channel_after = tl.arange(0, H), tl.arange(0, AFTER)
    matrix = at_map + channel_after[:, None] * H + channel[None, :]
    a = tl.load(packed + matrix)
    numbers = _read(f, packed, H)
    a_sum, nothing = tl.zeros((AFTER, H), tl.float32), tl.zeros((H, 4), tl.float32)
    du_sum, moments = nothing, (nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing)

    for block in range(program, blocks, programs):
        _, _, _, y, x = find(first + block, width, ys, xs, B)
        change = recall(changes, picture * blocks + block, AFTER, B, ROWS_AFTER)
        dh = tl.dot(tl.trans(a), change, input_precision=PRODUCTS)
        g, cosine = _filter(numbers, y, x, dh, ENVELOPED)
        if LAST:
            h, dg = g, dh
        else:
            u = recall(layers, (picture * (DEPTH - 1) + f - 1) * blocks + block, H, B, ROWS)
            h, dg = g * u, dh * u
            du = dh * g
            du_sum += gather(du, H, B)
            keep(next_changes, picture * blocks + block, du, ROWS)
        a_sum = tl.dot(change, tl.trans(h), a_sum, input_precision=PRODUCTS)
        moments = _gather_moments(dg, g, cosine, y, x, moments, ENVELOPED, H, B)

    add(sums + matrix, a_sum)
    _add_moments(f, du_sum, moments, numbers, sums, H)
