"""Triton kernels that sample the features of a multiplicative filter network and multiply them by a mask.

`fused_sampler.py` has the equations. Taps of a window are numbered in row-major order. All arithmetic is in float32,
without TF32, and without fused multiply-adds outside of matrix products, so that a tap is kept by the same comparison
as in the plain version. Sums over taps have a fixed order: every program writes its own, and they are added afterwards.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import triton
import triton.language as tl

COLUMNS = 8  # sums of the backward pass of a mask: 3 of the mean, 3 of σ, 1 of the angle
MASK_TAPS = 64  # of a block of the kernels for masks
TAPS_OF_ONE_PROGRAM = 4096  # up to here, one program adds all taps of a mask

# the window changes while a size is learned, which must not cause another compilation
SIZES = ("taps", "n1", "n2", "o1", "o2")


def padded_width(hidden: int) -> int:
    """The width of a tile: a power of two, and at least 16 for matrix products."""
    return max(16, triton.next_power_of_2(hidden))


def taps_per_program(hidden: int) -> int:
    """The number of taps in a tile of features."""
    return 64 if hidden <= 32 else 32 if hidden <= 64 else 16


# --- coordinates ------------------------------------------------------------------------------------------------------


@triton.jit
def _axis_coordinates(lines, tap, inside, n1, n2, o1, o2, AXIS: tl.constexpr):
    """Coordinates of taps along one of three axes. The last axis is number 2; an image has the axes 1 and 2."""
    if AXIS == 0:
        x = tl.load(lines + tap // (n1 * n2), mask=inside, other=0.0)
    elif AXIS == 1:
        x = tl.load(lines + o1 + tap // n2 % n1, mask=inside, other=0.0)
    else:
        x = tl.load(lines + o2 + tap % n2, mask=inside, other=0.0)
    return x


# --- features ---------------------------------------------------------------------------------------------------------


@triton.jit
def _angles(
    f, tap, inside, lines, n1, n2, o1, o2, frequency, phase,
    D: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """W x + b of filter f → [taps, TILE]."""
    channel = tl.arange(0, TILE)
    live = channel < HIDDEN
    row = f * HIDDEN + channel
    angle = tl.load(phase + row, mask=live, other=0.0)[None, :]
    for d in tl.static_range(D):
        x = _axis_coordinates(lines, tap, inside, n1, n2, o1, o2, 3 - D + d)
        angle = angle + x[:, None] * tl.load(frequency + row * D + d, mask=live, other=0.0)[None, :]
    return angle


@triton.jit
def _offset(
    f, tap, inside, lines, n1, n2, o1, o2, mu, theta,
    d: tl.constexpr, D: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr, STEERABLE: tl.constexpr,
):  # fmt: skip
    """x − μ along axis d, turned if the envelope is → [taps, TILE]."""
    channel = tl.arange(0, TILE)
    live = channel < HIDDEN
    row = f * HIDDEN + channel
    x = _axis_coordinates(lines, tap, inside, n1, n2, o1, o2, 3 - D + d)
    offset = x[:, None] - tl.load(mu + row * D + d, mask=live, other=0.0)[None, :]
    if STEERABLE:
        other: tl.constexpr = 1 - d
        y = _axis_coordinates(lines, tap, inside, n1, n2, o1, o2, 1 + other)
        across = y[:, None] - tl.load(mu + row * D + other, mask=live, other=0.0)[None, :]
        turn = 6.283185307179586 * tl.load(theta + row, mask=live, other=0.0)
        if d == 0:
            offset = tl.cos(turn)[None, :] * offset + tl.sin(turn)[None, :] * across
        else:
            offset = tl.cos(turn)[None, :] * offset - tl.sin(turn)[None, :] * across
    return offset


@triton.jit
def _width(
    f, gamma, d: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr, GAMMAS: tl.constexpr
):  # fmt: skip
    """γ of filter f along axis d → [1, TILE]."""
    channel = tl.arange(0, TILE)
    place = gamma + (f * HIDDEN + channel) * GAMMAS
    if GAMMAS > 1:
        place += d
    return tl.load(place, mask=channel < HIDDEN, other=0.0)[None, :]


@triton.jit
def _envelope(
    f, tap, inside, lines, n1, n2, o1, o2, mu, gamma, theta,
    D: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, GAMMAS: tl.constexpr,
    STEERABLE: tl.constexpr,
):  # fmt: skip
    """exp(−½ Σ_d (γ_d (x_d − μ_d))²) → [taps, TILE]; 1 without envelopes (GAMMAS is 0)."""
    total = tl.zeros((BLOCK, TILE), tl.float32)
    if GAMMAS > 0:
        for d in tl.static_range(D):
            offset = _offset(f, tap, inside, lines, n1, n2, o1, o2, mu, theta, d, D, HIDDEN, TILE, STEERABLE)
            scaled = _width(f, gamma, d, HIDDEN, TILE, GAMMAS) * offset
            total += scaled * scaled
    return tl.exp(-0.5 * total)


@triton.jit
def _map_hidden(h, layer, mix_weight, mix_bias, HIDDEN: tl.constexpr, TILE: tl.constexpr):
    """A h + a of a hidden map: h [taps, TILE] → [taps, TILE]."""
    column, row = tl.arange(0, TILE)[None, :], tl.arange(0, TILE)[:, None]
    live = (column < HIDDEN) & (row < HIDDEN)
    transposed = tl.load(mix_weight + layer * (HIDDEN * HIDDEN) + column * HIDDEN + row, mask=live, other=0.0)
    bias = tl.load(mix_bias + layer * HIDDEN + column, mask=column < HIDDEN, other=0.0)
    return tl.dot(h, transposed, input_precision="ieee") + bias


@triton.jit(do_not_specialize=SIZES)
def features_forward(
    lines, frequency, phase, mix_weight, mix_bias, mu, gamma, theta, kept, features, taps, n1, n2, o1, o2,
    D: tl.constexpr, HIDDEN: tl.constexpr, RANK: tl.constexpr, LAYERS: tl.constexpr, GAMMAS: tl.constexpr,
    STEERABLE: tl.constexpr, KEEP: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill features [taps, RANK]: hidden values, then 1. Keep the inputs of all hidden maps."""
    tap = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = tap < taps
    column = tl.arange(0, TILE)[None, :]
    place = tap[:, None] * HIDDEN + column
    stored = inside[:, None] & (column < HIDDEN)
    angle = _angles(0, tap, inside, lines, n1, n2, o1, o2, frequency, phase, D, HIDDEN, TILE)
    e = _envelope(0, tap, inside, lines, n1, n2, o1, o2, mu, gamma, theta, D, HIDDEN, TILE, BLOCK, GAMMAS, STEERABLE)
    h = e * tl.sin(angle)
    for layer in range(LAYERS):
        if KEEP:
            tl.store(kept + layer * taps * HIDDEN + place, h, mask=stored)
        u = _map_hidden(h, layer, mix_weight, mix_bias, HIDDEN, TILE)
        f = layer + 1
        angle = _angles(f, tap, inside, lines, n1, n2, o1, o2, frequency, phase, D, HIDDEN, TILE)
        e = _envelope(
            f, tap, inside, lines, n1, n2, o1, o2, mu, gamma, theta, D, HIDDEN, TILE, BLOCK, GAMMAS, STEERABLE
        )
        h = e * tl.sin(angle) * u
    tl.store(features + tap[:, None] * RANK + column, h, mask=stored)
    tl.store(features + tap * RANK + HIDDEN, tl.full((BLOCK,), 1.0, tl.float32), mask=inside)


@triton.jit
def _filter_gradients(
    f, dg, tap, inside, lines, n1, n2, o1, o2, frequency, phase, mu, gamma, theta,
    d_frequency, d_phase, d_mu, d_gamma, d_theta,
    D: tl.constexpr, HIDDEN: tl.constexpr, GAMMAS: tl.constexpr, STEERABLE: tl.constexpr, TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the sums of one program of the gradients of filter f, from those of its values, dg [taps, TILE]."""
    channel = tl.arange(0, TILE)
    live = channel < HIDDEN
    row = f * HIDDEN + channel
    angle = _angles(f, tap, inside, lines, n1, n2, o1, o2, frequency, phase, D, HIDDEN, TILE)
    e = _envelope(f, tap, inside, lines, n1, n2, o1, o2, mu, gamma, theta, D, HIDDEN, TILE, BLOCK, GAMMAS, STEERABLE)
    turned = dg * e * tl.cos(angle)  # gradient of the angle
    for d in tl.static_range(D):
        x = _axis_coordinates(lines, tap, inside, n1, n2, o1, o2, 3 - D + d)
        tl.store(d_frequency + row * D + d, tl.sum(turned * x[:, None], 0), mask=live)
    tl.store(d_phase + row, tl.sum(turned, 0), mask=live)
    if GAMMAS > 0:
        shrunk = dg * e * tl.sin(angle)  # gradient of the exponent
        d_width = tl.zeros((TILE,), tl.float32)
        for d in tl.static_range(D):
            offset = _offset(f, tap, inside, lines, n1, n2, o1, o2, mu, theta, d, D, HIDDEN, TILE, STEERABLE)
            width = _width(f, gamma, d, HIDDEN, TILE, GAMMAS)
            part = -tl.sum(shrunk * width * offset * offset, 0)
            if GAMMAS > 1:
                tl.store(d_gamma + row * GAMMAS + d, part, mask=live)
            else:
                d_width += part
            if not STEERABLE:
                tl.store(d_mu + row * D + d, tl.sum(shrunk * width * width * offset, 0), mask=live)
        if GAMMAS == 1:
            tl.store(d_gamma + row, d_width, mask=live)
        if STEERABLE:
            turn = 6.283185307179586 * tl.load(theta + row, mask=live, other=0.0)
            cos, sin = tl.cos(turn), tl.sin(turn)
            u = _offset(f, tap, inside, lines, n1, n2, o1, o2, mu, theta, 0, D, HIDDEN, TILE, STEERABLE)
            v = _offset(f, tap, inside, lines, n1, n2, o1, o2, mu, theta, 1, D, HIDDEN, TILE, STEERABLE)
            width_u, width_v = _width(f, gamma, 0, HIDDEN, TILE, GAMMAS), _width(f, gamma, 1, HIDDEN, TILE, GAMMAS)
            du, dv = shrunk * width_u * width_u * u, shrunk * width_v * width_v * v  # minus the gradients of u and v
            sum_u, sum_v = tl.sum(du, 0), tl.sum(dv, 0)
            tl.store(d_mu + row * D, cos * sum_u - sin * sum_v, mask=live)
            tl.store(d_mu + row * D + 1, sin * sum_u + cos * sum_v, mask=live)
            tl.store(d_theta + row, 6.283185307179586 * tl.sum(dv * u - du * v, 0), mask=live)


@triton.jit(do_not_specialize=SIZES)
def features_backward(
    lines, frequency, phase, mix_weight, mix_bias, mu, gamma, theta, kept, grad, sums, taps, n1, n2, o1, o2,
    D: tl.constexpr, HIDDEN: tl.constexpr, RANK: tl.constexpr, LAYERS: tl.constexpr, GAMMAS: tl.constexpr,
    STEERABLE: tl.constexpr, NUMBERS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill sums [programs, NUMBERS] with the gradients of all parameters, in the order of the arguments."""
    tap = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = tap < taps
    channel = tl.arange(0, TILE)
    column, row = channel[None, :], channel[:, None]
    stored = inside[:, None] & (column < HIDDEN)
    square = (column < HIDDEN) & (row < HIDDEN)
    filters: tl.constexpr = LAYERS + 1
    d_frequency = sums + tl.program_id(0) * NUMBERS
    d_phase = d_frequency + filters * HIDDEN * D
    d_mix_weight = d_phase + filters * HIDDEN
    d_mix_bias = d_mix_weight + LAYERS * HIDDEN * HIDDEN
    d_mu = d_mix_bias + LAYERS * HIDDEN
    d_gamma = d_mu + filters * HIDDEN * D
    d_theta = d_gamma + filters * HIDDEN * GAMMAS
    dh = tl.load(grad + tap[:, None] * RANK + column, mask=stored, other=0.0)
    for step in range(LAYERS):
        layer = LAYERS - 1 - step
        f = layer + 1
        h = tl.load(kept + layer * taps * HIDDEN + tap[:, None] * HIDDEN + column, mask=stored, other=0.0)
        u = _map_hidden(h, layer, mix_weight, mix_bias, HIDDEN, TILE)
        _filter_gradients(
            f, dh * u, tap, inside, lines, n1, n2, o1, o2, frequency, phase, mu, gamma, theta,
            d_frequency, d_phase, d_mu, d_gamma, d_theta, D, HIDDEN, GAMMAS, STEERABLE, TILE, BLOCK,
        )  # fmt: skip
        angle = _angles(f, tap, inside, lines, n1, n2, o1, o2, frequency, phase, D, HIDDEN, TILE)
        e = _envelope(
            f, tap, inside, lines, n1, n2, o1, o2, mu, gamma, theta, D, HIDDEN, TILE, BLOCK, GAMMAS, STEERABLE
        )
        du = dh * e * tl.sin(angle)
        tl.store(d_mix_bias + layer * HIDDEN + channel, tl.sum(du, 0), mask=channel < HIDDEN)
        d_weight = tl.dot(tl.trans(du), h, input_precision="ieee")
        place = layer * (HIDDEN * HIDDEN) + row * HIDDEN + column
        tl.store(d_mix_weight + place, d_weight, mask=square)
        dh = tl.dot(du, tl.load(mix_weight + place, mask=square, other=0.0), input_precision="ieee")
    _filter_gradients(
        0, dh, tap, inside, lines, n1, n2, o1, o2, frequency, phase, mu, gamma, theta,
        d_frequency, d_phase, d_mu, d_gamma, d_theta, D, HIDDEN, GAMMAS, STEERABLE, TILE, BLOCK,
    )  # fmt: skip


# --- masks ------------------------------------------------------------------------------------------------------------
#
# A mask has three small tensors: "guarded" and "authors" masks the mean, σ and nothing; "scaled" ones the start [2, D],
# shift and growth. `limits` [D, 4] has constants of each axis: the smallest σ; half the smallest width; the largest
# center of that width; and 1 if the axis is causal.


@triton.jit
def _mean_sigma(first, second, third, d, rate, D: tl.constexpr, SCALED: tl.constexpr):
    """Mean and σ along axis d, before clamping."""
    if SCALED:
        start = tl.load(first + D + d)
        mean = tl.load(first + d) + rate * start * tl.load(second + d)
        sigma = start * tl.exp(rate * tl.load(third + d))
    else:
        mean, sigma = tl.load(first + d), tl.load(second + d)
    return mean, sigma


@triton.jit
def _clamped(mean, sigma, floor, AUTHORS: tl.constexpr):
    """Mean and σ as the mask uses them. NaN stays NaN."""
    if not AUTHORS:
        mean = tl.where(mean < -1.0, -1.0, tl.where(mean > 1.0, 1.0, mean))
        sigma = tl.abs(sigma)
        sigma = tl.where(sigma < floor, floor, sigma)
    return mean, sigma


@triton.jit
def _kept_taps(x, mean, width, limits, d, reach, AUTHORS: tl.constexpr, CROPPED: tl.constexpr):
    """Whether taps at x are kept along axis d. `width` is σ along this axis, `reach` where the threshold is, in σ."""
    if CROPPED:
        reached = reach * tl.abs(width)
        if AUTHORS:
            below, above = mean - reached, mean + reached
            causal = tl.load(limits + d * 4 + 3) > 0.0
            farther = tl.where(tl.abs(above) > tl.abs(below), tl.abs(above), tl.abs(below))
            root = tl.where(causal, below, -farther)
            low = tl.where(tl.abs(root) < 1.0, root, -float("inf"))
            high = tl.where(causal, float("inf"), -low)
        else:
            half, inner = tl.load(limits + d * 4 + 1), tl.load(limits + d * 4 + 2)
            center = tl.where(mean < -inner, -inner, tl.where(mean > inner, inner, mean))
            low, high = mean - reached, mean + reached
            low = tl.where(low > center - half, center - half, low)  # NaN stays NaN and keeps everything
            high = tl.where(high < center + half, center + half, high)
        keep = ~((x <= low) | (x >= high))
    else:
        keep = x == x  # everything
    return keep


@triton.jit
def _mask_values(
    tap, inside, lines, n1, n2, o1, o2, first, second, third, angle, limits, reach, rate,
    D: tl.constexpr, SCALED: tl.constexpr, AUTHORS: tl.constexpr, CROPPED: tl.constexpr, ROTATED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The mask at taps [taps]: 0 where it is cropped."""
    if ROTATED:
        mean_x, sigma_x = _mean_sigma(first, second, third, 0, rate, D, SCALED)
        mean_y, sigma_y = _mean_sigma(first, second, third, 1, rate, D, SCALED)
        mean_x, sigma_x = _clamped(mean_x, sigma_x, tl.load(limits), AUTHORS)
        mean_y, sigma_y = _clamped(mean_y, sigma_y, tl.load(limits + 4), AUTHORS)
        phi = tl.load(angle)
        cos, sin = tl.cos(phi), tl.sin(phi)
        x = _axis_coordinates(lines, tap, inside, n1, n2, o1, o2, 1)
        y = _axis_coordinates(lines, tap, inside, n1, n2, o1, o2, 2)
        keep = _kept_taps(x, mean_x, _hypot(cos * sigma_x, sin * sigma_y), limits, 0, reach, AUTHORS, CROPPED)
        keep &= _kept_taps(y, mean_y, _hypot(cos * sigma_y, sin * sigma_x), limits, 1, reach, AUTHORS, CROPPED)
        x, y = x - mean_x, y - mean_y
        u, v = (cos * x + sin * y) / sigma_x, (cos * y - sin * x) / sigma_y
        total = u * u + v * v
    else:
        total = tl.zeros((BLOCK,), tl.float32)
        keep = inside
        for d in tl.static_range(D):
            mean, sigma = _mean_sigma(first, second, third, d, rate, D, SCALED)
            mean, sigma = _clamped(mean, sigma, tl.load(limits + d * 4), AUTHORS)
            x = _axis_coordinates(lines, tap, inside, n1, n2, o1, o2, 3 - D + d)
            keep &= _kept_taps(x, mean, sigma, limits, d, reach, AUTHORS, CROPPED)
            z = (x - mean) / sigma
            total += z * z
    return tl.exp(-0.5 * total) * (keep & inside).to(tl.float32)  # NaN stays NaN, as in the plain version


@triton.jit
def _hypot(a, b):
    a, b = tl.abs(a), tl.abs(b)
    larger, smaller = tl.where(a > b, a, b), tl.where(a > b, b, a)
    ratio = smaller / larger  # the square of a huge σ would overflow
    return larger * tl.sqrt(1.0 + ratio * ratio)


@triton.jit(do_not_specialize=(*SIZES, "rank"))
def mask_forward(
    features, lines, first, second, third, angle, limits, basis, taps, rank, n1, n2, o1, o2, reach, rate,
    D: tl.constexpr, SCALED: tl.constexpr, AUTHORS: tl.constexpr, CROPPED: tl.constexpr, ROTATED: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill basis [taps, rank] with features times the mask."""
    tap = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = tap < taps
    mask = _mask_values(
        tap, inside, lines, n1, n2, o1, o2, first, second, third, angle, limits, reach, rate,
        D, SCALED, AUTHORS, CROPPED, ROTATED, BLOCK,
    )  # fmt: skip
    column = tl.arange(0, TILE)[None, :]
    place = tap[:, None] * rank + column
    stored = inside[:, None] & (column < rank)
    tl.store(basis + place, tl.load(features + place, mask=stored, other=0.0) * mask[:, None], mask=stored)


@triton.jit(do_not_specialize=(*SIZES, "rank"))
def mask_backward(
    grad, features, lines, first, second, third, angle, limits, d_features, sums, out,
    taps, rank, n1, n2, o1, o2, reach, rate, damping,
    D: tl.constexpr, SCALED: tl.constexpr, AUTHORS: tl.constexpr, CROPPED: tl.constexpr, ROTATED: tl.constexpr,
    OF_FEATURES: tl.constexpr, OF_MASK: tl.constexpr, FINISH: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCKS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill d_features [taps, rank] and sums [programs, COLUMNS]. A single program finishes the latter itself."""
    column = tl.arange(0, TILE)[None, :]
    kind = tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((BLOCK, COLUMNS), tl.float32)
    for block in range(BLOCKS):
        tap = (tl.program_id(0) * BLOCKS + block) * BLOCK + tl.arange(0, BLOCK)
        inside = tap < taps
        place = tap[:, None] * rank + column
        stored = inside[:, None] & (column < rank)
        g = tl.load(grad + place, mask=stored, other=0.0)
        mask = _mask_values(
            tap, inside, lines, n1, n2, o1, o2, first, second, third, angle, limits, reach, rate,
            D, SCALED, AUTHORS, CROPPED, ROTATED, BLOCK,
        )  # fmt: skip
        if OF_FEATURES:
            tl.store(d_features + place, g * mask[:, None], mask=stored)
        if OF_MASK:
            exponent = mask * tl.sum(g * tl.load(features + place, mask=stored, other=0.0), 1)  # minus its gradient
            if ROTATED:
                mean_x, sigma_x = _mean_sigma(first, second, third, 0, rate, D, SCALED)
                mean_y, sigma_y = _mean_sigma(first, second, third, 1, rate, D, SCALED)
                mean_x, sigma_x = _clamped(mean_x, sigma_x, tl.load(limits), AUTHORS)
                mean_y, sigma_y = _clamped(mean_y, sigma_y, tl.load(limits + 4), AUTHORS)
                phi = tl.load(angle)
                cos, sin = tl.cos(phi), tl.sin(phi)
                x = _axis_coordinates(lines, tap, inside, n1, n2, o1, o2, 1) - mean_x
                y = _axis_coordinates(lines, tap, inside, n1, n2, o1, o2, 2) - mean_y
                u, v = (cos * x + sin * y) / sigma_x, (cos * y - sin * x) / sigma_y
                total += tl.where(kind == 0, (exponent * (u * cos / sigma_x - v * sin / sigma_y))[:, None], 0.0)
                total += tl.where(kind == 1, (exponent * (u * sin / sigma_x + v * cos / sigma_y))[:, None], 0.0)
                total += tl.where(kind == 3, (exponent * u * u / sigma_x)[:, None], 0.0)
                total += tl.where(kind == 4, (exponent * v * v / sigma_y)[:, None], 0.0)
                turned = exponent * u * v * (sigma_x / sigma_y - sigma_y / sigma_x)
                total += tl.where(kind == 6, turned[:, None], 0.0)
            else:
                for d in tl.static_range(D):
                    mean, sigma = _mean_sigma(first, second, third, d, rate, D, SCALED)
                    mean, sigma = _clamped(mean, sigma, tl.load(limits + d * 4), AUTHORS)
                    x = _axis_coordinates(lines, tap, inside, n1, n2, o1, o2, 3 - D + d)
                    z = (x - mean) / sigma
                    total += tl.where(kind == d, (exponent * z / sigma)[:, None], 0.0)
                    total += tl.where(kind == 3 + d, (exponent * z * z / sigma)[:, None], 0.0)
    if OF_MASK:
        if FINISH:
            _finish(tl.sum(total, 0), first, second, third, limits, out, rate, damping, D, SCALED, AUTHORS, COLUMNS)
        else:
            tl.store(sums + tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.sum(total, 0))


@triton.jit(do_not_specialize=("programs",))
def mask_finish(
    sums, first, second, third, limits, out, programs, rate, damping,
    D: tl.constexpr, SCALED: tl.constexpr, AUTHORS: tl.constexpr, COLUMNS: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Add the sums of all programs and finish them. PROGRAMS is at least their number."""
    program, kind = tl.arange(0, PROGRAMS)[:, None], tl.arange(0, COLUMNS)[None, :]
    total = tl.sum(tl.load(sums + program * COLUMNS + kind, mask=program < programs, other=0.0), 0)
    _finish(total, first, second, third, limits, out, rate, damping, D, SCALED, AUTHORS, COLUMNS)


@triton.jit
def _finish(
    total, first, second, third, limits, out, rate, damping,
    D: tl.constexpr, SCALED: tl.constexpr, AUTHORS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradients of the parameters from those of the clamped mean and σ → out: 3 numbers, 3 numbers, the angle.

    Beyond the limits only gradients that lead back are kept, as in `nn._guard`.
    """
    kind = tl.arange(0, COLUMNS)
    of_sigma = (kind >= 3) & (kind < 6)
    d = tl.where(of_sigma, kind - 3, kind)
    live = d < D
    d = tl.where(live, d, 0)
    mean, sigma = _mean_sigma(first, second, third, d, rate, D, SCALED)
    if not AUTHORS:
        floor = tl.load(limits + d * 4)
        sign = tl.where(sigma < 0.0, -1.0, 1.0)
        inner_mean, inner_sigma = _clamped(mean, sigma, floor, AUTHORS)
        beyond = tl.where(of_sigma, sign * sigma - inner_sigma, mean - inner_mean)
        outward = live & (((beyond > 0.0) & (total < 0.0)) | ((beyond < 0.0) & (total > 0.0)))
        total = tl.where(outward, 0.0, total)
        total = tl.where(of_sigma, sign * total, total)
    if SCALED:
        start = tl.load(first + D + d)
        total *= tl.where(live, damping * rate * tl.where(of_sigma, sigma, start), 1.0)
    tl.store(out + kind, total)
